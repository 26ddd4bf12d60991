//! Map `SOCKETS`: which frontend a socket of the host dialled, for the names it asks for.

use crate::{
    layout::map_type,
    net::{Address, Port},
};

/// A socket and the backend that it was sent to.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SocketKey {
    /// The kernel's cookie of the socket (`bpf_get_socket_cookie`).
    pub cookie: u64,
    /// Address of the backend.
    pub address: Address,
    /// Port of the backend.
    pub port: Port,
    /// IANA protocol number.
    pub protocol: u8,
    /// Zero.
    pub pad: [u8; 5],
}

map_type!(SocketKey: 32 { cookie @ 0, address @ 8, port @ 24, protocol @ 26, pad @ 27 });

/// What the process dialled.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SocketValue {
    /// Number of the backend.
    pub backend: u32,
    /// Generation of that number when the socket was sent there.
    pub generation: u32,
    /// Address of the frontend.
    pub address: Address,
    /// Port of the frontend.
    pub port: Port,
    /// Zero.
    pub pad: u16,
}

map_type!(SocketValue: 28 { backend @ 0, generation @ 4, address @ 8, port @ 24, pad @ 26 });
