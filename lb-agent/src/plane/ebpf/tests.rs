//! The programming of the maps, on maps in memory that can be full, fail, and hold junk.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    sync::{Arc, Mutex},
};

use lb_common::{
    Address, BackendValue, NodeAddressValue, Port, Range, ServiceKey, ServiceValue, Verdict,
    backend::{DRAINING, FREE, LOCAL, SERVING},
    node::NODE_PORTS,
    service::{MASQUERADE_ALL, MASQUERADE_REMOTE},
};
use proptest::prelude::*;

use super::{
    services::Services,
    sys::Partial,
    table::{Table, Tables},
};
use crate::{
    desired::{
        Change, Endpoint, Family, Frontend, FrontendAddress, Masquerade, Protocol, Route, ServicePort, ServicePortName,
        State, Target,
    },
    plane::{Outcome, PlaneError},
};

/// A map in memory.
#[derive(Debug)]
struct Memory<K, V> {
    rows: BTreeMap<K, V>,
    capacity: u32,
    /// Calls made.
    calls: usize,
    /// The write, counted from now, that fails.
    fails_at: Cell<Option<usize>>,
}

/// Handle of one, so that the test sees what the code under test does.
#[derive(Debug)]
struct Shared<K, V>(Arc<Mutex<Memory<K, V>>>);

impl<K, V> Clone for Shared<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Ord + Copy, V: Copy> Shared<K, V> {
    fn new(capacity: u32) -> Self {
        Self(Arc::new(Mutex::new(Memory {
            rows: BTreeMap::new(),
            capacity,
            calls: 0,
            fails_at: Cell::new(None),
        })))
    }

    fn with<R>(&self, look: impl FnOnce(&mut Memory<K, V>) -> R) -> R {
        look(&mut self.0.lock().unwrap())
    }
}

