//! The desired state as lines of text, one a frontend: what script tests expect, and what
//! `lb-agent services` prints from the kernel.
//!
//! ```text
//! 0.0.0.0:30080/TCP near=10.0.1.2:8080*,10.0.2.2:8080 far=10.0.1.2:8080* affinity=10800
//! 10.96.0.10:80/TCP to=10.0.1.2:8080*,10.0.2.2:8080
//! 192.0.2.1:80/TCP to=10.0.1.2:8080* masquerade sources=198.51.100.0/24,node maglev
//! [fd00:96::a]:53/UDP to=reject
//! address 10.96.0.77 of-another-proxy
//! address 172.18.0.11 node-ports
//! cidr 10.96.0.0/16 services
//! ```
//!
//! `to=` is where every client goes, or `near=` and `far=` where they differ; `*` marks an
//! endpoint on this node, and the unspecified address stands for each that serves NodePorts.
//! Which Service a line comes from is not in it: the kernel does not know that.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
};

use ipnet::IpNet;

use super::{
    AllowedSources, Distribution, Endpoint, Frontend, Masquerade, Protocol, Route, ServedBy, ServicePort, State, Target,
};

/// One line. Their order is that of the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Line {
    /// A frontend and what becomes of its clients.
    Frontend(FrontendLine),
    /// An address that means something with every port.
    Address(IpAddr, AddressRole),
    /// A network.
    Cidr(IpNet, CidrRole),
}

/// A frontend and what becomes of its clients.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FrontendLine {
    /// Where it listens; the unspecified address stands for each that serves NodePorts.
    pub address: SocketAddr,
    /// Protocol.
    pub protocol: Protocol,
    /// Where clients near this node go, see [`Route::near`].
    pub near: Destination,
    /// Where other clients go.
    pub far: Destination,
    /// [`Masquerade::Always`].
    pub masquerade: bool,
    /// Seconds.
    pub affinity: Option<NonZeroU32>,
    /// Who may begin a flow; `None` is everybody.
    pub sources: Option<AllowedSources>,
    /// How flows are spread.
    pub distribution: Distribution,
}

/// Where clients go.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Destination {
    /// To one of these.
    Backends(BTreeSet<Backend>),
    /// Refused.
    Reject,
    /// Nowhere, without a word.
    Drop,
}

/// One that clients may be sent to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Backend {
    /// Address.
    pub address: SocketAddr,
    /// On this node.
    pub on_node: bool,
}

/// What an address means with every port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AddressRole {
    /// NodePorts are served here, for everybody.
    NodePorts,
    /// NodePorts are served here, for processes of the node: a loopback address.
    NodePortsForHost,
    /// It is a Service's: a port that is no frontend is refused.
    ClusterIp,
    /// It is a Service's that another proxy serves.
    OfAnotherProxy,
}

/// What a network means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CidrRole {
    /// ClusterIPs come from here, see [`State::service_cidrs`].
    Services,
    /// Pods are in here, see [`State::pod_cidrs`].
    Pods,
}

/// The lines of a state, in order.
#[must_use]
pub fn lines(state: &State) -> Vec<Line> {
    let mut lines: Vec<Line> = state.services.values().flat_map(frontends).collect();
    let node_ports = state.node_port_addresses.iter();
    lines.extend(node_ports.map(|ip| Line::Address(*ip, AddressRole::of_node_ports(*ip))));
    let cluster_ips = state.cluster_ips.iter();
    lines.extend(cluster_ips.map(|(ip, served_by)| Line::Address(*ip, AddressRole::of_cluster_ip(*served_by))));
    let services = state.service_cidrs.iter();
    lines.extend(services.map(|cidr| Line::Cidr(*cidr, CidrRole::Services)));
    let pods = state.pod_cidrs.iter();
    lines.extend(pods.map(|cidr| Line::Cidr(*cidr, CidrRole::Pods)));
    lines.sort_unstable();
    lines
}

fn frontends(service: &ServicePort) -> impl Iterator<Item = Line> {
    service
        .frontends
        .iter()
        .map(|(frontend, route)| Line::Frontend(FrontendLine::new(*frontend, *route, service)))
}

impl FrontendLine {
    fn new(frontend: Frontend, route: Route, service: &ServicePort) -> Self {
        Self {
            address: frontend.socket_address(),
            protocol: frontend.protocol,
            near: Destination::new(route.near, service),
            far: Destination::new(route.far, service),
            masquerade: route.masquerade == Masquerade::Always,
            affinity: service.affinity,
            sources: route.restricted.then(|| service.allowed_sources.clone()),
            distribution: match [route.near, route.far] {
                // Nobody to spread them over.
                [Target::Reject | Target::Drop, Target::Reject | Target::Drop] => Distribution::Random,
                _ => service.distribution,
            },
        }
    }
}

