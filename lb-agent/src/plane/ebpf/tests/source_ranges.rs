//! Clients of restricted frontends: at no moment may one dial that may not, or may one not that may.

use std::sync::Arc;

use lb_common::service::RESTRICTED;

use super::{CLUSTER, REMOTE, assert_all_well, change, maps::Maps, name, service, state};
use crate::{
    desired::{AllowedSources, Route, ServicePort},
    plane::{PlaneError, ebpf::prefix},
};

const RESTRICTED_ROUTE: Route = Route {
    restricted: true,
    ..CLUSTER
};

fn open() -> ServicePort {
    service(&[("192.0.2.1:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)])
}

/// The same, for those in these networks.
fn restricted(ranges: &[&str]) -> ServicePort {
    ServicePort {
        allowed_sources: AllowedSources {
            ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            node: false,
        },
        ..service(&[("192.0.2.1:80", RESTRICTED_ROUTE)], &[("10.0.0.1:80", REMOTE)])
    }
}

/// Fails at any moment at which the frontend is restricted and does not let in one of these networks.
fn lets_in(maps: &Maps, networks: &[&str]) -> Arc<dyn Fn() + Send + Sync> {
    let maps = maps.clone();
    let networks: Vec<_> = networks.iter().map(|network| network.parse().unwrap()).collect();
    Arc::new(move || {
        let Some(row) = maps.row("192.0.2.1:80").filter(|row| row.flags & RESTRICTED != 0) else {
            return;
        };
        for network in &networks {
            let key = prefix::key(row.service, network);
            assert!(
                maps.source_ranges.with(|memory| memory.rows.contains_key(&key)),
                "{network}"
            );
        }
    })
}

#[test]
fn the_ranges_are_there_while_the_frontend_is_restricted() {
    let maps = Maps::roomy();
    let mut agent = maps.start(lets_in(&maps, &["198.51.100.0/24", "203.0.113.0/24"]));
    let closed = restricted(&["198.51.100.0/24", "203.0.113.0/24"]);
    assert_all_well(&agent.replace(&state(&[("web", &closed)])));
    maps.assert_hold(&state(&[("web", &closed)]));
    for service in [&open(), &closed] {
        assert_all_well(&agent.apply(&change(&[("web", Some(service))])));
        maps.assert_hold(&state(&[("web", service)]));
    }
    assert_all_well(&agent.apply(&change(&[("web", None)])));
    maps.assert_hold(&state(&[]));
}

#[test]
fn a_range_that_stays_is_never_away_and_only_differences_are_written() {
    let maps = Maps::roomy();
    let mut agent = maps.start(lets_in(&maps, &["198.51.100.0/24"]));
    agent.replace(&state(&[("web", &restricted(&["198.51.100.0/24", "203.0.113.0/24"]))]));
    let next = restricted(&["198.51.100.0/24", "192.0.2.0/24"]);
    let outcome = agent.apply(&change(&[("web", Some(&next))]));
    assert_all_well(&outcome);
    // One that comes and one that goes.
    assert_eq!(outcome.writes, 2);
    maps.assert_hold(&state(&[("web", &next)]));
}

#[test]
fn where_there_is_no_room_a_service_port_keeps_its_ranges_and_the_others_go_on() {
    let maps = Maps::roomy().with_source_ranges(2);
    let mut agent = maps.start(lets_in(&maps, &["198.51.100.0/24"]));
    let before = restricted(&["198.51.100.0/24"]);
    agent.replace(&state(&[("web", &before)]));
    let too_many = restricted(&["198.51.100.0/24", "203.0.113.0/24", "192.0.2.0/24"]);
    let other = service(&[("192.0.2.2:80", CLUSTER)], &[("10.0.0.2:80", REMOTE)]);
    let outcome = agent.apply(&change(&[("web", Some(&too_many)), ("x-other", Some(&other))]));
    assert!(
        matches!(
            outcome.failed.as_slice(),
            [(failed, PlaneError::MapFull { flag: "--max-source-ranges", .. })] if *failed == name("web")
        ),
        "{:?}",
        outcome.failed
    );
    maps.assert_hold(&state(&[("web", &before), ("x-other", &other)]));
}

#[test]
fn ranges_that_go_make_room_for_those_that_come_in_one_change() {
    let maps = Maps::roomy().with_source_ranges(1);
    let mut agent = maps.agent();
    let web = restricted(&["198.51.100.0/24"]);
    agent.replace(&state(&[("web", &web)]));
    let mut moved = restricted(&["203.0.113.0/24"]);
    moved.frontends = service(&[("192.0.2.2:80", RESTRICTED_ROUTE)], &[]).frontends;
    let outcome = agent.apply(&change(&[("a", Some(&moved)), ("web", Some(&open()))]));
    assert_all_well(&outcome);
    maps.assert_hold(&state(&[("a", &moved), ("web", &open())]));
}

#[test]
fn a_number_is_given_again_only_when_its_ranges_are_gone() {
    let maps = Maps::roomy();
    let mut agent = maps.agent();
    agent.replace(&state(&[("web", &restricted(&["0.0.0.0/0"]))]));
    let number = maps.row("192.0.2.1:80").unwrap().service;
    // The range cannot be deleted, neither now nor at the ticks to come.
    let fail = || maps.source_ranges.with(|memory| memory.fails_at.set(Some(0)));
    fail();
    agent.apply(&change(&[("web", None)]));
    for _ in 0..4 {
        fail();
        agent.tick();
    }
    let next = restricted(&["203.0.113.7/32"]);
    assert_all_well(&agent.apply(&change(&[("next", Some(&next))])));
    assert_ne!(maps.row("192.0.2.1:80").unwrap().service, number);
    maps.assert_hold(&state(&[("next", &next)]));
}

#[test]
fn ranges_of_numbers_that_nobody_has_go_at_a_restart() {
    let maps = Maps::roomy();
    let web = restricted(&["198.51.100.0/24"]);
    maps.agent().replace(&state(&[("web", &web)]));
    let nobodys = prefix::key(2, &"0.0.0.0/0".parse().unwrap());
    maps.source_ranges.with(|memory| memory.rows.insert(nobodys, 1));
    let next = restricted(&["203.0.113.0/24"]);
    let mut other = next.clone();
    other.frontends = service(&[("192.0.2.2:80", RESTRICTED_ROUTE)], &[]).frontends;
    let both = state(&[("web", &web), ("other", &other)]);
    assert_all_well(&maps.agent().replace(&both));
    assert_ne!(
        maps.row("192.0.2.2:80").unwrap().service,
        2,
        "it would let everybody in"
    );
    maps.assert_hold(&both);
}
