//! A packet, read.
//!
//! Everything is read and written with the kernel's load and store helpers and not through packet
//! pointers: headers that lie outside the linear part of the buffer need no care, and no rewrite
//! can leave a stale pointer behind.

use aya_ebpf::programs::sk_buff::SkBuff;
use lb_common::{
    Address, FlowKey, Port,
    net::{SCTP, TCP, UDP},
};

use crate::{family::Family, opaque::opaque};

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

/// Where the bytes stand in a transport header that say what a connection does.
///
/// Tables and not branches: with a branch a protocol, and one a chunk of SCTP, the verifier would follow each
/// through all that comes after. So it sees numbers that it knows nothing of.
#[derive(Clone, Copy)]
#[repr(C)]
struct Transport {
    /// 0: the protocol has no ports.
    has_ports: u8,
    /// Offset of eight bytes of which one says it. They end no earlier than the checksum, without which a header is
    /// cut short, and no later than the shortest packet.
    at: u8,
    /// How many bits stand behind that byte.
    shift: u8,
    /// Index in `STEPS`.
    steps: u8,
}

/// By IANA protocol number.
static TRANSPORTS: [Transport; 256] = {
    let none = Transport {
        has_ports: 0,
        at: 0,
        shift: 0,
        steps: 0,
    };
    let mut transports = [none; 256];
    transports[UDP as usize] = Transport { has_ports: 1, ..none };
    transports[TCP as usize] = Transport {
        has_ports: 1,
        at: 10,
        shift: 32,
        steps: 1,
    };
    transports[SCTP as usize] = Transport {
        has_ports: 1,
        at: 8,
        shift: 24,
        steps: 2,
    };
    transports
};

/// What a packet is to its connection; 0: the protocol knows none.
const OPENS: u8 = 1 << 0;
const CONTINUES: u8 = 1 << 1;
const CLOSES: u8 = 1 << 2;

/// That byte, read: of UDP nothing, of TCP its flags, of SCTP the type of the first chunk (RFC 9260 3.2), where INIT
/// opens, ABORT and SHUTDOWN COMPLETE close. The fourth row is nobody's: two bits of an index are what the
/// verifier can be shown.
static STEPS: [[u8; 256]; 4] = {
    let mut steps = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let flags = byte as u8;
        let opens = flags & (SYN | ACK | RST | FIN) == SYN;
        let closes = if flags & (RST | FIN) != 0 { CLOSES } else { 0 };
        steps[1][byte] = if opens { OPENS } else { CONTINUES | closes };
        steps[2][byte] = match byte {
            1 => OPENS,
            6 | 14 => CONTINUES | CLOSES,
            _ => CONTINUES,
        };
        byte += 1;
    }
    steps
};

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

    /// Reads a packet of family `F`, in place, since a copy would take its room on the stack too. `None`
    /// where it is nothing that has ports: another protocol, a fragment behind the first, cut short.
    #[inline(always)]
    pub(crate) fn read<F: Family>(&mut self, skb: &SkBuff) -> Option<()> {
        let network = F::parse(skb, self.network)?;
        if network.offset != 0 {
            return None;
        }
        let transport = TRANSPORTS[usize::from(network.protocol)];
        if transport.has_ports == 0 {
            return None;
        }
        let [source, destination]: [Port; 2] = skb.load(network.transport).ok()?;
        let word: u64 = skb.load(network.transport + usize::from(transport.at)).ok()?;
        let byte = (u64::from_be(word) >> (transport.shift & 63)) as u8;
        self.step = STEPS[usize::from(transport.steps & 3)][usize::from(byte)];
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
        self.step & OPENS != 0
    }

    /// Any other packet of a connection.
    #[inline(always)]
    pub(crate) fn continues(&self) -> bool {
        self.step & CONTINUES != 0
    }

    /// The connection is coming to its end.
    #[inline(always)]
    pub(crate) fn closes(&self) -> bool {
        self.step & CLOSES != 0
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
