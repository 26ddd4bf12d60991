//! Where connections go.

use std::net::SocketAddr;

use super::uapi::forward;

/// A destination as we write it: it always masquerades, which is NAT in the kernel's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Address and port, in the byte order of the machine. It is of the family of the service.
    pub address: SocketAddr,
    /// Its share of the new connections, where the scheduler minds. With 0 it has none, and keeps those it has. The
    /// kernel takes no more than `i32::MAX`.
    pub weight: u32,
}

/// A destination as the kernel has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DestinationState {
    /// What was written.
    pub destination: Destination,
    /// How packets get there.
    pub forward: Forward,
    /// Connections that are established.
    pub active: u32,
    /// Connections that are about to begin or have ended, and all of protocols without connections.
    pub inactive: u32,
    /// Clients that stay with it for persistence.
    pub persistent: u32,
}

/// How packets get to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forward {
    /// With its address in them: NAT.
    Masquerade,
    /// They are for the node itself.
    Local,
    /// Within other packets.
    Tunnel,
    /// In frames to its link address.
    DirectRoute,
    /// To where they were going anyway.
    Bypass,
    /// By a method that we do not know.
    Other(u32),
}

impl Forward {
    /// From the flags of the destination's connections.
    pub(super) const fn new(flags: u32) -> Self {
        match flags & forward::METHOD {
            forward::MASQUERADE => Self::Masquerade,
            forward::LOCAL => Self::Local,
            forward::TUNNEL => Self::Tunnel,
            forward::DIRECT_ROUTE => Self::DirectRoute,
            forward::BYPASS => Self::Bypass,
            other => Self::Other(other),
        }
    }
}
