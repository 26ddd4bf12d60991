//! What a program tells the kernel to do with a packet.

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};

/// Go on, to the next program on the link first: `TC_ACT_OK` would hide those from the packet.
pub(crate) const PASS: i32 = TC_ACT_UNSPEC;
/// Gone.
pub(crate) const DROP: i32 = TC_ACT_SHOT;
