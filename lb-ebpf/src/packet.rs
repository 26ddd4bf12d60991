//! A packet, read.
//!
//! Everything is read and written with the kernel's load and store helpers and not through packet
//! pointers: headers that lie outside the linear part of the buffer need no care, and no rewrite
//! can leave a stale pointer behind.

use aya_ebpf::programs::sk_buff::SkBuff;
use lb_common::{
    Address, FlowKey, Port,
    net::{TCP, UDP},
};

use crate::family::Family;

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
    tcp_flags: u8,
    /// Where the IP header starts.
    pub(crate) network: usize,
    /// Where the TCP or UDP header starts.
    pub(crate) transport: usize,
}

/// Source and destination of an IP header, and what comes after it.
pub(crate) struct Network {
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) protocol: u8,
    /// Where the next header starts.
    pub(crate) transport: usize,
}

/// A TCP header without options: what has less of it has no checksum that could be corrected.
#[repr(C)]
#[derive(Clone, Copy)]
struct TcpHeader {
    source: Port,
    destination: Port,
    sequence: u32,
    acknowledgment: u32,
    offset: u8,
    flags: u8,
    window: u16,
    checksum: u16,
    urgent: u16,
}

/// A UDP header.
#[repr(C)]
#[derive(Clone, Copy)]
struct UdpHeader {
    source: Port,
    destination: Port,
    length: u16,
    checksum: u16,
}

impl Packet {
    /// A packet that goes in `direction`, to be [read](Self::read).
    #[inline(always)]
    pub(crate) fn new(link_header: usize, direction: u8) -> Self {
        let nowhere = (Address::ANY_V6, Port::NONE);
        Self {
            key: FlowKey::new(direction, 0, nowhere, nowhere),
            tcp_flags: 0,
            network: link_header,
            transport: 0,
        }
    }

    /// Reads a packet of family `F`, in place, since a copy would take its room on the stack too. `None`
    /// where it is nothing that we translate: another protocol, a fragment, cut short.
    #[inline(always)]
    pub(crate) fn read<F: Family>(&mut self, skb: &SkBuff) -> Option<()> {
        let network = F::parse(skb, self.network)?;
        match network.protocol {
            TCP => {
                let tcp: TcpHeader = skb.load(network.transport).ok()?;
                self.key.source_port = tcp.source;
                self.key.destination_port = tcp.destination;
                self.tcp_flags = tcp.flags;
            }
            UDP => {
                let udp: UdpHeader = skb.load(network.transport).ok()?;
                self.key.source_port = udp.source;
                self.key.destination_port = udp.destination;
            }
            _ => return None,
        }
        self.key.source = network.source;
        self.key.destination = network.destination;
        self.key.protocol = network.protocol;
        self.transport = network.transport;
        Some(())
    }

    /// TCP: the first segment of a connection.
    #[inline(always)]
    pub(crate) fn opens_tcp(&self) -> bool {
        self.key.protocol == TCP && self.tcp_flags & (SYN | ACK | RST | FIN) == SYN
    }

    /// TCP: any other segment.
    #[inline(always)]
    pub(crate) fn continues_tcp(&self) -> bool {
        self.key.protocol == TCP && !self.opens_tcp()
    }

    /// TCP: the connection is coming to its end.
    #[inline(always)]
    pub(crate) fn closes_tcp(&self) -> bool {
        self.key.protocol == TCP && self.tcp_flags & (RST | FIN) != 0
    }

    /// Where the checksum of the transport header stands.
    #[inline(always)]
    pub(crate) fn checksum(&self) -> usize {
        self.transport + if self.key.protocol == TCP { 16 } else { 6 }
    }
}
