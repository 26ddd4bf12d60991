//! The table as it is written, changed, restored and read back.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use lb_agent::desired::{self, AllowedSources, Masquerade, ServedBy};
use lb_agent::plane::ipvs::rules::{Change, Key, Mark, Members, Row, Rules, TABLE, Table, Verdict};
use lb_tests::netns::Netns;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use super::{BIT, at, inside, key, nft, row, table};
use crate::fixture::BOTH;

fn rules(netns: &Netns) -> Rules {
    inside(netns, || Rules::adopt(BIT)).unwrap()
}

fn listed(netns: &Netns) -> String {
    nft(netns, &format!("list table {TABLE}"))
}

/// Tables that have much in common.
struct Any(Xoshiro256PlusPlus);

impl Any {
    fn one_in(&mut self, n: u32) -> bool {
        self.0.random_range(0..n) == 0
    }

    fn ip(&mut self) -> IpAddr {
        let last = self.0.random_range(1..6_u16);
        match self.one_in(2) {
            true => Ipv4Addr::new(10, 96, 0, last as u8).into(),
            false => Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, last).into(),
        }
    }

    /// Networks, some in others and some beside each other.
    fn networks(&mut self, v4: Option<bool>) -> BTreeSet<IpNet> {
        let some = self.0.random_range(0..4);
        let network = |_| {
            let third = self.0.random_range(0..4_u16);
            let v4 = v4.unwrap_or_else(|| self.0.random_range(0..2) == 0);
            let network = match v4 {
                true => IpNet::new(
                    Ipv4Addr::new(10, 0, third as u8, 0).into(),
                    self.0.random_range(20..=32),
                ),
                false => {
                    let ip = Ipv6Addr::new(0xfd00, 0, 0, third, 0, 0, 0, 0);
                    IpNet::new(ip.into(), self.0.random_range(60..=128))
                }
            };
            network.unwrap().trunc()
        };
        (0..some).map(network).collect()
    }

    fn verdict(&mut self) -> Verdict {
        match self.0.random_range(0..6) {
            0 | 1 => Verdict::Serve,
            2 => Verdict::Select(Mark::new(self.0.random_range(1..4)).unwrap()),
            3 => Verdict::Reject,
            4 => Verdict::Leave,
            _ => Verdict::Drop,
        }
    }

    fn row(&mut self, v4: bool) -> Row {
        Row {
            near: self.verdict(),
            far: self.verdict(),
            masquerade: match self.one_in(3) {
                true => Masquerade::Always,
                false => Masquerade::WhereNeeded,
            },
            allowed: self.one_in(2).then(|| {
                Arc::new(AllowedSources {
                    ranges: self.networks(Some(v4)),
                    node: self.one_in(2),
                })
            }),
        }
    }

    fn table(&mut self) -> Table {
        let mut table = Table {
            service_cidrs: self.networks(None),
            pod_cidrs: self.networks(None),
            ..Table::default()
        };
        for _ in 0..self.0.random_range(0..8) {
            let ip = self.ip();
            let protocols = [desired::Protocol::Tcp, desired::Protocol::Udp, desired::Protocol::Sctp];
            let key = Key {
                protocol: protocols[self.0.random_range(0..3)],
                address: SocketAddr::new(ip, self.0.random_range(1..3)),
            };
            table.frontends.insert(key, self.row(ip.is_ipv4()));
        }
        for _ in 0..self.0.random_range(0..4) {
            let served_by = if self.one_in(2) {
                ServedBy::Us
            } else {
                ServedBy::AnotherProxy
            };
            table.cluster_ips.insert(self.ip(), served_by);
            table.own_addresses.insert(self.ip());
            table.local_endpoints.insert(self.ip());
        }
        table
    }
}

/// The table as it is read back: networks in the fewest pieces, and of a frontend that serves nobody not whether it
/// would be masqueraded.
fn as_read(mut table: Table) -> Table {
    let aggregate = |networks: &BTreeSet<IpNet>| -> BTreeSet<IpNet> {
        let networks: Vec<IpNet> = networks.iter().copied().collect();
        IpNet::aggregate(&networks).into_iter().collect()
    };
    table.service_cidrs = aggregate(&table.service_cidrs);
    table.pod_cidrs = aggregate(&table.pod_cidrs);
    for row in table.frontends.values_mut() {
        let serves = |verdict| matches!(verdict, Verdict::Serve | Verdict::Select(_));
        if !serves(row.near) && !serves(row.far) {
            row.masquerade = Masquerade::WhereNeeded;
        }
        if let Some(allowed) = &mut row.allowed {
            let allowed = Arc::make_mut(allowed);
            allowed.ranges = aggregate(&allowed.ranges);
        }
    }
    table
}

#[test]
fn a_table_that_was_changed_is_the_one_that_is_written_at_once() {
    let (changed, written) = (Netns::new("changed").unwrap(), Netns::new("written").unwrap());
    let (rules_changed, rules_written) = (rules(&changed), rules(&written));
    let mut any = Any(Xoshiro256PlusPlus::seed_from_u64(5));
    let mut now = any.table();
    inside(&changed, || rules_changed.replace(now.clone())).unwrap();
    for step in 0..25 {
        let next = any.table();
        let links: BTreeSet<u32> = (0..any.0.random_range(0..4)).map(|n| 100 + n).collect();
        let change = now.change_to(&next);
        // Nobody has to write it anew for want of an element: it says so where it does.
        inside(&changed, || rules_changed.apply(change)).unwrap();
        inside(&changed, || rules_changed.replace_pod_links(&links)).unwrap();
        inside(&written, || rules_written.replace_pod_links(&links)).unwrap();
        inside(&written, || rules_written.replace(next.clone())).unwrap();
        assert_eq!(listed(&changed), listed(&written), "step {step}: {now:#?} to {next:#?}");
        let read = inside(&changed, Rules::read).unwrap().unwrap();
        assert_eq!(read, (as_read(next.clone()), links), "step {step}");
        assert_eq!(
            inside(&changed, || rules_changed.restore()).unwrap(),
            None,
            "step {step}"
        );
        now = next;
    }
    let adopted = rules(&changed);
    assert_eq!(adopted.keys(), now.frontends.into_keys().collect());
}

