//! Where things stand in a packet, read from its bytes alone and forgivingly: lengths may lie and checksums be wrong.
//!
//! Written from the RFCs and not from the programs, which it is there to judge.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::checksum::Sum16BitWords;

/// IANA protocol numbers.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// The header of an IPv6 fragment.
    pub const FRAGMENT: u8 = 44;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// Bytes of an ICMP or ICMPv6 header.
pub const ICMP_HEADER: usize = 8;
/// How many VLAN tags are read, and how many extension headers of options.
const MOST_TAGS: usize = 2;
const MOST_EXTENSIONS: usize = 3;
/// TCP flags.
const FIN_OR_RST: u8 = 0x01 | 0x04;
const SYN_ACK_FIN_RST: u8 = 0x02 | 0x10 | FIN_OR_RST;
const SYN: u8 = 0x02;
/// Bytes of an SCTP header, with its checksum last, and of the shortest chunk behind it.
const SCTP_HEADER: usize = 12;
const CHUNK: usize = 4;
/// Types of chunks.
const INIT: u8 = 1;
const ABORT: u8 = 6;
const SHUTDOWN_COMPLETE: u8 = 14;

/// A packet with an IP header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anatomy {
    /// Where the IP header starts.
    pub network: usize,
    /// Where the header behind it starts.
    pub transport: usize,
    /// Where it comes from.
    pub source: IpAddr,
    /// Where it goes to.
    pub destination: IpAddr,
    /// Protocol of the header behind it, and behind extension headers.
    pub protocol: u8,
    /// It is a piece of a packet, and not a whole one with a fragment header (RFC 6946).
    pub fragment: Option<Fragment>,
    /// How many VLAN tags stand before it.
    pub tags: usize,
    /// How many IPv6 extension headers with options it has.
    pub extensions: usize,
}

/// Which piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// The number that all pieces have.
    pub id: u32,
    /// The one with the ports.
    pub is_first: bool,
}

impl Anatomy {
    /// Reads a packet that a program gets. The kernel tells the protocol by the bytes where the type of an Ethernet
    /// frame stands, also where the link is said to have no such header.
    #[must_use]
    pub fn of(bytes: &[u8], has_link_header: bool) -> Option<Self> {
        let mut at = if has_link_header { ETHERNET } else { 0 };
        let mut kind = two(bytes, 12)?;
        let mut tags = 0;
        while has_link_header && matches!(kind, 0x8100 | 0x88a8) {
            kind = two(bytes, at + 2)?;
            at += TAG;
            tags += 1;
        }
        let anatomy = match kind {
            0x0800 => Self::v4(bytes, at),
            0x86dd => Self::v6(bytes, at),
            _ => None,
        }?;
        Some(Self { tags, ..anatomy })
    }

    /// Reads the packet that an ICMP error quotes.
    #[must_use]
    pub fn of_quoted(&self, bytes: &[u8]) -> Option<Self> {
        let at = self.transport + ICMP_HEADER;
        match self.source {
            IpAddr::V4(_) => Self::v4(bytes, at),
            IpAddr::V6(_) => Self::v6(bytes, at),
        }
    }

    /// RFC 791.
    fn v4(bytes: &[u8], at: usize) -> Option<Self> {
        let header = bytes.get(at..at + 20)?;
        let length = usize::from(header[0] & 0x0f) * 4;
        if length < header.len() {
            return None;
        }
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        let offset = fragment & 0x1fff;
        Some(Self {
            network: at,
            transport: at + length,
            source: address(&header[12..16]),
            destination: address(&header[16..20]),
            protocol: header[9],
            fragment: (fragment & 0x3fff != 0).then(|| Fragment {
                id: u16::from_be_bytes([header[4], header[5]]).into(),
                is_first: offset == 0,
            }),
            tags: 0,
            extensions: 0,
        })
    }

    /// RFC 8200. A header that says where the packet goes, or that hides the rest, ends what is read.
    fn v6(bytes: &[u8], at: usize) -> Option<Self> {
        let header = bytes.get(at..at + 40)?;
        let mut anatomy = Self {
            network: at,
            transport: at + 40,
            source: address(&header[8..24]),
            destination: address(&header[24..40]),
            protocol: header[6],
            fragment: None,
            tags: 0,
            extensions: 0,
        };
        // IPv4 that goes by another name is nobody's.
        let is_mapped = |ip| matches!(ip, IpAddr::V6(v6) if Ipv6Addr::to_ipv4_mapped(&v6).is_some());
        if is_mapped(anatomy.source) || is_mapped(anatomy.destination) {
            return None;
        }
        while matches!(anatomy.protocol, 0 | 60) {
            let extension = bytes.get(anatomy.transport..anatomy.transport + 8)?;
            anatomy.protocol = extension[0];
            anatomy.transport += (usize::from(extension[1]) + 1) * 8;
            anatomy.extensions += 1;
        }
        // Behind it only a transport header is ours, and no options.
        if anatomy.protocol == protocol::FRAGMENT {
            let extension = bytes.get(anatomy.transport..anatomy.transport + 8)?;
            let offset = u16::from_be_bytes([extension[2], extension[3]]);
            anatomy.fragment = (offset & 0xfff9 != 0).then(|| Fragment {
                id: u32::from_be_bytes([extension[4], extension[5], extension[6], extension[7]]),
                is_first: offset & 0xfff8 == 0,
            });
            anatomy.protocol = extension[0];
            anatomy.transport += 8;
        }
        Some(anatomy)
    }

