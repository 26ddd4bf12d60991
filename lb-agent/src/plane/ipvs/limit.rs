//! What this plane does otherwise than a service port asks.

use std::fmt;

/// What it does. `docs/semantics.md` has a row for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Limit {
    /// A client is remembered by the address that it dialled, not by the service port.
    AffinityByFrontend,
    /// Pods and processes of this node that dial a frontend whose traffic policy does not bind them are kept
    /// to an endpoint by a hash of their address, as long as the endpoints stay the same.
    AffinityByHash,
    /// NodePorts are not served on loopback addresses.
    LoopbackNodePort,
    /// Endpoints get as many flows as others, whatever they weigh.
    EqualWeights,
}

impl Limit {
    /// Its name in `docs/semantics.md`.
    #[must_use]
    const fn id(self) -> &'static str {
        match self {
            Self::AffinityByFrontend => "ipvs-affinity-by-frontend",
            Self::AffinityByHash => "ipvs-near-affinity-by-hash",
            Self::LoopbackNodePort => "ipvs-no-localhost-node-ports",
            Self::EqualWeights => "ipvs-equal-weights",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::AffinityByFrontend => "session affinity holds for each of its addresses by itself",
            Self::AffinityByHash => {
                "clients of this node that dial a frontend with the traffic policy Local have affinity by a hash of \
                 their address, which holds as long as the endpoints stay the same"
            }
            Self::LoopbackNodePort => "its NodePort is not served on loopback addresses",
            Self::EqualWeights => "its endpoints count alike, whatever their weights",
        };
        write!(f, "{words} ({})", self.id())
    }
}