#[test]
fn a_change_is_applied_wholly_or_the_table_is_written_anew() {
    let netns = Netns::new("node").unwrap();
    let rules = rules(&netns);
    let served = |port| table(&[(port, row(Verdict::Serve, Verdict::Serve))]);
    inside(&netns, || rules.replace(served(81))).unwrap();
    let before = listed(&netns);
    // Somebody takes an element away that the change is to remove.
    nft(
        &netns,
        &format!("delete element {TABLE} cluster_ips_v4 {{ {} }}", at(81)[0].ip()),
    );
    assert_ne!(listed(&netns), before);
    let gone = Change {
        cluster_ips: at(81).map(|address| (address.ip(), None)).into(),
        ..Change::default()
    };
    inside(&netns, || rules.apply(gone)).unwrap();
    let expected = Table {
        cluster_ips: [].into(),
        ..served(81)
    };
    assert_eq!(inside(&netns, Rules::read).unwrap().unwrap().0, expected);
}

#[test]
fn what_somebody_does_to_the_table_is_undone() {
    let netns = Netns::new("node").unwrap();
    let rules = rules(&netns);
    // Before there is a table, none is missed.
    assert_eq!(inside(&netns, || rules.restore()).unwrap(), None);
    inside(&netns, || {
        rules.replace(table(&[(81, row(Verdict::Serve, Verdict::Drop))]))
    })
    .unwrap();
    let before = listed(&netns);
    for (deed, damage) in [
        ("flush ruleset".to_owned(), "removed"),
        (format!("delete table {TABLE}"), "removed"),
        (format!("flush table {TABLE}"), "changed"),
        (format!("flush chain {TABLE} input"), "changed"),
        (format!("add rule {TABLE} input drop"), "changed"),
        (format!("flush set {TABLE} cluster_ips_v6"), "changed"),
        (format!("flush map {TABLE} far_frontends_v4"), "changed"),
    ] {
        nft(&netns, &deed);
        assert_ne!(nft(&netns, "list ruleset"), before, "{deed}");
        assert_eq!(inside(&netns, || rules.restore()).unwrap(), Some(damage), "{deed}");
        assert_eq!(listed(&netns), before, "{deed}");
    }
    assert_eq!(inside(&netns, || rules.restore()).unwrap(), None);
}

#[test]
fn links_that_were_known_to_the_agent_before_stay_near_until_all_are_told() {
    let netns = Netns::new("node").unwrap();
    let first = rules(&netns);
    let links = |links: &[u32]| links.iter().copied().collect::<BTreeSet<u32>>();
    // No link is there before the table, and the loopback link is listed by its name.
    inside(&netns, || first.replace_pod_links(&links(&[1, 7, 8]))).unwrap();
    assert_eq!(inside(&netns, Rules::read).unwrap(), None);
    let served = table(&[(81, row(Verdict::Serve, Verdict::Serve))]);
    inside(&netns, || first.replace(served.clone())).unwrap();
    let read = || inside(&netns, Rules::read).unwrap().unwrap();
    assert_eq!(read(), (served.clone(), links(&[1, 7, 8])));

    let second = rules(&netns);
    let frontends: BTreeSet<Key> = at(81)
        .into_iter()
        .flat_map(|address| BOTH.map(|protocol| key(protocol, address)))
        .collect();
    assert_eq!(second.keys(), frontends);
    let one_more = Members {
        added: links(&[9]),
        removed: links(&[8]),
    };
    inside(&netns, || second.change_pod_links(&one_more)).unwrap();
    inside(&netns, || second.replace(served.clone())).unwrap();
    assert_eq!(read().1, links(&[1, 7, 9]));
    inside(&netns, || second.replace_pod_links(&links(&[9, 10]))).unwrap();
    assert_eq!(read().1, links(&[9, 10]));
}

#[test]
fn the_table_is_removed_once() {
    let netns = Netns::new("node").unwrap();
    inside(&netns, || rules(&netns).replace(Table::default())).unwrap();
    assert!(inside(&netns, Rules::remove).unwrap());
    assert_eq!(nft(&netns, "list ruleset"), "");
    assert!(!inside(&netns, Rules::remove).unwrap());
}

#[test]
fn a_table_of_another_version_is_not_read_and_is_replaced() {
    let netns = Netns::new("node").unwrap();
    nft(
        &netns,
        &format!("table {TABLE} {{ set of_tomorrow {{ type mark; }}; }}"),
    );
    let error = inside(&netns, Rules::read).unwrap_err().to_string();
    assert!(error.contains("of_tomorrow"), "{error}");
    let rules = rules(&netns);
    assert_eq!(rules.keys(), BTreeSet::new());
    inside(&netns, || rules.replace(Table::default())).unwrap();
    assert!(!listed(&netns).contains("of_tomorrow"));
}
