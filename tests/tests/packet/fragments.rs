//! Datagrams in pieces: all of them go where the first one goes, which has the ports.
//!
//! Those that come before the first are sent again by the kernel, over a link: `network::fragments` has them.

use std::net::{IpAddr, SocketAddr};

use lb_common::{
    Counter,
    address::{CLUSTER_IP, EXTERNAL},
    fragment::HELD_PER_DATAGRAM,
    maps,
};
use lb_tests::packet::fragments;

use crate::{
    Family, backend, client,
    datapath::{DROP, Datapath, Hook, PASS},
    frame::{Transport, frame, packet_of},
    frontend, node,
};

const ETHERNET: usize = 14;
const UDP: u8 = 17;
const FRAGMENT_HEADER: u8 = 44;

/// One of the two pieces of a datagram, cut behind the UDP header and eight more bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Piece {
    First,
    Last,
}

const CUT: usize = 16;

fn piece(piece: Piece, from: SocketAddr, to: SocketAddr, identification: u16) -> Vec<u8> {
    let whole = frame(Transport::Udp, from, to, 0);
    let [first, last]: [_; 2] = fragments(&whole, CUT, identification).unwrap().try_into().unwrap();
    match piece {
        Piece::First => first,
        Piece::Last => last,
    }
}

/// The datagram that two pieces make, whose IP headers are found to be right on the way: as a frame in one piece.
fn joined(first: &[u8], last: &[u8]) -> Vec<u8> {
    let v4 = first[12..14] == [0x08, 0x00];
    let header = ETHERNET + if v4 { 20 } else { 48 };
    for piece in [first, last] {
        let ip = packet_of(piece);
        if v4 {
            let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&ip[..20]);
            assert_eq!(sum.ones_complement(), 0, "checksum of the IP header");
        }
    }
    assert_eq!(
        packet_of(first)[8..header - ETHERNET].len(),
        packet_of(last)[8..header - ETHERNET].len()
    );
    let addresses = if v4 { 12..20 } else { 8..40 };
    assert_eq!(packet_of(first)[addresses.clone()], packet_of(last)[addresses]);
    let datagram = [&first[header..], &last[header..]].concat();
    let mut whole = if v4 { &first[..header] } else { &first[..header - 8] }.to_vec();
    let ip = &mut whole[ETHERNET..];
    let length = u16::try_from(datagram.len()).unwrap();
    if v4 {
        ip[2..4].copy_from_slice(&(length + 20).to_be_bytes());
        ip[6..8].fill(0);
        ip[10..12].fill(0);
        let sum = etherparse::checksum::Sum16BitWords::new()
            .add_slice(ip)
            .ones_complement();
        ip[10..12].copy_from_slice(&sum.to_ne_bytes());
    } else {
        ip[4..6].copy_from_slice(&length.to_be_bytes());
        ip[6] = UDP;
    }
    whole.extend_from_slice(&datagram);
    whole
}

fn with_service(family: Family) -> Datapath {
    let mut datapath = Datapath::new();
    datapath.simple(Transport::Udp, frontend(family), &[backend(family, 1)]);
    datapath.address(frontend(family).ip(), CLUSTER_IP);
    datapath
}

fn sent(datapath: &Datapath, family: Family, which: Piece, identification: u16) -> Vec<u8> {
    let piece = piece(which, client(family), frontend(family), identification);
    let out = datapath.run(Hook::PodIngress, &piece);
    assert_eq!(out.verdict, PASS, "{which:?}");
    out.frame
}

#[test]
fn the_pieces_of_a_datagram_reach_one_backend_and_make_a_whole_there() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        let backends: Vec<_> = (1..=50).map(|n| backend(family, n)).collect();
        datapath.simple(Transport::Udp, frontend(family), &backends);
        datapath.address(frontend(family).ip(), CLUSTER_IP);
        for identification in [1, 2] {
            let first = sent(&datapath, family, Piece::First, identification);
            let last = sent(&datapath, family, Piece::Last, identification);
            let seen = crate::frame::read(&joined(&first, &last));
            assert_eq!(seen.from(), client(family));
            assert!(backends.contains(&seen.to()), "{}", seen.to());
        }
    }
}

