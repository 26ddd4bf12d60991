//! The text of the table and of its changes.

use std::{net::SocketAddr, sync::Arc};

use super::{chains::Settings, elements::Elements, *};
use crate::desired::{AllowedSources, Masquerade, Protocol, ServedBy};

const BIT: u32 = 0x4000;

fn key(protocol: Protocol, address: &str) -> Key {
    let address: SocketAddr = address.parse().unwrap();
    Key { protocol, address }
}

fn row(near: Verdict, far: Verdict) -> Row {
    Row {
        near,
        far,
        masquerade: Masquerade::WhereNeeded,
        allowed: None,
    }
}

fn allowed(ranges: &[&str], node: bool) -> Option<Arc<AllowedSources>> {
    let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
    Some(Arc::new(AllowedSources { ranges, node }))
}

/// The commands that make `new` out of `old`.
fn commands(old: &Table, new: &Table) -> Vec<String> {
    let (before, after) = Elements::of_change(old, &old.change_to(new));
    after.commands_from(&before).lines().map(str::to_owned).collect()
}

/// A table with these frontends.
fn table(frontends: impl IntoIterator<Item = (Key, Row)>) -> Table {
    Table {
        frontends: frontends.into_iter().collect(),
        ..Table::default()
    }
}

#[test]
fn a_frontend_that_is_served_differently_is_replaced_where_it_differs() {
    let web = key(Protocol::Tcp, "10.96.0.1:80");
    let dns = key(Protocol::Udp, "[fd00:96::a]:53");
    let served = (dns, row(Verdict::Serve, Verdict::Serve));
    let old = table([(web, row(Verdict::Serve, Verdict::Drop)), served.clone()]);
    let new = table([(web, row(Verdict::Reject, Verdict::Reject)), served]);
    assert_eq!(
        commands(&old, &new),
        [
            "delete element inet lb-agent-ipvs frontends_v4 { 10.96.0.1 . tcp . 80 }",
            "delete element inet lb-agent-ipvs far_frontends_v4 { 10.96.0.1 . tcp . 80 }",
            "add element inet lb-agent-ipvs frontends_v4 { 10.96.0.1 . tcp . 80 : goto refuse }",
        ]
    );
}

#[test]
fn what_is_for_a_service_of_somebody_else_goes_on() {
    let web = key(Protocol::Tcp, "10.96.0.1:80");
    let old = table([(web, row(Verdict::Serve, Verdict::Drop))]);
    assert_eq!(
        commands(&old, &table([(web, Row::LEFT)])),
        [
            "delete element inet lb-agent-ipvs frontends_v4 { 10.96.0.1 . tcp . 80 }",
            "delete element inet lb-agent-ipvs far_frontends_v4 { 10.96.0.1 . tcp . 80 }",
            "add element inet lb-agent-ipvs frontends_v4 { 10.96.0.1 . tcp . 80 : accept }",
        ]
    );
}

#[test]
fn ranges_that_overlap_are_one_and_those_of_the_other_family_none() {
    let at = key(Protocol::Sctp, "[2001:db8::1]:80");
    let restricted = Row {
        allowed: allowed(&["2001:db8:1::/48", "2001:db8:1:2::/64", "192.0.2.0/24"], false),
        ..row(Verdict::Serve, Verdict::Serve)
    };
    assert_eq!(
        commands(&Table::default(), &table([(at, restricted)])),
        [
            "add element inet lb-agent-ipvs frontends_v6 { 2001:db8::1 . sctp . 80 : goto serve_v6 }",
            "add element inet lb-agent-ipvs restricted_v6 { 2001:db8::1 . sctp . 80 }",
            "add element inet lb-agent-ipvs allowed_sctp_sources_v6 { 2001:db8::1 . 80 . 2001:db8:1::/48 }",
            "add element inet lb-agent-ipvs node_refused_v6 { 2001:db8::1 . sctp . 80 }",
        ]
    );
}

