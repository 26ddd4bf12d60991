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
/// TCP flags.
const FIN_OR_RST: u8 = 0x01 | 0x04;
const SYN_ACK_FIN_RST: u8 = 0x02 | 0x10 | FIN_OR_RST;
const SYN: u8 = 0x02;

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
    /// It is a piece of a packet.
    pub fragment: Option<Fragment>,
    /// It stands behind a VLAN tag.
    pub tagged: bool,
    /// How many IPv6 extension headers it has.
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
        let mut tagged = false;
        while has_link_header && matches!(kind, 0x8100 | 0x88a8) {
            kind = two(bytes, at + 2)?;
            at += TAG;
            tagged = true;
        }
        let anatomy = match kind {
            0x0800 => Self::v4(bytes, at),
            0x86dd => Self::v6(bytes, at),
            _ => None,
        }?;
        Some(Self { tagged, ..anatomy })
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
            tagged: false,
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
            tagged: false,
            extensions: 0,
        };
        // IPv4 that goes by another name is nobody's.
        let is_mapped = |ip| matches!(ip, IpAddr::V6(v6) if Ipv6Addr::to_ipv4_mapped(&v6).is_some());
        if is_mapped(anatomy.source) || is_mapped(anatomy.destination) {
            return None;
        }
        while matches!(anatomy.protocol, 0 | 60 | protocol::FRAGMENT) {
            let extension = bytes.get(anatomy.transport..anatomy.transport + 8)?;
            if anatomy.protocol == protocol::FRAGMENT {
                let offset = u16::from_be_bytes([extension[2], extension[3]]);
                anatomy.fragment = Some(Fragment {
                    id: u32::from_be_bytes([extension[4], extension[5], extension[6], extension[7]]),
                    is_first: offset & 0xfff8 == 0,
                });
                anatomy.transport += 8;
            } else {
                anatomy.transport += (usize::from(extension[1]) + 1) * 8;
            }
            anatomy.protocol = extension[0];
            anatomy.extensions += 1;
            if anatomy.fragment.is_some_and(|fragment| !fragment.is_first) {
                break;
            }
        }
        Some(anatomy)
    }

    /// Whether it is IPv4.
    #[must_use]
    pub fn is_v4(&self) -> bool {
        self.source.is_ipv4()
    }

    /// Source and destination with their ports, of a protocol that has ports, if they are there.
    #[must_use]
    pub fn ends(&self, bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
        let is_later = self.fragment.is_some_and(|fragment| !fragment.is_first);
        if is_later || !matches!(self.protocol, protocol::TCP | protocol::UDP | protocol::SCTP) {
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

    /// Where the checksum stands that covers ports and addresses, if the protocol has one and it is there.
    #[must_use]
    pub fn transport_checksum(&self, bytes: &[u8]) -> Option<usize> {
        if self.fragment.is_some_and(|fragment| !fragment.is_first) {
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

    /// TCP: the first segment of a connection.
    #[must_use]
    pub fn opens_tcp(&self, bytes: &[u8]) -> bool {
        self.flags(bytes).is_some_and(|flags| flags & SYN_ACK_FIN_RST == SYN)
    }

    /// TCP: the connection is coming to its end.
    #[must_use]
    pub fn closes_tcp(&self, bytes: &[u8]) -> bool {
        self.flags(bytes).is_some_and(|flags| flags & FIN_OR_RST != 0)
    }

    fn flags(&self, bytes: &[u8]) -> Option<u8> {
        let flags = bytes.get(self.transport + 13).copied();
        flags.filter(|_| self.protocol == protocol::TCP)
    }

    /// An ICMP message that is an error, and so quotes the packet that it is about (RFC 792, RFC 4443).
    #[must_use]
    pub fn is_error(&self, bytes: &[u8]) -> bool {
        let Some(kind) = bytes.get(self.transport) else {
            return false;
        };
        match self.protocol {
            protocol::ICMP => self.is_v4() && matches!(kind, 3 | 11 | 12),
            protocol::ICMPV6 => !self.is_v4() && *kind < 128,
            _ => false,
        }
    }

    /// Whether it is a whole datagram or segment that nobody on the way could complain about: lengths and checksums
    /// are right, and there is nothing in it that may be left alone.
    #[must_use]
    pub fn is_sound(&self, bytes: &[u8]) -> bool {
        self.is_plain(bytes) && self.is_transport_sound(bytes)
    }

    /// The same of the IP header alone.
    #[must_use]
    pub fn is_plain(&self, bytes: &[u8]) -> bool {
        let rest = bytes.len() - self.network;
        let (version, declared) = match self.source {
            IpAddr::V4(_) => (4, two(bytes, self.network + 2)),
            IpAddr::V6(_) => (6, two(bytes, self.network + 4).map(|length| length.saturating_add(40))),
        };
        self.fragment.is_none()
            && !self.tagged
            && self.extensions <= 3
            && bytes[self.network] >> 4 == version
            && declared.map(usize::from) == Some(rest)
            && self.header_error(bytes) == 0
    }

    fn is_transport_sound(&self, bytes: &[u8]) -> bool {
        let Some(rest) = bytes.get(self.transport..) else {
            return false;
        };
        let lengths_are_right = match self.protocol {
            protocol::TCP => rest.len() >= 20 && (5..=rest.len() / 4).contains(&usize::from(rest[12] >> 4)),
            protocol::UDP => rest.len() >= 8 && two(rest, 4).map(usize::from) == Some(rest.len()),
            _ => false,
        };
        let no_checksum = self.is_v4() && self.is_without_checksum(bytes);
        lengths_are_right && (no_checksum || self.transport_error(bytes) == 0)
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
