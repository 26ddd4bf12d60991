//! Node: this one.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use crate::desired::Family;

/// The object of the node that the agent runs on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    /// Addresses of type InternalIP, in the object's order.
    pub internal_ips: Vec<IpAddr>,
    /// Addresses of type ExternalIP, in the object's order.
    pub external_ips: Vec<IpAddr>,
    /// Somebody takes the node away: load balancers are to send it nothing new.
    pub is_leaving: bool,
    /// The zone that it is in (label `topology.kubernetes.io/zone`).
    pub zone: Option<String>,
    /// Where the pods of this node have their addresses.
    pub pod_cidrs: BTreeSet<IpNet>,
}

impl Node {
    /// Its primary address in each family: the first InternalIP, and where there is none of that
    /// family the first ExternalIP.
    #[must_use]
    pub fn primary_addresses(&self) -> BTreeSet<IpAddr> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter_map(|family| self.addresses().find(|ip| Family::of(*ip) == family))
            .collect()
    }

    /// All its addresses, internal ones first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.internal_ips.iter().chain(&self.external_ips).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(addresses: &[&str]) -> Vec<IpAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn primary(internal_ips: &[&str], external_ips: &[&str]) -> Vec<String> {
        let node = Node {
            internal_ips: ips(internal_ips),
            external_ips: ips(external_ips),
            ..Node::default()
        };
        node.primary_addresses().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_primary_address_of_a_family_is_its_first_internal_ip() {
        assert_eq!(primary(&["10.0.0.1", "10.0.0.2"], &["1.2.3.4"]), ["10.0.0.1"]);
        assert_eq!(primary(&["10.0.0.1", "fd00::1"], &[]), ["10.0.0.1", "fd00::1"]);
    }

    #[test]
    fn a_family_without_internal_ip_falls_back_to_its_first_external_ip() {
        assert_eq!(primary(&[], &["1.2.3.4"]), ["1.2.3.4"]);
        assert_eq!(
            primary(&["10.0.0.1"], &["1.2.3.4", "2001:db8::1"]),
            ["10.0.0.1", "2001:db8::1"]
        );
    }

    #[test]
    fn a_node_without_addresses_has_no_primary_one() {
        assert!(primary(&[], &[]).is_empty());
    }
}
