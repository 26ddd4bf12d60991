//! The programming of the maps, on maps in memory that can be full, fail, and hold junk.

mod addresses;
mod hold;
mod inspect;
mod maps;
mod properties;
mod source_ranges;
mod udp;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lb_common::{
    BackendValue,
    backend::{DRAINING, FREE, SERVING},
};

use self::maps::Maps;
use crate::{
    desired::{
        Change, Endpoint, Family, Frontend, FrontendAddress, Masquerade, Protocol, Route, ServedBy, ServicePort,
        ServicePortName, State, Target, Weight,
    },
    plane::{Outcome, PlaneError},
};

fn frontend(text: &str) -> Frontend {
    let (address, port) = text.rsplit_once(':').unwrap();
    Frontend {
        address: match address {
            "*" => FrontendAddress::NodePort(Family::V4),
            ip => FrontendAddress::Ip(ip.parse().unwrap()),
        },
        port: port.parse().unwrap(),
        protocol: Protocol::Tcp,
    }
}

fn name(name: &str) -> ServicePortName {
    ServicePortName {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        port: String::new(),
        protocol: Protocol::Tcp,
        family: Family::V4,
    }
}

const CLUSTER: Route = Route {
    near: Target::Cluster,
    far: Target::Cluster,
    masquerade: Masquerade::WhereNeeded,
    restricted: false,
};

const LOCAL_ONLY: Route = Route {
    near: Target::Cluster,
    far: Target::Local,
    masquerade: Masquerade::WhereNeeded,
    restricted: false,
};

/// An endpoint on another node.
const REMOTE: Endpoint = Endpoint {
    on_node: false,
    cluster: true,
    local: false,
    weight: Weight::ONE,
};

/// An endpoint on this node.
const HERE: Endpoint = Endpoint {
    on_node: true,
    cluster: true,
    local: true,
    weight: Weight::ONE,
};

/// An endpoint that is on its way out.
const LEAVING: Endpoint = Endpoint {
    on_node: false,
    cluster: false,
    local: false,
    weight: Weight::ONE,
};

fn service(frontends: &[(&str, Route)], endpoints: &[(&str, Endpoint)]) -> ServicePort {
    ServicePort {
        frontends: frontends.iter().map(|(f, route)| (frontend(f), *route)).collect(),
        endpoints: endpoints
            .iter()
            .map(|(e, endpoint)| (e.parse().unwrap(), *endpoint))
            .collect(),
        ..ServicePort::default()
    }
}

fn state(services: &[(&str, &ServicePort)]) -> State {
    State {
        services: services
            .iter()
            .map(|(n, service)| (name(n), (*service).clone()))
            .collect(),
        node_port_addresses: BTreeSet::from(["192.0.2.1".parse().unwrap()]),
        ..State::default()
    }
}

fn change(services: &[(&str, Option<&ServicePort>)]) -> Change {
    Change {
        services: services.iter().map(|(n, s)| (name(n), s.cloned())).collect(),
        ..Change::default()
    }
}

fn web(endpoints: &[(&str, Endpoint)]) -> ServicePort {
    service(&[("10.96.0.10:80", CLUSTER), ("*:30080", LOCAL_ONLY)], endpoints)
}

#[track_caller]
fn assert_all_well(outcome: &Outcome) {
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
    assert!(outcome.addresses.is_none(), "{:?}", outcome.addresses);
}

#[test]
fn a_state_is_what_the_maps_say() {
    let maps = Maps::roomy();
    let web = web(&[("10.0.0.1:8080", REMOTE), ("10.0.0.2:8080", HERE)]);
    let idle = service(
        &[(
            "10.96.0.11:80",
            Route {
                near: Target::Reject,
                far: Target::Drop,
                masquerade: Masquerade::Always,
                restricted: false,
            },
        )],
        &[],
    );
    let state = state(&[("web", &web), ("idle", &idle)]);
    let outcome = maps.agent().replace(&state);
    assert_all_well(&outcome);
    assert_eq!(outcome.programmed, 2);
    maps.assert_hold(&state);
}

