//! What the kernel is to do for each service port, in terms that belong to no plane.
//!
//! Written by [`model`](crate::model), read by [`plane`](crate::plane). Nothing here knows
//! Kubernetes objects, BPF, netlink or time.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
};

/// IP family. A dual-stack service port is two of them, one a family, since its endpoints are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Transport protocol of a service port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// Names one port of one Service in one family. The unit of every change.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ServicePortName {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Name of the port; empty where a Service with a single port leaves it out.
    pub port: String,
    /// Protocol: a Service may have one port name twice, never with the same protocol and number.
    pub protocol: Protocol,
    /// Family.
    pub family: Family,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        if !self.port.is_empty() {
            write!(f, ":{}", self.port)?;
        }
        write!(f, " {} {}", self.protocol, self.family)
    }
}

/// Where a frontend listens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum FrontendAddress {
    /// One address: a ClusterIP, a load balancer's, an external one.
    Ip(IpAddr),
    /// Each address of this node that serves NodePorts, see [`Change::node_port_addresses`].
    NodePort(Family),
}

/// What a client dials.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Frontend {
    /// Address.
    pub address: FrontendAddress,
    /// Port, in the byte order of the machine.
    pub port: NonZeroU16,
    /// Protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            FrontendAddress::Ip(ip) => write!(f, "{}", SocketAddr::new(ip, self.port.get()))?,
            FrontendAddress::NodePort(_) => write!(f, "*:{}", self.port)?,
        }
        write!(f, "/{}", self.protocol)
    }
}

/// Where a class of clients goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// The endpoints with [`Endpoint::cluster`]; there is at least one.
    Cluster,
    /// The endpoints with [`Endpoint::local`]; there is at least one.
    Local,
    /// No usable endpoint anywhere: refuse.
    Reject,
    /// Endpoints, but none that the traffic policy allows: drop.
    Drop,
}

/// When a client's address gives way to the node's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Masquerade {
    /// Only for a pod that reaches itself, which needs it always.
    Hairpin,
    /// An off-node client whose backend is on another node.
    RemoteBackend,
    /// Every client.
    Always,
}

/// How one frontend treats its clients.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Route {
    /// Clients on this node: pods, and the node itself.
    pub near: Target,
    /// Everybody else.
    pub far: Target,
    /// Masquerade.
    pub masquerade: Masquerade,
}

/// One endpoint of a service port. One in neither set takes no new flow, but keeps its TCP flows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// On this node: a pod here, or the host.
    pub on_node: bool,
    /// Member of the cluster set.
    pub cluster: bool,
    /// Member of the local set.
    pub local: bool,
}

/// A service port as it is to be served on this node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServicePort {
    /// What clients dial, and where they go.
    pub frontends: BTreeMap<Frontend, Route>,
    /// The endpoints, in order of their addresses, all of one family.
    pub endpoints: BTreeMap<SocketAddr, Endpoint>,
}

/// Everything that is to be served on this node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// The service ports.
    pub services: BTreeMap<ServicePortName, ServicePort>,
    /// Addresses of this node on which NodePorts are served.
    pub node_port_addresses: BTreeSet<IpAddr>,
}

/// A difference to the state before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// The service ports that are new or different, and with `None` those that are gone. Within
    /// one change a frontend may pass from one service port to another; no two hold it at once.
    pub services: BTreeMap<ServicePortName, Option<ServicePort>>,
    /// The new set, where it differs.
    pub node_port_addresses: Option<BTreeSet<IpAddr>>,
}

impl Change {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.node_port_addresses.is_none()
    }
}