#[test]
fn the_pieces_of_an_answer_come_from_the_frontend() {
    for family in Family::BOTH {
        let datapath = with_service(family);
        datapath.run(
            Hook::PodIngress,
            &frame(Transport::Udp, client(family), frontend(family), 0),
        );
        let [first, last] = [Piece::First, Piece::Last].map(|which| {
            let piece = piece(which, backend(family, 1), client(family), 7);
            datapath.run(Hook::Egress, &piece).frame
        });
        let seen = crate::frame::read(&joined(&first, &last));
        assert_eq!((seen.from(), seen.to()), (frontend(family), client(family)));
    }
}

#[test]
fn pieces_of_two_datagrams_that_come_in_turns_are_told_apart() {
    for family in Family::BOTH {
        let mut datapath = with_service(family);
        let other: SocketAddr = family.pick("10.96.0.99:80", "[fd00:96::99]:80");
        let number = datapath.backend(9, backend(family, 9), false);
        let range = datapath.slots(&[number]);
        datapath.service(Transport::Udp, other, range, 0);
        let to_other = |which, identification| {
            let piece = piece(which, client(family), other, identification);
            datapath.run(Hook::PodIngress, &piece).frame
        };
        let first = sent(&datapath, family, Piece::First, 1);
        let first_of_other = to_other(Piece::First, 1);
        let last = sent(&datapath, family, Piece::Last, 1);
        let last_of_other = to_other(Piece::Last, 1);
        assert_eq!(crate::frame::read(&joined(&first, &last)).to(), backend(family, 1));
        let seen = crate::frame::read(&joined(&first_of_other, &last_of_other));
        assert_eq!(seen.to(), backend(family, 9));
    }
}

#[test]
fn every_piece_of_a_client_that_is_masqueraded_has_the_mark() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.simple(Transport::Udp, frontend(family), &[backend(family, 1)]);
        datapath.address(frontend(family).ip(), CLUSTER_IP);
        for which in [Piece::First, Piece::Last] {
            let piece = piece(which, client(family), frontend(family), 3);
            let out = datapath.run(Hook::OutsideIngress, &piece);
            assert_eq!(out.mark, lb_common::config::DEFAULT_MASQUERADE_MARK, "{which:?}");
        }
    }
}

#[test]
fn a_piece_without_the_first_one_goes_nowhere_where_every_port_is_a_services() {
    for family in Family::BOTH {
        let datapath = with_service(family);
        let last = piece(Piece::Last, client(family), frontend(family), 4);
        assert_eq!(datapath.run(Hook::PodIngress, &last).verdict, DROP);
    }
}

#[test]
fn the_rest_of_a_datagram_that_is_refused_or_dropped_is_dropped() {
    for family in Family::BOTH {
        let mut datapath = with_service(family);
        let other_port = SocketAddr::new(frontend(family).ip(), 81);
        let first = piece(Piece::First, client(family), other_port, 5);
        datapath.run(Hook::PodIngress, &first);
        let last = piece(Piece::Last, client(family), other_port, 5);
        assert_eq!(datapath.run(Hook::PodIngress, &last).verdict, DROP);
        assert_eq!(datapath.counter(Counter::DroppedFragment), 1);
    }
}

fn passes(datapath: &Datapath, family: Family, to: IpAddr, what: &str) {
    let to = SocketAddr::new(to, 5353);
    for which in [Piece::First, Piece::Last] {
        for hook in [Hook::PodIngress, Hook::OutsideIngress, Hook::Egress] {
            let piece = piece(which, client(family), to, 6);
            let out = datapath.run(hook, &piece);
            assert!(out.verdict == PASS && out.frame == piece, "{what}: {which:?}");
        }
    }
}

