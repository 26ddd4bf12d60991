//! Whatever was in the maps, whatever comes in whichever order: the maps say what is desired.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    num::{NonZeroU16, NonZeroU32},
};

use ipnet::IpNet;
use lb_common::{Address, AddressValue, BackendValue, Port, Range, ServiceKey, ServiceValue};
use proptest::prelude::*;

use super::{assert_all_well, maps::Maps, name};
use crate::{
    desired::{
        AllowedSources, Change, Endpoint, Family, Frontend, FrontendAddress, Masquerade, Protocol, Route, ServedBy,
        ServicePort, State, Target,
    },
    plane::ebpf::prefix,
};

const SOURCES: [&str; 4] = ["0.0.0.0/0", "198.51.100.0/24", "198.51.100.0/25", "203.0.113.7/32"];
const NETWORKS: [&str; 6] = [
    "10.96.0.0/16",
    "10.0.0.0/8",
    "0.0.0.0/0",
    "fd00:96::/112",
    "fd00:10::/64",
    "::/0",
];

/// Some of those, by their number.
fn any_networks() -> impl Strategy<Value = BTreeSet<IpNet>> {
    let numbers = prop::collection::btree_set(0..NETWORKS.len(), 0..4);
    numbers.prop_map(|numbers| numbers.into_iter().map(|i| NETWORKS[i].parse().unwrap()).collect())
}

/// Addresses of the node and of loopback, of which some may be ClusterIPs too.
fn any_addresses() -> impl Strategy<Value = BTreeSet<IpAddr>> {
    let number = prop_oneof![3 => (1_u8..5).prop_map(|i| IpAddr::from([192, 0, 2, i])),
        1 => Just(IpAddr::from([127, 0, 0, 1])), 1 => Just(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST))];
    prop::collection::btree_set(number, 0..4)
}

fn any_cluster_ips() -> impl Strategy<Value = BTreeMap<IpAddr, ServedBy>> {
    let served_by = prop_oneof![Just(ServedBy::Us), Just(ServedBy::AnotherProxy)];
    (any_addresses(), prop::collection::vec(served_by, 4))
        .prop_map(|(addresses, served_by)| addresses.into_iter().zip(served_by).collect())
}

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
    let sources = (prop::collection::btree_set(0_usize..SOURCES.len(), 0..3), any::<bool>());
    let affinity = prop::option::of(1_u32..3);
    (
        (endpoints, frontends, 0..3, any::<bool>()),
        (any::<bool>(), sources, affinity),
    )
        .prop_map(
            |((endpoints, frontends, kind, none), (restricted, sources, affinity))| {
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
                        masquerade: Masquerade::WhereNeeded,
                        restricted,
                    },
                    1 => Route {
                        near: cluster,
                        far: local,
                        masquerade: Masquerade::WhereNeeded,
                        restricted,
                    },
                    _ => Route {
                        near: local,
                        far: local,
                        masquerade: Masquerade::Always,
                        restricted,
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
                    affinity: affinity.and_then(NonZeroU32::new),
                    allowed_sources: AllowedSources {
                        ranges: sources.0.into_iter().map(|i| SOURCES[i].parse().unwrap()).collect(),
                        node: sources.1,
                    },
                }
            },
        )
}

fn any_state() -> impl Strategy<Value = State> {
    let services = prop::collection::btree_map(0_u16..6, any_service(), 0..6);
    (
        services,
        any_addresses(),
        any_cluster_ips(),
        any_networks(),
        any_networks(),
    )
        .prop_map(
            |(services, node_port_addresses, cluster_ips, service_cidrs, pod_cidrs)| {
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
                    node_port_addresses,
                    cluster_ips,
                    service_cidrs,
                    pod_cidrs,
                    ..State::default()
                }
            },
        )
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
        cluster_ips: from
            .cluster_ips
            .keys()
            .chain(to.cluster_ips.keys())
            .filter(|ip| from.cluster_ips.get(ip) != to.cluster_ips.get(ip))
            .map(|ip| (*ip, to.cluster_ips.get(ip).copied()))
            .collect(),
        service_cidrs: (from.service_cidrs != to.service_cidrs).then(|| to.service_cidrs.clone()),
        pod_cidrs: (from.pod_cidrs != to.pod_cidrs).then(|| to.pod_cidrs.clone()),
        untranslated_pods: None,
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
    addresses: Vec<(u8, u32)>,
    source_ranges: Vec<(u32, usize, u32, u32)>,
    cidrs: Vec<(u32, usize, u32)>,
}

