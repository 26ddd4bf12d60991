//! Maps `SLOTS` and `BACKENDS`: from a drawn number to an address.
//!
//! A slot holds the number of a backend and nothing else, and a flow remembers that number. So an
//! endpoint that goes away is one write to one row of `BACKENDS`, and what may choose anew, the next
//! datagram or the next connection from the same port, finds out by itself; nobody walks the flow
//! table. An established TCP connection does not ask: it has nowhere else to go.

use crate::{
    layout::map_type,
    net::{Address, Port},
};

/// One endpoint of one service port. Its number is its index in the map `BACKENDS`; 0 is never used.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BackendValue {
    /// Address of the endpoint.
    pub address: Address,
    /// Port of the endpoint.
    pub port: Port,
    /// `FREE`, `SERVING` or `DRAINING`.
    pub state: u8,
    /// `LOCAL`, `IN_CLUSTER_SET`, `IN_LOCAL_SET`.
    pub flags: u8,
    /// Goes up each time the number is given to another endpoint, so that what remembers the
    /// number and the generation can tell that its backend is gone.
    pub generation: u32,
    /// The service port it belongs to.
    pub service: u32,
}

map_type!(BackendValue: 28 {
    address @ 0, port @ 16, state @ 18, flags @ 19, generation @ 20, service @ 24
});

/// The number belongs to nobody.
pub const FREE: u8 = 0;
/// New flows may go there.
pub const SERVING: u8 = 1;
/// Not chosen any more, but still an endpoint: its TCP connections may finish.
pub const DRAINING: u8 = 2;

/// On this node, a pod or the host itself: a client keeps its address on the way there.
pub const LOCAL: u8 = 1 << 0;
/// In the set of clients that may be sent anywhere.
pub const IN_CLUSTER_SET: u8 = 1 << 1;
/// In the set of clients that must stay on this node.
pub const IN_LOCAL_SET: u8 = 1 << 2;
