//! Map `AFFINITY`: which backend a client of a service port had.

use crate::{layout::map_type, net::Address};

/// A client of a service port, by whichever frontend it came.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AffinityKey {
    /// Number of the service port.
    pub service: u32,
    /// The client's address; the unspecified one of the family for processes of the node itself.
    pub client: Address,
}

map_type!(AffinityKey: 20 { service @ 0, client @ 4 });

/// Where its last flow went.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AffinityValue {
    /// When that flow began, by the monotonic clock, in nanoseconds.
    pub last_used: u64,
    /// Number of the backend. Its generation does not matter: whoever of the same service port has the number
    /// later is as good as any that could be drawn.
    pub backend: u32,
    /// Zero.
    pub pad: u32,
}

map_type!(AffinityValue: 16 { last_used @ 0, backend @ 8, pad @ 12 });
