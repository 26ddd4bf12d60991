//! A packet, read.
//!
//! Headers are [peeked](crate::peek) at: straight out of the packet where they lie in the linear part of the buffer, else with
//! the kernel's helper. What is written, and what is seldom read, always goes by the kernel's helpers: programs that write
//! through packet pointers have the kernel copy every packet that somebody else holds too, ours or not.

use aya_ebpf::programs::sk_buff::SkBuff;
use lb_common::{
    Address, FlowKey, Port,
    net::{SCTP, TCP, UDP},
};

use crate::{
    family::{Family, V4, V6},
    opaque::opaque,
    peek::peek,
};

/// `skb->protocol`, in network byte order.
pub(crate) const IPV4: u32 = 0x0800_u16.to_be() as u32;
pub(crate) const IPV6: u32 = 0x86dd_u16.to_be() as u32;

/// How many bytes of link header packets have, which is also where their IP header starts. Each
/// entry point has its own constant, so that offsets stay constants in the program.
pub(crate) mod link_header {
    /// Ethernet.
    pub(crate) const ETHERNET: usize = 14;
    /// A link that carries bare IP packets.
    pub(crate) const NONE: usize = 0;
}

/// TCP flag bits, as they stand in the fourteenth byte of the header.
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// What translation needs to know of a packet.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    /// Addresses, ports and protocol, in the form that the row about this packet is found by: it is there
    /// once, on a stack of 512 bytes.
    pub(crate) key: FlowKey,
    /// What it is to its connection.
    step: u8,
    /// Not 0: other fragments follow this packet, see [`fragment`](crate::fragment).
    fragment: u16,
    /// What they have in common.
    pub(crate) identification: u32,
    /// Where the IP header starts.
    pub(crate) network: usize,
    /// Where the TCP, UDP or SCTP header starts.
    pub(crate) transport: usize,
}

/// Source and destination of an IP header, and what comes after it.
pub(crate) struct Network {
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) protocol: u8,
    /// Where the next header starts.
    pub(crate) transport: usize,
    /// What the fragments of one packet have in common.
    pub(crate) identification: u32,
    /// Not 0: it is a fragment.
    pub(crate) fragment: u16,
    /// Not 0: it is one of those behind the first, without ports.
    pub(crate) offset: u16,
}

/// What a packet is to its connection; 0: the protocol knows none.
const OPENS: u64 = 1 << 0;
const CONTINUES: u64 = 1 << 1;
const CLOSES: u64 = 1 << 2;
const ACCEPTS: u64 = 1 << 3;

/// What is known of a transport protocol: numbers in place of truth values, and arithmetic in place of branches.
/// With a branch a protocol, and one a chunk of SCTP, the verifier would follow each through all that comes after;
/// and with a table, those before 6.4 would give up on telling what matters.
#[derive(Clone, Copy)]
struct Transport {
    is_tcp: u64,
    is_udp: u64,
    is_sctp: u64,
}

impl Transport {
    #[inline(always)]
    fn of(protocol: u8) -> Self {
        Self {
            is_tcp: equal(protocol, TCP),
            is_udp: equal(protocol, UDP),
            is_sctp: equal(protocol, SCTP),
        }
    }

    #[inline(always)]
    fn has_ports(self) -> bool {
        self.is_tcp | self.is_udp | self.is_sctp != 0
    }

    /// Offset of eight bytes in the header of which one says what the packet is to its connection. They end no
    /// earlier than the checksum, without which a header is cut short, and no later than the shortest packet.
    #[inline(always)]
    fn at(self) -> usize {
        (self.is_tcp * 10 + self.is_sctp * 8) as usize
    }

    /// That byte.
    #[inline(always)]
    fn byte(self, word: u64) -> u8 {
        (u64::from_be(word) >> (self.is_tcp * 32 + self.is_sctp * 24)) as u8
    }

    /// What a packet with that byte is to its connection: of TCP it is the flags, of SCTP the type of the first chunk
    /// (RFC 9260 3.2), where INIT opens, ABORT and SHUTDOWN COMPLETE close. Nobody cuts an INIT to pieces, and one that
    /// is could not get the ports of a backend: such a one opens nothing.
    #[inline(always)]
    fn step(self, byte: u8, fragment: u16) -> u8 {
        let flag = |bit: u8| u64::from(byte >> bit.trailing_zeros()) & 1;
        let ends = flag(RST) | flag(FIN);
        let tcp = step(flag(SYN) & !(ends | flag(ACK)), ends) | (ACCEPTS * (flag(SYN) & flag(ACK)));
        let opens = equal(byte, INIT) & is_zero(fragment.into());
        let sctp = step(opens, equal(byte, ABORT) | equal(byte, SHUTDOWN_COMPLETE));
        ((self.is_tcp * tcp) | (self.is_sctp * sctp)) as u8
    }
}

