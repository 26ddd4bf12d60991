//! Service: what clients dial.

mod addresses;

use std::{
    collections::BTreeSet,
    num::{NonZeroU16, NonZeroU32},
};

use ipnet::IpNet;

pub use self::addresses::{ClusterIps, InvalidClusterIp, ServiceIp, UnusableServiceIp};
use super::ObjectName;
use crate::desired::{Distribution, Protocol, ServedBy};

/// A Service that a proxy serves, whichever it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AnyService {
    /// This one.
    Ours(Service),
    /// Another one, which the Service names. Of that, only the addresses matter here: they are not nobody's.
    OfAnotherProxy {
        /// Name.
        name: ObjectName,
        /// Its ClusterIPs.
        cluster_ips: ClusterIps,
    },
}

impl AnyService {
    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &ObjectName {
        match self {
            Self::Ours(service) => &service.name,
            Self::OfAnotherProxy { name, .. } => name,
        }
    }

    /// The Service, if it is ours.
    #[must_use]
    pub const fn ours(&self) -> Option<&Service> {
        match self {
            Self::Ours(service) => Some(service),
            Self::OfAnotherProxy { .. } => None,
        }
    }

    /// The addresses that belong to it with all their ports, and who serves them.
    pub(super) fn claim(&self) -> Option<(ServedBy, ClusterIps)> {
        match self {
            // kube-proxy knows Services by their ports.
            Self::Ours(service) => (!service.ports.is_empty()).then_some((ServedBy::Us, service.cluster_ips)),
            Self::OfAnotherProxy { cluster_ips, .. } => Some((ServedBy::AnotherProxy, *cluster_ips)),
        }
    }
}

impl From<Service> for AnyService {
    fn from(service: Service) -> Self {
        Self::Ours(service)
    }
}

/// A Service that this proxy serves. Headless ones, those of type ExternalName and those that
/// name another proxy never become one of these.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// Name.
    pub name: ObjectName,
    /// Its ClusterIPs. A Service exists in those families only, whatever its other addresses are.
    pub cluster_ips: ClusterIps,
    /// Addresses that somebody routes to the nodes, given by the Service's author.
    pub external_ips: BTreeSet<ServiceIp>,
    /// Addresses of load balancers that pass packets on with their destination.
    pub load_balancer_ips: BTreeSet<ServiceIp>,
    /// Who may dial [`load_balancer_ips`](Self::load_balancer_ips): everybody, in a family of which
    /// there is none.
    pub source_ranges: BTreeSet<IpNet>,
    /// Its ports.
    pub ports: ServicePorts,
    /// For clients of the ClusterIPs.
    pub internal_traffic_policy: TrafficPolicy,
    /// For clients of all other addresses.
    pub external_traffic_policy: TrafficPolicy,
    /// Seconds for which a client gets the same endpoint again.
    pub affinity: Option<NonZeroU32>,
    /// Where load balancers ask whether this node has an endpoint.
    pub health_check_node_port: Option<NonZeroU16>,
    /// How new flows are spread over its endpoints, where it says so.
    pub distribution: Option<Distribution>,
}

/// Which endpoints clients may be sent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TrafficPolicy {
    /// Every one in the cluster.
    #[default]
    Cluster,
    /// Those on this node.
    Local,
}

/// One port of a Service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServicePort {
    /// Name, which ties it to the ports of EndpointSlices. Empty where a Service with one port
    /// leaves it out.
    pub name: String,
    /// Protocol.
    pub protocol: Protocol,
    /// The port of the ClusterIPs.
    pub port: NonZeroU16,
    /// The port of the node's addresses, where the Service has been given one.
    pub node_port: Option<NonZeroU16>,
}

/// The ports of a Service, each of which can be told from the others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServicePorts(Vec<ServicePort>);

/// Why ports cannot be those of one Service. The index says which.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidServicePorts {
    /// Two ports on one number.
    #[error("{port}/{protocol} is there already")]
    Number {
        /// Index of the later one.
        index: usize,
        /// Number.
        port: NonZeroU16,
        /// Protocol.
        protocol: Protocol,
    },
    /// Two ports of one name.
    #[error("the name {name:?} is there already for {protocol}")]
    Name {
        /// Index of the later one.
        index: usize,
        /// Name.
        name: String,
        /// Protocol.
        protocol: Protocol,
    },
}

impl InvalidServicePorts {
    /// Index of the port that is one too many.
    #[must_use]
    pub const fn index(&self) -> usize {
        match self {
            Self::Number { index, .. } | Self::Name { index, .. } => *index,
        }
    }
}

impl ServicePorts {
    /// Ports with different names and different numbers, by protocol.
    pub fn new(ports: Vec<ServicePort>) -> Result<Self, InvalidServicePorts> {
        let mut numbers = BTreeSet::new();
        let mut names = BTreeSet::new();
        for (index, port) in ports.iter().enumerate() {
            let protocol = port.protocol;
            if !numbers.insert((port.port, protocol)) {
                return Err(InvalidServicePorts::Number {
                    index,
                    port: port.port,
                    protocol,
                });
            }
            if !names.insert((port.name.as_str(), protocol)) {
                return Err(InvalidServicePorts::Name {
                    index,
                    name: port.name.clone(),
                    protocol,
                });
            }
        }
        Ok(Self(ports))
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ports, as the Service lists them.
    pub fn iter(&self) -> impl Iterator<Item = &ServicePort> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, protocol: Protocol, number: u16) -> ServicePort {
        ServicePort {
            name: name.into(),
            protocol,
            port: NonZeroU16::new(number).unwrap(),
            node_port: None,
        }
    }

    #[test]
    fn one_number_may_serve_two_protocols_but_not_one_protocol_twice() {
        let dns = vec![port("dns", Protocol::Udp, 53), port("dns-tcp", Protocol::Tcp, 53)];
        assert!(ServicePorts::new(dns).is_ok());

        let twice = vec![port("a", Protocol::Tcp, 80), port("b", Protocol::Tcp, 80)];
        let error = ServicePorts::new(twice).unwrap_err();
        assert_eq!(
            (error.index(), error.to_string()),
            (1, "80/TCP is there already".into())
        );
    }

    #[test]
    fn two_ports_of_one_protocol_have_two_names() {
        let unnamed = vec![port("", Protocol::Tcp, 80), port("", Protocol::Tcp, 443)];
        assert!(matches!(
            ServicePorts::new(unnamed),
            Err(InvalidServicePorts::Name { index: 1, .. })
        ));
    }
}
