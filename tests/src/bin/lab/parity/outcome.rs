//! What came of a probe: everything that was seen when it was asked again and again.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use lb_tests::client::{self, Failure};

use super::actors::{Backend, Source};
use super::probe::Probe;
use super::twin::Twin;

/// Whom a backend saw.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Saw {
    /// The client at an address of its own. A process of the node has only the node's.
    Client,
    /// An address of the node.
    Node,
    /// Somebody else.
    Stranger(IpAddr),
}

/// What came of one connection.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Observed {
    /// This server answered.
    Answered {
        /// What it calls itself.
        by: String,
        /// Whom it saw.
        saw: Saw,
    },
    /// A reset or an ICMP port unreachable.
    Refused,
    /// Nothing came, twice.
    Silent,
    /// The client's own machine does not let it connect there.
    Denied,
    /// A connection that failed in another way.
    Failed(String),
}

impl Observed {
    /// Judges one connection.
    pub(crate) fn of(outcome: client::Outcome, source: Source, twin: &Twin) -> Self {
        match outcome {
            Ok(answer) => {
                let seen = answer.seen.ip();
                let saw = if source != Source::Host && twin.addresses_of(source).contains(&seen) {
                    Saw::Client
                } else if twin.node_has(seen) {
                    Saw::Node
                } else {
                    Saw::Stranger(seen)
                };
                Self::Answered { by: answer.server, saw }
            }
            Err(Failure::Refused) => Self::Refused,
            Err(Failure::Timeout) => Self::Silent,
            Err(Failure::Denied) => Self::Denied,
            Err(failure) => Self::Failed(failure.to_string()),
        }
    }

    /// Whether a server answered.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, Self::Answered { .. })
    }

    /// The backend that answered, if one did.
    pub(crate) fn backend(&self) -> Option<Backend> {
        match self {
            Self::Answered { by, .. } => Backend::of_server(by),
            _ => None,
        }
    }
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered { by, saw } => match saw {
                Saw::Client => write!(f, "{by} saw client"),
                Saw::Node => write!(f, "{by} saw node"),
                Saw::Stranger(address) => write!(f, "{by} saw {address}"),
            },
            Self::Refused => f.write_str("refused"),
            Self::Silent => f.write_str("no answer"),
            Self::Denied => f.write_str("denied"),
            Self::Failed(what) => f.write_str(what),
        }
    }
}

/// All that can come of a probe.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Outcome(pub(crate) BTreeSet<Observed>);

/// Stands for whichever backend affinity has chosen.
const CHOSEN: &str = "always one and the same";

impl Outcome {
    /// With affinity, which backend a client keeps to is chance: what counts is that it is one.
    pub(crate) fn canonical(&self, probe: &Probe) -> Self {
        let backends: BTreeSet<_> = self.0.iter().filter_map(Observed::backend).collect();
        if !probe.service.affinity || backends.len() != 1 {
            return self.clone();
        }
        let chosen = self.0.iter().map(|observed| match observed {
            Observed::Answered { saw, .. } => Observed::Answered {
                by: CHOSEN.into(),
                saw: *saw,
            },
            other => other.clone(),
        });
        Self(chosen.collect())
    }

    /// What either has.
    pub(crate) fn and(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).cloned().collect())
    }

    /// What it has and the other has not.
    pub(crate) fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).cloned().collect())
    }

    /// Whether it is this and nothing else.
    pub(crate) fn is_only(&self, observed: &Observed) -> bool {
        self.0.len() == 1 && self.0.contains(observed)
    }
}

impl FromIterator<Observed> for Outcome {
    fn from_iter<T: IntoIterator<Item = Observed>>(iter: T) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join(" | "))
    }
}
