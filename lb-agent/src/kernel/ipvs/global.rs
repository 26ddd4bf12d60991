//! What is the same for all services.

use std::{fmt, num::NonZeroU32};

/// How long connections without packets are remembered, in seconds, for the whole network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timeouts {
    /// Of TCP that is established. None: as it is; or, when read, a kernel that has no such protocol.
    pub tcp: Option<NonZeroU32>,
    /// Of TCP that was ended by one side.
    pub tcp_fin: Option<NonZeroU32>,
    /// Of UDP.
    pub udp: Option<NonZeroU32>,
}

/// `IP_VS_VERSION`, which is 1.2.1 since 2003.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[expect(missing_docs, reason = "the usual three")]
pub struct Version {
    pub major: u8,
    pub minor: u8,
    pub patch: u8,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
