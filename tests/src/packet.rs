//! Single packets: what a frame holds, and whether it is right.

mod fragment;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, anyhow, ensure};
use etherparse::{
    Icmpv4Type, Icmpv6Type, LaxPacketHeaders, NetHeaders, PacketBuilder, PacketBuilderStep, PacketHeaders, TcpHeader,
    TransportHeader, UdpHeader, icmpv4, icmpv6,
};

use crate::netlink::Mac;
use crate::plane::Difference;

pub use fragment::fragments;

/// An IP packet out of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// IP header, with options or extension headers.
    pub ip: NetHeaders,
    /// The header behind it; none in a later fragment, or of a protocol that is none of these.
    pub transport: Option<TransportHeader>,
    /// What follows.
    pub payload: Vec<u8>,
}

impl Packet {
    /// Takes a frame apart. `None` if there is no IP in it.
    pub fn parse(frame: &[u8]) -> Result<Option<Self>> {
        let headers = PacketHeaders::from_ethernet_slice(frame).map_err(|error| anyhow!("does not parse: {error}"))?;
        let Some(ip) = headers.net.filter(NetHeaders::is_ip) else {
            return Ok(None);
        };
        Ok(Some(Self {
            ip,
            transport: headers.transport,
            payload: headers.payload.slice().to_vec(),
        }))
    }

    /// Where it comes from.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        addresses(&self.ip).0
    }

    /// Where it goes to.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        addresses(&self.ip).1
    }

    /// Source and destination with their ports, if it is TCP or UDP.
    #[must_use]
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (from, to) = ports(self.transport.as_ref()?)?;
        Some((
            SocketAddr::new(self.source(), from),
            SocketAddr::new(self.destination(), to),
        ))
    }

    /// The TCP header, if it is TCP.
    #[must_use]
    pub fn tcp(&self) -> Option<&TcpHeader> {
        match self.transport.as_ref()? {
            TransportHeader::Tcp(tcp) => Some(tcp),
            _ => None,
        }
    }

    /// The UDP header, if it is UDP.
    #[must_use]
    pub fn udp(&self) -> Option<&UdpHeader> {
        match self.transport.as_ref()? {
            TransportHeader::Udp(udp) => Some(udp),
            _ => None,
        }
    }

    /// Whether it says "port unreachable", in either family.
    #[must_use]
    pub fn is_port_unreachable(&self) -> bool {
        match &self.transport {
            Some(TransportHeader::Icmpv4(icmp)) => matches!(
                icmp.icmp_type,
                Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port)
            ),
            Some(TransportHeader::Icmpv6(icmp)) => matches!(
                icmp.icmp_type,
                Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port)
            ),
            _ => false,
        }
    }

    /// Source and destination of the TCP or UDP packet that this ICMP error is about.
    #[must_use]
    pub fn quoted_ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let ip = LaxPacketHeaders::from_ip(&self.payload).ok()?.net?;
        // No more than eight bytes of the transport header need be there: not enough to parse it.
        let ports = self.payload.get(ip.header_len()..)?.first_chunk::<4>()?;
        let [from_port, to_port] = [[ports[0], ports[1]], [ports[2], ports[3]]].map(u16::from_be_bytes);
        let (from, to) = addresses(&ip);
        Some((SocketAddr::new(from, from_port), SocketAddr::new(to, to_port)))
    }

    /// Recomputes every checksum, also that of a packet quoted in an ICMP error, as far as it is quoted.
    pub fn verify(&self) -> Result<()> {
        verify(&self.ip, self.transport.as_ref(), &self.payload)?;
        if self.is_icmp_error() {
            verify_quoted(&self.payload).map_err(|error| error.context("in the packet that the ICMP error quotes"))?;
        }
        Ok(())
    }

    fn is_icmp_error(&self) -> bool {
        match &self.transport {
            Some(TransportHeader::Icmpv4(icmp)) => matches!(
                icmp.icmp_type,
                Icmpv4Type::DestinationUnreachable(_) | Icmpv4Type::TimeExceeded(_) | Icmpv4Type::ParameterProblem(_)
            ),
            Some(TransportHeader::Icmpv6(icmp)) => icmp.icmp_type.type_u8() < 128,
            _ => false,
        }
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ends(), &self.transport) {
            (Some((from, to)), Some(TransportHeader::Tcp(tcp))) => {
                write!(f, "TCP {from} > {to}")?;
                let flags = [("SYN", tcp.syn), ("ACK", tcp.ack), ("FIN", tcp.fin), ("RST", tcp.rst)];
                flags
                    .iter()
                    .filter(|flag| flag.1)
                    .try_for_each(|flag| write!(f, " {}", flag.0))?;
            }
            (Some((from, to)), _) => write!(f, "UDP {from} > {to}")?,
            (None, Some(TransportHeader::Icmpv4(icmp))) => {
                write!(
                    f,
                    "ICMP {} > {} {:?}",
                    self.source(),
                    self.destination(),
                    icmp.icmp_type
                )?;
            }
            (None, Some(TransportHeader::Icmpv6(icmp))) => {
                write!(
                    f,
                    "ICMPv6 {} > {} {:?}",
                    self.source(),
                    self.destination(),
                    icmp.icmp_type
                )?;
            }
            _ => write!(f, "IP {} > {}", self.source(), self.destination())?,
        }
        if let Some((from, to)) = self.is_icmp_error().then(|| self.quoted_ends()).flatten() {
            write!(f, " about {from} > {to}")?;
        }
        write!(f, ", {} bytes", self.payload.len())
    }
}

