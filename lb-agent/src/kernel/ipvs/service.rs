//! What a service is: what it is known by, and how it treats connections.

use std::{fmt, net::SocketAddr, num::NonZeroU32};

use super::{SchedulerName, uapi::flag};
use crate::desired::{Family, Protocol};

/// What an IPVS service is known by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ServiceKey {
    /// Where packets go to. The port is in the byte order of the machine; port 0 stands for all, and is only
    /// possible for a persistent service.
    Address {
        /// Protocol.
        protocol: Protocol,
        /// Address and port.
        address: SocketAddr,
    },
    /// The mark of the packets.
    Mark {
        /// Family of the packets.
        family: Family,
        /// Their mark.
        mark: NonZeroU32,
    },
}

impl ServiceKey {
    /// The family of its packets.
    #[must_use]
    pub const fn family(&self) -> Family {
        match self {
            Self::Address { address, .. } => Family::of(address.ip()),
            Self::Mark { family, .. } => *family,
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { protocol, address } => write!(f, "{address}/{protocol}"),
            Self::Mark { family, mark } => write!(f, "mark {mark:#x} ({family})"),
        }
    }
}

/// How a service treats connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceConfig {
    /// How it chooses.
    pub scheduler: SchedulerName,
    /// For how many seconds a client stays with its destination after the last of its connections. The kernel
    /// counts in smaller units, and wraps far above the 31 days that `ipvsadm` allows.
    pub persistence: Option<NonZeroU32>,
    /// What else it is told.
    pub flags: ServiceFlags,
    /// What we never set.
    pub foreign: Foreign,
}

impl ServiceConfig {
    /// Only with a scheduler.
    #[must_use]
    pub fn new(scheduler: impl Into<SchedulerName>) -> Self {
        Self {
            scheduler: scheduler.into(),
            persistence: None,
            flags: ServiceFlags::default(),
            foreign: Foreign::default(),
        }
    }

    /// The flags as they are written.
    pub(super) fn bits(&self) -> u32 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        bit(self.persistence.is_some(), flag::PERSISTENT)
            | bit(self.flags.one_packet, flag::ONE_PACKET)
            | bit(self.flags.fallback, flag::FALLBACK)
            | bit(self.flags.port, flag::PORT)
    }
}

/// What a service is told beside its scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServiceFlags {
    /// sh and mh: the client's port counts too (`sh-port`, `mh-port`).
    pub port: bool,
    /// sh and mh: another destination where the one that is meant has weight 0 (`sh-fallback`, `mh-fallback`).
    pub fallback: bool,
    /// UDP: each packet is a connection of its own.
    pub one_packet: bool,
}

/// What a service of somebody else may have. It is read, so that such a service is not equal to one of ours, and never
/// written: [`SetService`](super::Command::SetService) takes it away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Foreign {
    /// Which clients are one for persistence, if not each is by itself: a mask of IPv4 addresses with the bits of the
    /// first byte on top, or the length of a prefix of IPv6 addresses.
    pub netmask: Option<u32>,
    /// Whether a module looks into packets to tell clients apart (such as `sip`).
    pub persistence_engine: bool,
    /// Flags that have no name here.
    pub flags: u32,
}
