//! Maps `CONNECTED` and `SENT_TO`: which frontends a socket dialled, for the names that its process asks for.

use crate::{
    layout::map_type,
    net::{Address, Port},
};

/// What a process dialled, and where its socket was sent instead. The value of `CONNECTED`, whose key is the
/// kernel's cookie of the socket (`bpf_get_socket_cookie`), a `u64`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Translation {
    /// Address of the frontend.
    pub frontend: Address,
    /// Address of the backend.
    pub backend: Address,
    /// Port of the frontend.
    pub frontend_port: Port,
    /// Port of the backend.
    pub backend_port: Port,
    /// Number of the backend.
    pub number: u32,
    /// Generation of that number when the socket was sent there.
    pub generation: u32,
}

map_type!(Translation: 44 {
    frontend @ 0, backend @ 16, frontend_port @ 32, backend_port @ 34, number @ 36, generation @ 40
});

/// Whom a socket that is not connected sent to: the value of `SENT_TO`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Correspondents {
    /// A row each backend; one whose backend has no port is free.
    pub rows: [Translation; Self::ROOM],
    /// The row that the next new backend takes, modulo their number: in turn, so that of the one that came
    /// first.
    pub next: u32,
}

map_type!(Correspondents: 708 { rows @ 0, next @ 704 });

impl Correspondents {
    /// To how many backends at a time a socket can send and know their names. Resolvers have a handful; and
    /// what it costs, some 700 bytes, only sockets cost that send to services without being connected.
    pub const ROOM: usize = 16;
}
