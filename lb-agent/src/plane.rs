//! What a plane is: something in the kernel that serves the desired state.

use crate::{
    desired::{Change, ServicePortName, State},
    kernel::links::{Link, LinkEvent},
};

pub mod ebpf;
pub mod ipvs;

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
}

/// The side of a plane that is on the links. The kernel may take long over a link and holds up
/// whoever asks, so this has a thread of its own and services do not wait for it.
pub trait LinkPlane {
    /// A link came, changed or went. Says what it is to the plane now.
    fn link(&mut self, event: &LinkEvent, pace: Pace) -> Result<LinkState, PlaneError>;

    /// The plane holds a complete state: links that were [`LinkState::Waiting`] are to be told again.
    fn stop_waiting(&mut self);

    /// Looks at a link that is to be served, for what others have done there. Says whether it is to be
    /// told again.
    fn look(&mut self, link: &Link) -> bool;
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
        source: std::io::Error,
    },
}