fn addresses(ip: &NetHeaders) -> (IpAddr, IpAddr) {
    match ip {
        NetHeaders::Ipv4(header, _) => (header.source.into(), header.destination.into()),
        NetHeaders::Ipv6(header, _) => (header.source.into(), header.destination.into()),
        // Packets are made of IP headers only.
        NetHeaders::Arp(_) => ([0; 4].into(), [0; 4].into()),
    }
}

fn ports(transport: &TransportHeader) -> Option<(u16, u16)> {
    match transport {
        TransportHeader::Tcp(tcp) => Some((tcp.source_port, tcp.destination_port)),
        TransportHeader::Udp(udp) => Some((udp.source_port, udp.destination_port)),
        _ => None,
    }
}

fn verify(ip: &NetHeaders, transport: Option<&TransportHeader>, payload: &[u8]) -> Result<()> {
    verify_ip(ip)?;
    let Some(transport) = transport else { return Ok(()) };
    let (found, computed) = match (ip, transport) {
        (NetHeaders::Ipv4(ip, _), TransportHeader::Tcp(tcp)) => (tcp.checksum, tcp.calc_checksum_ipv4(ip, payload)?),
        (NetHeaders::Ipv6(ip, _), TransportHeader::Tcp(tcp)) => (tcp.checksum, tcp.calc_checksum_ipv6(ip, payload)?),
        // Over IPv4, none is as good as a right one.
        (NetHeaders::Ipv4(..), TransportHeader::Udp(udp)) if udp.checksum == 0 => (0, 0),
        (NetHeaders::Ipv4(ip, _), TransportHeader::Udp(udp)) => (udp.checksum, udp.calc_checksum_ipv4(ip, payload)?),
        (NetHeaders::Ipv6(ip, _), TransportHeader::Udp(udp)) => (udp.checksum, udp.calc_checksum_ipv6(ip, payload)?),
        (NetHeaders::Ipv4(..), TransportHeader::Icmpv4(icmp)) => (icmp.checksum, icmp.icmp_type.calc_checksum(payload)),
        (NetHeaders::Ipv6(ip, _), TransportHeader::Icmpv6(icmp)) => {
            let computed = icmp.icmp_type.calc_checksum(ip.source, ip.destination, payload)?;
            (icmp.checksum, computed)
        }
        _ => return Ok(()),
    };
    // Ones' complement has two zeros, and to who adds up a packet they are one. Kernels send either.
    ensure!(
        found == computed || found == 0xffff && computed == 0,
        "the {} checksum is {found:#06x}, not {computed:#06x}",
        protocol(transport)
    );
    Ok(())
}

fn protocol(transport: &TransportHeader) -> &'static str {
    match transport {
        TransportHeader::Tcp(_) => "TCP",
        TransportHeader::Udp(_) => "UDP",
        TransportHeader::Icmpv4(_) => "ICMP",
        TransportHeader::Icmpv6(_) => "ICMPv6",
        TransportHeader::Igmp(_) => "IGMP",
    }
}

fn verify_ip(ip: &NetHeaders) -> Result<()> {
    if let NetHeaders::Ipv4(header, _) = ip {
        let (found, computed) = (header.header_checksum, header.calc_header_checksum());
        ensure!(
            found == computed,
            "the IPv4 header checksum is {found:#06x}, not {computed:#06x}"
        );
    }
    Ok(())
}

fn verify_quoted(bytes: &[u8]) -> Result<()> {
    // Nothing is missing: then all of it can be verified.
    if !Difference::QuotedChecksums.applies()
        && let Ok(whole) = PacketHeaders::from_ip_slice(bytes)
        && let Some(ip) = &whole.net
    {
        return verify(ip, whole.transport.as_ref(), whole.payload.slice());
    }
    let part = LaxPacketHeaders::from_ip(bytes).map_err(|error| anyhow!("does not parse: {error}"))?;
    part.net.as_ref().map_or(Ok(()), verify_ip)
}

/// Whose Ethernet addresses a frame carries.
#[derive(Clone, Copy, Debug)]
pub struct Macs {
    /// The sender's.
    pub from: Mac,
    /// The next hop's.
    pub to: Mac,
}

