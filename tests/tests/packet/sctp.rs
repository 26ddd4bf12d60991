//! SCTP: addresses and ports, and the CRC32c over the whole packet that covers the ports.

use std::net::SocketAddr;

use lb_common::{Counter, flow::FORWARD};
use lb_tests::packet::fragments;

use crate::{
    Family, backend, client,
    datapath::{DROP, Datapath, Hook, PASS, REDIRECT},
    frame::{ABORT, COOKIE_ACK, DATA, INIT, INIT_ACK, SHUTDOWN_COMPLETE, error, read, sctp as packet},
    frontend, node,
};

const SCTP: u8 = 132;

/// Both ends of an SCTP packet, whose checksum must be right, and that of the IP header.
fn ends(frame: &[u8]) -> (SocketAddr, SocketAddr) {
    let seen = read(frame);
    (seen.from(), seen.to())
}

/// A data path with a service at `frontend`, port 80, whose backends are on port 8080.
fn with_service(family: Family, backends: u8) -> Datapath {
    let mut datapath = Datapath::new();
    let backends: Vec<_> = (1..=backends).map(|n| backend(family, n)).collect();
    datapath.simple_of(SCTP, frontend(family), &backends);
    datapath
}

#[test]
fn packets_of_any_length_are_translated_both_ways_and_their_checksum_with_them() {
    for family in Family::BOTH {
        let datapath = with_service(family, 1);
        for (chunk, length) in [
            (INIT, 20),
            // The shortest that there are.
            (COOKIE_ACK, 4),
            (DATA, 17),
            (DATA, 255),
            (DATA, 256),
            (DATA, 1400),
            (DATA, 3000),
        ] {
            let sent = packet(client(family), frontend(family), chunk, length);
            let out = datapath.run(Hook::PodIngress, &sent);
            assert_eq!(out.verdict, PASS);
            assert_eq!(ends(&out.frame), (client(family), backend(family, 1)), "{length} bytes");
            let answer = packet(backend(family, 1), client(family), INIT_ACK, length);
            let out = datapath.run(Hook::Egress, &answer);
            assert_eq!(ends(&out.frame), (frontend(family), client(family)), "{length} bytes");
        }
    }
}

#[test]
fn a_checksum_that_the_card_is_to_make_is_left_to_it() {
    for family in Family::BOTH {
        let datapath = with_service(family, 1);
        let mut sent = packet(client(family), frontend(family), INIT, 20);
        let at = sent.len() - 24;
        sent[at..at + 4].fill(0);
        let out = datapath.run(Hook::PodIngress, &sent).frame;
        assert_eq!(out[at..at + 4], [0; 4]);
        assert_eq!(out[at - 6..at - 4], backend(family, 1).port().to_be_bytes());
    }
}

#[test]
fn padding_behind_a_short_packet_is_not_summed() {
    let family = Family::V4;
    let datapath = with_service(family, 1);
    let mut sent = packet(client(family), frontend(family), INIT, 4);
    let length = sent.len();
    sent.resize(60, 0);
    let out = datapath.run(Hook::PodIngress, &sent).frame;
    assert_eq!(ends(&out[..length]).1, backend(family, 1));
}

#[test]
fn only_init_begins_a_flow_and_the_flow_keeps_to_its_backend() {
    for family in Family::BOTH {
        let mut datapath = with_service(family, 50);
        let stray = packet(client(family), frontend(family), DATA, 100);
        let out = datapath.run(Hook::PodIngress, &stray);
        assert!(out.verdict == PASS && out.frame == stray, "a stray packet");
        assert_eq!(datapath.counter(Counter::PassedWithoutFlow), 1);

        let init = packet(client(family), frontend(family), INIT, 20);
        let (_, to) = ends(&datapath.run(Hook::PodIngress, &init).frame);
        for chunk in [DATA, INIT] {
            let next = packet(client(family), frontend(family), chunk, 100);
            assert_eq!(ends(&datapath.run(Hook::PodIngress, &next).frame).1, to);
        }
    }
}

#[test]
fn an_association_that_ended_gives_its_port_to_a_new_one() {
    for family in Family::BOTH {
        for last in [ABORT, SHUTDOWN_COMPLETE] {
            let datapath = with_service(family, 100);
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..40 {
                for chunk in [INIT, last] {
                    let sent = packet(client(family), frontend(family), chunk, 20);
                    seen.insert(ends(&datapath.run(Hook::PodIngress, &sent).frame).1);
                }
            }
            // 40 draws of 100: fewer than ten different ones do not happen.
            assert!(seen.len() > 10, "{} backends in 40 associations", seen.len());
        }
    }
}

