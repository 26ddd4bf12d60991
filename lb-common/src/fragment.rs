//! Maps `FRAGMENTS` and `HELD_FRAGMENTS`: where the pieces of a datagram go.
//!
//! Only the first fragment has ports. What becomes of it is written down for those behind it; those that
//! come before it are held until it is there.

use crate::{FlowValue, layout::map_type, net::Address};

/// What tells the fragments of one datagram from all others (RFC 791 2.3, RFC 8200 4.5).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FragmentKey {
    /// Source address of the fragment.
    pub source: Address,
    /// Destination address of the fragment.
    pub destination: Address,
    /// Identification, as it stands in the packet: 16 bits of IPv4, 32 of IPv6.
    pub identification: u32,
    /// IANA protocol number of what is fragmented.
    pub protocol: u8,
    /// `FORWARD` or `REVERSE`, as in a [`FlowKey`](crate::FlowKey).
    pub direction: u8,
    /// Zero.
    pub pad: u16,
}

map_type!(FragmentKey: 40 {
    source @ 0, destination @ 16, identification @ 32, protocol @ 36, direction @ 37, pad @ 38
});

/// What becomes of the fragments of a datagram.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FragmentValue {
    /// When the row was written, by the monotonic clock, in nanoseconds: identifications come again.
    pub since: u64,
    /// `SEND`: the new destination, in the other direction the new source.
    pub address: Address,
    /// The place in the ring of the fragment that was held last, plus one; 0: none is held.
    pub held: u32,
    /// How many are held.
    pub count: u16,
    /// `WAIT`, `SEND`, `PASS`, `DROP` or `LOST`.
    pub fate: u8,
    /// 1: the kernel is to masquerade the client.
    pub masquerade: u8,
}

map_type!(FragmentValue: 32 { since @ 0, address @ 8, held @ 24, count @ 28, fate @ 30, masquerade @ 31 });

/// The first fragment has not come yet.
pub const WAIT: u8 = 0;
/// They are translated.
pub const SEND: u8 = 1;
/// They are nothing of ours.
pub const PASS: u8 = 2;
/// They are dropped, as the first one was.
pub const DROP: u8 = 3;
/// The first has not come yet, and one of the others could not be held: if the datagram is for a service, all
/// of it is dropped.
pub const LOST: u8 = 4;

/// Nanoseconds after which a row says nothing any more. The kernel gives up on a datagram after 30 s; a busy
/// sender comes back to the same identification of IPv4 within seconds.
pub const FRAGMENT_TIMEOUT: u64 = 2_000_000_000;

/// Bytes of the longest frame that is held, a power of two: a link whose MTU is 1,500 has none that is longer.
pub const HELD_MAX: usize = 2_048;
/// How many fragments of one datagram are held: 65,535 bytes in pieces of 1,480.
pub const HELD_PER_DATAGRAM: u16 = 45;
/// How many places of the ring a CPU takes in turn, a power of two. Each has its own as long as there are
/// places: two that filled one at the same time would mix their fragments.
pub const HELD_PER_CPU: u32 = 64;

/// A fragment that came before the first one of its datagram.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HeldFragment {
    /// The datagram it is of: a later one may have taken the place meanwhile.
    pub key: FragmentKey,
    /// The place of the one that was held before it, plus one; 0: it is the first.
    pub before: u32,
    /// Bytes of the frame. 0: none is held here, or it has been sent again.
    pub length: u32,
    /// The frame, from its link header on.
    pub frame: [u8; HELD_MAX],
}

map_type!(HeldFragment: 2096 { key @ 0, before @ 40, length @ 44, frame @ 48 });

/// What a CPU needs while it writes rows: the stack of a program has no room for it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Scratch {
    /// The row's key.
    pub key: FragmentKey,
    /// The row.
    pub value: FragmentValue,
    /// How many fragments this CPU has held so far.
    pub held: u32,
    /// What was decided of the first fragment, by the program's own numbers.
    pub decision: i32,
    /// The forward row of a flow that begins.
    pub forward: FlowValue,
    /// Its reverse row.
    pub reverse: FlowValue,
}

map_type!(Scratch: 176 { key @ 0, value @ 40, held @ 72, decision @ 76, forward @ 80, reverse @ 128 });
