//! What a plane is: something in the kernel that serves the desired state.

use std::{error::Error, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    desired::{Change, ServicePortName, State},
    kernel::links::{Link, LinkEvent},
};

pub mod choice;
pub mod ebpf;
pub mod ipvs;
pub mod probe;
pub mod shown;

/// The planes there are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlaneName {
    /// Programs in BPF on links and sockets.
    Ebpf,
    /// The kernel's own IPVS.
    Ipvs,
}

impl PlaneName {
    /// Both, the better one first.
    pub const ALL: [Self; 2] = [Self::Ebpf, Self::Ipvs];

    /// The word for it, in flags, metrics and messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Ipvs => "ipvs",
        }
    }
}

impl fmt::Display for PlaneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A plane takes the change of the desired state and makes it true in the kernel. It knows nothing
/// of Kubernetes objects. What it programmed goes on working when the agent is gone.
pub trait Plane {
    /// Makes the kernel hold `state` and nothing else of ours. Adopts what is there already:
    /// flows go on. Called once, after the first complete lists. Fails if the plane cannot take the
    /// place of what an earlier agent left, which serves on: a new start is to be made.
    fn replace(&mut self, state: &State) -> anyhow::Result<Outcome>;

    /// Applies a change. Each service port succeeds or fails by itself; one that fails keeps the
    /// state it had.
    fn apply(&mut self, change: &Change) -> Outcome;

    /// Called about once a second, for what has to wait: slots of ranges that running programs may
    /// still read.
    fn tick(&mut self);

    /// How many frontends of ours the kernel holds.
    fn frontends(&self) -> usize;

    /// How full those of its tables are that refuse a change when they are.
    fn fill(&self) -> Vec<Fill> {
        Vec::new()
    }

    /// What of the desired state it cannot express. Whatever it does instead is told here, never done in silence.
    fn unsupported(&self) -> Vec<Unsupported> {
        Vec::new()
    }
}

impl<P: Plane + ?Sized> Plane for Box<P> {
    fn replace(&mut self, state: &State) -> anyhow::Result<Outcome> {
        (**self).replace(state)
    }

    fn apply(&mut self, change: &Change) -> Outcome {
        (**self).apply(change)
    }

    fn tick(&mut self) {
        (**self).tick();
    }

    fn frontends(&self) -> usize {
        (**self).frontends()
    }

    fn fill(&self) -> Vec<Fill> {
        (**self).fill()
    }

    fn unsupported(&self) -> Vec<Unsupported> {
        (**self).unsupported()
    }
}

/// How full a table in the kernel is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Its name.
    pub map: &'static str,
    /// Rows in use, those included that rest before they are used again.
    pub used: usize,
    /// How many there may be.
    pub capacity: u32,
}

/// Something that is desired of a service port and that a plane has no way to do.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Unsupported {
    /// The service port.
    pub service: ServicePortName,
    /// What is not as it should be, and what is done instead.
    pub what: String,
}

/// The side of a plane that is on the links. The kernel may take long over a link and holds up
/// whoever asks, so this has a thread of its own and services do not wait for it.
pub trait LinkPlane {
    /// A link came, changed or went. Says what it is to the plane now.
    fn link(&mut self, event: &LinkEvent, pace: Pace) -> Result<LinkState, PlaneError>;

    /// The plane holds a complete state: links that were [`LinkState::Waiting`] are to be told again.
    fn stop_waiting(&mut self);

    /// Each link that was there at the start has had its turn, and the plane holds a complete state.
    fn links_are_served(&mut self) {}

    /// Looks at a link that is to be served, for what others have done there. Says whether it is to be
    /// told again.
    fn look(&mut self, link: &Link) -> bool;

    /// Whether a link is another to it when only its bridge is another.
    fn minds_bridges(&self) -> bool {
        false
    }
}

impl<P: LinkPlane + ?Sized> LinkPlane for Box<P> {
    fn link(&mut self, event: &LinkEvent, pace: Pace) -> Result<LinkState, PlaneError> {
        (**self).link(event, pace)
    }

    fn stop_waiting(&mut self) {
        (**self).stop_waiting();
    }

    fn links_are_served(&mut self) {
        (**self).links_are_served();
    }

    fn look(&mut self, link: &Link) -> bool {
        (**self).look(link)
    }

    fn minds_bridges(&self) -> bool {
        (**self).minds_bridges()
    }
}

/// How much time there is for a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// As much as it takes.
    Steady,
    /// Others wait: the quickest way that serves it.
    Hurried,
}

/// What a link is to a plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// Its clients are served by this plane.
    Served,
    /// They are, in the quickest way. To be told again, steadily, once no other link waits.
    ServedInHaste,
    /// It carries another service proxy's programs, which serve its clients.
    LeftAlone,
    /// Whatever an earlier agent put there stays until there is a complete state.
    Waiting,
    /// It is not there, or takes no part.
    Gone,
}

/// What became of a change.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Service ports that are now as desired.
    pub programmed: usize,
    /// Writes to the kernel that it took.
    pub writes: usize,
    /// Those that keep their former state, with the reason. To be tried again later.
    pub failed: Vec<(ServicePortName, PlaneError)>,
    /// Why addresses or networks are not as desired. With the next change, whatever it is, the plane tries
    /// again.
    pub addresses: Option<PlaneError>,
}

/// Why the kernel does not hold what it should.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// A map has no room. The state from before stays.
    #[error("map {map} is full ({capacity} entries): raise {flag} and restart the agent")]
    MapFull {
        /// Name of the map.
        map: &'static str,
        /// How many entries it can hold.
        capacity: u32,
        /// The flag that sets its size.
        flag: &'static str,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Kernel {
        /// What was tried, with the name of the map, link or program.
        what: String,
        /// The kernel's answer.
        source: Box<dyn Error + Send + Sync>,
    },
    /// It is somebody else's, and stays so.
    #[error("{what} is held by somebody else: take it away there, and it is served here")]
    Foreign {
        /// What it is.
        what: String,
    },
}

impl PlaneError {
    /// The words for its kinds.
    pub const KINDS: [&str; 3] = ["map_full", "kernel", "foreign"];

    /// The word for its kind, for those who count.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::MapFull { .. } => Self::KINDS[0],
            Self::Kernel { .. } => Self::KINDS[1],
            Self::Foreign { .. } => Self::KINDS[2],
        }
    }

    /// The kernel's answer to something that was tried.
    pub fn kernel(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Kernel {
            what: what.into(),
            source: source.into(),
        }
    }
}
