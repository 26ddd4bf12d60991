//! Every kind of packet in every way that it is translated, compared byte by byte with the packet that its receiver
//! would have been sent without a service: built anew, with every checksum computed over all of it.
//!
//! The kernel cannot be told here that a checksum is left to the link (`CHECKSUM_PARTIAL`): `network::checksums` does
//! all of this with packets that are. What it can be told is that a packet is yet to be cut into segments.

use std::net::{IpAddr, SocketAddr};

use lb_common::config::DEFAULT_MASQUERADE_MARK as MARK;
use lb_tests::packet::fragments;

use crate::{
    Family, backend, client,
    datapath::{Datapath, Hook, PASS},
    frame::{SCTP_CHECKSUM, SYN, Transport, error, frame, packet_of},
    frontend,
};

/// A protocol, as the matrix needs it: a line of [`PROTOCOLS`] is all that another one takes.
struct Protocol {
    name: &'static str,
    transport: Transport,
    /// The port of the backend; the frontend has 80.
    target: u16,
    /// A whole frame between two ends.
    frame: fn(Transport, SocketAddr, SocketAddr) -> Vec<u8>,
}

const PROTOCOLS: [Protocol; 5] = [
    Protocol {
        name: "TCP",
        transport: Transport::Tcp,
        target: 8080,
        frame: with_checksum,
    },
    Protocol {
        name: "UDP",
        transport: Transport::Udp,
        target: 8080,
        frame: with_checksum,
    },
    Protocol {
        name: "UDP without checksum",
        transport: Transport::Udp,
        target: 8080,
        frame: without_checksum,
    },
    Protocol {
        name: "SCTP",
        transport: Transport::Sctp,
        target: 8080,
        frame: with_checksum,
    },
    Protocol {
        name: "SCTP whose port stays",
        transport: Transport::Sctp,
        target: 80,
        frame: with_checksum,
    },
];

fn with_checksum(transport: Transport, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    frame(transport, from, to, SYN)
}

/// RFC 768 for IPv4; over IPv6 tunnels do so (RFC 6935).
fn without_checksum(transport: Transport, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut frame = frame(transport, from, to, 0);
    let checksum = 14 + if from.is_ipv4() { 20 } else { 40 } + 6;
    frame[checksum..checksum + 2].fill(0);
    frame
}

/// What of a protocol's packet is sent.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// The packet itself.
    Packet,
    /// The first piece of it, with its header.
    Piece,
    /// A router's error about it, that quotes all of it.
    Error,
    /// The same of a router that quotes its IP header and the eight bytes behind it, as RFC 792 had it.
    ErrorCutShort,
    /// An error of whom it was sent to.
    Refusal,
}

impl Shape {
    const ALL: [Self; 5] = [
        Self::Packet,
        Self::Piece,
        Self::Error,
        Self::ErrorCutShort,
        Self::Refusal,
    ];

    /// Whether it goes where the packet goes, and does not come back from there.
    fn is_of_sender(self) -> bool {
        matches!(self, Self::Packet | Self::Piece)
    }

    /// What comes of a `packet` from one end to another, seen by the one who sent it: the packet, or the error to
    /// `sender` about it, of `receiver` or of a router.
    fn of(self, family: Family, packet: &[u8], sender: IpAddr, receiver: IpAddr) -> Vec<u8> {
        let (router, header): (IpAddr, _) = match family {
            Family::V4 => ("203.0.113.9".parse().unwrap(), 20),
            Family::V6 => ("2001:db8:113::9".parse().unwrap(), 40),
        };
        let (too_big, port) = match family {
            Family::V4 => ((3, 4), (3, 3)),
            Family::V6 => ((2, 0), (1, 4)),
        };
        let whole = packet_of(packet).len();
        match self {
            Self::Packet => packet.to_vec(),
            Self::Piece => fragments(packet, 24, 7).unwrap().swap_remove(0),
            Self::Error => error(router, sender, too_big, packet, whole),
            Self::ErrorCutShort => error(router, sender, too_big, packet, header + 8),
            Self::Refusal => error(receiver, sender, port, packet, whole),
        }
    }
}

