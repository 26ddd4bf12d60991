//! Topology hints: endpoints that are meant for clients nearby.

use crate::model::endpoint_slice::{Hints, NodeHint};

/// By what the ready endpoints of a service port are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Topology<'a> {
    /// By nothing: each serves everybody.
    Unused,
    /// Those for this node serve its clients.
    Node,
    /// Those for this zone serve clients on this node.
    Zone(&'a str),
}

impl<'a> Topology<'a> {
    /// From the hints of all *ready* endpoints. Nodes are preferred to zones, and either counts only if
    /// every endpoint says something of it and one names this node, or its zone: a hint that is
    /// missing is a sign that whoever writes them has not caught up yet.
    pub(super) fn of<'h>(hints: impl Iterator<Item = &'h Hints> + Clone, zone: Option<&'a str>) -> Self {
        let every_node = hints.clone().all(|hints| hints.node() != NodeHint::Unsaid);
        if every_node && hints.clone().any(|hints| hints.node() == NodeHint::ThisNode) {
            return Self::Node;
        }
        match zone {
            Some(zone) if hints.clone().all(Hints::has_zones) && hints.clone().any(|hints| hints.names_zone(zone)) => {
                Self::Zone(zone)
            }
            _ => Self::Unused,
        }
    }

    /// Whether an endpoint serves clients here. Asked of ready ones, and where there is none, of any:
    /// hints are unused then.
    pub(super) fn admits(self, hints: &Hints) -> bool {
        match self {
            Self::Unused => true,
            Self::Node => hints.node() == NodeHint::ThisNode,
            Self::Zone(zone) => hints.names_zone(zone),
        }
    }
}