    /// Whether it is IPv4.
    #[must_use]
    pub fn is_v4(&self) -> bool {
        self.source.is_ipv4()
    }

    /// A piece that has no ports.
    #[must_use]
    pub fn is_later_piece(&self) -> bool {
        self.fragment.is_some_and(|fragment| !fragment.is_first)
    }

    /// Whether its protocol has ports.
    #[must_use]
    pub fn has_ports(&self) -> bool {
        matches!(self.protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
    }

    /// Whether its headers are no more than are read.
    #[must_use]
    pub fn is_within_bounds(&self) -> bool {
        self.tags <= MOST_TAGS && self.extensions <= MOST_EXTENSIONS
    }

    /// Whether ports, checksum and what says what a connection does are all there, and are read.
    #[must_use]
    pub fn is_read(&self, bytes: &[u8]) -> bool {
        let needed = match self.protocol {
            protocol::TCP => 18,
            protocol::UDP => 8,
            _ => SCTP_HEADER + CHUNK,
        };
        self.has_ports() && !self.is_later_piece() && self.is_within_bounds() && bytes.len() >= self.transport + needed
    }

    /// Source and destination with their ports, of a protocol that has ports, if they are there.
    #[must_use]
    pub fn ends(&self, bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
        if self.is_later_piece() || !self.has_ports() {
            return None;
        }
        let (from, to) = (two(bytes, self.transport)?, two(bytes, self.transport + 2)?);
        Some((
            SocketAddr::new(self.source, from),
            SocketAddr::new(self.destination, to),
        ))
    }

    /// Where the source address stands; the destination follows.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.network + if self.is_v4() { 12 } else { 8 }
    }

    /// Bytes of an address.
    #[must_use]
    pub fn address_length(&self) -> usize {
        if self.is_v4() { 4 } else { 16 }
    }

    /// Where the checksum of the IP header stands, if the family has one.
    #[must_use]
    pub fn header_checksum(&self) -> Option<usize> {
        self.is_v4().then_some(self.network + 10)
    }

    /// Where the checksum of SCTP stands, which covers ports and no addresses, if it is SCTP and it is there.
    #[must_use]
    pub fn sctp_checksum(&self, bytes: &[u8]) -> Option<usize> {
        let at = self.transport + SCTP_HEADER - 4;
        let is_there = self.protocol == protocol::SCTP && !self.is_later_piece() && bytes.len() >= at + 4;
        is_there.then_some(at)
    }

    /// By how much the checksum of SCTP is wrong, over as many bytes as the IP header says that there are: 0 if it is
    /// right. `None` where there is none, or the header leaves no room for it.
    #[must_use]
    pub fn sctp_error(&self, bytes: &[u8]) -> Option<u32> {
        let at = self.sctp_checksum(bytes)?;
        let end = (self.network + self.declared(bytes)?).max(self.transport);
        let mut packet = bytes[self.transport..end.min(bytes.len())].to_vec();
        packet.resize(end - self.transport, 0);
        let field = at - self.transport..at - self.transport + 4;
        let given: [u8; 4] = packet.get(field.clone())?.try_into().ok()?;
        packet[field].fill(0);
        // RFC 9260 appendix A: the lowest byte of the CRC comes first.
        Some(u32::from_le_bytes(given) ^ crc32c::crc32c(&packet))
    }

    /// How many bytes the packet has, by its IP header.
    fn declared(&self, bytes: &[u8]) -> Option<usize> {
        let (at, header) = if self.is_v4() { (2, 0) } else { (4, 40) };
        Some(header + usize::from(two(bytes, self.network + at)?))
    }

    /// Where the checksum stands that covers ports and addresses, if the protocol has one and it is there.
    #[must_use]
    pub fn transport_checksum(&self, bytes: &[u8]) -> Option<usize> {
        if self.is_later_piece() {
            return None;
        }
        let at = self.transport
            + match self.protocol {
                protocol::TCP => 16,
                protocol::UDP => 6,
                protocol::ICMP | protocol::ICMPV6 => 2,
                _ => return None,
            };
        (bytes.len() >= at + 2).then_some(at)
    }

    /// By how much the checksum of the IP header is wrong, as a ones' complement number: 0 if it is right.
    #[must_use]
    pub fn header_error(&self, bytes: &[u8]) -> u16 {
        if !self.is_v4() {
            return 0;
        }
        let end = (self.network + usize::from(bytes[self.network] & 0x0f) * 4).min(bytes.len());
        error(Sum16BitWords::new().add_slice(&bytes[self.network..end]))
    }

