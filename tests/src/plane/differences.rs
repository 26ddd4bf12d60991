//! What the IPVS plane is declared to do otherwise than the BPF plane. `docs/semantics.md` lists each with its reason.

use super::{Plane, is};
use crate::kernel::skip;

/// A difference that is meant to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Difference {
    /// NodePorts are not on 127.0.0.1 and ::1.
    NoLocalhostNodePorts,
    /// Session affinity is for a client and one address of a Service, not for all of its addresses.
    AffinityByFrontend,
    /// Near clients of a frontend whose policy is Local keep to an endpoint by their address, as long as endpoints stay.
    NearAffinityByHash,
    /// Ports that nobody has defined are refused on addresses of load balancers and on external ones.
    UndefinedPortsRefused,
    /// A pod and its backend on one bridge need the bridge's packets to pass the packet filter (`bridge-nf-call-iptables`).
    BridgeNetfilter,
    /// Clients on a bridge with an uplink among its ports are not near, unless networks say who is.
    BridgeWithUplinkIsOutside,
    /// Marks of others are replaced on packets to frontends that serve near and far clients differently.
    MarksReplaced,
    /// A backend sees an address of the node's choice of a process of the node, also if its socket was bound to another.
    HostMasqueraded,
    /// What a process of the node sends from a port that is a NodePort gets no answer.
    NodePortAsSource,
    /// A socket of the node that is bound to a link reaches a Service if a route to the Service's address leads there.
    BoundToLink,
    /// A process of the node that is refused without a connection is told that it is not permitted.
    HostDenied,
    /// The checksum of a packet that an ICMP error quotes is still that of the packet which was answered by it.
    QuotedChecksums,
    /// Endpoints take turns, where the BPF plane draws one at random.
    TakesTurns,
    /// Weights of endpoints do not count.
    EqualWeights,
}

impl Difference {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::NoLocalhostNodePorts,
        Self::AffinityByFrontend,
        Self::NearAffinityByHash,
        Self::UndefinedPortsRefused,
        Self::BridgeNetfilter,
        Self::BridgeWithUplinkIsOutside,
        Self::MarksReplaced,
        Self::HostMasqueraded,
        Self::NodePortAsSource,
        Self::BoundToLink,
        Self::HostDenied,
        Self::QuotedChecksums,
        Self::TakesTurns,
        Self::EqualWeights,
    ];

    /// Its name in `docs/semantics.md`.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::NoLocalhostNodePorts => "ipvs-no-localhost-node-ports",
            Self::AffinityByFrontend => "ipvs-affinity-by-frontend",
            Self::NearAffinityByHash => "ipvs-near-affinity-by-hash",
            Self::UndefinedPortsRefused => "ipvs-undefined-ports-refused",
            Self::BridgeNetfilter => "ipvs-bridge-netfilter",
            Self::BridgeWithUplinkIsOutside => "ipvs-bridge-with-uplink-is-outside",
            Self::MarksReplaced => "ipvs-marks-replaced",
            Self::HostMasqueraded => "ipvs-host-masqueraded",
            Self::NodePortAsSource => "ipvs-node-port-as-source",
            Self::BoundToLink => "ipvs-bound-to-link",
            Self::HostDenied => "ipvs-host-denied",
            Self::QuotedChecksums => "ipvs-quoted-checksums",
            Self::TakesTurns => "ipvs-takes-turns",
            Self::EqualWeights => "ipvs-equal-weights",
        }
    }

    /// Whether the plane under test has it, for a test that then expects something else.
    #[must_use]
    pub fn applies(self) -> bool {
        is(Plane::Ipvs)
    }

    /// The same for a test of which nothing is left then: it is noted as skipped, and has only to return.
    #[must_use]
    pub fn leaves_nothing(self) -> bool {
        if self.applies() {
            skip(&format!("a declared difference of the plane: {}", self.id()));
        }
        self.applies()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the table in the section on the plane.
    fn rows() -> Vec<&'static str> {
        let docs = include_str!("../../../docs/semantics.md");
        let section = docs.split("\n## The IPVS plane\n").nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        section.lines().filter(|line| line.starts_with("| `")).collect()
    }

    #[test]
    fn every_difference_is_in_the_docs_with_its_reason_and_no_other_is() {
        let rows = rows();
        for difference in Difference::ALL {
            let row = rows
                .iter()
                .find(|line| line.starts_with(&format!("| `{}` |", difference.id())));
            let row = row.unwrap_or_else(|| panic!("no row for {difference:?}"));
            let cells: Vec<_> = row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
            assert_eq!(cells.len(), 4, "id, BPF plane, IPVS plane, reason: {row}");
        }
        assert_eq!(rows.len(), Difference::ALL.len(), "{rows:#?}");
    }
}