fn any_junk() -> impl Strategy<Value = Junk> {
    let small = prop_oneof![4 => 0_u32..12, 1 => any::<u32>()];
    let slot = prop_oneof![4 => 0_u32..20, 1 => 290_u32..310, 1 => any::<u32>()];
    let range = (slot.clone(), small.clone(), slot, small.clone());
    (
        prop::collection::vec((1_u16..18, small.clone(), range, 0_u32..40), 0..14),
        prop::collection::vec((0_u32..25, 0_u32..20), 0..25),
        prop::collection::vec(
            (0_u32..20, 0_u8..4, 0_u8..9, any::<u8>(), small.clone(), small.clone()),
            0..20,
        ),
        prop::collection::vec((1_u8..7, 0_u32..9), 0..4),
        // Of a few rows that agents write too, and of some whose length is none of a network.
        prop::collection::vec(
            (
                small,
                0..SOURCES.len(),
                prop_oneof![4 => Just(0_u32), 1 => 1_u32..40],
                0_u32..3,
            ),
            0..8,
        ),
        prop::collection::vec((0_u32..4, 0..NETWORKS.len(), 0_u32..4), 0..8),
    )
        .prop_map(|(services, slots, backends, addresses, source_ranges, cidrs)| Junk {
            services: services
                .into_iter()
                .map(|(port, service, (a, b, c, d), flags)| (port, service, [a, b, c, d], flags))
                .collect(),
            slots,
            backends,
            addresses,
            source_ranges,
            cidrs,
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
                    affinity: 0,
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
        maps.addresses.with(|memory| {
            for (host, flags) in &self.addresses {
                let address = Address::from(IpAddr::from([192, 0, 2, *host]));
                memory.rows.insert(address, AddressValue { flags: *flags });
            }
        });
        maps.source_ranges.with(|memory| {
            for (scope, network, shorter, value) in &self.source_ranges {
                let mut key = prefix::key(*scope, &SOURCES[*network].parse().unwrap());
                key.length -= shorter;
                memory.rows.insert(key, *value);
            }
        });
        maps.cidrs.with(|memory| {
            for (scope, network, value) in &self.cidrs {
                memory
                    .rows
                    .insert(prefix::key(*scope, &NETWORKS[*network].parse().unwrap()), *value);
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
        let mut is_junk = true;
        for state in states {
            let mut agent = if is_junk { maps.agent() } else { maps.watched_agent() };
            is_junk = false;
            assert_all_well(&agent.replace(&state));
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
        let mut agent = maps.watched_agent();
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
        let numbers = std::iter::from_fn(|| agent.service_numbers.allocate()).count();
        prop_assert_eq!(numbers, SERVICE_ROWS as usize * 2);
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_state_and_hurts_nobody_else(
        before in any_state(),
        after in any_state(),
        map in 0..6,
        at in 0_usize..20,
    ) {
        let maps = Maps::new(SERVICE_ROWS, SLOT_ROWS, BACKEND_ROWS);
        let mut agent = maps.watched_agent();
        assert_all_well(&agent.replace(&before));
        match map {
            0 => maps.backends.with(|memory| memory.fails_at.set(Some(at))),
            1 => maps.slots.with(|memory| memory.fails_at.set(Some(at))),
            2 => maps.source_ranges.with(|memory| memory.fails_at.set(Some(at))),
            3 => maps.addresses.with(|memory| memory.fails_at.set(Some(at))),
            4 => maps.cidrs.with(|memory| memory.fails_at.set(Some(at))),
            _ => maps.services.with(|memory| memory.fails_at.set(Some(at))),
        }
        let outcome = agent.apply(&difference(&before, &after));
        maps.backends.with(|memory| memory.fails_at.set(None));
        maps.slots.with(|memory| memory.fails_at.set(None));
        maps.services.with(|memory| memory.fails_at.set(None));
        maps.source_ranges.with(|memory| memory.fails_at.set(None));
        maps.addresses.with(|memory| memory.fails_at.set(None));
        maps.cidrs.with(|memory| memory.fails_at.set(None));
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
            ..Change::default()
        };
        assert_all_well(&agent.apply(&again));
        maps.assert_hold(&after);
    }
}