const INIT: u8 = 1;
const ABORT: u8 = 6;
const SHUTDOWN_COMPLETE: u8 = 14;

#[inline(always)]
fn step(opens: u64, closes: u64) -> u64 {
    (OPENS * opens) | (CONTINUES * (1 - opens)) | (CLOSES * closes)
}

/// 1 where both are the same, else 0.
#[inline(always)]
fn equal(a: u8, b: u8) -> u64 {
    is_zero((a ^ b).into())
}

/// 1 for 0, else 0.
#[inline(always)]
fn is_zero(number: u64) -> u64 {
    // SAFETY: reads a variable. Volatile, so that the compiler makes no branch of what follows.
    let number = unsafe { core::ptr::read_volatile(&raw const number) };
    number.wrapping_sub(1) >> 63
}

impl Packet {
    /// A packet that goes in `direction`, to be [read](Self::read).
    #[inline(always)]
    pub(crate) fn new(link_header: usize, direction: u8) -> Self {
        let nowhere = (Address::ANY_V6, Port::NONE);
        Self {
            key: FlowKey::new(direction, 0, nowhere, nowhere),
            step: 0,
            fragment: 0,
            identification: 0,
            network: link_header,
            transport: 0,
        }
    }

    /// [Reads](Self::read) a packet of the family that `protocol` says.
    #[inline(always)]
    pub(crate) fn read_as(&mut self, skb: &SkBuff, protocol: u32) -> Option<()> {
        match protocol {
            IPV4 => self.read::<V4>(skb),
            IPV6 => self.read::<V6>(skb),
            _ => None,
        }
    }

    /// Reads a packet of family `F`, in place, since a copy would take its room on the stack too. `None`
    /// where it is nothing that has ports: another protocol, a fragment behind the first, cut short.
    #[inline(always)]
    pub(crate) fn read<F: Family>(&mut self, skb: &SkBuff) -> Option<()> {
        let network = F::parse(skb, self.network)?;
        if network.offset != 0 {
            return None;
        }
        let transport = Transport::of(network.protocol);
        if !transport.has_ports() {
            return None;
        }
        let [source, destination]: [Port; 2] = peek(skb, network.transport)?;
        let word: u64 = peek(skb, network.transport + transport.at())?;
        self.step = transport.step(transport.byte(word), network.fragment);
        self.key.source_port = source;
        self.key.destination_port = destination;
        self.fragment = opaque(skb, network.fragment.into()) as u16;
        self.identification = network.identification;
        self.key.source = network.source;
        self.key.destination = network.destination;
        self.key.protocol = network.protocol;
        self.transport = opaque(skb, network.transport);
        Some(())
    }

    /// Whether the protocol has connections, which keep to their backend to the end.
    #[inline(always)]
    pub(crate) fn is_connected(&self) -> bool {
        self.step != 0
    }

    /// The first packet of a connection.
    #[inline(always)]
    pub(crate) fn opens(&self) -> bool {
        self.step & OPENS as u8 != 0
    }

    /// Any other packet of a connection.
    #[inline(always)]
    pub(crate) fn continues(&self) -> bool {
        self.step & CONTINUES as u8 != 0
    }

    /// The first answer, of TCP: it belongs to no connection that is coming to its end.
    #[inline(always)]
    pub(crate) fn accepts(&self) -> bool {
        self.step & ACCEPTS as u8 != 0
    }

    /// The connection is coming to its end.
    #[inline(always)]
    pub(crate) fn closes(&self) -> bool {
        self.step & CLOSES as u8 != 0
    }

    /// The first of several fragments.
    #[inline(always)]
    pub(crate) fn is_first_fragment(&self) -> bool {
        self.fragment != 0
    }

    /// Where the checksum of the transport header stands.
    #[inline(always)]
    pub(crate) fn checksum(&self) -> usize {
        self.transport
            + match self.key.protocol {
                TCP => 16,
                UDP => 6,
                _ => 8,
            }
    }
}
