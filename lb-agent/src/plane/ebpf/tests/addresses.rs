//! Addresses and networks: what they cost, and what clients meet meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use lb_common::{
    Address,
    address::{CLUSTER_IP, EXTERNAL, FOREIGN},
    prefix::{INSIDE, OUTSIDE},
};

use super::{CLUSTER, REMOTE, assert_all_well, change, maps::Maps, service, state};
use crate::desired::{Change, ServedBy, State};

const IP: &str = "10.96.0.10";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// One service with its ClusterIP.
fn with_cluster_ip() -> State {
    let web = service(&[("10.96.0.10:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
    State {
        cluster_ips: BTreeMap::from([(ip(IP), ServedBy::Us)]),
        ..state(&[("web", &web)])
    }
}

#[test]
fn a_cluster_ip_never_refuses_the_port_of_its_service() {
    let maps = Maps::roomy();
    let watched = maps.clone();
    let mut agent = maps.start(Arc::new(move || {
        let value = watched
            .addresses
            .with(|memory| memory.rows.get(&Address::from(ip(IP))).copied());
        let refuses = value.is_some_and(|value| value.flags & CLUSTER_IP != 0);
        assert!(
            !refuses || watched.row("10.96.0.10:80").is_some(),
            "a client would be refused"
        );
    }));
    let with = with_cluster_ip();
    agent.replace(&with);
    maps.assert_hold(&with);
    let mut going = change(&[("web", None)]);
    going.cluster_ips.insert(ip(IP), None);
    assert_all_well(&agent.apply(&going));
    maps.assert_hold(&state(&[]));
    let coming = Change {
        services: with
            .services
            .iter()
            .map(|(name, s)| (name.clone(), Some(s.clone())))
            .collect(),
        cluster_ips: BTreeMap::from([(ip(IP), Some(ServedBy::Us))]),
        ..Change::default()
    };
    assert_all_well(&agent.apply(&coming));
    maps.assert_hold(&with);
}

#[test]
fn the_address_of_a_load_balancer_is_known_as_long_as_a_service_port_has_it() {
    let maps = Maps::roomy();
    let mut agent = maps.agent();
    let http = service(&[("203.0.113.7:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
    let dns = service(&[("203.0.113.7:53", CLUSTER)], &[("10.0.0.1:53", REMOTE)]);
    let moved = service(&[("203.0.113.8:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
    let flags = |of: &str| {
        let address = Address::from(ip(of));
        maps.addresses
            .with(|memory| memory.rows.get(&address).map(|value| value.flags))
    };
    agent.replace(&state(&[("http", &http), ("dns", &dns)]));
    assert_eq!(flags("203.0.113.7"), Some(EXTERNAL));
    assert_all_well(&agent.apply(&change(&[("http", Some(&moved))])));
    assert_eq!(
        (flags("203.0.113.7"), flags("203.0.113.8")),
        (Some(EXTERNAL), Some(EXTERNAL))
    );
    assert_all_well(&agent.apply(&change(&[("dns", None)])));
    assert_eq!((flags("203.0.113.7"), flags("203.0.113.8")), (None, Some(EXTERNAL)));
    maps.assert_hold(&state(&[("http", &moved)]));
}

#[test]
fn an_address_that_passes_to_another_proxy_and_back_never_refuses_meanwhile() {
    let maps = Maps::roomy();
    let watched = maps.clone();
    let mut agent = maps.start(Arc::new(move || {
        let value = watched
            .addresses
            .with(|memory| memory.rows.get(&Address::from(ip(IP))).copied());
        let refuses = value.is_some_and(|value| value.flags & CLUSTER_IP != 0);
        let is_left_alone = value.is_some_and(|value| value.flags == FOREIGN);
        let is_served = watched.row("10.96.0.10:80").is_some();
        assert!(
            if refuses { is_served } else { is_left_alone },
            "{value:?}, served: {is_served}"
        );
    }));
    let foreign = State {
        cluster_ips: BTreeMap::from([(ip(IP), ServedBy::AnotherProxy)]),
        ..State::default()
    };
    // Alone in the map, so that it is there from the first write on.
    let ours = State {
        node_port_addresses: BTreeSet::new(),
        ..with_cluster_ip()
    };
    agent.replace(&foreign);
    maps.assert_hold(&foreign);
    let mut to_us = Change {
        services: ours
            .services
            .iter()
            .map(|(name, service)| (name.clone(), Some(service.clone())))
            .collect(),
        ..Change::default()
    };
    to_us.cluster_ips.insert(ip(IP), Some(ServedBy::Us));
    let mut to_them = change(&[("web", None)]);
    to_them.cluster_ips.insert(ip(IP), Some(ServedBy::AnotherProxy));
    for _ in 0..2 {
        assert_all_well(&agent.apply(&to_us));
        maps.assert_hold(&ours);
        assert_all_well(&agent.apply(&to_them));
        maps.assert_hold(&foreign);
    }
}

#[test]
fn an_address_of_another_proxy_is_known_before_any_other_write() {
    let maps = Maps::roomy();
    let watched = maps.clone();
    let mut agent = maps.start(Arc::new(move || {
        let is_known = watched
            .addresses
            .with(|memory| memory.rows.contains_key(&Address::from(ip("10.96.0.77"))));
        let others = watched.backends.with(|memory| memory.rows.len()) + watched.cidrs.with(|memory| memory.rows.len());
        assert!(is_known || others == 0, "its clients would be told nothing");
    }));
    let mut state = with_cluster_ip();
    state.cluster_ips.insert(ip("10.96.0.77"), ServedBy::AnotherProxy);
    state.service_cidrs = BTreeSet::from(["10.96.0.0/16".parse().unwrap()]);
    agent.replace(&state);
    maps.assert_hold(&state);
}

#[test]
fn one_cluster_ip_more_costs_one_write() {
    let maps = Maps::roomy();
    let mut before = with_cluster_ip();
    let many = (1..50).map(|i| (IpAddr::from([10, 96, 1, i]), ServedBy::Us));
    before.cluster_ips.extend(many);
    let mut agent = maps.agent();
    agent.replace(&before);
    let more = Change {
        cluster_ips: BTreeMap::from([(ip("10.96.2.1"), Some(ServedBy::Us))]),
        ..Change::default()
    };
    let outcome = agent.apply(&more);
    assert_all_well(&outcome);
    assert_eq!(outcome.writes, 1);
}

#[test]
fn an_address_may_be_of_the_node_and_of_a_service() {
    let maps = Maps::roomy();
    let mut both = with_cluster_ip();
    both.node_port_addresses.insert(ip(IP));
    let mut agent = maps.agent();
    agent.replace(&both);
    maps.assert_hold(&both);
    let less = Change {
        node_port_addresses: Some(BTreeSet::from([ip("127.0.0.1")])),
        ..Change::default()
    };
    assert_all_well(&agent.apply(&less));
    both.node_port_addresses = BTreeSet::from([ip("127.0.0.1")]);
    maps.assert_hold(&both);
}

#[test]
fn what_could_not_be_written_is_written_with_the_next_change_whatever_that_is() {
    let maps = Maps::roomy();
    let mut wanted = with_cluster_ip();
    let mut agent = maps.agent();
    agent.replace(&wanted);
    wanted.cluster_ips = BTreeMap::from([(ip("10.96.0.11"), ServedBy::Us)]);
    wanted.pod_cidrs = BTreeSet::from(["10.0.0.0/16".parse().unwrap()]);
    let change = Change {
        cluster_ips: BTreeMap::from([(ip(IP), None), (ip("10.96.0.11"), Some(ServedBy::Us))]),
        pod_cidrs: Some(wanted.pod_cidrs.clone()),
        ..Change::default()
    };
    maps.addresses.with(|memory| memory.fails_at.set(Some(1)));
    maps.cidrs.with(|memory| memory.fails_at.set(Some(1)));
    let outcome = agent.apply(&change);
    assert!(outcome.addresses.is_some());
    let outcome = agent.apply(&Change::default());
    assert_all_well(&outcome);
    maps.assert_hold(&wanted);
    assert_eq!(agent.apply(&Change::default()).writes, 0);
}

#[test]
fn a_pod_is_never_taken_for_a_client_outside() {
    let maps = Maps::roomy();
    let watched = maps.clone();
    let mut agent = maps.start(Arc::new(move || {
        let values: Vec<u32> = watched.cidrs.with(|memory| memory.rows.values().copied().collect());
        assert!(!values.contains(&OUTSIDE) || values.contains(&INSIDE), "{values:?}");
    }));
    let mut wanted = State::default();
    agent.replace(&wanted);
    for pods in [
        &["10.0.0.0/16"][..],
        &["10.1.0.0/16", "fd00:10::/64"],
        &["0.0.0.0/0"],
        &[],
    ] {
        wanted.pod_cidrs = pods.iter().map(|network| network.parse().unwrap()).collect();
        let change = Change {
            pod_cidrs: Some(wanted.pod_cidrs.clone()),
            ..Change::default()
        };
        assert_all_well(&agent.apply(&change));
        maps.assert_hold(&wanted);
    }
}