/// Where it is translated.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// From a pod of this node to a backend.
    Dnat,
    /// To the client.
    Reverse,
    /// From outside to a backend of another node: the kernel is asked to masquerade.
    Masquerade,
}

impl Way {
    const ALL: [Self; 3] = [Self::Dnat, Self::Reverse, Self::Masquerade];

    fn hook(self) -> Hook {
        match self {
            Self::Dnat => Hook::PodIngress,
            Self::Reverse => Hook::Egress,
            Self::Masquerade => Hook::OutsideIngress,
        }
    }
}

/// A packet, and what it becomes.
struct Case {
    sent: Vec<u8>,
    expected: Vec<u8>,
}

fn case(protocol: &Protocol, family: Family, shape: Shape, way: Way) -> Case {
    let (client, frontend) = (client(family), frontend(family));
    let backend = SocketAddr::new(backend(family, 1).ip(), protocol.target);
    let build = |from, to| (protocol.frame)(protocol.transport, from, to);
    let of = |packet: &[u8], from: SocketAddr, to: SocketAddr| shape.of(family, packet, from.ip(), to.ip());
    let is_to_client = matches!(way, Way::Reverse);
    // An error goes the way that its subject came.
    let (was, is) = if is_to_client == shape.is_of_sender() {
        ((backend, client), (frontend, client))
    } else {
        ((client, frontend), (client, backend))
    };
    // The subject of an error has been translated, and is to be as it was sent.
    let (was, is) = if shape.is_of_sender() { (was, is) } else { (is, was) };
    let (sent, mut expected) = (build(was.0, was.1), build(is.0, is.1));
    if protocol.transport == Transport::Sctp && !shape.is_of_sender() {
        // Nobody checks a CRC over a packet that is not all there: it stays.
        let header = 14 + if family == Family::V4 { 20 } else { 40 };
        let at = header + SCTP_CHECKSUM.start..header + SCTP_CHECKSUM.end;
        expected[at.clone()].copy_from_slice(&sent[at]);
    }
    Case {
        sent: of(&sent, was.0, was.1),
        expected: of(&expected, is.0, is.1),
    }
}

#[test]
fn every_packet_becomes_the_one_that_would_have_been_sent_without_a_service() {
    for protocol in &PROTOCOLS {
        for family in Family::BOTH {
            for way in Way::ALL {
                let mut datapath = Datapath::new();
                let target = SocketAddr::new(backend(family, 1).ip(), protocol.target);
                datapath.simple(protocol.transport, frontend(family), &[target]);
                let opens = case(protocol, family, Shape::Packet, Way::Dnat).sent;
                let from = match way {
                    Way::Masquerade => Hook::OutsideIngress,
                    Way::Dnat | Way::Reverse => Hook::PodIngress,
                };
                datapath.run(from, &opens);
                for shape in Shape::ALL {
                    if matches!(shape, Shape::Piece) && protocol.transport == Transport::Sctp && protocol.target != 80 {
                        // Dropped: see `sctp`.
                        continue;
                    }
                    let what = format!("{} {family:?} {shape:?} {way:?}", protocol.name);
                    let case = case(protocol, family, shape, way);
                    assert_ne!(case.sent, case.expected, "{what}");
                    let out = datapath.run(way.hook(), &case.sent);
                    assert_eq!(out.verdict, PASS, "{what}");
                    assert_eq!(out.frame, case.expected, "{what}");
                    let mark = match way {
                        Way::Masquerade => MARK,
                        Way::Dnat | Way::Reverse => 0,
                    };
                    assert_eq!(out.mark, mark, "{what}");
                }
            }
        }
    }
}
