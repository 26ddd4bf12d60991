//! What a program tells the kernel to do with a packet.

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
use lb_common::Counter;

/// Go on, to the next program on the link first: `TC_ACT_OK` would hide those from the packet.
pub(crate) const PASS: i32 = TC_ACT_UNSPEC;
/// Gone.
pub(crate) const DROP: i32 = TC_ACT_SHOT;

/// No verdict, but the next step: each is a function of its own in the kernel's eyes. What one has on the stack is
/// gone when the next begins, and none is verified once for each way through the one before. Each reads anew where
/// the IP header starts: of numbers that are handed over, verifiers before 6.4 want to know too much.
pub(crate) mod step {
    /// A packet without ports.
    pub(crate) const OTHER: i32 = i32::MIN;
    /// A first fragment that others came before.
    pub(crate) const RELEASE: i32 = i32::MIN + 1;
    /// A packet that goes where its row says.
    pub(crate) const SEND: i32 = i32::MIN + 2;
    /// Port unreachable.
    pub(crate) const REFUSE: i32 = i32::MIN + 3;
    /// A first fragment, of which it was noted what was decided.
    pub(crate) const FIRST: i32 = i32::MIN + 4;
    /// A packet that could not begin a flow, and is to try once more.
    pub(crate) const AGAIN: i32 = i32::MIN + 5;
    /// Dropped, and why: this and the number of a counter.
    pub(crate) const DROPPED: i32 = i32::MIN + 16;
}

/// Dropped, to be counted and told by [`event::dropped`](crate::event::dropped).
#[inline(always)]
pub(crate) const fn because(reason: Counter) -> i32 {
    step::DROPPED + reason as i32
}
