//! EndpointSlice: where clients go.

use std::{net::IpAddr, num::NonZeroU16};

use jiff::Timestamp;

use super::ObjectName;
use crate::desired::{Family, Protocol, Weight};

/// Some of the endpoints of one Service in one family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointSlice {
    name: ObjectName,
    service: String,
    family: Family,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
    has_zone_hints: bool,
    triggered: Option<Timestamp>,
}

/// A port that each endpoint of a slice listens on. A port without a number, which would mean every
/// port, is none: no service proxy serves it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointPort {
    /// Name, the same as that of the Service's port.
    pub name: String,
    /// Protocol, the same as that of the Service's port.
    pub protocol: Protocol,
    /// Number, which a Service's port does not know.
    pub port: NonZeroU16,
}

/// One endpoint of a slice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Address, of the slice's family.
    pub address: IpAddr,
    /// What its owner says of it.
    pub conditions: Conditions,
    /// Where it runs.
    pub placement: Placement,
    /// For whom it is meant.
    pub hints: Hints,
    /// Beside the others of its Service.
    pub weight: Weight,
}

/// Where an endpoint runs, as seen from this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Placement {
    /// On another node, or outside the cluster.
    Elsewhere,
    /// On this node.
    Here,
}

impl Placement {
    /// Of an endpoint whose slice says that it is on `node_name`. One that says nothing is elsewhere.
    #[must_use]
    pub fn of(node_name: Option<&str>, this_node: &str) -> Self {
        if node_name == Some(this_node) {
            Self::Here
        } else {
            Self::Elsewhere
        }
    }
}

/// For which clients an endpoint is meant, as seen from this node (KEP-2433, KEP-3015).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hints {
    node: NodeHint,
    // Boxed, since most have none or one, and there are many endpoints.
    zones: Box<[String]>,
}

/// Whether an endpoint is meant for clients on certain nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum NodeHint {
    /// It does not say.
    #[default]
    Unsaid,
    /// On others than this one.
    Others,
    /// On this node, at least.
    ThisNode,
}

impl Hints {
    /// Of an endpoint that is meant for clients on these nodes and in these zones.
    #[must_use]
    pub fn new<'a>(nodes: impl IntoIterator<Item = &'a str>, zones: Vec<String>, this_node: &str) -> Self {
        let node = nodes.into_iter().fold(NodeHint::Unsaid, |hint, node| match hint {
            NodeHint::ThisNode => NodeHint::ThisNode,
            _ if node == this_node => NodeHint::ThisNode,
            _ => NodeHint::Others,
        });
        Self {
            node,
            zones: zones.into(),
        }
    }

    /// What it says of this node.
    pub(super) const fn node(&self) -> NodeHint {
        self.node
    }

    /// Whether it names zones.
    pub(super) const fn has_zones(&self) -> bool {
        !self.zones.is_empty()
    }

    /// Whether it names a zone.
    pub(super) fn names_zone(&self, zone: &str) -> bool {
        self.zones.iter().any(|named| named == zone)
    }
}

/// Whether an endpoint may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conditions {
    ready: bool,
    serving: bool,
    terminating: bool,
}

impl Conditions {
    /// A condition that is not given means ready, serving, and not terminating.
    #[must_use]
    pub fn new(ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> Self {
        Self {
            ready: ready.unwrap_or(true),
            serving: serving.unwrap_or(true),
            terminating: terminating.unwrap_or(false),
        }
    }

    /// New clients may be sent here.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        self.ready
    }

    /// On its way out, but better than nothing.
    #[must_use]
    pub const fn is_last_resort(self) -> bool {
        !self.ready && self.serving && self.terminating
    }
}

impl Endpoint {
    /// Of two endpoints with one address, whether this one speaks for it. A pod network may give
    /// the address of a pod that is terminating to a new one, and an endpoint that moves between
    /// slices is in both for a while. The order of the slices must not matter.
    pub(super) fn outranks(&self, other: &Self) -> bool {
        let rank = |endpoint: &Self| {
            let Conditions {
                ready,
                serving,
                terminating,
            } = endpoint.conditions;
            (!terminating, ready, serving, endpoint.placement)
        };
        rank(self) > rank(other)
    }
}

/// Why an address cannot be an endpoint of a slice.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidEndpoint {
    /// The slice is of the other family.
    #[error("{address} is not an {family} address")]
    Family {
        /// Address.
        address: IpAddr,
        /// Family of the slice.
        family: Family,
    },
    /// Not the address of one machine that others can reach.
    #[error("{0} cannot be the address of an endpoint")]
    Unusable(IpAddr),
}