#[test]
fn marks_are_of_who_asks() {
    let (near, far) = (Mark::new(1).unwrap(), Mark::new(Mark::LAST).unwrap());
    let at = key(Protocol::Tcp, "192.0.2.1:80");
    let row = row(Verdict::Select(near), Verdict::Select(far));
    let always = Row {
        masquerade: Masquerade::Always,
        ..row.clone()
    };
    let old = table([(at, row)]);
    assert_eq!(
        commands(&Table::default(), &old),
        [
            "add element inet lb-agent-ipvs frontends_v4 { 192.0.2.1 . tcp . 80 : goto select_near_v4 }",
            "add element inet lb-agent-ipvs far_frontends_v4 { 192.0.2.1 . tcp . 80 : goto select_far_v4 }",
            "add element inet lb-agent-ipvs near_marks_v4 { 192.0.2.1 . tcp . 80 : 0x6c620002 }",
            "add element inet lb-agent-ipvs far_marks_v4 { 192.0.2.1 . tcp . 80 : 0x6c627fff }",
        ]
    );
    assert_eq!(
        commands(&old, &table([(at, always)])),
        [
            "delete element inet lb-agent-ipvs near_marks_v4 { 192.0.2.1 . tcp . 80 }",
            "delete element inet lb-agent-ipvs far_marks_v4 { 192.0.2.1 . tcp . 80 }",
            "add element inet lb-agent-ipvs near_marks_v4 { 192.0.2.1 . tcp . 80 : 0x6c628003 }",
            "add element inet lb-agent-ipvs far_marks_v4 { 192.0.2.1 . tcp . 80 : 0x6c62ffff }",
        ]
    );
}

#[test]
fn a_mark_is_known_by_each_of_its_values() {
    for number in [1, 2, 0x1fff, Mark::LAST] {
        let mark = Mark::new(number).unwrap();
        let values = [mark.plain(), mark.masquerade(), mark.masquerade_always()];
        assert_eq!(values.map(Mark::of), [Some(mark); 3]);
        assert!(values.iter().all(|value| value & Mark::OURS_MASK == Mark::OURS));
    }
    assert_eq!(Mark::new(0), None);
    assert_eq!(Mark::new(Mark::LAST + 1), None);
    // Of no service, of a packet that is masqueraded wherever it goes, and of somebody else.
    assert_eq!([0x6c62_0000, 0x6c62_8001, 0x6c61_0002].map(Mark::of), [None; 3]);
}

#[test]
fn a_change_touches_what_it_names_only() {
    let served = || row(Verdict::Serve, Verdict::Serve);
    let many = (1..=200).map(|port| (key(Protocol::Tcp, &format!("10.96.0.1:{port}")), served()));
    let mut old = table(many);
    old.pod_cidrs = ["10.0.0.0/8".parse().unwrap()].into();
    let mut new = old.clone();
    new.frontends.insert(key(Protocol::Tcp, "10.96.0.2:80"), served());
    new.local_endpoints.insert("10.0.1.2".parse().unwrap());
    new.cluster_ips.insert("10.96.0.2".parse().unwrap(), ServedBy::Us);
    assert_eq!(
        commands(&old, &new),
        [
            "add element inet lb-agent-ipvs frontends_v4 { 10.96.0.2 . tcp . 80 : goto serve_v4 }",
            "add element inet lb-agent-ipvs cluster_ips_v4 { 10.96.0.2 }",
            "add element inet lb-agent-ipvs local_endpoints_v4 { 10.0.1.2 }",
            "add element inet lb-agent-ipvs hairpins_v4 { 10.0.1.2 . 10.0.1.2 }",
        ]
    );
}

#[test]
fn chains_change_where_a_family_gets_its_first_network_of_pods_or_loses_its_last() {
    let settings = |networks: &[&str]| {
        let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
        Settings::new(BIT, &networks)
    };
    let (none, one, two) = (
        settings(&[]),
        settings(&["10.0.0.0/8"]),
        settings(&["10.0.0.0/8", "10.1.0.0/16"]),
    );
    assert_eq!(chains::commands_from(one, two), "");
    let commands = chains::commands_from(none, one);
    let flushed = commands.lines().filter(|line| line.starts_with("flush"));
    assert_eq!(
        flushed.collect::<Vec<_>>(),
        [
            "flush chain inet lb-agent-ipvs input_v4",
            "flush chain inet lb-agent-ipvs serve_v4",
            "flush chain inet lb-agent-ipvs select_near_v4",
        ]
    );
}
