//! What maps have to say of a state.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    sync::Arc,
};

use ipnet::IpNet;
use lb_common::{
    Address, AddressValue, PrefixKey, Range, Scoped, Verdict,
    address::{CLUSTER_IP, EXTERNAL, FOREIGN, HOST_NODE_PORTS, NODE_PORTS},
    backend::{DRAINING, FREE, IN_CLUSTER_SET, IN_LOCAL_SET, LOCAL, SERVING},
    prefix::{INSIDE, OUTSIDE, PODS, SERVICES},
    service::{FAR_IS_LOCAL, HASHED, MASQUERADE_ALL, NEAR_IS_LOCAL, NODE_IS_REFUSED, RESTRICTED},
};

use super::maps::{Maps, TABLE_SIZE};
use crate::{
    desired::{
        Distribution, Endpoint, FrontendAddress, Masquerade, Route, ServedBy, ServicePort, State, Target, Weight, text,
    },
    plane::ebpf::{inspect, port},
};

impl Maps {
    /// Whether no row leads astray: to be so at every moment.
    pub(super) fn assert_serve(&self) {
        let rows = self.services.with(|memory| memory.rows.clone());
        for value in rows.values() {
            for (range, is_local) in [(value.near, NEAR_IS_LOCAL), (value.far, FAR_IS_LOCAL)] {
                let set = if value.flags & is_local != 0 {
                    IN_LOCAL_SET
                } else {
                    IN_CLUSTER_SET
                };
                self.endpoints(value.service, range, set);
            }
        }
    }

