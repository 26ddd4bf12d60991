//! Map `EVENTS`: each packet that was dropped or refused, as long as there are not too many.

use crate::{flow::FlowKey, layout::map_type};

/// A packet, or a call of a process, that went nowhere.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// When, by the monotonic clock, in nanoseconds.
    pub time: u64,
    /// Addresses, ports and protocol, as the packet had them when it was met. No ports: a fragment behind the first.
    /// The direction is that of the hook: [`FORWARD`](crate::flow::FORWARD) where it came in from the link,
    /// [`REVERSE`](crate::flow::REVERSE) where it was to go out. A call of a process has no source yet.
    pub packet: FlowKey,
    /// Why: the number of a [`Counter`](crate::Counter).
    pub reason: u32,
    /// Index of the link where it was met, [`NO_LINK`] for the call of a process.
    pub link: u32,
}

map_type!(Event: 56 { time @ 0, packet @ 8, reason @ 48, link @ 52 });

/// Of an event that was met at no link: indices begin at 1.
pub const NO_LINK: u32 = 0;

/// How many events a CPU writes in a second. More are counted as [`EventsLost`](crate::Counter::EventsLost).
pub const EVENTS_PER_SECOND: u32 = 1_000;

/// What a CPU has written lately: the row of the per-CPU map `EVENT_BUDGET`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventBudget {
    /// Second of the monotonic clock.
    pub second: u64,
    /// How many in that second.
    pub written: u32,
    /// Zero.
    pub pad: u32,
}

map_type!(EventBudget: 16 { second @ 0, written @ 8, pad @ 12 });
