//! The packet that is asked about.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use etherparse::{IpHeaders, IpNumber, PacketBuilder, PacketBuilderStep, TcpHeader};
use lb_common::{
    FlowKey, Port,
    flow::FORWARD,
    net::{SCTP, TCP, UDP},
};
use serde::{Serialize, Serializer};

use crate::{
    cli::protocol::{ICMP, ICMPV6},
    plane::ebpf::Packet,
};

/// Ethernet addresses of nobody (RFC 7042 2.1): the program looks at none.
const FROM: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const TO: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
/// Hops that are left to it.
const HOPS: u8 = 64;
/// A window as connections begin with.
const WINDOW: u16 = 64_240;

/// What it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Kind {
    /// A SYN.
    Tcp,
    /// A datagram.
    Udp,
    /// An INIT.
    Sctp,
    /// An echo request.
    Icmp,
}

/// One end of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct End {
    ip: IpAddr,
    port: Option<u16>,
}

/// Why a text is no end of a packet.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("neither an address such as 10.0.0.1 nor one with a port such as 10.0.0.1:53 or [fd00::1]:53")]
pub(super) struct NoEnd;

impl FromStr for End {
    type Err = NoEnd;

    fn from_str(text: &str) -> Result<Self, NoEnd> {
        if let Ok(ip) = text.parse() {
            return Ok(Self { ip, port: None });
        }
        let address: SocketAddr = text.parse().map_err(|_| NoEnd)?;
        Ok(Self {
            ip: address.ip(),
            port: Some(address.port()),
        })
    }
}

/// A packet that makes sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Question {
    #[serde(serialize_with = "name")]
    protocol: u8,
    #[serde(serialize_with = "end")]
    source: End,
    #[serde(serialize_with = "end")]
    destination: End,
}

fn name<S: Serializer>(protocol: &u8, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&crate::cli::protocol::name(*protocol))
}

fn end<S: Serializer>(end: &End, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(end)
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

impl std::fmt::Display for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let protocol = crate::cli::protocol::name(self.protocol);
        write!(f, "{protocol} {} -> {}", self.source, self.destination)
    }
}

impl Question {
    /// Of two ends of one family, with ports where the protocol has them.
    pub(super) fn new(kind: Kind, source: End, destination: End) -> anyhow::Result<Self> {
        ensure!(
            source.ip.is_ipv4() == destination.ip.is_ipv4(),
            "{source} and {destination} are of two families"
        );
        for end in [source, destination] {
            // One is taken for the other on the way, and no packet on a wire has such an address.
            let is_mapped = matches!(end.ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
            ensure!(!is_mapped, "{end}: write an IPv4 address as such");
            match (kind, end.port) {
                (Kind::Icmp, Some(_)) => bail!("{end}: icmp has no ports"),
                (Kind::Tcp | Kind::Udp | Kind::Sctp, None) => {
                    bail!("{end}: it takes a port, as in {}", End { port: Some(80), ..end })
                }
                (_, Some(0)) => bail!("{end}: no packet has the port 0"),
                _ => {}
            }
        }
        let protocol = match (kind, source.ip) {
            (Kind::Tcp, _) => TCP,
            (Kind::Udp, _) => UDP,
            (Kind::Sctp, _) => SCTP,
            (Kind::Icmp, IpAddr::V4(_)) => ICMP,
            (Kind::Icmp, IpAddr::V6(_)) => ICMPV6,
        };
        Ok(Self {
            protocol,
            source,
            destination,
        })
    }

    /// Who sends it.
    pub(super) const fn source(&self) -> IpAddr {
        self.source.ip
    }

    /// The packet.
    pub(super) fn packet(&self) -> anyhow::Result<Packet> {
        let port = |end: End| end.port.unwrap_or(0);
        let (from, to) = (port(self.source), port(self.destination));
        let frame = self.frame(from, to).context("the packet cannot be made")?;
        let end = |end: End| (end.ip.into(), Port::new(port(end)));
        Ok(Packet {
            key: FlowKey::new(FORWARD, self.protocol, end(self.source), end(self.destination)),
            frame,
        })
    }

    fn frame(&self, from: u16, to: u16) -> anyhow::Result<Vec<u8>> {
        let step = self.step()?;
        let mut frame = Vec::new();
        match self.protocol {
            TCP => {
                let mut header = TcpHeader::new(from, to, 1, WINDOW);
                header.syn = true;
                step.tcp_header(header).write(&mut frame, &[])?;
            }
            UDP => step.udp(from, to).write(&mut frame, &[])?,
            SCTP => step.write(&mut frame, IpNumber::SCTP, &init(from, to))?,
            ICMP => step.icmpv4_echo_request(1, 1).write(&mut frame, &[])?,
            _ => step.icmpv6_echo_request(1, 1).write(&mut frame, &[])?,
        }
        Ok(frame)
    }

    fn step(&self) -> anyhow::Result<PacketBuilderStep<IpHeaders>> {
        let step = PacketBuilder::ethernet2(FROM, TO);
        match (self.source.ip, self.destination.ip) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Ok(step.ipv4(from.octets(), to.octets(), HOPS)),
            (IpAddr::V6(from), IpAddr::V6(to)) => Ok(step.ipv6(from.octets(), to.octets(), HOPS)),
            _ => bail!("{} and {} are of two families", self.source, self.destination),
        }
    }
}

