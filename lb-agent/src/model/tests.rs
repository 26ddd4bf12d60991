//! The rules of a Service as tables, and properties that hold whatever happens.

mod api_server;
mod changes;
mod conflicts;
mod endpoints;
mod frontends;
mod node_ports;
mod policies;
mod properties;
mod source_ranges;
mod surroundings;
mod topology;

use std::{collections::BTreeSet, net::IpAddr, num::NonZeroU16};

use ipnet::IpNet;

use super::{
    AnyService, Cluster, ClusterIps, Conditions, Endpoint, EndpointPort, EndpointSlice, Event, Hints, Node, ObjectName,
    Placement, Rules, Service, ServiceIp, ServicePort, ServicePorts, TrafficPolicy, Update,
};
use crate::desired::{Change, Family, Protocol, Route, ServedBy, ServicePortName, State, Weight};

fn number(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).unwrap()
}

fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

/// A Service in the namespace `shop` with one unnamed port 80/TCP.
fn service(name: &str, cluster_ips: &[&str]) -> Service {
    Service {
        name: ObjectName::new("shop", name),
        cluster_ips: ClusterIps::new(cluster_ips.iter().map(|address| ip(address))).unwrap(),
        external_ips: BTreeSet::new(),
        load_balancer_ips: BTreeSet::new(),
        source_ranges: BTreeSet::new(),
        ports: ports(&[("", Protocol::Tcp, 80, None)]),
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        affinity: None,
        health_check_node_port: None,
        distribution: None,
    }
}

/// A Service in the same namespace that another proxy serves.
fn of_another_proxy(name: &str, cluster_ips: &[&str]) -> AnyService {
    AnyService::OfAnotherProxy {
        name: ObjectName::new("shop", name),
        cluster_ips: ClusterIps::new(cluster_ips.iter().map(|address| ip(address))).unwrap(),
    }
}

fn service_ips(addresses: &[&str]) -> BTreeSet<ServiceIp> {
    let addresses = addresses.iter().map(|address| ServiceIp::new(ip(address)).unwrap());
    addresses.collect()
}

fn networks(networks: &[&str]) -> BTreeSet<IpNet> {
    networks.iter().map(|network| network.parse().unwrap()).collect()
}

fn ports(ports: &[(&str, Protocol, u16, Option<u16>)]) -> ServicePorts {
    let ports = ports.iter().map(|&(name, protocol, port, node_port)| ServicePort {
        name: name.into(),
        protocol,
        port: number(port),
        node_port: node_port.map(number),
    });
    ServicePorts::new(ports.collect()).unwrap()
}

/// A slice of that Service's one port, which is 8080 on the endpoints.
fn slice(name: &str, service: &str, endpoints: &[Endpoint]) -> EndpointSlice {
    slice_with_ports(name, service, &[("", Protocol::Tcp, 8080)], endpoints)
}

fn slice_with_ports(
    name: &str,
    service: &str,
    ports: &[(&str, Protocol, u16)],
    endpoints: &[Endpoint],
) -> EndpointSlice {
    let family = endpoints
        .first()
        .map_or(Family::V4, |endpoint| Family::of(endpoint.address));
    let ports = ports.iter().map(|&(name, protocol, port)| EndpointPort {
        name: name.into(),
        protocol,
        port: number(port),
    });
    let name = ObjectName::new("shop", name);
    let mut slice = EndpointSlice::new(name, service.into(), family, ports.collect());
    for endpoint in endpoints {
        slice.add(endpoint.clone()).unwrap();
    }
    slice
}

fn endpoint(address: &str, placement: Placement, conditions: Conditions) -> Endpoint {
    Endpoint {
        address: ip(address),
        conditions,
        placement,
        hints: Hints::default(),
        weight: Weight::ONE,
    }
}

fn ready() -> Conditions {
    Conditions::new(Some(true), Some(true), Some(false))
}

fn serving_terminating() -> Conditions {
    Conditions::new(Some(false), Some(true), Some(true))
}

fn not_ready() -> Conditions {
    Conditions::new(Some(false), Some(false), Some(false))
}

fn here(address: &str) -> Endpoint {
    endpoint(address, Placement::Here, ready())
}

fn elsewhere(address: &str) -> Endpoint {
    endpoint(address, Placement::Elsewhere, ready())
}

fn apply_service(cluster: &mut Cluster, service: impl Into<AnyService>) {
    cluster.apply(Event::Services(Update::Apply(service.into())));
}

fn delete_service(cluster: &mut Cluster, name: &str) {
    let name = ObjectName::new("shop", name);
    cluster.apply(Event::Services(Update::Delete(name)));
}

fn apply_slice(cluster: &mut Cluster, slice: EndpointSlice) {
    cluster.apply(Event::EndpointSlices(Update::Apply(slice)));
}

/// The state that comes of these objects.
fn state(services: Vec<Service>, slices: Vec<EndpointSlice>) -> State {
    state_under(Rules::default(), None, services, slices)
}

/// The state that comes of these objects, by these rules and on this node.
fn state_under(rules: Rules, node: Option<Node>, services: Vec<Service>, slices: Vec<EndpointSlice>) -> State {
    let mut cluster = Cluster::new(rules);
    cluster.apply(Event::Node(node));
    for service in services {
        apply_service(&mut cluster, service);
    }
    for slice in slices {
        apply_slice(&mut cluster, slice);
    }
    cluster.take_change();
    cluster.state().clone()
}

/// What a state says, a line a frontend:
/// `10.96.0.1:80/TCP near=Cluster far=Cluster WhereNeeded restricted: 10.0.0.1:8080[CLN]`, where an
/// endpoint is in the *c*luster set, in the *l*ocal set, and on this *n*ode.
fn lines(state: &State) -> Vec<String> {
    let line = |frontend, route: &Route, endpoints: &str| {
        let Route {
            near,
            far,
            masquerade,
            restricted,
        } = route;
        let restricted = if *restricted { " restricted" } else { "" };
        format!("{frontend} near={near:?} far={far:?} {masquerade:?}{restricted}: {endpoints}")
    };
    let services = state.services.values().flat_map(|service| {
        let endpoints: Vec<String> = service
            .endpoints
            .iter()
            .map(|(address, endpoint)| {
                let flag = |set, letter| if set { letter } else { "" };
                format!(
                    "{address}[{}{}{}]",
                    flag(endpoint.cluster, "C"),
                    flag(endpoint.local, "L"),
                    flag(endpoint.on_node, "N"),
                )
            })
            .collect();
        let endpoints = endpoints.join(" ");
        service
            .frontends
            .iter()
            .map(move |(frontend, route)| line(frontend, route, &endpoints).trim_end().to_owned())
    });
    services.collect()
}

fn names(change: &Change) -> Vec<String> {
    change
        .services
        .iter()
        .map(|(name, service)| match service {
            Some(_) => format!("+ {name}"),
            None => format!("- {name}"),
        })
        .collect()
}
