//! Map `SERVICES`: frontend → where its clients go.

use crate::{
    layout::map_type,
    net::{Address, Port},
};

/// A frontend: what a client dials. The address is [`Address::ANY_V4`] or [`Address::ANY_V6`] for
/// a NodePort, which is one row however many addresses the node has.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ServiceKey {
    /// Destination address.
    pub address: Address,
    /// Destination port.
    pub port: Port,
    /// IANA protocol number.
    pub protocol: u8,
    /// Zero.
    pub pad: u8,
}

map_type!(ServiceKey: 20 { address @ 0, port @ 16, protocol @ 18, pad @ 19 });

impl ServiceKey {
    /// The key of a frontend.
    #[inline(always)]
    pub const fn new(address: Address, port: Port, protocol: u8) -> Self {
        Self {
            address,
            port,
            protocol,
            pad: 0,
        }
    }
}

/// A run of entries of the map `SLOTS`. A client that draws the number `h` of 32 bits takes the
/// slot `base + (h * count >> 32)`. An empty run (`count` 0) carries its [`Verdict`] in `base`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    /// First slot, or the verdict of an empty run.
    pub base: u32,
    /// How many slots.
    pub count: u32,
}

map_type!(Range: 8 { base @ 0, count @ 4 });

/// What becomes of a client when there is no endpoint for it.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// No endpoint anywhere: port unreachable, ECONNREFUSED.
    Reject = 0,
    /// Endpoints exist, the traffic policy allows none of them here: silence.
    Drop = 1,
}

impl Range {
    /// The run without slots that carries `verdict`.
    pub const fn empty(verdict: Verdict) -> Self {
        Self {
            base: verdict as u32,
            count: 0,
        }
    }

    /// The verdict of an empty run.
    #[inline(always)]
    pub const fn verdict(&self) -> Verdict {
        if self.base == Verdict::Drop as u32 {
            Verdict::Drop
        } else {
            Verdict::Reject
        }
    }
}

/// What the data path needs to know of a frontend.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ServiceValue {
    /// Number of the service port, the same for all its frontends of one family; never 0.
    #[cfg(not(feature = "next-layout"))]
    pub service: u32,
    /// For clients on this node: its pods and its own processes.
    pub near: Range,
    /// For everybody else.
    pub far: Range,
    /// `MASQUERADE_ALL`, `NEAR_IS_LOCAL`, `FAR_IS_LOCAL`, `RESTRICTED`, `NODE_IS_REFUSED`, `HASHED`.
    pub flags: u32,
    /// Seconds for which a client gets the same backend again after it has begun a flow; 0: never.
    pub affinity: u32,
    /// Number of the service port, the same for all its frontends of one family; never 0.
    #[cfg(feature = "next-layout")]
    pub service: u32,
}

#[cfg(feature = "next-layout")]
map_type!(ServiceValue: 28 { near @ 0, far @ 8, flags @ 16, affinity @ 20, service @ 24 });
#[cfg(not(feature = "next-layout"))]
map_type!(ServiceValue: 28 { service @ 0, near @ 4, far @ 12, flags @ 20, affinity @ 24 });

/// Every client loses its address (`masqueradeAll`), and not only where the answer would not come back
/// this way otherwise.
pub const MASQUERADE_ALL: u32 = 1 << 0;
/// `near` is the local set: a remembered backend has to be a member of that.
pub const NEAR_IS_LOCAL: u32 = 1 << 1;
/// `far` is the local set.
pub const FAR_IS_LOCAL: u32 = 1 << 2;
/// Only clients in `SOURCE_RANGES` begin flows.
pub const RESTRICTED: u32 = 1 << 3;
/// With `RESTRICTED`: the node's own processes are not among them.
pub const NODE_IS_REFUSED: u32 = 1 << 4;
/// The slots are a table of Maglev's: which one a flow takes is not drawn but [hashed](crate::FlowKey::hash).
pub const HASHED: u32 = 1 << 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_range_gives_its_verdict_back() {
        assert_eq!(Range::empty(Verdict::Drop).verdict(), Verdict::Drop);
        assert_eq!(Range::empty(Verdict::Reject).verdict(), Verdict::Reject);
        assert_eq!(Range::empty(Verdict::Drop).count, 0);
    }
}