/// An SCTP packet with an INIT chunk (RFC 9260 3.3.2). Its checksum is left to be made, as a sender's kernel leaves it
/// to the card: the program then leaves it too.
fn init(from: u16, to: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    packet.extend(from.to_be_bytes());
    packet.extend(to.to_be_bytes());
    // Verification tag, checksum.
    packet.extend([0; 8]);
    // Type INIT, no flags, its length.
    packet.extend([1, 0, 0, 20]);
    // Initiate tag, window, a stream each way, first number.
    packet.extend(1_u32.to_be_bytes());
    packet.extend(u32::from(WINDOW).to_be_bytes());
    packet.extend([0, 1, 0, 1]);
    packet.extend(1_u32.to_be_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketHeaders, TransportHeader};

    use super::*;

    fn question(kind: Kind, source: &str, destination: &str) -> anyhow::Result<Question> {
        Question::new(kind, source.parse()?, destination.parse()?)
    }

    #[test]
    fn a_packet_is_what_was_asked_about() {
        for (source, destination) in [
            ("10.0.0.9:40000", "10.96.0.1:443"),
            ("[fd00::9]:40000", "[fd00:96::1]:443"),
        ] {
            for kind in [Kind::Tcp, Kind::Udp, Kind::Sctp] {
                let packet = question(kind, source, destination).unwrap().packet().unwrap();
                let parsed = PacketHeaders::from_ethernet_slice(&packet.frame).unwrap();
                let ports = match parsed.transport {
                    Some(TransportHeader::Tcp(tcp)) => {
                        assert!(tcp.syn && !tcp.ack && kind == Kind::Tcp);
                        (tcp.source_port, tcp.destination_port)
                    }
                    Some(TransportHeader::Udp(udp)) => (udp.source_port, udp.destination_port),
                    _ => {
                        let bytes = parsed.payload.slice();
                        assert_eq!((kind, bytes.len()), (Kind::Sctp, 32));
                        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
                        (port(0), port(2))
                    }
                };
                assert_eq!(ports, (40_000, 443));
                assert_eq!((packet.key.source_port.get(), packet.key.destination_port.get()), ports);
            }
        }
        let echo = question(Kind::Icmp, "fd00::9", "fd00:96::1").unwrap().packet().unwrap();
        assert_eq!(echo.key.protocol, ICMPV6);
        let parsed = PacketHeaders::from_ethernet_slice(&echo.frame).unwrap();
        assert!(matches!(parsed.transport, Some(TransportHeader::Icmpv6(_))));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (kind, source, destination, said) in [
            (Kind::Tcp, "10.0.0.9:1", "[fd00::1]:2", "two families"),
            (
                Kind::Tcp,
                "10.0.0.9",
                "10.96.0.1:443",
                "takes a port, as in 10.0.0.9:80",
            ),
            (Kind::Udp, "10.0.0.9:1", "10.96.0.1:0", "port 0"),
            (Kind::Icmp, "10.0.0.9:1", "10.96.0.1", "no ports"),
            (Kind::Udp, "[::ffff:10.0.0.9]:1", "[fd00::1]:2", "as such"),
            (Kind::Udp, "web:1", "10.96.0.1:2", "neither an address"),
        ] {
            let error = question(kind, source, destination).unwrap_err().to_string();
            assert!(error.contains(said), "no {said:?} in {error}");
        }
    }
}
