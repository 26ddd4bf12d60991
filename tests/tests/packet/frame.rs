//! Ethernet frames: written for a test, and read back with every checksum verified.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, Ethernet2Header, IpHeaders, IpNumber, Ipv4Header, Ipv6Header, TcpHeader, UdpHeader,
    checksum::Sum16BitWords,
};

pub(crate) const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    Tcp,
    Udp,
    Sctp,
}

impl Transport {
    /// Those that every test of what is not the protocol's own is for.
    pub(crate) const BOTH: [Self; 2] = [Self::Tcp, Self::Udp];

    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Tcp => IpNumber::TCP.0,
            Self::Udp => IpNumber::UDP.0,
            Self::Sctp => IpNumber::SCTP.0,
        }
    }
}

/// TCP flags, as in the header.
pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// Types of SCTP chunks (RFC 9260 3.2).
pub(crate) const DATA: u8 = 0;
pub(crate) const INIT: u8 = 1;
pub(crate) const INIT_ACK: u8 = 2;
pub(crate) const ABORT: u8 = 6;
pub(crate) const COOKIE_ACK: u8 = 11;
pub(crate) const SHUTDOWN_COMPLETE: u8 = 14;

/// A frame with a TCP segment, or a datagram, whose flags are then of no account, or what SCTP has in place of a
/// segment with these flags.
pub(crate) fn frame(transport: Transport, source: SocketAddr, destination: SocketAddr, flags: u8) -> Vec<u8> {
    let payload = b"GET / of a test";
    let length = payload.len()
        + match transport {
            Transport::Tcp => TcpHeader::MIN_LEN,
            Transport::Udp => UdpHeader::LEN,
            Transport::Sctp => return sctp(source, destination, chunk(flags), 20),
        };
    let ip = headers(source.ip(), destination.ip(), transport.number(), length);
    let mut bytes = link(&ip);
    match transport {
        Transport::Tcp => {
            let mut tcp = TcpHeader::new(source.port(), destination.port(), 1000, 64000);
            (tcp.fin, tcp.syn) = (flags & FIN != 0, flags & SYN != 0);
            (tcp.rst, tcp.ack) = (flags & RST != 0, flags & ACK != 0);
            tcp.checksum = match &ip {
                IpHeaders::Ipv4(ip, _) => tcp.calc_checksum_ipv4(ip, payload),
                IpHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(ip, payload),
            }
            .unwrap();
            tcp.write(&mut bytes).unwrap();
        }
        Transport::Udp => {
            let (from, to) = (source.port(), destination.port());
            match &ip {
                IpHeaders::Ipv4(ip, _) => UdpHeader::with_ipv4_checksum(from, to, ip, payload),
                IpHeaders::Ipv6(ip, _) => UdpHeader::with_ipv6_checksum(from, to, ip, payload),
            }
            .unwrap()
            .write(&mut bytes)
            .unwrap();
        }
        Transport::Sctp => {}
    }
    bytes.extend_from_slice(payload);
    bytes
}

fn chunk(flags: u8) -> u8 {
    match (flags & (RST | FIN) != 0, flags & SYN != 0, flags & ACK != 0) {
        (true, ..) => ABORT,
        (_, true, false) => INIT,
        (_, true, true) => INIT_ACK,
        _ => DATA,
    }
}

/// A frame with an SCTP packet whose first chunk is of this type and has so many bytes.
pub(crate) fn sctp(from: SocketAddr, to: SocketAddr, chunk: u8, length: u16) -> Vec<u8> {
    let mut sctp = Vec::new();
    sctp.extend_from_slice(&from.port().to_be_bytes());
    sctp.extend_from_slice(&to.port().to_be_bytes());
    sctp.extend_from_slice(&[0xab, 0xcd, 0xef, 0x01, 0, 0, 0, 0, chunk, 0]);
    sctp.extend_from_slice(&length.to_be_bytes());
    sctp.extend((4..length).map(|byte| byte.to_be_bytes()[1]));
    let checksum = crc(&sctp);
    sctp[SCTP_CHECKSUM].copy_from_slice(&checksum);
    raw(from.ip(), to.ip(), IpNumber::SCTP.0, &sctp)
}

/// Where the checksum stands in an SCTP packet.
pub(crate) const SCTP_CHECKSUM: std::ops::Range<usize> = 8..12;

/// RFC 9260 appendix A: over the packet with zeros in its place, and the lowest byte of the CRC comes first.
fn crc(sctp: &[u8]) -> [u8; 4] {
    let mut sctp = sctp.to_vec();
    sctp[SCTP_CHECKSUM].fill(0);
    crc32c::crc32c(&sctp).to_le_bytes()
}

/// A frame with `payload` of any protocol behind its IP header.
pub(crate) fn raw(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = link(&headers(source, destination, protocol, payload.len()));
    bytes.extend_from_slice(payload);
    bytes
}