impl<K, V> Memory<K, V> {
    fn fail(&self) -> Result<(), io::Error> {
        match self.fails_at.get() {
            Some(0) => {
                self.fails_at.set(None);
                Err(io::Error::from_raw_os_error(libc::ENOMEM))
            }
            Some(left) => {
                self.fails_at.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// A hash.
struct HashTable<K, V>(Shared<K, V>);
/// An array: all its indices exist.
struct ArrayTable<V>(Shared<u32, V>);

impl<K: Ord + Copy, V: Copy> Table<K, V> for HashTable<K, V> {
    fn capacity(&self) -> u32 {
        self.0.with(|memory| memory.capacity)
    }

    fn set(&mut self, keys: &[K], values: &[V]) -> Result<(), Partial> {
        self.0.with(|memory| {
            memory.calls += usize::from(!keys.is_empty());
            for (done, (key, value)) in keys.iter().zip(values).enumerate() {
                memory.fail().map_err(|error| Partial { done, error })?;
                if memory.rows.len() >= memory.capacity as usize && !memory.rows.contains_key(key) {
                    let error = io::Error::from_raw_os_error(libc::E2BIG);
                    return Err(Partial { done, error });
                }
                memory.rows.insert(*key, *value);
            }
            Ok(())
        })
    }

    fn remove(&mut self, keys: &[K]) -> Result<(), Partial> {
        self.0.with(|memory| {
            memory.calls += usize::from(!keys.is_empty());
            for (done, key) in keys.iter().enumerate() {
                memory.fail().map_err(|error| Partial { done, error })?;
                memory.rows.remove(key);
            }
            Ok(())
        })
    }

    fn read(&self, visit: &mut dyn FnMut(K, V) -> bool) -> io::Result<()> {
        self.0.with(|memory| {
            for (key, value) in &memory.rows {
                if !visit(*key, *value) {
                    break;
                }
            }
        });
        Ok(())
    }
}

impl<V: Copy + Default> Table<u32, V> for ArrayTable<V> {
    fn capacity(&self) -> u32 {
        self.0.with(|memory| memory.capacity)
    }

    fn set(&mut self, keys: &[u32], values: &[V]) -> Result<(), Partial> {
        self.0.with(|memory| {
            memory.calls += usize::from(!keys.is_empty());
            for (done, (key, value)) in keys.iter().zip(values).enumerate() {
                memory.fail().map_err(|error| Partial { done, error })?;
                assert!(*key < memory.capacity, "index {key} is out of bounds");
                memory.rows.insert(*key, *value);
            }
            Ok(())
        })
    }

    fn remove(&mut self, _: &[u32]) -> Result<(), Partial> {
        panic!("an array has no deletions");
    }

    fn read(&self, visit: &mut dyn FnMut(u32, V) -> bool) -> io::Result<()> {
        self.0.with(|memory| {
            for index in 0..memory.capacity {
                let value = memory.rows.get(&index).copied().unwrap_or_default();
                if !visit(index, value) {
                    break;
                }
            }
        });
        Ok(())
    }
}

/// All maps.
#[derive(Clone)]
struct Maps {
    services: Shared<ServiceKey, ServiceValue>,
    slots: Shared<u32, u32>,
    backends: Shared<u32, BackendValue>,
    node_addresses: Shared<Address, NodeAddressValue>,
}

impl Maps {
    fn new(services: u32, slots: u32, backends: u32) -> Self {
        Self {
            services: Shared::new(services),
            slots: Shared::new(slots),
            backends: Shared::new(backends),
            node_addresses: Shared::new(16),
        }
    }

    fn roomy() -> Self {
        Self::new(1000, 10_000, 5000)
    }

    /// An agent that starts on them.
    fn agent(&self) -> Services {
        Services::open(Tables {
            services: Box::new(HashTable(self.services.clone())),
            slots: Box::new(ArrayTable(self.slots.clone())),
            backends: Box::new(ArrayTable(self.backends.clone())),
            node_addresses: Box::new(HashTable(self.node_addresses.clone())),
        })
        .unwrap()
    }

    fn calls(&self) -> usize {
        self.services.with(|m| m.calls) + self.slots.with(|m| m.calls) + self.backends.with(|m| m.calls)
    }

    fn row(&self, dialled: &str) -> Option<ServiceValue> {
        let key = super::port::key(&frontend(dialled)).unwrap();
        self.services.with(|memory| memory.rows.get(&key).copied())
    }

    fn backend(&self, socket: &str) -> Option<(u32, BackendValue)> {
        let socket: SocketAddr = socket.parse().unwrap();
        self.backends.with(|memory| {
            memory
                .rows
                .iter()
                .find(|(_, value)| {
                    value.state != FREE
                        && value.address == Address::from(socket.ip())
                        && value.port == Port::new(socket.port())
                })
                .map(|(number, value)| (*number, *value))
        })
    }

    /// The endpoints that a client of `range` may be sent to.
    fn endpoints(&self, service: u32, range: Range) -> BTreeSet<SocketAddr> {
        let numbers: Vec<u32> = self.slots.with(|memory| {
            (range.base..range.base + range.count)
                .map(|slot| memory.rows.get(&slot).copied().unwrap_or(0))
                .collect()
        });
        self.backends.with(|memory| {
            numbers
                .iter()
                .map(|number| {
                    assert_ne!(*number, 0, "a slot in use holds nobody's number");
                    let value = memory.rows[number];
                    assert_eq!(value.state, SERVING, "backend {number}: {value:?}");
                    assert_eq!(value.service, service, "backend {number}: {value:?}");
                    SocketAddr::new(IpAddr::from(value.address), value.port.get())
                })
                .collect()
        })
    }

    /// Whether the maps say what `state` says, and nothing else.
    fn assert_hold(&self, state: &State) {
        let rows = self.services.with(|memory| memory.rows.clone());
        let mut expected_rows = 0;
        let mut numbers = BTreeMap::new();
        let mut used_slots: HashMap<u32, u32> = HashMap::new();
        for (name, service) in &state.services {
            for (frontend, route) in &service.frontends {
                expected_rows += 1;
                let value = rows
                    .get(&super::port::key(frontend).unwrap())
                    .unwrap_or_else(|| panic!("{name}: no row for {frontend}"));
                assert_ne!(value.service, 0);
                let other = numbers.insert(value.service, name);
                assert!(other.is_none_or(|other| other == name), "{name} and {other:?}");
                assert_eq!(
                    value.flags,
                    match route.masquerade {
                        Masquerade::Hairpin => 0,
                        Masquerade::RemoteBackend => MASQUERADE_REMOTE,
                        Masquerade::Always => MASQUERADE_ALL,
                    }
                );
                for (target, range) in [(route.near, value.near), (route.far, value.far)] {
                    for slot in range.base..range.base + range.count {
                        let owner = *used_slots.entry(slot).or_insert(value.service);
                        assert_eq!(owner, value.service, "slot {slot} has two owners");
                    }
                    let set = |is_in: &dyn Fn(&Endpoint) -> bool| -> BTreeSet<SocketAddr> {
                        let members = service.endpoints.iter().filter(|(_, e)| is_in(e));
                        members.map(|(socket, _)| *socket).collect()
                    };
                    let expected = match target {
                        Target::Cluster => set(&|e| e.cluster),
                        Target::Local => set(&|e| e.local),
                        Target::Reject | Target::Drop => BTreeSet::new(),
                    };
                    assert_eq!(range.count as usize, expected.len(), "{name} {frontend}");
                    assert_eq!(self.endpoints(value.service, range), expected);
                    if range.count == 0 {
                        let verdict = match target {
                            Target::Drop => Verdict::Drop,
                            _ => Verdict::Reject,
                        };
                        assert_eq!(range.verdict(), verdict, "{name} {frontend}");
                    }
                }
            }
        }
        assert_eq!(rows.len(), expected_rows, "rows of nobody");

        let mut backends: Vec<(SocketAddr, u8, u8)> = self.backends.with(|memory| {
            let taken = memory.rows.values().filter(|value| value.state != FREE);
            taken
                .map(|value| {
                    let socket = SocketAddr::new(IpAddr::from(value.address), value.port.get());
                    (socket, value.state, value.flags)
                })
                .collect()
        });
        let mut expected: Vec<(SocketAddr, u8, u8)> = state
            .services
            .values()
            .filter(|service| !service.frontends.is_empty())
            .flat_map(|service| &service.endpoints)
            .map(|(socket, endpoint)| {
                let serving = endpoint.cluster || endpoint.local;
                let state = if serving { SERVING } else { DRAINING };
                (*socket, state, if endpoint.on_node { LOCAL } else { 0 })
            })
            .collect();
        backends.sort_unstable();
        expected.sort_unstable();
        assert_eq!(backends, expected);

        let addresses = self.node_addresses.with(|memory| memory.rows.clone());
        let expected = state.node_port_addresses.iter().map(|address| {
            let value = NodeAddressValue { flags: NODE_PORTS };
            (Address::from(*address), value)
        });
        assert_eq!(addresses, expected.collect());
    }
}

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
    masquerade: Masquerade::RemoteBackend,
};

const LOCAL_ONLY: Route = Route {
    near: Target::Cluster,
    far: Target::Local,
    masquerade: Masquerade::Hairpin,
};

/// An endpoint on another node.
const REMOTE: Endpoint = Endpoint {
    on_node: false,
    cluster: true,
    local: false,
};

/// An endpoint on this node.
const HERE: Endpoint = Endpoint {
    on_node: true,
    cluster: true,
    local: true,
};

/// An endpoint that is on its way out.
const LEAVING: Endpoint = Endpoint {
    on_node: false,
    cluster: false,
    local: false,
};

fn service(frontends: &[(&str, Route)], endpoints: &[(&str, Endpoint)]) -> ServicePort {
    ServicePort {
        frontends: frontends.iter().map(|(f, route)| (frontend(f), *route)).collect(),
        endpoints: endpoints
            .iter()
            .map(|(e, endpoint)| (e.parse().unwrap(), *endpoint))
            .collect(),
    }
}

fn state(services: &[(&str, &ServicePort)]) -> State {
    State {
        services: services
            .iter()
            .map(|(n, service)| (name(n), (*service).clone()))
            .collect(),
        node_port_addresses: BTreeSet::from(["192.0.2.1".parse().unwrap()]),
    }
}

fn change(services: &[(&str, Option<&ServicePort>)]) -> Change {
    Change {
        services: services.iter().map(|(n, s)| (name(n), s.cloned())).collect(),
        node_port_addresses: None,
    }
}

fn web(endpoints: &[(&str, Endpoint)]) -> ServicePort {
    service(&[("10.96.0.10:80", CLUSTER), ("*:30080", LOCAL_ONLY)], endpoints)
}

#[track_caller]
fn assert_all_well(outcome: &Outcome) {
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
    assert!(outcome.node_addresses.is_none());
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
fn sctp_is_refused_and_the_rest_goes_on() {
    let maps = Maps::roomy();
    let good = service(&[("10.96.0.10:80", CLUSTER)], &[("10.0.0.1:80", REMOTE)]);
    let mut bad = service(&[], &[("10.0.0.2:80", REMOTE)]);
    let mut sctp = frontend("10.96.0.11:80");
    sctp.protocol = Protocol::Sctp;
    bad.frontends.insert(sctp, CLUSTER);
    let outcome = maps.agent().replace(&state(&[("good", &good), ("bad", &bad)]));
    assert!(matches!(
        outcome.failed.as_slice(),
        [(failed, PlaneError::Protocol(Protocol::Sctp))] if *failed == name("bad")
    ));
    maps.assert_hold(&state(&[("good", &good)]));
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

// ---- properties -------------------------------------------------------------------------------

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(on_node, cluster, local)| Endpoint {
        on_node,
        cluster,
        local: local && on_node,
    })
}

/// What service `i` of six may be: two frontends of its own at most, and one shared with the next.
fn any_service() -> impl Strategy<Value = ServicePort> {
    let endpoints = prop::collection::btree_map(1_u8..9, any_endpoint(), 0..7);
    let frontends = prop::collection::btree_set(0_u16..3, 1..3);
    (endpoints, frontends, 0..3, any::<bool>()).prop_map(|(endpoints, frontends, kind, none)| {
        let endpoints: BTreeMap<SocketAddr, Endpoint> = endpoints
            .into_iter()
            .map(|(host, endpoint)| (SocketAddr::from(([10, 0, 0, host], 80)), endpoint))
            .collect();
        let has = |is_in: &dyn Fn(&Endpoint) -> bool| endpoints.values().any(is_in);
        let empty = if none { Target::Reject } else { Target::Drop };
        let cluster = if has(&|e| e.cluster) { Target::Cluster } else { empty };
        let local = if has(&|e| e.local) { Target::Local } else { empty };
        let route = match kind {
            0 => Route {
                near: cluster,
                far: cluster,
                masquerade: Masquerade::RemoteBackend,
            },
            1 => Route {
                near: cluster,
                far: local,
                masquerade: Masquerade::Hairpin,
            },
            _ => Route {
                near: local,
                far: local,
                masquerade: Masquerade::Always,
            },
        };
        let frontends = frontends.into_iter().map(|port| {
            let frontend = Frontend {
                address: FrontendAddress::NodePort(Family::V4),
                port: NonZeroU16::new(port + 1).unwrap(),
                protocol: Protocol::Tcp,
            };
            (frontend, route)
        });
        ServicePort {
            frontends: frontends.collect(),
            endpoints,
        }
    })
}

fn any_state() -> impl Strategy<Value = State> {
    let services = prop::collection::btree_map(0_u16..6, any_service(), 0..6);
    (services, prop::collection::btree_set(1_u8..5, 0..3)).prop_map(|(services, addresses)| {
        let mut owned = BTreeSet::new();
        let services = services.into_iter().map(|(index, mut service)| {
            // Ports 2i+1 to 2i+3: the last is also the first of the next service; whoever comes
            // first has it.
            service.frontends = std::mem::take(&mut service.frontends)
                .into_iter()
                .map(|(mut frontend, route)| {
                    frontend.port = NonZeroU16::new(frontend.port.get() + 2 * index).unwrap();
                    (frontend, route)
                })
                .filter(|(frontend, _)| owned.insert(*frontend))
                .collect();
            // Addresses are the service's own, so that a test finds whose a backend is.
            let third = index.to_be_bytes()[1];
            service.endpoints = std::mem::take(&mut service.endpoints)
                .into_iter()
                .map(|(socket, endpoint)| match socket {
                    SocketAddr::V4(v4) => {
                        let [a, b, _, d] = v4.ip().octets();
                        (SocketAddr::from(([a, b, third, d], socket.port())), endpoint)
                    }
                    SocketAddr::V6(_) => (socket, endpoint),
                })
                .collect();
            (name(&format!("s{index}")), service)
        });
        State {
            services: services.collect(),
            node_port_addresses: addresses
                .into_iter()
                .map(|host| IpAddr::from([192, 0, 2, host]))
                .collect(),
        }
    })
}

/// What turns `from` into `to`.
fn difference(from: &State, to: &State) -> Change {
    let names: BTreeSet<_> = from.services.keys().chain(to.services.keys()).collect();
    Change {
        services: names
            .into_iter()
            .filter(|name| from.services.get(*name) != to.services.get(*name))
            .map(|name| (name.clone(), to.services.get(name).cloned()))
            .collect(),
        node_port_addresses: (from.node_port_addresses != to.node_port_addresses)
            .then(|| to.node_port_addresses.clone()),
    }
}

const SERVICE_ROWS: u32 = 14;
const SLOT_ROWS: u32 = 300;
const BACKEND_ROWS: u32 = 200;

/// Rows that no agent wrote, or a confused one.
#[derive(Debug, Clone)]
struct Junk {
    services: Vec<(u16, u32, [u32; 4], u32)>,
    slots: Vec<(u32, u32)>,
    backends: Vec<(u32, u8, u8, u8, u32, u32)>,
    node_addresses: Vec<(u8, u32)>,
}

fn any_junk() -> impl Strategy<Value = Junk> {
    let small = prop_oneof![4 => 0_u32..12, 1 => any::<u32>()];
    let slot = prop_oneof![4 => 0_u32..20, 1 => 290_u32..310, 1 => any::<u32>()];
    let range = (slot.clone(), small.clone(), slot, small.clone());
    (
        prop::collection::vec((1_u16..18, small.clone(), range, 0_u32..4), 0..14),
        prop::collection::vec((0_u32..25, 0_u32..20), 0..25),
        prop::collection::vec((0_u32..20, 0_u8..4, 0_u8..3, any::<u8>(), small.clone(), small), 0..20),
        prop::collection::vec((1_u8..7, 0_u32..3), 0..4),
    )
        .prop_map(|(services, slots, backends, node_addresses)| Junk {
            services: services
                .into_iter()
                .map(|(port, service, (a, b, c, d), flags)| (port, service, [a, b, c, d], flags))
                .collect(),
            slots,
            backends,
            node_addresses,
        })
}

impl Junk {
    fn spill(&self, maps: &Maps) {
        maps.services.with(|memory| {
            for (port, service, [a, b, c, d], flags) in &self.services {
                let key = ServiceKey::new(Address::ANY_V4, Port::new(*port), 6);
                let value = ServiceValue {
                    service: *service,
                    near: Range { base: *a, count: *b },
                    far: Range { base: *c, count: *d },
                    flags: *flags,
                };
                memory.rows.insert(key, value);
            }
        });
        maps.slots.with(|memory| memory.rows.extend(self.slots.iter().copied()));
        maps.backends.with(|memory| {
            for (number, state, flags, host, generation, service) in &self.backends {
                let third = number.to_be_bytes()[3] % 6;
                let value = BackendValue {
                    address: Address::from(IpAddr::from([10, 0, third, *host % 9])),
                    port: Port::new(80),
                    state: *state,
                    flags: *flags,
                    generation: *generation,
                    service: *service,
                };
                memory.rows.insert(*number, value);
            }
        });
        maps.node_addresses.with(|memory| {
            for (host, flags) in &self.node_addresses {
                let address = Address::from(IpAddr::from([192, 0, 2, *host]));
                memory.rows.insert(address, NodeAddressValue { flags: *flags });
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn after_replace_the_maps_say_the_state_whatever_was_there(
        junk in any_junk(),
        states in prop::collection::vec(any_state(), 1..4),
    ) {
        let maps = Maps::new(SERVICE_ROWS, SLOT_ROWS, BACKEND_ROWS);
        junk.spill(&maps);
        for state in states {
            assert_all_well(&maps.agent().replace(&state));
            maps.assert_hold(&state);
            // Once there is nothing to correct, a restart writes nothing.
            prop_assert_eq!(maps.agent().replace(&state).writes, 0);
        }
    }

    #[test]
    fn after_each_change_the_maps_say_the_state(
        states in prop::collection::vec((any_state(), 0..3), 1..12),
    ) {
        let maps = Maps::new(SERVICE_ROWS, SLOT_ROWS, BACKEND_ROWS);
        let mut agent = maps.agent();
        let mut now = State::default();
        assert_all_well(&agent.replace(&now));
        for (next, ticks) in states {
            for _ in 0..ticks {
                agent.tick();
            }
            assert_all_well(&agent.apply(&difference(&now, &next)));
            maps.assert_hold(&next);
            now = next;
        }
        // Nothing leaks: all of it comes back.
        assert_all_well(&agent.apply(&difference(&now, &State::default())));
        agent.tick();
        agent.tick();
        let all = agent.slots.allocate(SLOT_ROWS);
        prop_assert_eq!(all, Some(Range { base: 0, count: SLOT_ROWS }));
        let numbers = std::iter::from_fn(|| agent.backend_numbers.allocate()).count();
        prop_assert_eq!(numbers, BACKEND_ROWS as usize - 1);
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_state_and_hurts_nobody_else(
        before in any_state(),
        after in any_state(),
        map in 0..3,
        at in 0_usize..20,
    ) {
        let maps = Maps::new(SERVICE_ROWS, SLOT_ROWS, BACKEND_ROWS);
        let mut agent = maps.agent();
        assert_all_well(&agent.replace(&before));
        match map {
            0 => maps.backends.with(|memory| memory.fails_at.set(Some(at))),
            1 => maps.slots.with(|memory| memory.fails_at.set(Some(at))),
            _ => maps.services.with(|memory| memory.fails_at.set(Some(at))),
        }
        let outcome = agent.apply(&difference(&before, &after));
        maps.backends.with(|memory| memory.fails_at.set(None));
        maps.slots.with(|memory| memory.fails_at.set(None));
        maps.services.with(|memory| memory.fails_at.set(None));
        prop_assert!(outcome.failed.len() <= 1, "{:?}", outcome.failed);
        agent.tick();
        // A frontend may have passed to another service, so what the maps say is only sure to be
        // one of the two states for those that share nothing; but what failed can be done now.
        let again = Change {
            services: outcome
                .failed
                .iter()
                .map(|(name, _)| (name.clone(), after.services.get(name).cloned()))
                .collect(),
            node_port_addresses: None,
        };
        assert_all_well(&agent.apply(&again));
        maps.assert_hold(&after);
    }
}