#[test]
fn pieces_of_what_is_not_for_a_service_pass_untouched() {
    for family in Family::BOTH {
        let mut datapath = with_service(family);
        datapath.node_address(node(family));
        let external = family.pick("203.0.113.7", "2001:db8:7::7");
        datapath.address(external, EXTERNAL);
        passes(&datapath, family, backend(family, 1).ip(), "pod to pod");
        passes(&datapath, family, node(family), "to the node");
        passes(&datapath, family, external, "to a load balancer's address");
    }
}

#[test]
fn later_pieces_pass_at_once_where_no_service_is() {
    for family in Family::BOTH {
        let datapath = with_service(family);
        let last = piece(Piece::Last, client(family), backend(family, 1), 8);
        let out = datapath.run(Hook::PodIngress, &last);
        assert!(out.verdict == PASS && out.frame == last);
    }
}

#[test]
fn a_whole_packet_with_a_fragment_header_is_translated_like_any_other() {
    let family = Family::V6;
    let datapath = with_service(family);
    let mut sent = frame(Transport::Udp, client(family), frontend(family), 0);
    let header = [UDP, 0, 0, 0, 0, 0, 0, 1];
    sent.splice(ETHERNET + 40..ETHERNET + 40, header);
    let length = u16::try_from(sent.len() - ETHERNET - 40).unwrap();
    sent[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&length.to_be_bytes());
    sent[ETHERNET + 6] = FRAGMENT_HEADER;
    let mut out = datapath.run(Hook::PodIngress, &sent).frame;
    out.drain(ETHERNET + 40..ETHERNET + 48);
    out[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&(length - 8).to_be_bytes());
    out[ETHERNET + 6] = UDP;
    assert_eq!(crate::frame::read(&out).to(), backend(family, 1));
}

#[test]
fn what_waits_in_vain_for_its_first_fragment_is_counted_when_its_place_is_taken() {
    for family in Family::BOTH {
        let mut datapath = with_service(family);
        let sent = maps::HELD_FRAGMENTS_MAX + 100;
        for identification in 0..sent {
            let identification = u16::try_from(identification).unwrap();
            let last = piece(Piece::Last, client(family), frontend(family), identification);
            assert_eq!(datapath.run(Hook::PodIngress, &last).verdict, DROP);
        }
        let dropped = datapath.counter(Counter::DroppedFragment);
        assert!(dropped >= 100, "{dropped}");
        assert_eq!(dropped + datapath.held() as u64, u64::from(sent));
    }
}

#[test]
fn an_answer_that_is_none_of_ours_is_not_mistaken_for_one_with_its_identification() {
    for family in Family::BOTH {
        let datapath = with_service(family);
        let request = frame(Transport::Udp, client(family), frontend(family), 0);
        datapath.run(Hook::PodIngress, &request);
        let translated = piece(Piece::First, backend(family, 1), client(family), 7);
        assert_ne!(datapath.run(Hook::Egress, &translated).frame, translated);
        let other = SocketAddr::new(backend(family, 1).ip(), 9);
        for which in [Piece::First, Piece::Last] {
            let sent = piece(which, other, client(family), 7);
            let out = datapath.run(Hook::Egress, &sent);
            assert!(out.verdict == PASS && out.frame == sent, "{which:?}");
        }
    }
}

#[test]
fn a_datagram_of_more_pieces_than_are_held_is_dropped_as_a_whole() {
    for family in Family::BOTH {
        let mut datapath = with_service(family);
        let whole = crate::frame::raw(client(family).ip(), frontend(family).ip(), UDP, &[0; 16 * 60]);
        let mut pieces = fragments(&whole, 16, 7).unwrap();
        let ports = [
            client(family).port().to_be_bytes(),
            frontend(family).port().to_be_bytes(),
        ]
        .concat();
        let at = pieces[0].len() - 16;
        pieces[0][at..at + 4].copy_from_slice(&ports);
        for piece in pieces.iter().rev() {
            assert_eq!(datapath.run(Hook::PodIngress, piece).verdict, DROP);
        }
        let lost = pieces.len() as u64 - u64::from(HELD_PER_DATAGRAM);
        assert_eq!(datapath.counter(Counter::DroppedFragment), lost);
        assert_eq!(datapath.held(), usize::from(HELD_PER_DATAGRAM));
    }
}
