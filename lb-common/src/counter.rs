//! Map `COUNTERS`: what the data path did, by kind.

/// A row of the per-CPU map `COUNTERS`, whose value is a `u64` of packets (or calls).
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Counter {
    /// A flow began.
    FlowNew = 0,
    /// A socket of the host was sent to a backend.
    SocketTranslated = 1,
    /// Port unreachable or ECONNREFUSED: the service has no endpoint, or the ClusterIP no such port.
    Rejected = 2,
    /// Dropped: a `Local` traffic policy without a local endpoint.
    DroppedNoLocalEndpoint = 3,
    /// Dropped: neither another backend nor another source port could tell the flow from one
    /// that exists.
    DroppedFlowCollision = 4,
    /// Dropped: the flow table took no new row.
    DroppedFlowTable = 5,
    /// Dropped: the packet could not be rewritten.
    DroppedRewrite = 6,
    /// Passed: TCP or SCTP to a service that neither belongs to a flow nor opens one.
    PassedWithoutFlow = 7,
    /// Dropped: an ICMP answer could not be made.
    DroppedRejectFailed = 8,
    /// Dropped: every backend that was drawn had gone a moment ago.
    DroppedNoBackend = 9,
    /// Dropped: the client is in none of the ranges of the load balancer's address.
    DroppedSourceRange = 10,
    /// Dropped: an address for Services that is nobody's.
    DroppedUnallocated = 11,
    /// Dropped: a fragment of a datagram that cannot be translated as a whole.
    DroppedFragment = 12,
    /// Dropped: the source is an address of this node or of a Service, which no client from a link has.
    DroppedSpoofedSource = 13,
    /// Dropped: a client that has to be masqueraded, and the node has no address of its family.
    DroppedNoSource = 14,
    /// Dropped: a client that has to be masqueraded, and no port of the node is free towards that backend.
    DroppedNoSourcePort = 15,
    /// Not shown to `lb-agent monitor`: there were too many at once, or nobody read them.
    EventsLost = 16,
}

impl Counter {
    /// How many rows the map has.
    pub const COUNT: u32 = 17;

    /// All of them, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT as usize] = [
        Self::FlowNew,
        Self::SocketTranslated,
        Self::Rejected,
        Self::DroppedNoLocalEndpoint,
        Self::DroppedFlowCollision,
        Self::DroppedFlowTable,
        Self::DroppedRewrite,
        Self::PassedWithoutFlow,
        Self::DroppedRejectFailed,
        Self::DroppedNoBackend,
        Self::DroppedSourceRange,
        Self::DroppedUnallocated,
        Self::DroppedFragment,
        Self::DroppedSpoofedSource,
        Self::DroppedNoSource,
        Self::DroppedNoSourcePort,
        Self::EventsLost,
    ];

    /// Whether it is why a packet or a call went nowhere: those are told as an [`Event`](crate::Event) each.
    pub const fn is_reason(self) -> bool {
        match self {
            Self::FlowNew | Self::SocketTranslated | Self::PassedWithoutFlow | Self::EventsLost => false,
            Self::Rejected
            | Self::DroppedNoLocalEndpoint
            | Self::DroppedFlowCollision
            | Self::DroppedFlowTable
            | Self::DroppedRewrite
            | Self::DroppedRejectFailed
            | Self::DroppedNoBackend
            | Self::DroppedSourceRange
            | Self::DroppedUnallocated
            | Self::DroppedFragment
            | Self::DroppedSpoofedSource
            | Self::DroppedNoSource
            | Self::DroppedNoSourcePort => true,
        }
    }

    /// Its name, in `lb-agent monitor` and for the metrics to come.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlowNew => "flow_new",
            Self::SocketTranslated => "socket_translated",
            Self::Rejected => "rejected",
            Self::DroppedNoLocalEndpoint => "dropped_no_local_endpoint",
            Self::DroppedFlowCollision => "dropped_flow_collision",
            Self::DroppedFlowTable => "dropped_flow_table",
            Self::DroppedRewrite => "dropped_rewrite",
            Self::PassedWithoutFlow => "passed_without_flow",
            Self::DroppedRejectFailed => "dropped_reject_failed",
            Self::DroppedNoBackend => "dropped_no_backend",
            Self::DroppedSourceRange => "dropped_source_range",
            Self::DroppedUnallocated => "dropped_unallocated",
            Self::DroppedFragment => "dropped_fragment",
            Self::DroppedSpoofedSource => "dropped_spoofed_source",
            Self::DroppedNoSource => "dropped_no_source",
            Self::DroppedNoSourcePort => "dropped_no_source_port",
            Self::EventsLost => "events_lost",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_stands_at_its_number() {
        for (index, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index, "{}", counter.name());
        }
    }
}
