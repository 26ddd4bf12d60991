//! Where a server of the agent listens.

use std::{fmt, net::SocketAddr, str::FromStr};

use serde::{Deserialize, Serialize, Serializer};

/// An address to listen at, unless nobody is to be answered. Where no port is said, it is `PORT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct BindAddress<const PORT: u16>(Option<SocketAddr>);

/// What is no [`BindAddress`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is neither an IP address, nor one with a port, nor empty")]
pub struct InvalidBindAddress(String);

impl<const PORT: u16> BindAddress<PORT> {
    /// The address, if there is to be a server.
    #[must_use]
    pub const fn get(self) -> Option<SocketAddr> {
        self.0
    }
}

impl<const PORT: u16> fmt::Display for BindAddress<PORT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |address| address.fmt(f))
    }
}

impl<const PORT: u16> Serialize for BindAddress<PORT> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<const PORT: u16> FromStr for BindAddress<PORT> {
    type Err = InvalidBindAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let without_port = || Some(SocketAddr::new(text.parse().ok()?, PORT));
        let address = text.parse().ok().or_else(without_port);
        address
            .map(|address| Self(Some(address)))
            .ok_or_else(|| InvalidBindAddress(text.to_owned()))
    }
}

impl<const PORT: u16> TryFrom<String> for BindAddress<PORT> {
    type Error = InvalidBindAddress;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}
