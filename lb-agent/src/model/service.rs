//! Service: what clients dial.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
};

use super::ObjectName;
use crate::desired::{Family, Protocol};

/// A Service that a service proxy serves. Headless ones, those of type ExternalName and those that
/// name another proxy never become one of these.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// Name.
    pub name: ObjectName,
    /// Its ClusterIPs. A Service exists in those families only, whatever its other addresses are.
    pub cluster_ips: ClusterIps,
    /// Its ports.
    pub ports: ServicePorts,
    /// For clients of the ClusterIPs.
    pub internal_traffic_policy: TrafficPolicy,
    /// For clients of the NodePorts.
    pub external_traffic_policy: TrafficPolicy,
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

/// One ClusterIP, or one of each family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClusterIps {
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

/// Why addresses cannot be the ClusterIPs of a Service.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidClusterIp {
    /// There is none.
    #[error("no ClusterIP")]
    Missing,
    /// No client can dial it.
    #[error("{0} cannot be a ClusterIP")]
    Unusable(IpAddr),
    /// There is at most one of each family.
    #[error("{0} is a second {family} ClusterIP", family = Family::of(*.0))]
    Second(IpAddr),
}

impl ClusterIps {
    /// At least one address, at most one of each family.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Result<Self, InvalidClusterIp> {
        let mut cluster_ips = Self { v4: None, v6: None };
        for address in addresses {
            // The unspecified address is how a plane writes "each address of this node", and an
            // IPv4-mapped one is the IPv4 address to it.
            let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
            if address.is_unspecified() || address.is_multicast() || mapped {
                return Err(InvalidClusterIp::Unusable(address));
            }
            let second = match address {
                IpAddr::V4(v4) => cluster_ips.v4.replace(v4).is_some(),
                IpAddr::V6(v6) => cluster_ips.v6.replace(v6).is_some(),
            };
            if second {
                return Err(InvalidClusterIp::Second(address));
            }
        }
        if cluster_ips.v4.is_none() && cluster_ips.v6.is_none() {
            return Err(InvalidClusterIp::Missing);
        }
        Ok(cluster_ips)
    }

    /// The addresses, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.v4.map(IpAddr::V4);
        v4.into_iter().chain(self.v6.map(IpAddr::V6))
    }
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

    /// The ports, as the Service lists them.
    pub fn iter(&self) -> impl Iterator<Item = &ServicePort> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster_ips(addresses: &[&str]) -> Result<ClusterIps, InvalidClusterIp> {
        ClusterIps::new(addresses.iter().map(|address| address.parse().unwrap()))
    }

    fn port(name: &str, protocol: Protocol, number: u16) -> ServicePort {
        ServicePort {
            name: name.into(),
            protocol,
            port: NonZeroU16::new(number).unwrap(),
            node_port: None,
        }
    }

    #[test]
    fn a_service_has_one_cluster_ip_or_one_of_each_family() {
        assert!(cluster_ips(&["10.96.0.1"]).is_ok());
        assert!(cluster_ips(&["fd00:96::1", "10.96.0.1"]).is_ok());
        assert_eq!(cluster_ips(&[]), Err(InvalidClusterIp::Missing));
        assert_eq!(
            cluster_ips(&["10.96.0.1", "10.96.0.2"]).unwrap_err().to_string(),
            "10.96.0.2 is a second IPv4 ClusterIP"
        );
    }

    #[test]
    fn an_address_that_means_something_else_to_a_plane_is_no_cluster_ip() {
        for address in ["0.0.0.0", "::", "224.0.0.1", "::ffff:10.96.0.1"] {
            assert_eq!(
                cluster_ips(&[address]),
                Err(InvalidClusterIp::Unusable(address.parse().unwrap()))
            );
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
