//! Any state, for tests of planes: six service ports whose frontends pass from one to another, endpoints of
//! every kind, addresses and networks that overlap.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    num::{NonZeroU16, NonZeroU32},
};

use ipnet::IpNet;
use proptest::prelude::*;

use super::{
    AllowedSources, Change, Distribution, Endpoint, Family, Frontend, FrontendAddress, Masquerade, Protocol, Route,
    ServedBy, ServicePort, ServicePortName, State, Target, Weight,
};

/// Source ranges of services.
pub(crate) const SOURCES: [&str; 4] = ["0.0.0.0/0", "198.51.100.0/24", "198.51.100.0/25", "203.0.113.7/32"];
/// Networks of pods and of Services.
pub(crate) const NETWORKS: [&str; 6] = [
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
    let weight = (1_u16..4).prop_map(|weight| Weight::new(weight).unwrap());
    (any::<bool>(), any::<bool>(), any::<bool>(), weight).prop_map(|(on_node, cluster, local, weight)| Endpoint {
        on_node,
        cluster,
        local: local && on_node,
        weight,
    })
}

/// What service `i` of six may be: two frontends of its own at most, and one shared with the next.
fn any_service() -> impl Strategy<Value = ServicePort> {
    let endpoints = prop::collection::btree_map(1_u8..9, any_endpoint(), 0..7);
    let frontends = prop::collection::btree_set(0_u16..3, 1..3);
    let sources = (prop::collection::btree_set(0_usize..SOURCES.len(), 0..3), any::<bool>());
    let affinity = prop::option::of(1_u32..3);
    let distribution = prop::sample::select(vec![Distribution::Random, Distribution::Maglev]);
    (
        (endpoints, frontends, 0..3, any::<bool>()),
        (any::<bool>(), sources, affinity, distribution),
    )
        .prop_map(
            |((endpoints, frontends, kind, none), (restricted, sources, affinity, distribution))| {
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
                    distribution,
                }
            },
        )
}

/// A state.
pub(crate) fn any_state() -> impl Strategy<Value = State> {
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

fn name(name: &str) -> ServicePortName {
    ServicePortName {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        port: String::new(),
        protocol: Protocol::Tcp,
        family: Family::V4,
    }
}

/// What turns `from` into `to`.
pub(crate) fn difference(from: &State, to: &State) -> Change {
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