#[test]
fn a_thousand_services_take_few_calls() {
    let maps = Maps::new(4000, 20_000, 20_000);
    let services: Vec<_> = (0..1000)
        .map(|i: u32| {
            let [_, _, high, low] = i.to_be_bytes();
            let endpoints: Vec<_> = (1..=10).map(|e| format!("10.{high}.{low}.{e}:80")).collect();
            let endpoints: Vec<_> = endpoints.iter().map(|e| (e.as_str(), REMOTE)).collect();
            (
                format!("s{i}"),
                service(&[(&format!("10.96.{high}.{low}:80"), CLUSTER)], &endpoints),
            )
        })
        .collect();
    let services: Vec<_> = services.iter().map(|(n, s)| (n.as_str(), s)).collect();
    let state = state(&services);
    assert_all_well(&maps.agent().replace(&state));
    maps.assert_hold(&state);
    // Backends, slots, rows; the address for NodePorts.
    assert!(maps.calls() <= 4, "{}", maps.calls());

    let outcome = maps.agent().replace(&state);
    assert_eq!(
        (outcome.programmed, outcome.writes),
        (1000, 0),
        "a restart writes nothing"
    );
}

#[test]
fn one_changed_endpoint_costs_its_own_service_only() {
    let maps = Maps::roomy();
    let before = web(&[("10.0.0.1:80", REMOTE), ("10.0.0.2:80", HERE)]);
    let other = service(&[("10.96.0.11:80", CLUSTER)], &[("10.0.1.1:80", REMOTE)]);
    let mut agent = maps.agent();
    agent.replace(&state(&[("web", &before), ("other", &other)]));
    let after = web(&[("10.0.0.1:80", REMOTE), ("10.0.0.2:80", HERE), ("10.0.0.3:80", REMOTE)]);
    let outcome = agent.apply(&change(&[("web", Some(&after))]));
    assert_all_well(&outcome);
    // One backend, three slots of the cluster set, two rows; the local set stays where it is.
    assert_eq!(outcome.writes, 6);
    maps.assert_hold(&state(&[("web", &after), ("other", &other)]));
}

#[test]
fn an_equal_local_set_shares_the_slots() {
    let maps = Maps::roomy();
    maps.agent().replace(&state(&[("web", &web(&[("10.0.0.2:80", HERE)]))]));
    let row = maps.row("*:30080").unwrap();
    assert_eq!(row.near, row.far);
}

#[test]
fn an_endpoint_that_leaves_drains_then_frees_its_number_for_another_generation() {
    let maps = Maps::roomy();
    let mut agent = maps.agent();
    agent.replace(&state(&[(
        "web",
        &web(&[("10.0.0.1:80", REMOTE), ("10.0.0.2:80", HERE)]),
    )]));
    let (number, serving) = maps.backend("10.0.0.1:80").unwrap();

    let leaving = web(&[("10.0.0.1:80", LEAVING), ("10.0.0.2:80", HERE)]);
    agent.apply(&change(&[("web", Some(&leaving))]));
    let (same, draining) = maps.backend("10.0.0.1:80").unwrap();
    assert_eq!((same, draining.state), (number, DRAINING));
    assert_eq!(draining.generation, serving.generation);
    maps.assert_hold(&state(&[("web", &leaving)]));

    agent.apply(&change(&[("web", Some(&web(&[("10.0.0.2:80", HERE)])))]));
    assert_eq!(maps.backend("10.0.0.1:80"), None);
    // It rests: a new one gets another number.
    let next = web(&[("10.0.0.2:80", HERE), ("10.0.0.3:80", REMOTE)]);
    agent.apply(&change(&[("web", Some(&next))]));
    assert_ne!(maps.backend("10.0.0.3:80").unwrap().0, number);
    agent.tick();
    agent.tick();
    let next = web(&[("10.0.0.2:80", HERE), ("10.0.0.4:80", REMOTE)]);
    agent.apply(&change(&[("web", Some(&next))]));
    let (reused, value) = maps.backend("10.0.0.4:80").unwrap();
    assert_eq!(reused, number);
    assert_eq!(value.generation, serving.generation + 1);
}

