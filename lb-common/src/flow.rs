//! Map `FLOWS`: the translations in use.
//!
//! A flow has two rows. The forward row is found with the packet as the client sent it and says
//! where it goes; the reverse row is found with the packet as the backend answered it and says
//! whom it must seem to come from.
//!
//! A client that is masqueraded has two more, which the programs find and follow like those: a reverse row for what goes
//! out to the backend, and comes from the node from then on, and a forward row for the answers to the node, which go on to
//! the client.

use crate::{
    hash::Hash,
    layout::map_type,
    net::{Address, Port},
};

/// The packet that a row is about, and in which direction.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowKey {
    /// Source address of the packet.
    pub source: Address,
    /// Destination address of the packet.
    pub destination: Address,
    /// Source port of the packet.
    pub source_port: Port,
    /// Destination port of the packet.
    pub destination_port: Port,
    /// IANA protocol number.
    pub protocol: u8,
    /// `FORWARD` or `REVERSE`.
    pub direction: u8,
    /// Zero.
    pub pad: u16,
}

map_type!(FlowKey: 40 {
    source @ 0, destination @ 16, source_port @ 32, destination_port @ 34,
    protocol @ 36, direction @ 37, pad @ 38
});

impl FlowKey {
    /// The key of packets from one end, address and port, to another.
    #[inline(always)]
    pub const fn new(direction: u8, protocol: u8, source: (Address, Port), destination: (Address, Port)) -> Self {
        Self {
            source: source.0,
            destination: destination.0,
            source_port: source.1,
            destination_port: destination.1,
            protocol,
            direction,
            pad: 0,
        }
    }

    /// A number for the packets from one end to another, on whichever node they come. It must never change, or flows would
    /// change their backends.
    #[inline(always)]
    #[must_use]
    pub const fn hash(&self) -> u32 {
        let (from, to) = (&self.source.words, &self.destination.words);
        let ports = (self.source_port.get() as u32) << 16 | self.destination_port.get() as u32;
        Hash::new(0)
            .word(u32::from_be(from[0]))
            .word(u32::from_be(from[1]))
            .word(u32::from_be(from[2]))
            .word(u32::from_be(from[3]))
            .word(u32::from_be(to[0]))
            .word(u32::from_be(to[1]))
            .word(u32::from_be(to[2]))
            .word(u32::from_be(to[3]))
            .word(ports)
            .word(self.protocol as u32)
            .finish()
    }
}

/// Client to frontend; looked up where packets come in from a link.
pub const FORWARD: u8 = 0;
/// Backend to client; looked up where packets go out to a link.
pub const REVERSE: u8 = 1;

/// The translation.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowValue {
    /// When a packet last used this row, by the monotonic clock, in nanoseconds.
    #[cfg(not(feature = "next-layout"))]
    pub last_seen: u64,
    /// Forward: the backend, the new destination. Reverse: the frontend, the new source.
    pub address: Address,
    /// The port that goes with `address`.
    pub port: Port,
    /// The client's port on the other side of the translation where it had to change, else
    /// [`Port::NONE`]. Forward: the new source port. Reverse: the new destination port.
    pub client_port: Port,
    /// Number of the backend.
    pub backend: u32,
    /// Generation of that number when the flow began. With `MASQUERADED`, any number, the same in both rows.
    pub generation: u32,
    /// Number of the service port.
    pub service: u32,
    /// `MASQUERADE`, `CLOSING`, `GUARD`, `MASQUERADED`.
    pub flags: u8,
    /// Zero.
    pub pad: [u8; 7],
    /// When a packet last used this row, by the monotonic clock, in nanoseconds.
    #[cfg(feature = "next-layout")]
    pub last_seen: u64,
}

#[cfg(not(feature = "next-layout"))]
map_type!(FlowValue: 48 {
    last_seen @ 0, address @ 8, port @ 24, client_port @ 26, backend @ 28, generation @ 32,
    service @ 36, flags @ 40, pad @ 41
});
#[cfg(feature = "next-layout")]
map_type!(FlowValue: 48 {
    address @ 0, port @ 16, client_port @ 18, backend @ 20, generation @ 24, service @ 28, flags @ 32, pad @ 33,
    last_seen @ 40
});

impl FlowValue {
    /// Of no flow: what a program fills in.
    pub const EMPTY: Self = Self {
        last_seen: 0,
        address: Address::ANY_V6,
        port: Port::NONE,
        client_port: Port::NONE,
        backend: 0,
        generation: 0,
        service: 0,
        flags: 0,
        pad: [0; 7],
    };
}

/// The client is to be masqueraded where its packets go out: each gets the mark.
pub const MASQUERADE: u8 = 1 << 0;
/// TCP: a FIN or RST was seen, so a SYN starts a new flow.
pub const CLOSING: u8 = 1 << 1;
/// A forward row that keeps a packet from being taken for the first of a flow: a process of the node, or a pod that
/// the node masquerades, has sent to that client from a port that is a NodePort too, and this is the answer. It
/// has no other row, and says nothing else.
pub const GUARD: u8 = 1 << 2;
/// A row between the node and a backend. Reverse: what has the mark goes out with `address` and `port`, the node's, as its
/// source. Forward: the answer goes on to `address` and `port`, the client's.
pub const MASQUERADED: u8 = 1 << 3;

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;
    use crate::net::{TCP, UDP};

    /// Computed by another program, in another language.
    #[test]
    fn the_hash_of_a_flow_is_the_same_in_every_version() {
        let end = |ip: &str, port| (Address::from(ip.parse::<IpAddr>().unwrap()), Port::new(port));
        let v4 = FlowKey::new(FORWARD, TCP, end("198.51.100.7", 40_000), end("192.0.2.1", 80));
        assert_eq!(v4.hash(), 0x8327_6e43);
        let v6 = FlowKey::new(FORWARD, UDP, end("2001:db8::7", 40_000), end("2001:db8:1::1", 53));
        assert_eq!(v6.hash(), 0xc78f_e743);
    }
}