impl Destination {
    fn new(target: Target, service: &ServicePort) -> Self {
        let backends = |member: fn(&Endpoint) -> bool| {
            let members = service.endpoints.iter().filter(|(_, endpoint)| member(endpoint));
            let backends = members.map(|(address, endpoint)| Backend {
                address: *address,
                on_node: endpoint.on_node,
            });
            Self::Backends(backends.collect())
        };
        match target {
            Target::Cluster => backends(|endpoint| endpoint.cluster),
            Target::Local => backends(|endpoint| endpoint.local),
            Target::Reject => Self::Reject,
            Target::Drop => Self::Drop,
        }
    }
}

impl AddressRole {
    /// Of an address that serves NodePorts.
    #[must_use]
    pub const fn of_node_ports(address: IpAddr) -> Self {
        if address.is_loopback() {
            Self::NodePortsForHost
        } else {
            Self::NodePorts
        }
    }

    /// Of a ClusterIP.
    const fn of_cluster_ip(served_by: ServedBy) -> Self {
        match served_by {
            ServedBy::Us => Self::ClusterIp,
            ServedBy::AnotherProxy => Self::OfAnotherProxy,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frontend(line) => line.fmt(f),
            Self::Address(ip, role) => write!(f, "address {ip} {role}"),
            Self::Cidr(cidr, role) => write!(f, "cidr {cidr} {role}"),
        }
    }
}

impl fmt::Display for FrontendLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.protocol)?;
        if self.near == self.far {
            write!(f, " to={}", self.near)?;
        } else {
            write!(f, " near={} far={}", self.near, self.far)?;
        }
        if self.masquerade {
            f.write_str(" masquerade")?;
        }
        if let Some(seconds) = self.affinity {
            write!(f, " affinity={seconds}")?;
        }
        if let Some(AllowedSources { ranges, node }) = &self.sources {
            let mut sources: Vec<String> = ranges.iter().map(IpNet::to_string).collect();
            if *node {
                sources.push("node".into());
            }
            if sources.is_empty() {
                sources.push("nobody".into());
            }
            write!(f, " sources={}", sources.join(","))?;
        }
        if self.distribution == Distribution::Maglev {
            f.write_str(" maglev")?;
        }
        Ok(())
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backends(backends) => {
                let backends: Vec<String> = backends.iter().map(Backend::to_string).collect();
                f.write_str(&backends.join(","))
            }
            Self::Reject => f.write_str("reject"),
            Self::Drop => f.write_str("drop"),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, if self.on_node { "*" } else { "" })
    }
}

impl fmt::Display for AddressRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NodePorts => "node-ports",
            Self::NodePortsForHost => "node-ports-for-host",
            Self::ClusterIp => "cluster-ip",
            Self::OfAnotherProxy => "of-another-proxy",
        })
    }
}

