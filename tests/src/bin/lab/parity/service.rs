//! A Service of the catalogue: the fields that a service proxy reads.

mod objects;

use std::net::IpAddr;

use lb_tests::client::Protocol;
use lb_tests::netlink::Cidr;
use lb_tests::network::plan;
use lb_tests::stage::Family;

use super::actors::{Backend, Net, addresses};

/// `spec.type`, and the ways to be no Service at all in the eyes of a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `ClusterIP`.
    ClusterIp,
    /// `NodePort`.
    NodePort,
    /// `LoadBalancer`.
    LoadBalancer,
    /// `clusterIP: None`.
    Headless,
    /// `ExternalName`.
    ExternalName,
}

/// A traffic policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Policy {
    /// Every endpoint.
    Cluster,
    /// Endpoints of the node.
    Local,
}

impl Policy {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Cluster, Self::Local];

    /// The word for it in a Service.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

/// An entry of `status.loadBalancer.ingress`, for each family of the pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ingress {
    /// `ipMode: VIP`.
    Vip([IpAddr; 2]),
    /// `ipMode: Proxy`.
    Proxy([IpAddr; 2]),
    /// A host name alone.
    Hostname(&'static str),
}

/// A number that a Service listens at, with every protocol of the Service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Port {
    /// `port`.
    pub(crate) port: u16,
    /// `nodePort`.
    pub(crate) node_port: u16,
    /// Where endpoints listen; none means that no EndpointSlice has a port of this name.
    pub(crate) target: Option<u16>,
}

/// An endpoint in an EndpointSlice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Endpoint {
    pub(crate) backend: Backend,
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
    /// `hints.forZones`.
    pub(crate) zones: Vec<&'static str>,
    /// `hints.forNodes`.
    pub(crate) nodes: Vec<&'static str>,
    /// Which of the Service's slices it is in.
    pub(crate) slice: u8,
    /// How far behind the Service's target ports those of its slice are.
    pub(crate) port_offset: u16,
}

impl Endpoint {
    fn with(backend: Backend, ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> Self {
        Self {
            backend,
            ready,
            serving,
            terminating,
            zones: Vec::new(),
            nodes: Vec::new(),
            slice: 0,
            port_offset: 0,
        }
    }

    /// Takes new connections.
    pub(crate) fn ready(backend: Backend) -> Self {
        Self::with(backend, Some(true), Some(true), Some(false))
    }

    /// Takes new connections only if nobody else does.
    pub(crate) fn terminating(backend: Backend) -> Self {
        Self::with(backend, Some(false), Some(true), Some(true))
    }

    /// About to end, and not serving any more.
    pub(crate) fn ending(backend: Backend) -> Self {
        Self::with(backend, Some(false), Some(false), Some(true))
    }

    /// Neither ready nor terminating.
    pub(crate) fn not_ready(backend: Backend) -> Self {
        Self::with(backend, Some(false), Some(false), Some(false))
    }

    /// Without conditions.
    pub(crate) fn unknown(backend: Backend) -> Self {
        Self::with(backend, None, None, None)
    }

    /// The same for these zones.
    pub(crate) fn for_zones(mut self, zones: &[&'static str]) -> Self {
        self.zones = zones.to_vec();
        self
    }

    /// The same for these nodes.
    pub(crate) fn for_nodes(mut self, nodes: &[&'static str]) -> Self {
        self.nodes = nodes.to_vec();
        self
    }

    /// The same in another slice.
    pub(crate) fn in_slice(mut self, slice: u8) -> Self {
        self.slice = slice;
        self
    }

    /// The same in another slice, whose ports have other numbers.
    pub(crate) fn behind_by(mut self, slice: u8, offset: u16) -> Self {
        (self.slice, self.port_offset) = (slice, offset);
        self
    }
}

/// A Service and its endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    /// Its addresses and NodePorts come from this.
    pub(crate) number: u8,
    pub(crate) kind: Kind,
    pub(crate) families: Vec<Family>,
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) ports: Vec<Port>,
    pub(crate) external: Policy,
    pub(crate) internal: Policy,
    pub(crate) ingress: Vec<Ingress>,
    pub(crate) external_ips: Vec<[IpAddr; 2]>,
    /// `loadBalancerSourceRanges`.
    pub(crate) source_ranges: Vec<Cidr>,
    /// `sessionAffinity: ClientIP`.
    pub(crate) affinity: bool,
    /// `allocateLoadBalancerNodePorts`.
    pub(crate) node_ports: bool,
    /// Labelled as another proxy's.
    pub(crate) of_another_proxy: bool,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// Where the first port of every Service has its backends.
pub(crate) const TARGET: u16 = 8080;
/// Where a second port has them.
pub(crate) const SECOND_TARGET: u16 = 8090;

impl Service {
    /// One of type LoadBalancer with every kind of frontend, at the addresses of this number.
    pub(crate) fn new(name: impl Into<String>, number: u8, endpoints: Vec<Endpoint>) -> Self {
        Self {
            name: name.into(),
            number,
            kind: Kind::LoadBalancer,
            families: Family::ALL.to_vec(),
            protocols: vec![Protocol::Tcp, Protocol::Udp],
            ports: vec![Port {
                port: 80,
                node_port: 30_000 + u16::from(number),
                target: Some(TARGET),
            }],
            external: Policy::Cluster,
            internal: Policy::Cluster,
            ingress: vec![Ingress::Vip(addresses(Net::LoadBalancer, number))],
            external_ips: vec![addresses(Net::External, number)],
            source_ranges: Vec::new(),
            affinity: false,
            node_ports: true,
            of_another_proxy: false,
            endpoints,
        }
    }

    /// The same with a second port.
    pub(crate) fn with_second_port(mut self, target: Option<u16>) -> Self {
        self.ports.push(Port {
            port: 8000,
            node_port: 31_000 + u16::from(self.number),
            target,
        });
        self
    }

    /// What its object is called. It keeps that when it becomes another Service.
    pub(crate) fn object_name(&self) -> String {
        format!("service-{}", self.number)
    }

    /// Whether its object can become any other Service of which the same is true.
    pub(crate) fn is_plain(&self) -> bool {
        self.kind == Kind::LoadBalancer && self.families == Family::ALL && !self.of_another_proxy
    }

    /// Its cluster addresses, IPv4 first.
    pub(crate) fn cluster_ips(&self) -> [IpAddr; 2] {
        plan::service_addresses(self.number)
    }

    /// Whether it has NodePorts.
    pub(crate) fn has_node_ports(&self) -> bool {
        match self.kind {
            Kind::NodePort => true,
            Kind::LoadBalancer => self.node_ports,
            _ => false,
        }
    }
}