    /// The same of the checksum that covers everything behind the IP header, as far as that is there, summed anew.
    /// What is missing, or is a piece of something, counts for as much as it always did.
    #[must_use]
    pub fn transport_error(&self, bytes: &[u8]) -> u16 {
        let Some(rest) = bytes.get(self.transport..) else {
            return 0;
        };
        let mut sum = Sum16BitWords::new().add_slice(rest);
        if self.protocol != protocol::ICMP {
            let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
            sum = sum.add_4bytes(length.to_be_bytes()).add_2bytes([0, self.protocol]);
            sum = match (self.source, self.destination) {
                (IpAddr::V4(from), IpAddr::V4(to)) => sum.add_4bytes(from.octets()).add_4bytes(to.octets()),
                (IpAddr::V6(from), IpAddr::V6(to)) => sum.add_16bytes(from.octets()).add_16bytes(to.octets()),
                _ => sum,
            };
        }
        error(sum)
    }

    /// UDP that says that it has no checksum (RFC 768).
    #[must_use]
    pub fn is_without_checksum(&self, bytes: &[u8]) -> bool {
        let at = self.transport_checksum(bytes);
        self.protocol == protocol::UDP && at.and_then(|at| two(bytes, at)) == Some(0)
    }

    /// The first packet of a connection or an association.
    #[must_use]
    pub fn opens(&self, bytes: &[u8]) -> bool {
        self.flags(bytes).is_some_and(|flags| match self.protocol {
            protocol::TCP => flags & SYN_ACK_FIN_RST == SYN,
            // Nobody cuts one to pieces.
            _ => flags == INIT && self.fragment.is_none(),
        })
    }

    /// The connection or the association is coming to its end.
    #[must_use]
    pub fn closes(&self, bytes: &[u8]) -> bool {
        self.flags(bytes).is_some_and(|flags| match self.protocol {
            protocol::TCP => flags & FIN_OR_RST != 0,
            _ => matches!(flags, ABORT | SHUTDOWN_COMPLETE),
        })
    }

    /// TCP: its flags. SCTP: the type of its first chunk.
    fn flags(&self, bytes: &[u8]) -> Option<u8> {
        let at = match self.protocol {
            protocol::TCP => 13,
            protocol::SCTP => SCTP_HEADER,
            _ => return None,
        };
        bytes.get(self.transport + at).copied()
    }

    /// An ICMP message that is an error, and so quotes the packet that it is about (RFC 792, RFC 4443).
    #[must_use]
    pub fn is_error(&self, bytes: &[u8]) -> bool {
        let Some(kind) = bytes.get(self.transport).filter(|_| !self.is_later_piece()) else {
            return false;
        };
        match self.protocol {
            protocol::ICMP => self.is_v4() && matches!(kind, 3 | 11 | 12),
            protocol::ICMPV6 => !self.is_v4() && *kind < 128,
            _ => false,
        }
    }

    /// Whether it is a whole packet with ports, or the first piece of one, that nobody on the way could complain about: lengths and checksums
    /// are right, and there is nothing in it that may be left alone.
    #[must_use]
    pub fn is_sound(&self, bytes: &[u8]) -> bool {
        self.is_plain(bytes) && self.is_transport_sound(bytes)
    }

    /// The same of the IP header alone.
    #[must_use]
    pub fn is_plain(&self, bytes: &[u8]) -> bool {
        let rest = bytes.len() - self.network;
        let version = if self.is_v4() { 4 } else { 6 };
        self.is_within_bounds()
            && bytes[self.network] >> 4 == version
            && self.declared(bytes) == Some(rest)
            && self.header_error(bytes) == 0
    }

    fn is_transport_sound(&self, bytes: &[u8]) -> bool {
        let Some(rest) = bytes.get(self.transport..) else {
            return false;
        };
        let is_piece = self.fragment.is_some();
        let lengths_are_right = match self.protocol {
            protocol::TCP => rest.len() >= 20 && (5..=rest.len() / 4).contains(&usize::from(rest[12] >> 4)),
            protocol::UDP => {
                let length = two(rest, 4).map_or(0, usize::from);
                rest.len() >= 8 && (length == rest.len() || is_piece && length > rest.len())
            }
            protocol::SCTP => rest.len() >= SCTP_HEADER + CHUNK,
            _ => false,
        };
        // Of a piece nobody can tell.
        lengths_are_right && (is_piece || self.is_checksum_right(bytes))
    }

    fn is_checksum_right(&self, bytes: &[u8]) -> bool {
        match self.sctp_checksum(bytes) {
            // Left to the link.
            Some(at) if bytes[at..at + 4] == [0; 4] => true,
            Some(_) => self.sctp_error(bytes) == Some(0),
            None => self.is_v4() && self.is_without_checksum(bytes) || self.transport_error(bytes) == 0,
        }
    }
}

/// What a sum over something with its checksum says: both zeros of ones' complement mean that it is right.
fn error(sum: Sum16BitWords) -> u16 {
    match u16::from_be(sum.ones_complement()) {
        0xffff => 0,
        error => error,
    }
}

fn two(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*bytes))
}

fn address(bytes: &[u8]) -> IpAddr {
    match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
        (Ok(v4), _) => Ipv4Addr::from(v4).into(),
        (_, Ok(v6)) => Ipv6Addr::from(v6).into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    }
}