    /// The endpoints that a client of `range` may be sent to, members of that set all of them.
    fn endpoints(&self, service: u32, range: Range, set: u8) -> BTreeSet<SocketAddr> {
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
                    assert_ne!(value.flags & set, 0, "backend {number}: {value:?}");
                    SocketAddr::new(IpAddr::from(value.address), value.port.get())
                })
                .collect()
        })
    }

    /// Whether the maps say what `state` says, and nothing else.
    pub(super) fn assert_hold(&self, state: &State) {
        let rows = self.services.with(|memory| memory.rows.clone());
        let mut expected_rows = 0;
        let mut expected_ranges = BTreeMap::new();
        let mut numbers = BTreeMap::new();
        let mut used_slots: HashMap<u32, u32> = HashMap::new();
        for (name, service) in &state.services {
            for (frontend, route) in &service.frontends {
                expected_rows += 1;
                let value = rows
                    .get(&port::key(frontend))
                    .unwrap_or_else(|| panic!("{name}: no row for {frontend}"));
                assert_ne!(value.service, 0);
                let other = numbers.insert(value.service, name);
                assert!(other.is_none_or(|other| other == name), "{name} and {other:?}");
                assert_eq!(value.flags, flags(route, service), "{name} {frontend}");
                assert_eq!(value.affinity, service.affinity.map_or(0, NonZeroU32::get));
                if route.restricted {
                    let ranges = service.allowed_sources.ranges.iter();
                    expected_ranges.extend(ranges.map(|range| (row(value.service, range), INSIDE)));
                }
                for (target, range) in [(route.near, value.near), (route.far, value.far)] {
                    for slot in range.base..range.base + range.count {
                        let owner = *used_slots.entry(slot).or_insert(value.service);
                        assert_eq!(owner, value.service, "slot {slot} has two owners");
                    }
                    let is_in = |endpoint: &Endpoint| match target {
                        Target::Cluster => endpoint.cluster,
                        Target::Local => endpoint.local,
                        Target::Reject | Target::Drop => false,
                    };
                    let members = service.endpoints.iter().filter(|(_, endpoint)| is_in(endpoint));
                    let weights: BTreeMap<SocketAddr, u32> = members
                        .map(|(socket, endpoint)| (*socket, endpoint.weight.get().into()))
                        .collect();
                    assert_eq!(range.count, slots(service.distribution, &weights), "{name} {frontend}");
                    let expected: BTreeSet<SocketAddr> = weights.into_keys().collect();
                    let set = if target == Target::Local {
                        IN_LOCAL_SET
                    } else {
                        IN_CLUSTER_SET
                    };
                    assert_eq!(self.endpoints(value.service, range, set), expected);
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
        assert_eq!(self.source_ranges.with(|memory| memory.rows.clone()), expected_ranges);
        self.assert_backends(state);
        self.assert_addresses(state);
        self.assert_cidrs(state);
        self.assert_text(state);
    }

    fn assert_backends(&self, state: &State) {
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
            .flat_map(|service| service.endpoints.iter().map(move |endpoint| (service, endpoint)))
            .map(|(service, (socket, endpoint))| {
                let uses = |target| service.frontends.values().any(|r| r.near == target || r.far == target);
                let cluster = endpoint.cluster && uses(Target::Cluster);
                let local = endpoint.local && uses(Target::Local);
                let flags = [
                    (endpoint.on_node, LOCAL),
                    (cluster, IN_CLUSTER_SET),
                    (local, IN_LOCAL_SET),
                ];
                let flags = flags.iter().filter(|(is_so, _)| *is_so).map(|(_, flag)| flag).sum();
                (*socket, if cluster || local { SERVING } else { DRAINING }, flags)
            })
            .collect();
        backends.sort_unstable();
        expected.sort_unstable();
        assert_eq!(backends, expected);
    }

    fn assert_addresses(&self, state: &State) {
        let mut expected: BTreeMap<Address, AddressValue> = BTreeMap::new();
        let node_ports = state.node_port_addresses.iter().map(|ip| {
            let flag = if ip.is_loopback() { HOST_NODE_PORTS } else { NODE_PORTS };
            (*ip, flag)
        });
        let cluster_ips = state.cluster_ips.iter().map(|(ip, served_by)| {
            let flag = match served_by {
                ServedBy::Us => CLUSTER_IP,
                ServedBy::AnotherProxy => FOREIGN,
            };
            (*ip, flag)
        });
        for (ip, flag) in node_ports.chain(cluster_ips) {
            expected.entry(Address::from(ip)).or_default().flags |= flag;
        }
        for frontend in state.services.values().flat_map(|service| service.frontends.keys()) {
            if let FrontendAddress::Ip(ip) = frontend.address
                && !state.cluster_ips.contains_key(&ip)
            {
                expected.entry(Address::from(ip)).or_default().flags |= EXTERNAL;
            }
        }
        assert_eq!(self.addresses.with(|memory| memory.rows.clone()), expected);
    }

    /// Looks up what the data path would look up, at the borders of each network.
    fn assert_cidrs(&self, state: &State) {
        let rows = self.cidrs.with(|memory| memory.rows.clone());
        let networks = state.service_cidrs.iter().chain(&state.pod_cidrs);
        let edges = networks.flat_map(|network| [network.network(), network.broadcast()]);
        let elsewhere = ["192.0.2.200", "2001:db8::1"].map(|ip| ip.parse().unwrap());
        for ip in edges.chain(elsewhere) {
            let is_service = state.service_cidrs.iter().any(|network| network.contains(&ip));
            assert_eq!(
                look_up(&rows, SERVICES, ip) == Some(INSIDE),
                is_service,
                "{ip} in {rows:?}"
            );
            let mut pods = state.pod_cidrs.iter();
            let known = if pods.any(|network| network.contains(&ip)) {
                INSIDE
            } else if state
                .pod_cidrs
                .iter()
                .any(|network| network.addr().is_ipv4() == ip.is_ipv4())
            {
                OUTSIDE
            } else {
                0
            };
            assert_eq!(look_up(&rows, PODS, ip).unwrap_or(0), known, "{ip} in {rows:?}");
        }
        if networks_are_none(state) {
            assert_eq!(rows, BTreeMap::new());
        }
    }

    fn assert_text(&self, state: &State) {
        let shown = inspect::read(&self.tables(Arc::new(|| {}))).unwrap();
        let shown: Vec<String> = shown.iter().map(ToString::to_string).collect();
        let expected: Vec<String> = text::lines(state).iter().map(ToString::to_string).collect();
        assert_eq!(shown, expected);
    }
}

fn networks_are_none(state: &State) -> bool {
    state.service_cidrs.is_empty() && state.pod_cidrs.is_empty()
}

/// The row of a network, as the kernel's trie wants it.
fn row(scope: u32, network: &IpNet) -> PrefixKey {
    PrefixKey::new(scope, Address::from(network.network()), network.prefix_len())
}

/// The value of the longest prefix that an address has, bit for bit.
fn look_up(rows: &BTreeMap<PrefixKey, u32>, scope: u32, ip: IpAddr) -> Option<u32> {
    let bits = |scoped: &Scoped| -> Vec<u8> {
        let words = scoped.address.words.map(u32::to_ne_bytes);
        scoped
            .scope
            .to_ne_bytes()
            .into_iter()
            .chain(words.into_iter().flatten())
            .collect()
    };
    let asked = bits(&Scoped {
        scope,
        address: Address::from(ip),
    });
    let matches = |key: &PrefixKey| {
        let held = bits(&key.network);
        (0..key.length as usize).all(|bit| (held[bit / 8] ^ asked[bit / 8]) & (0x80 >> (bit % 8)) == 0)
    };
    let matching = rows.iter().filter(|(key, _)| matches(key));
    matching.max_by_key(|(key, _)| key.length).map(|(_, value)| *value)
}

/// The flags that a frontend's row should have.
fn flags(route: &Route, service: &ServicePort) -> u32 {
    let mut flags = 0;
    if route.masquerade == Masquerade::Always {
        flags += MASQUERADE_ALL;
    }
    if route.near == Target::Local {
        flags += NEAR_IS_LOCAL;
    }
    if route.far == Target::Local {
        flags += FAR_IS_LOCAL;
    }
    if route.restricted {
        flags += RESTRICTED;
        if !service.allowed_sources.node {
            flags += NODE_IS_REFUSED;
        }
    }
    let leads_somewhere = |target| matches!(target, Target::Cluster | Target::Local);
    if service.distribution == Distribution::Maglev && (leads_somewhere(route.near) || leads_somewhere(route.far)) {
        flags += HASHED;
    }
    flags
}

/// How many slots endpoints of these weights have.
fn slots(distribution: Distribution, weights: &BTreeMap<SocketAddr, u32>) -> u32 {
    match distribution {
        _ if weights.is_empty() => 0,
        Distribution::Maglev => TABLE_SIZE,
        Distribution::Random => {
            let divides = |unit: &u32| weights.values().all(|weight| weight % unit == 0);
            let unit = (1..=u32::from(Weight::MAX)).rev().find(divides).unwrap();
            weights.values().sum::<u32>() / unit
        }
    }
}