/// Begins a frame with Ethernet and IP headers, for the builders of etherparse to go on with.
pub fn builder(macs: Macs, from: IpAddr, to: IpAddr) -> Result<PacketBuilderStep<etherparse::IpHeaders>> {
    let step = PacketBuilder::ethernet2(macs.from, macs.to);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Ok(step.ipv4(from.octets(), to.octets(), 64)),
        (IpAddr::V6(from), IpAddr::V6(to)) => Ok(step.ipv6(from.octets(), to.octets(), 64)),
        _ => Err(anyhow!("{from} and {to} are of two families")),
    }
}

/// A UDP datagram in a frame.
pub fn udp(macs: Macs, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Result<Vec<u8>> {
    let step = builder(macs, from.ip(), to.ip())?.udp(from.port(), to.port());
    let mut frame = Vec::with_capacity(step.size(payload.len()));
    step.write(&mut frame, payload)?;
    Ok(frame)
}

/// A TCP segment in a frame, with the flags that `flags` sets.
pub fn tcp(
    macs: Macs,
    from: SocketAddr,
    to: SocketAddr,
    flags: impl FnOnce(&mut TcpHeader),
    payload: &[u8],
) -> Result<Vec<u8>> {
    let mut header = TcpHeader::new(from.port(), to.port(), 1000, 64240);
    flags(&mut header);
    let step = builder(macs, from.ip(), to.ip())?.tcp_header(header);
    let mut frame = Vec::with_capacity(step.size(payload.len()));
    step.write(&mut frame, payload)?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACS: Macs = Macs {
        from: [2, 0, 0, 0, 0, 1],
        to: [2, 0, 0, 0, 0, 2],
    };

    fn frames() -> Vec<Vec<u8>> {
        [("10.0.0.1:1000", "10.0.0.2:80"), ("[fd00::1]:1000", "[fd00::2]:80")]
            .iter()
            .flat_map(|(from, to)| {
                let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
                [
                    udp(MACS, from, to, b"hello").unwrap(),
                    tcp(MACS, from, to, |tcp| tcp.syn = true, b"").unwrap(),
                ]
            })
            .collect()
    }

    #[test]
    fn what_was_built_is_right_and_says_so() {
        for frame in frames() {
            let packet = Packet::parse(&frame).unwrap().unwrap();
            packet.verify().unwrap();
            let (from, to) = packet.ends().unwrap();
            assert_eq!((from.port(), to.port()), (1000, 80));
        }
    }

    #[test]
    fn any_wrong_byte_of_ip_and_transport_is_found() {
        for frame in frames() {
            // The last byte is payload or header of the transport; 14 + 8 is in either IP header.
            for at in [frame.len() - 1, 14 + 8] {
                let mut broken = frame.clone();
                broken[at] ^= 0x10;
                let right = Packet::parse(&broken).unwrap().unwrap().verify();
                assert!(right.is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn a_tcp_checksum_may_be_either_zero_where_it_comes_to_none() {
        let (from, to) = ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let with = |payload: [u8; 2]| tcp(MACS, from, to, |tcp| tcp.ack = true, &payload).unwrap();
        let checksum = |frame: &[u8]| Packet::parse(frame).unwrap().unwrap().tcp().unwrap().checksum;
        let mut frame = with(checksum(&with([0, 0])).to_be_bytes());
        assert_eq!(checksum(&frame), 0);
        let at = frame.len() - 2 - 4;
        for (zero, right) in [([0, 0], true), ([0xff, 0xff], true), ([0xff, 0xfe], false)] {
            frame[at..at + 2].copy_from_slice(&zero);
            let verified = Packet::parse(&frame).unwrap().unwrap().verify();
            assert_eq!(verified.is_ok(), right, "{zero:?}: {verified:?}");
        }
    }

    #[test]
    fn a_frame_that_was_cut_off_does_not_pass() {
        for frame in frames() {
            assert!(Packet::parse(&frame[..frame.len() - 3]).is_err());
        }
    }

    #[test]
    fn an_icmp_error_is_verified_with_what_it_quotes() {
        let (from, to): (SocketAddr, SocketAddr) = ("10.0.0.1:1000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let quoted = udp(MACS, from, to, b"hello").unwrap().split_off(14);
        let unreachable = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);
        let build = |quoted: &[u8]| {
            let step = builder(MACS, to.ip(), from.ip()).unwrap().icmpv4(unreachable.clone());
            let mut frame = Vec::new();
            step.write(&mut frame, quoted).unwrap();
            Packet::parse(&frame).unwrap().unwrap()
        };
        let error = build(&quoted);
        error.verify().unwrap();
        assert!(error.is_port_unreachable());
        assert_eq!(error.quoted_ends(), Some((from, to)));
        // As a router quotes it: the header and eight bytes.
        let short = build(&quoted[..28]);
        short.verify().unwrap();
        assert_eq!(short.quoted_ends(), Some((from, to)));
        let mut wrong = quoted;
        *wrong.last_mut().unwrap() ^= 1;
        assert!(build(&wrong).verify().is_err());
    }
}
