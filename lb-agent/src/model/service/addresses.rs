//! The addresses of a Service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::desired::Family;

/// An address that a client on another machine can dial.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ServiceIp(IpAddr);

/// Why an address cannot be one of a Service.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} cannot be the address of a Service")]
pub struct UnusableServiceIp(pub IpAddr);

impl ServiceIp {
    /// An address that means one destination, the same on every machine.
    pub fn new(address: IpAddr) -> Result<Self, UnusableServiceIp> {
        // The unspecified address is how a plane writes "each address of this node", and an
        // IPv4-mapped one is the IPv4 address to it.
        let special = match address {
            IpAddr::V4(v4) => v4.is_broadcast(),
            IpAddr::V6(v6) => v6.to_ipv4_mapped().is_some(),
        };
        if special || address.is_unspecified() || address.is_loopback() || address.is_multicast() {
            return Err(UnusableServiceIp(address));
        }
        Ok(Self(address))
    }

    /// The address.
    #[must_use]
    pub const fn get(self) -> IpAddr {
        self.0
    }
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
    #[error(transparent)]
    Unusable(#[from] UnusableServiceIp),
    /// There is at most one of each family.
    #[error("{0} is a second {family} ClusterIP", family = Family::of(*.0))]
    Second(IpAddr),
}

impl ClusterIps {
    /// At least one address, at most one of each family.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Result<Self, InvalidClusterIp> {
        let mut cluster_ips = Self { v4: None, v6: None };
        for address in addresses {
            ServiceIp::new(address)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster_ips(addresses: &[&str]) -> Result<ClusterIps, InvalidClusterIp> {
        ClusterIps::new(addresses.iter().map(|address| address.parse().unwrap()))
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
    fn an_address_that_no_client_can_dial_is_no_address_of_a_service() {
        let addresses = [
            "0.0.0.0",
            "::",
            "127.0.0.1",
            "::1",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "::ffff:10.96.0.1",
        ];
        for address in addresses {
            let unusable = UnusableServiceIp(address.parse().unwrap());
            assert_eq!(ServiceIp::new(unusable.0), Err(unusable.clone()));
            assert_eq!(cluster_ips(&[address]), Err(unusable.into()));
        }
    }
}