#[test]
fn a_client_without_a_backend_is_refused() {
    for family in Family::BOTH {
        let mut datapath = with_service(family, 0);
        let out = datapath.run(Hook::PodIngress, &packet(client(family), frontend(family), INIT, 20));
        assert_eq!(out.verdict, REDIRECT);
        assert_eq!(datapath.counter(Counter::Rejected), 1);
    }
}

#[test]
fn errors_about_translated_packets_speak_of_what_their_reader_sent() {
    for family in Family::BOTH {
        let datapath = with_service(family, 1);
        let sent = packet(client(family), frontend(family), INIT, 20);
        let translated = datapath.run(Hook::PodIngress, &sent).frame;
        let kind = if family == Family::V4 { (3, 4) } else { (2, 0) };
        let header = if family == Family::V4 { 20 } else { 40 };
        let too_big = error(node(family), client(family).ip(), kind, &translated, header + 8);
        let out = datapath.run(Hook::Egress, &too_big).frame;
        let seen = crate::frame::read(&out);
        let quoted = &seen.payload[8..];
        assert_eq!(quoted[header - family_bytes(family)..header], frontend_bytes(family));
        assert_eq!(quoted[header + 2..header + 4], frontend(family).port().to_be_bytes());
    }
}

fn family_bytes(family: Family) -> usize {
    frontend_bytes(family).len()
}

fn frontend_bytes(family: Family) -> Vec<u8> {
    match frontend(family) {
        SocketAddr::V4(v4) => v4.ip().octets().to_vec(),
        SocketAddr::V6(v6) => v6.ip().octets().to_vec(),
    }
}

#[test]
fn a_flow_has_rows_of_its_own_protocol() {
    for family in Family::BOTH {
        let mut datapath = with_service(family, 1);
        datapath.run(Hook::PodIngress, &packet(client(family), frontend(family), INIT, 20));
        let rows = datapath.flows();
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|(key, _)| key.protocol == SCTP));
        assert_eq!(rows.iter().filter(|(key, _)| key.direction == FORWARD).count(), 1);
    }
}

/// A service at a ClusterIP, where fragments are waited for, and its only backend, at that port.
fn at_cluster_ip(family: Family, target: u16) -> (Datapath, SocketAddr) {
    let mut datapath = Datapath::new();
    let backend = SocketAddr::new(backend(family, 1).ip(), target);
    datapath.simple_of(SCTP, frontend(family), &[backend]);
    datapath.address(frontend(family).ip(), lb_common::address::CLUSTER_IP);
    (datapath, backend)
}

#[test]
fn pieces_are_translated_where_ports_stay_and_dropped_where_no_checksum_could_follow() {
    for family in Family::BOTH {
        for target in [frontend(family).port(), 8080] {
            let (datapath, backend) = at_cluster_ip(family, target);
            let init = packet(client(family), frontend(family), INIT, 20);
            datapath.run(Hook::PodIngress, &init);
            let sent = packet(client(family), frontend(family), DATA, 100);
            let expected = packet(client(family), backend, DATA, 100);
            let pieces = |whole: &[u8]| fragments(whole, 48, 7).unwrap();
            for (piece, expected) in pieces(&sent).iter().zip(pieces(&expected)) {
                let out = datapath.run(Hook::PodIngress, piece);
                if target == frontend(family).port() {
                    assert!(out.verdict == PASS && out.frame == expected);
                } else {
                    assert_eq!(out.verdict, DROP);
                }
            }
            let answer = packet(backend, client(family), DATA, 100);
            let expected = packet(frontend(family), client(family), DATA, 100);
            for (piece, expected) in pieces(&answer).iter().zip(pieces(&expected)) {
                let out = datapath.run(Hook::Egress, piece);
                if target == frontend(family).port() {
                    assert!(out.verdict == PASS && out.frame == expected);
                } else {
                    assert_eq!(out.verdict, DROP);
                }
            }
        }
    }
}

#[test]
fn an_init_in_pieces_opens_nothing_and_leaves_no_row() {
    for family in Family::BOTH {
        for target in [frontend(family).port(), 8080] {
            let (mut datapath, _) = at_cluster_ip(family, target);
            let init = packet(client(family), frontend(family), INIT, 100);
            for piece in fragments(&init, 48, 7).unwrap() {
                let out = datapath.run(Hook::PodIngress, &piece);
                assert!(out.verdict == PASS && out.frame == piece);
            }
            assert!(datapath.flows().is_empty());
        }
    }
}