impl EndpointSlice {
    /// A slice of the Service `service` in the slice's namespace, without endpoints.
    #[must_use]
    pub const fn new(name: ObjectName, service: String, family: Family, ports: Vec<EndpointPort>) -> Self {
        Self {
            name,
            service,
            family,
            ports,
            endpoints: Vec::new(),
            has_zone_hints: false,
            triggered: None,
        }
    }

    /// The same with when the Pod or Service changed for which its controller wrote it.
    #[must_use]
    pub fn triggered_at(self, time: Timestamp) -> Self {
        Self {
            triggered: Some(time),
            ..self
        }
    }

    /// When the Pod or Service changed for which its controller wrote it, if that is told: for measurements only.
    #[must_use]
    pub const fn triggered(&self) -> Option<Timestamp> {
        self.triggered
    }

    /// Adds an endpoint, if it can be one.
    pub fn add(&mut self, endpoint: Endpoint) -> Result<(), InvalidEndpoint> {
        let address = endpoint.address;
        if Family::of(address) != self.family {
            return Err(InvalidEndpoint::Family {
                address,
                family: self.family,
            });
        }
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
        };
        if link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return Err(InvalidEndpoint::Unusable(address));
        }
        self.has_zone_hints |= endpoint.hints.has_zones();
        self.endpoints.push(endpoint);
        Ok(())
    }

    /// Name.
    #[must_use]
    pub const fn name(&self) -> &ObjectName {
        &self.name
    }

    /// The Service that it belongs to.
    #[must_use]
    pub fn service(&self) -> ObjectName {
        ObjectName::new(&self.name.namespace, &self.service)
    }

    /// Family of its endpoints.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Its ports.
    #[must_use]
    pub fn ports(&self) -> &[EndpointPort] {
        &self.ports
    }

    /// Whether an endpoint is meant for certain zones, so that the zone of this node matters.
    pub(super) const fn has_zone_hints(&self) -> bool {
        self.has_zone_hints
    }

    /// Its endpoints.
    #[must_use]
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(family: Family) -> EndpointSlice {
        EndpointSlice::new(ObjectName::new("shop", "web-1"), "web".into(), family, Vec::new())
    }

    fn endpoint(address: &str) -> Endpoint {
        Endpoint {
            address: address.parse().unwrap(),
            conditions: Conditions::new(None, None, None),
            placement: Placement::Elsewhere,
            hints: Hints::default(),
            weight: Weight::ONE,
        }
    }

    #[test]
    fn a_condition_that_is_not_given_means_ready_serving_and_not_terminating() {
        assert_eq!(
            Conditions::new(None, None, None),
            Conditions::new(Some(true), Some(true), Some(false))
        );
    }

    #[test]
    fn only_a_serving_terminating_endpoint_that_is_not_ready_is_a_last_resort() {
        let last_resort = |ready, serving, terminating| {
            Conditions::new(Some(ready), Some(serving), Some(terminating)).is_last_resort()
        };
        assert!(last_resort(false, true, true));
        assert!(!last_resort(true, true, true));
        assert!(!last_resort(false, false, true));
        assert!(!last_resort(false, true, false));
    }

    #[test]
    fn an_endpoint_is_here_only_if_it_names_this_node() {
        assert_eq!(Placement::of(Some("a"), "a"), Placement::Here);
        assert_eq!(Placement::of(Some("b"), "a"), Placement::Elsewhere);
        assert_eq!(Placement::of(None, "a"), Placement::Elsewhere);
    }

    #[test]
    fn endpoints_are_of_the_family_of_their_slice() {
        assert_eq!(slice(Family::V4).add(endpoint("10.0.0.1")), Ok(()));
        assert_eq!(
            slice(Family::V4).add(endpoint("fd00::1")).unwrap_err().to_string(),
            "fd00::1 is not an IPv4 address"
        );
    }

    #[test]
    fn an_address_that_no_other_machine_can_reach_is_no_endpoint() {
        for address in ["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1"] {
            let mut slice = slice(Family::V4);
            assert!(slice.add(endpoint(address)).is_err(), "{address}");
            assert!(slice.endpoints().is_empty());
        }
        for address in ["::1", "::", "fe80::1", "ff02::1", "::ffff:10.0.0.1"] {
            assert!(slice(Family::V6).add(endpoint(address)).is_err(), "{address}");
        }
    }
}