impl fmt::Display for CidrRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Services => "services",
            Self::Pods => "pods",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::desired::{Family, FrontendAddress, ServicePortName, Weight};

    /// On this node and for every client, on another node and for every client, and one for nobody.
    fn service(address: FrontendAddress, port: u16, route: Route) -> ServicePort {
        let frontend = Frontend {
            address,
            port: NonZeroU16::new(port).unwrap(),
            protocol: Protocol::Tcp,
        };
        let endpoint = |address: &str, on_node, cluster, local| {
            let endpoint = Endpoint {
                on_node,
                cluster,
                local,
                weight: Weight::ONE,
            };
            (address.parse().unwrap(), endpoint)
        };
        ServicePort {
            frontends: [(frontend, route)].into(),
            endpoints: [
                endpoint("10.0.2.2:8080", false, true, false),
                endpoint("10.0.1.2:8080", true, true, true),
                endpoint("10.0.1.3:8080", true, false, false),
            ]
            .into(),
            ..ServicePort::default()
        }
    }

    fn route(near: Target, far: Target) -> Route {
        Route {
            near,
            far,
            masquerade: Masquerade::WhereNeeded,
            restricted: false,
        }
    }

    fn ip(address: &str) -> FrontendAddress {
        FrontendAddress::Ip(address.parse().unwrap())
    }

    fn state(services: impl IntoIterator<Item = ServicePort>) -> State {
        let numbered = services.into_iter().enumerate().map(|(number, service)| {
            let name = ServicePortName {
                namespace: "shop".into(),
                name: format!("web-{number}"),
                port: String::new(),
                protocol: Protocol::Tcp,
                family: Family::V4,
            };
            (name, service)
        });
        State {
            services: numbered.collect(),
            ..State::default()
        }
    }

    fn text(state: &State) -> Vec<String> {
        lines(state).iter().map(Line::to_string).collect()
    }

    #[test]
    fn near_and_far_are_told_apart_only_where_they_differ() {
        let same = service(ip("10.96.0.10"), 80, route(Target::Cluster, Target::Cluster));
        let differ = service(ip("10.96.0.11"), 80, route(Target::Cluster, Target::Local));
        let refused = service(ip("10.96.0.12"), 80, route(Target::Reject, Target::Reject));
        let dropped = service(ip("10.96.0.13"), 80, route(Target::Cluster, Target::Drop));
        assert_eq!(
            text(&state([same, differ, refused, dropped])),
            [
                "10.96.0.10:80/TCP to=10.0.1.2:8080*,10.0.2.2:8080",
                "10.96.0.11:80/TCP near=10.0.1.2:8080*,10.0.2.2:8080 far=10.0.1.2:8080*",
                "10.96.0.12:80/TCP to=reject",
                "10.96.0.13:80/TCP near=10.0.1.2:8080*,10.0.2.2:8080 far=drop",
            ]
        );
    }

    #[test]
    fn two_sets_of_the_same_endpoints_are_no_difference() {
        let mut service = service(ip("10.96.0.10"), 80, route(Target::Cluster, Target::Local));
        service.endpoints.retain(|_, endpoint| endpoint.on_node);
        assert_eq!(text(&state([service])), ["10.96.0.10:80/TCP to=10.0.1.2:8080*"]);
    }

    #[test]
    fn sources_are_those_of_a_restricted_frontend() {
        let restricted = |address, ranges: &[&str], node| {
            let route = Route {
                masquerade: Masquerade::Always,
                restricted: true,
                ..route(Target::Local, Target::Local)
            };
            ServicePort {
                affinity: NonZeroU32::new(10800),
                allowed_sources: AllowedSources {
                    ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
                    node,
                },
                ..service(ip(address), 80, route)
            }
        };
        let mut open = restricted("192.0.2.4", &["198.51.100.0/24"], true);
        for route in open.frontends.values_mut() {
            route.restricted = false;
        }
        assert_eq!(
            text(&state([
                restricted("192.0.2.1", &["203.0.113.0/24", "198.51.100.0/24"], true),
                restricted("192.0.2.2", &["198.51.100.0/24"], false),
                restricted("192.0.2.3", &[], false),
                open,
            ])),
            [
                "192.0.2.1:80/TCP to=10.0.1.2:8080* masquerade affinity=10800 sources=198.51.100.0/24,203.0.113.0/24,node",
                "192.0.2.2:80/TCP to=10.0.1.2:8080* masquerade affinity=10800 sources=198.51.100.0/24",
                "192.0.2.3:80/TCP to=10.0.1.2:8080* masquerade affinity=10800 sources=nobody",
                "192.0.2.4:80/TCP to=10.0.1.2:8080* masquerade affinity=10800",
            ]
        );
    }

    #[test]
    fn frontends_come_by_family_address_and_port_then_addresses_then_networks() {
        let refused = |address, port| service(address, port, route(Target::Reject, Target::Reject));
        let state = State {
            node_port_addresses: ["::1", "172.18.0.11", "127.0.0.1"].map(|ip| ip.parse().unwrap()).into(),
            cluster_ips: [
                ("10.96.0.9".parse().unwrap(), ServedBy::AnotherProxy),
                ("10.96.0.10".parse().unwrap(), ServedBy::Us),
            ]
            .into(),
            service_cidrs: ["fd00:96::/112", "10.96.0.0/16"]
                .map(|cidr| cidr.parse().unwrap())
                .into(),
            pod_cidrs: ["10.0.0.0/8".parse().unwrap()].into(),
            ..state([
                refused(FrontendAddress::NodePort(Family::V6), 30080),
                refused(ip("fd00:96::a"), 80),
                refused(ip("10.96.0.10"), 443),
                refused(ip("10.96.0.10"), 80),
                refused(ip("9.0.0.1"), 80),
                refused(FrontendAddress::NodePort(Family::V4), 30080),
            ])
        };
        assert_eq!(
            text(&state),
            [
                "0.0.0.0:30080/TCP to=reject",
                "9.0.0.1:80/TCP to=reject",
                "10.96.0.10:80/TCP to=reject",
                "10.96.0.10:443/TCP to=reject",
                "[::]:30080/TCP to=reject",
                "[fd00:96::a]:80/TCP to=reject",
                "address 10.96.0.9 of-another-proxy",
                "address 10.96.0.10 cluster-ip",
                "address 127.0.0.1 node-ports-for-host",
                "address 172.18.0.11 node-ports",
                "address ::1 node-ports-for-host",
                "cidr 10.0.0.0/8 pods",
                "cidr 10.96.0.0/16 services",
                "cidr fd00:96::/112 services",
            ]
        );
    }
}