#[test]
fn a_frontend_passes_to_another_service_in_one_change() {
    for (from, to) in [("a", "b"), ("b", "a")] {
        let maps = Maps::roomy();
        let mut agent = maps.agent();
        let old = service(&[("10.96.0.10:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
        let new = service(&[("10.96.0.10:80", CLUSTER)], &[("10.0.0.2:80", REMOTE)]);
        agent.replace(&state(&[(from, &old)]));
        assert_all_well(&agent.apply(&change(&[(from, None), (to, Some(&new))])));
        maps.assert_hold(&state(&[(to, &new)]));
        assert_all_well(&agent.apply(&change(&[(to, None)])));
        maps.assert_hold(&state(&[]));
    }
}

#[test]
fn a_full_map_refuses_one_service_and_names_its_flag() {
    let small = service(&[("10.96.0.10:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
    let large = service(
        &[("10.96.0.11:80", CLUSTER), ("10.96.0.11:81", CLUSTER)],
        &[
            ("10.0.1.1:80", REMOTE),
            ("10.0.1.2:80", REMOTE),
            ("10.0.1.3:80", REMOTE),
        ],
    );
    for (maps, flag) in [
        (Maps::new(2, 100, 100), "--max-services"),
        (Maps::new(100, 3, 100), "--max-slots"),
        (Maps::new(100, 100, 4), "--max-backends"),
    ] {
        let mut agent = maps.agent();
        let cluster_ips = ["10.96.0.10", "10.96.0.11"].map(|ip| (ip.parse().unwrap(), ServedBy::Us));
        let state = |services: &[(&str, &ServicePort)]| State {
            cluster_ips: BTreeMap::from(cluster_ips),
            ..state(services)
        };
        let outcome = agent.replace(&state(&[("large", &large), ("small", &small)]));
        // Names are taken in order, so the large one came first where both do not fit.
        let (kept, refused) = match outcome.failed.as_slice() {
            [(failed, PlaneError::MapFull { flag: named, .. })] => {
                assert_eq!(*named, flag);
                if *failed == name("small") {
                    ("large", "small")
                } else {
                    ("small", "large")
                }
            }
            other => panic!("{other:?}"),
        };
        let both = BTreeMap::from([("small", &small), ("large", &large)]);
        maps.assert_hold(&state(&[(kept, both[kept])]));
        // Once there is room, it is taken.
        let outcome = agent.apply(&change(&[(kept, None)]));
        assert_all_well(&outcome);
        agent.tick();
        agent.tick();
        assert_all_well(&agent.apply(&change(&[(refused, Some(both[refused]))])));
        maps.assert_hold(&state(&[(refused, both[refused])]));
    }
}

#[test]
fn what_goes_makes_room_for_what_comes_in_one_change() {
    let maps = Maps::new(1, 100, 100);
    let mut agent = maps.agent();
    let one = service(&[("10.96.0.10:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
    let two = service(&[("10.96.0.11:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
    agent.replace(&state(&[("one", &one)]));
    let outcome = agent.apply(&change(&[("a-two", Some(&two)), ("one", None)]));
    assert_all_well(&outcome);
    maps.assert_hold(&state(&[("a-two", &two)]));
}

#[test]
fn sctp_is_a_protocol_like_the_others() {
    let maps = Maps::roomy();
    let mut web = service(&[("10.96.0.10:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
    let mut sctp = frontend("10.96.0.10:80");
    sctp.protocol = Protocol::Sctp;
    web.frontends.insert(sctp, CLUSTER);
    assert_all_well(&maps.agent().replace(&state(&[("web", &web)])));
    maps.assert_hold(&state(&[("web", &web)]));
    let protocols: Vec<u8> = maps.services.with(|m| m.rows.keys().map(|key| key.protocol).collect());
    assert_eq!(protocols.len(), 2);
    assert!(protocols.contains(&132), "IANA's number of SCTP: {protocols:?}");
}

#[test]
fn a_change_before_the_first_state_is_refused() {
    let maps = Maps::roomy();
    let web = web(&[("10.0.0.2:80", HERE)]);
    let outcome = maps.agent().apply(&change(&[("web", Some(&web))]));
    assert_eq!(outcome.failed.len(), 1);
    assert_eq!(maps.calls(), 0);
}

#[test]
fn a_restart_keeps_numbers_of_what_stays() {
    let maps = Maps::roomy();
    let before = web(&[("10.0.0.1:80", REMOTE), ("10.0.0.2:80", HERE)]);
    let gone = service(&[("10.96.0.9:80", CLUSTER)], &[("10.0.9.1:80", REMOTE)]);
    maps.agent().replace(&state(&[("a", &gone), ("web", &before)]));
    let kept = maps.backend("10.0.0.2:80").unwrap();
    let number = maps.row("10.96.0.10:80").unwrap().service;

    let after = web(&[("10.0.0.2:80", HERE), ("10.0.0.3:80", REMOTE)]);
    assert_all_well(&maps.agent().replace(&state(&[("web", &after)])));
    maps.assert_hold(&state(&[("web", &after)]));
    assert_eq!(maps.backend("10.0.0.2:80").unwrap(), kept);
    assert_eq!(maps.row("10.96.0.10:80").unwrap().service, number);
}

#[test]
fn what_loses_a_frontend_is_another_generation_so_that_flows_to_it_draw_again() {
    let maps = Maps::roomy();
    let mut agent = maps.agent();
    let endpoints = [("10.0.0.1:80", REMOTE), ("10.0.0.2:80", LEAVING)];
    let both = service(&[("10.96.0.10:80", CLUSTER), ("*:30080", CLUSTER)], &endpoints);
    agent.replace(&state(&[("a", &both)]));
    let before: Vec<_> = endpoints.map(|(e, _)| maps.backend(e).unwrap()).into();

    // The NodePort passes to another service.
    let one = service(&[("10.96.0.10:80", CLUSTER)], &endpoints);
    let other = service(&[("*:30080", CLUSTER)], &[("10.0.1.1:80", REMOTE)]);
    assert_all_well(&agent.apply(&change(&[("a", Some(&one)), ("b", Some(&other))])));
    maps.assert_hold(&state(&[("a", &one), ("b", &other)]));
    for (number, value) in &before {
        let row = maps.backends.with(|memory| memory.rows[number]);
        let next = BackendValue {
            generation: value.generation + 1,
            ..*value
        };
        assert_eq!(row, next, "the number stays, and with it what is remembered of clients");
    }

    // A frontend more changes nothing.
    let kept = maps.backend("10.0.0.1:80").unwrap();
    let more = service(&[("10.96.0.10:80", CLUSTER), ("*:30081", CLUSTER)], &endpoints);
    assert_all_well(&agent.apply(&change(&[("a", Some(&more))])));
    assert_eq!(maps.backend("10.0.0.1:80").unwrap(), kept);

    // Nor does it matter whether it was lost while no agent ran.
    let mut agent = maps.agent();
    assert_all_well(&agent.replace(&state(&[("a", &one), ("b", &other)])));
    let (number, value) = maps.backend("10.0.0.1:80").unwrap();
    assert_eq!((number, value.generation), (kept.0, kept.1.generation + 1));
    maps.assert_hold(&state(&[("a", &one), ("b", &other)]));
}

#[test]
fn a_frontend_goes_also_where_there_are_no_new_numbers() {
    let maps = Maps::new(10, 10, 2);
    let mut agent = maps.agent();
    let both = service(
        &[("10.96.0.10:80", CLUSTER), ("*:30080", CLUSTER)],
        &[("10.0.0.1:80", REMOTE)],
    );
    agent.replace(&state(&[("a", &both)]));
    let one = service(&[("10.96.0.10:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
    assert_all_well(&agent.apply(&change(&[("a", Some(&one))])));
    maps.assert_hold(&state(&[("a", &one)]));
}

#[test]
fn a_frontend_goes_also_where_there_are_no_new_slots() {
    let maps = Maps::new(10, 1, 10);
    let mut agent = maps.agent();
    let endpoints = [("10.0.0.1:80", REMOTE)];
    let both = service(&[("10.96.0.10:80", CLUSTER), ("*:30080", CLUSTER)], &endpoints);
    agent.replace(&state(&[("a", &both)]));
    let one = service(&[("10.96.0.10:80", CLUSTER)], &endpoints);
    assert_all_well(&agent.apply(&change(&[("a", Some(&one))])));
    maps.assert_hold(&state(&[("a", &one)]));
}

#[test]
fn a_generation_goes_up_only_when_nothing_leads_to_the_lost_frontend() {
    let maps = Maps::roomy();
    let watched = maps.clone();
    let endpoints = [("10.0.0.1:80", REMOTE)];
    let both = service(&[("10.96.0.10:80", CLUSTER), ("*:30080", CLUSTER)], &endpoints);
    let one = service(&[("10.96.0.10:80", CLUSTER)], &endpoints);
    // A datagram that draws again while the frontend is there would stay where it is sent.
    let mut agent = maps.start(Arc::new(move || {
        let generation = watched.backend("10.0.0.1:80").map(|(_, value)| value.generation);
        assert!(generation.is_none_or(|it| it == 1) || watched.row("*:30080").is_none());
    }));
    agent.replace(&state(&[("a", &both)]));
    assert_eq!(maps.backend("10.0.0.1:80").unwrap().1.generation, 1);
    assert_all_well(&agent.apply(&change(&[("a", Some(&one))])));
    assert_eq!(maps.backend("10.0.0.1:80").unwrap().1.generation, 2);
    // And the next change of it goes on from there.
    assert_all_well(&agent.apply(&change(&[(
        "a",
        Some(&service(&[("10.96.0.10:80", CLUSTER)], &[("10.0.0.1:80", HERE)])),
    )])));
    assert_eq!(maps.backend("10.0.0.1:80").unwrap().1.generation, 2);
}

#[test]
fn a_frontend_goes_and_an_endpoint_comes_where_numbers_suffice_for_the_endpoint() {
    // Numbers 1 to 4: three are taken, the fourth is for the endpoint that comes.
    let maps = Maps::new(10, 20, 5);
    let mut agent = maps.agent();
    let three = [
        ("10.0.0.1:80", REMOTE),
        ("10.0.0.2:80", REMOTE),
        ("10.0.0.3:80", REMOTE),
    ];
    let both = service(&[("10.96.0.10:80", CLUSTER), ("*:30080", CLUSTER)], &three);
    agent.replace(&state(&[("a", &both)]));
    let four = [three[0], three[1], three[2], ("10.0.0.4:80", REMOTE)];
    let one = service(&[("10.96.0.10:80", CLUSTER)], &four);
    assert_all_well(&agent.apply(&change(&[("a", Some(&one))])));
    maps.assert_hold(&state(&[("a", &one)]));
}

#[test]
fn a_number_is_freed_by_its_state_alone() {
    let maps = Maps::roomy();
    let mut agent = maps.agent();
    let one = service(&[("10.96.0.10:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
    for restarts in [false, true] {
        agent.replace(&state(&[("a", &one)]));
        let (number, serving) = maps.backend("10.0.0.1:80").unwrap();
        if restarts {
            agent = maps.agent();
            assert_all_well(&agent.replace(&state(&[])));
        } else {
            assert_all_well(&agent.apply(&change(&[("a", None)])));
        }
        let freed = maps.backends.with(|memory| memory.rows[&number]);
        assert_eq!(freed, BackendValue { state: FREE, ..serving });
    }
}

#[test]
fn an_endpoint_of_a_set_that_no_frontend_uses_serves_nobody() {
    let maps = Maps::roomy();
    let mut agent = maps.agent();
    // Terminating on this node, while others are ready: only the local set has it.
    let last_here = Endpoint {
        on_node: true,
        cluster: false,
        local: true,
        weight: Weight::ONE,
    };
    let endpoints = [("10.0.0.1:80", REMOTE), ("10.0.0.2:80", last_here)];
    let local = service(&[("10.96.0.10:80", CLUSTER), ("*:30080", LOCAL_ONLY)], &endpoints);
    agent.replace(&state(&[("a", &local)]));
    assert_eq!(maps.backend("10.0.0.2:80").unwrap().1.state, SERVING);
    let cluster = service(&[("10.96.0.10:80", CLUSTER), ("*:30080", CLUSTER)], &endpoints);
    assert_all_well(&agent.apply(&change(&[("a", Some(&cluster))])));
    assert_eq!(maps.backend("10.0.0.2:80").unwrap().1.state, DRAINING);
    maps.assert_hold(&state(&[("a", &cluster)]));
}
