//! How a service chooses among its destinations.

use std::{fmt, str::FromStr};

use clap::{ValueEnum, builder::PossibleValue};
use serde::{Deserialize, Serialize, Serializer};

/// `IP_VS_SCHEDNAME_MAXLEN`: bytes of a name, with the zero that ends it.
pub(super) const NAME_LENGTH: usize = 16;

/// A scheduler of the kernel. Each is a module of its own, `ip_vs_` and its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum Scheduler {
    /// One after the other.
    RoundRobin,
    /// One after the other, as often as its weight says.
    WeightedRoundRobin,
    /// The one with the fewest connections.
    LeastConnections,
    /// The one with the fewest connections for its weight.
    WeightedLeastConnections,
    /// By a hash of the client's address.
    SourceHash,
    /// By a hash of the service's address.
    DestinationHash,
    /// The one that would have the shortest delay for its weight.
    ShortestExpectedDelay,
    /// One without connections if there is any, else as [`Self::ShortestExpectedDelay`].
    NeverQueue,
    /// By Maglev's consistent hash of the client's address.
    Maglev,
}

impl Scheduler {
    /// All.
    pub const ALL: [Self; 9] = [
        Self::RoundRobin,
        Self::WeightedRoundRobin,
        Self::LeastConnections,
        Self::WeightedLeastConnections,
        Self::SourceHash,
        Self::DestinationHash,
        Self::ShortestExpectedDelay,
        Self::NeverQueue,
        Self::Maglev,
    ];

    /// The kernel's name of it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "rr",
            Self::WeightedRoundRobin => "wrr",
            Self::LeastConnections => "lc",
            Self::WeightedLeastConnections => "wlc",
            Self::SourceHash => "sh",
            Self::DestinationHash => "dh",
            Self::ShortestExpectedDelay => "sed",
            Self::NeverQueue => "nq",
            Self::Maglev => "mh",
        }
    }

    const fn help(self) -> &'static str {
        match self {
            Self::RoundRobin => "Round robin",
            Self::WeightedRoundRobin => "Weighted round robin",
            Self::LeastConnections => "Least connections",
            Self::WeightedLeastConnections => "Weighted least connections",
            Self::SourceHash => "Hash of the client's address",
            Self::DestinationHash => "Hash of the service's address",
            Self::ShortestExpectedDelay => "Shortest expected delay",
            Self::NeverQueue => "One without connections, else the shortest expected delay",
            Self::Maglev => "Maglev's consistent hash of the client's address",
        }
    }
}

impl Serialize for Scheduler {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why something is no scheduler.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no scheduler: there are {all}", all = Scheduler::ALL.map(Scheduler::name).join(", "))]
pub struct UnknownScheduler(pub String);

impl FromStr for Scheduler {
    type Err = UnknownScheduler;

    fn from_str(name: &str) -> Result<Self, UnknownScheduler> {
        Self::ALL
            .into_iter()
            .find(|scheduler| scheduler.name() == name)
            .ok_or_else(|| UnknownScheduler(name.to_owned()))
    }
}

impl TryFrom<String> for Scheduler {
    type Error = UnknownScheduler;

    fn try_from(name: String) -> Result<Self, UnknownScheduler> {
        name.parse()
    }
}

impl ValueEnum for Scheduler {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.help()))
    }
}

/// What the kernel says that a service's scheduler is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SchedulerName {
    /// One that we use.
    Ours(Scheduler),
    /// Another, of a service of somebody else.
    Other(OtherScheduler),
}

impl SchedulerName {
    /// By the kernel's name. None: it is longer than the 15 bytes of which the kernel takes note.
    #[must_use]
    pub fn new(name: &[u8]) -> Option<Self> {
        let ours = Scheduler::ALL.into_iter().find(|ours| ours.name().as_bytes() == name);
        if let Some(scheduler) = ours {
            return Some(Self::Ours(scheduler));
        }
        let mut other = [0; NAME_LENGTH];
        other[..NAME_LENGTH - 1].get_mut(..name.len())?.copy_from_slice(name);
        Some(Self::Other(OtherScheduler(other)))
    }

    /// Its name, without the zero that ends it.
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Ours(scheduler) => scheduler.name().as_bytes(),
            Self::Other(OtherScheduler(name)) => until_zero(name),
        }
    }
}

impl From<Scheduler> for SchedulerName {
    fn from(scheduler: Scheduler) -> Self {
        Self::Ours(scheduler)
    }
}

impl fmt::Display for SchedulerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

/// The name of a scheduler that we do not use. The kernel calls it `none` if there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OtherScheduler([u8; NAME_LENGTH]);

/// A string up to the zero that ends it.
pub(super) fn until_zero(string: &[u8]) -> &[u8] {
    string.split(|byte| *byte == 0).next().unwrap_or_default()
}