fn headers(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> IpHeaders {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = Ipv4Header::new(
                length.try_into().unwrap(),
                63,
                IpNumber(protocol),
                source.octets(),
                destination.octets(),
            )
            .unwrap();
            header.header_checksum = header.calc_header_checksum();
            IpHeaders::Ipv4(header, Default::default())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => IpHeaders::Ipv6(
            Ipv6Header {
                payload_length: length.try_into().unwrap(),
                next_header: IpNumber(protocol),
                hop_limit: 63,
                source: source.octets(),
                destination: destination.octets(),
                ..Default::default()
            },
            Default::default(),
        ),
        _ => panic!("two families in one packet"),
    }
}

fn link(ip: &IpHeaders) -> Vec<u8> {
    let mut bytes = Vec::new();
    let ether_type = match ip {
        IpHeaders::Ipv4(..) => EtherType::IPV4,
        IpHeaders::Ipv6(..) => EtherType::IPV6,
    };
    Ethernet2Header {
        source: CLIENT_MAC,
        destination: NODE_MAC,
        ether_type,
    }
    .write(&mut bytes)
    .unwrap();
    ip.write(&mut bytes).unwrap();
    bytes
}

/// What a frame says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) source_mac: [u8; 6],
    pub(crate) destination_mac: [u8; 6],
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    /// Everything behind the IP header.
    pub(crate) payload: Vec<u8>,
}

impl Seen {
    /// Source address and port.
    pub(crate) fn from(&self) -> SocketAddr {
        SocketAddr::new(self.source, self.port(0))
    }

    /// Destination address and port.
    pub(crate) fn to(&self) -> SocketAddr {
        SocketAddr::new(self.destination, self.port(2))
    }

    fn port(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.payload[at], self.payload[at + 1]])
    }
}

/// Reads a frame; its length fields and checksums must be right.
pub(crate) fn read(bytes: &[u8]) -> Seen {
    let (link, rest) = Ethernet2Header::from_slice(bytes).unwrap();
    let seen = read_ip(rest, link.ether_type);
    Seen {
        source_mac: link.source,
        destination_mac: link.destination,
        ..seen
    }
}

/// Reads what comes behind a link header.
fn read_ip(bytes: &[u8], ether_type: EtherType) -> Seen {
    let (source, destination, protocol, payload) = if ether_type == EtherType::IPV4 {
        let (ip, payload) = Ipv4Header::from_slice(bytes).unwrap();
        assert_eq!(ip.header_checksum, ip.calc_header_checksum(), "IPv4 header checksum");
        assert_eq!(usize::from(ip.total_len), bytes.len(), "IPv4 total length");
        (
            IpAddr::from(ip.source),
            IpAddr::from(ip.destination),
            ip.protocol.0,
            payload,
        )
    } else {
        let (ip, payload) = Ipv6Header::from_slice(bytes).unwrap();
        assert_eq!(usize::from(ip.payload_length), payload.len(), "IPv6 payload length");
        (
            IpAddr::from(ip.source),
            IpAddr::from(ip.destination),
            ip.next_header.0,
            payload,
        )
    };
    if protocol == IpNumber::SCTP.0 {
        assert_eq!(payload[SCTP_CHECKSUM], crc(payload), "CRC32c");
    }
    let no_checksum = protocol == IpNumber::SCTP.0 || protocol == IpNumber::UDP.0 && payload[6..8] == [0, 0];
    if !no_checksum {
        assert_eq!(
            sum(source, destination, protocol, payload),
            0,
            "checksum of protocol {protocol}"
        );
    }
    Seen {
        source_mac: [0; 6],
        destination_mac: [0; 6],
        source,
        destination,
        protocol,
        payload: payload.to_vec(),
    }
}

/// Ones' complement of the sum over the packet with its pseudo header: zero where the checksum is
/// right.
fn sum(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> u16 {
    let sum = Sum16BitWords::new().add_slice(payload);
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let pseudo = |mut sum: Sum16BitWords| sum.add_4bytes(length).add_2bytes([0, protocol]);
    match (source, destination) {
        // ICMP is the one that sums no pseudo header.
        _ if protocol == IpNumber::ICMP.0 => sum,
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            pseudo(sum).add_4bytes(source.octets()).add_4bytes(destination.octets())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => pseudo(sum)
            .add_16bytes(source.octets())
            .add_16bytes(destination.octets()),
        _ => unreachable!("read from one header"),
    }
    .ones_complement()
}

/// A frame with an ICMP error that quotes the first `length` bytes of the packet in another frame.
pub(crate) fn error(
    source: IpAddr,
    destination: IpAddr,
    (kind, code): (u8, u8),
    quoted: &[u8],
    length: usize,
) -> Vec<u8> {
    let protocol = if source.is_ipv4() {
        IpNumber::ICMP.0
    } else {
        IpNumber::IPV6_ICMP.0
    };
    let mut message = vec![kind, code, 0, 0, 0, 0, 5, 120];
    message.extend_from_slice(&packet_of(quoted)[..length]);
    let checksum = sum(source, destination, protocol, &message).to_ne_bytes();
    message[2..4].copy_from_slice(&checksum);
    raw(source, destination, protocol, &message)
}

/// The packet in a frame.
pub(crate) fn packet_of(frame: &[u8]) -> &[u8] {
    &frame[Ethernet2Header::LEN..]
}
