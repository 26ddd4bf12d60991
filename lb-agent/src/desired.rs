//! What the kernel is to do for each service port, in terms that belong to no plane.
//!
//! Written by [`model`](crate::model), read by [`plane`](crate::plane). Nothing here knows
//! Kubernetes objects, BPF, netlink or time.

#[cfg(test)]
pub(crate) mod any;
pub mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::{NonZeroU16, NonZeroU32},
};

use ipnet::IpNet;

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

impl Family {
    /// The address that stands for every address of the family.
    #[must_use]
    pub const fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
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
    /// Each address of this node that serves NodePorts, see [`State::node_port_addresses`].
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

impl Frontend {
    /// Address and port. The unspecified address stands for each that serves NodePorts.
    #[must_use]
    pub const fn socket_address(&self) -> SocketAddr {
        let address = match self.address {
            FrontendAddress::Ip(ip) => ip,
            FrontendAddress::NodePort(family) => family.unspecified(),
        };
        SocketAddr::new(address, self.port.get())
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.socket_address(), self.protocol)
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
    /// Where the answer would not come back this way otherwise: a pod that reaches itself, and a client
    /// outside of this node, or of no pod, whose backend is on another node.
    WhereNeeded,
    /// Every client.
    Always,
}

/// How one frontend treats its clients.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Route {
    /// Clients on this node, and with [`State::pod_cidrs`] those in there: pods, and the node itself.
    pub near: Target,
    /// Everybody else.
    pub far: Target,
    /// Masquerade.
    pub masquerade: Masquerade,
    /// Only clients of [`ServicePort::allowed_sources`] may begin a flow; of others nothing is answered.
    pub restricted: bool,
}

/// Who may dial the restricted frontends of a service port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct AllowedSources {
    /// Addresses, all of the service port's family.
    pub ranges: BTreeSet<IpNet>,
    /// The node's own processes.
    pub node: bool,
}

/// How many flows an endpoint gets beside others: twice the weight, twice as many.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Weight(u16);

impl Weight {
    /// Of who does not say.
    pub const ONE: Self = Self(1);
    /// The greatest.
    pub const MAX: u16 = 100;

    /// From a number; `None` where it is none of 1 to [`Self::MAX`].
    #[must_use]
    pub const fn new(weight: u16) -> Option<Self> {
        if 1 <= weight && weight <= Self::MAX {
            Some(Self(weight))
        } else {
            None
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// How new flows are spread over endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Distribution {
    /// By chance.
    #[default]
    Random,
    /// By a hash of both ends, the same on every node (Maglev): a flow that nobody remembers goes on to its endpoint.
    Maglev,
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
    /// Beside the others of a set.
    pub weight: Weight,
}

/// A service port as it is to be served on this node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServicePort {
    /// What clients dial, and where they go.
    pub frontends: BTreeMap<Frontend, Route>,
    /// The endpoints, in order of their addresses, all of one family.
    pub endpoints: BTreeMap<SocketAddr, Endpoint>,
    /// Seconds for which a client that has begun a flow gets the same endpoint again, by whichever
    /// frontend.
    pub affinity: Option<NonZeroU32>,
    /// For the frontends that are [`Route::restricted`].
    pub allowed_sources: AllowedSources,
    /// How new flows are spread.
    pub distribution: Distribution,
}

/// Who serves a ClusterIP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ServedBy {
    /// This proxy: a port that is no frontend is refused.
    Us,
    /// Another proxy: packets pass to it untouched.
    AnotherProxy,
}

/// Everything that is to be served on this node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// The service ports.
    pub services: BTreeMap<ServicePortName, ServicePort>,
    /// Addresses of this node on which NodePorts are served. On a loopback address they are for
    /// processes of the node only.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// Addresses that belong to a Service with all their ports.
    pub cluster_ips: BTreeMap<IpAddr, ServedBy>,
    /// Where ClusterIPs come from: an address in there that is nobody's gets no answer.
    pub service_cidrs: BTreeSet<IpNet>,
    /// Where pods have their addresses. In a family that has one, a client is near if its address
    /// is in there; in a family that has none, if it is on this node.
    pub pod_cidrs: BTreeSet<IpNet>,
    /// Pods of this node, by their UIDs, whose sockets are not to be translated; `None` until that is known.
    pub untranslated_pods: Option<BTreeSet<String>>,
}

impl State {
    /// Brings it up to date.
    pub fn apply(&mut self, change: Change) {
        let Change {
            services,
            node_port_addresses,
            cluster_ips,
            service_cidrs,
            pod_cidrs,
            untranslated_pods,
        } = change;
        for (name, service) in services {
            match service {
                Some(service) => self.services.insert(name, service),
                None => self.services.remove(&name),
            };
        }
        for (ip, served_by) in cluster_ips {
            match served_by {
                Some(served_by) => self.cluster_ips.insert(ip, served_by),
                None => self.cluster_ips.remove(&ip),
            };
        }
        if let Some(addresses) = node_port_addresses {
            self.node_port_addresses = addresses;
        }
        if let Some(cidrs) = service_cidrs {
            self.service_cidrs = cidrs;
        }
        if let Some(cidrs) = pod_cidrs {
            self.pod_cidrs = cidrs;
        }
        if untranslated_pods.is_some() {
            self.untranslated_pods = untranslated_pods;
        }
    }
}

/// A difference to the state before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// The service ports that are new or different, and with `None` those that are gone. Within
    /// one change a frontend may pass from one service port to another; no two hold it at once.
    pub services: BTreeMap<ServicePortName, Option<ServicePort>>,
    /// The new set, where it differs.
    pub node_port_addresses: Option<BTreeSet<IpAddr>>,
    /// The ClusterIPs that are new or change hands, and with `None` those that are gone.
    pub cluster_ips: BTreeMap<IpAddr, Option<ServedBy>>,
    /// The new set, where it differs.
    pub service_cidrs: Option<BTreeSet<IpNet>>,
    /// The new set, where it differs.
    pub pod_cidrs: Option<BTreeSet<IpNet>>,
    /// The new set, where it differs.
    pub untranslated_pods: Option<BTreeSet<String>>,
}

impl Change {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether an address or a network is to mean something else than before.
    #[must_use]
    pub fn has_addresses(&self) -> bool {
        self.node_port_addresses.is_some()
            || !self.cluster_ips.is_empty()
            || self.service_cidrs.is_some()
            || self.pod_cidrs.is_some()
    }
}
