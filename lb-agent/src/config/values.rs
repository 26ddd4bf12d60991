//! What the value of a setting may be.

use std::{fmt, num::ParseIntError, str::FromStr, time::Duration};

use jiff::SignedDuration;
use serde::{Deserialize, Serialize, Serializer};

/// Whose sockets are translated when they connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketLb {
    /// Those of the host's network namespace.
    #[default]
    Host,
    /// Those of pods as well, where it is certain how a service treats them. A mesh that reads from a socket
    /// what was dialled has its pods left out by the annotation `lb-agent.io/socket-lb: "off"`.
    All,
    /// Nobody's: processes of the host reach no service by this agent. Packets are translated
    /// where they come in by a link, which those of the host itself do not.
    Off,
}

/// Who masquerades clients whose answers have to come back by this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Snat {
    /// The programs on links, where packets go out.
    #[default]
    Bpf,
    /// The kernel, by a rule of nftables, which has it track the connections of all packets of the node. For
    /// nodes that encrypt by IPsec policies, without a link for that: what goes out there is past reach for programs.
    Kernel,
}

/// How new flows are spread over endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// By chance.
    #[default]
    Random,
    /// By a hash of both ends, the same on every node.
    Maglev,
}

/// How many slots a table of Maglev's has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "u32")]
pub struct TableSize(u32);

/// Why a number is no size of such a table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidTableSize {
    /// Not a number.
    #[error("not a number: {0}")]
    Number(#[from] ParseIntError),
    /// Too small or too great.
    #[error("{0} is not within {MIN} and {MAX}", MIN = TableSize::MIN, MAX = TableSize::MAX)]
    Range(u32),
    /// It has divisors.
    #[error("{size} is not a prime; the next one is {next}")]
    NotPrime {
        /// What was said.
        size: u32,
        /// What would do.
        next: u32,
    },
}

impl TableSize {
    const MIN: u32 = 251;
    const MAX: u32 = 131_071;

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for TableSize {
    type Error = InvalidTableSize;

    fn try_from(size: u32) -> Result<Self, Self::Error> {
        let is_prime = |number: u32| (2..).take_while(|d| d * d <= number).all(|d| !number.is_multiple_of(d));
        if !(Self::MIN..=Self::MAX).contains(&size) {
            return Err(InvalidTableSize::Range(size));
        }
        match (size..=Self::MAX).find(|number| is_prime(*number)) {
            Some(next) if next != size => Err(InvalidTableSize::NotPrime { size, next }),
            _ => Ok(Self(size)),
        }
    }
}

impl FromStr for TableSize {
    type Err = InvalidTableSize;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<u32>()?.try_into()
    }
}

impl Serialize for TableSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}

/// How much to log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What stops the agent.
    Error,
    /// What somebody should look at.
    Warn,
    /// One line a change.
    #[default]
    Info,
    /// One line a service port that changes.
    Debug,
    /// Everything.
    Trace,
}

/// How to log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A time, such as `1h`, `90s` or `1h 30m`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Time(Duration);

/// Why something is no time.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no time such as 1h, 90s or 0s")]
pub struct InvalidTime(String);

impl Time {
    /// It.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for Time {
    type Err = InvalidTime;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let time = text.parse::<SignedDuration>().ok();
        let time = time.and_then(|time| Duration::try_from(time).ok());
        time.map(Self).ok_or_else(|| InvalidTime(text.to_owned()))
    }
}

impl TryFrom<String> for Time {
    type Error = InvalidTime;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match SignedDuration::try_from(self.0) {
            Ok(time) => serializer.collect_str(&format_args!("{time:#}")),
            // It was parsed as one.
            Err(error) => Err(serde::ser::Error::custom(error)),
        }
    }
}

/// One bit of a packet's mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "u32")]
pub struct Mark(u32);

/// Why something is not one bit of a mark.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidMark {
    /// Not a number.
    #[error("not a number: {0}")]
    Number(#[from] ParseIntError),
    /// None, or more than one bit.
    #[error("{0:#x} is not one bit")]
    Bits(u32),
}

impl Mark {
    /// The mark with this bit and no other.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Mark {
    type Error = InvalidMark;

    fn try_from(mark: u32) -> Result<Self, Self::Error> {
        if mark.is_power_of_two() {
            Ok(Self(mark))
        } else {
            Err(InvalidMark::Bits(mark))
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Serialize for Mark {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Mark {
    type Err = InvalidMark;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mark = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16)?,
            None => text.parse()?,
        };
        mark.try_into()
    }
}
