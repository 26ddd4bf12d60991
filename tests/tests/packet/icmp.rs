//! ICMP errors about translated packets: whoever gets one reads about the very packet that it sent.

use std::net::{IpAddr, SocketAddr};

use lb_common::config::DEFAULT_MASQUERADE_MARK as MARK;

use crate::{
    Family, backend, client,
    datapath::{Datapath, Hook, PASS, each},
    frame::{ACK, SYN, Transport, error, frame, packet_of, raw, read},
    frontend,
};

/// Bytes of an ICMP header.
const ICMP: usize = 8;

/// Type and code of "too big".
fn too_big(family: Family) -> (u8, u8) {
    match family {
        Family::V4 => (3, 4),
        Family::V6 => (2, 0),
    }
}

/// Type and code of "port unreachable".
fn port_unreachable(family: Family) -> (u8, u8) {
    match family {
        Family::V4 => (3, 3),
        Family::V6 => (1, 4),
    }
}

/// Type and code of each kind of error.
fn errors(family: Family) -> Vec<(u8, u8)> {
    match family {
        Family::V4 => vec![(3, 1), (3, 3), (3, 4), (11, 0), (12, 0)],
        Family::V6 => vec![(1, 3), (1, 4), (2, 0), (3, 0), (4, 0)],
    }
}

/// A router that belongs to nobody.
fn router(family: Family) -> IpAddr {
    family.pick("203.0.113.9", "2001:db8:113::9")
}

/// How much of a packet an error may quote: all, or its IP header and the first eight bytes behind it.
fn lengths(family: Family, sent: &[u8]) -> [usize; 2] {
    let header = if family == Family::V4 { 20 } else { 40 };
    [packet_of(sent).len(), header + 8]
}

#[test]
fn a_client_reads_of_a_router_that_could_not_send_its_request_on() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        let sent = frame(transport, client(family), frontend(family), SYN);
        let forwarded = datapath.run(Hook::PodIngress, &sent).frame;
        for kind in errors(family) {
            for length in lengths(family, &sent) {
                let told = error(router(family), client(family).ip(), kind, &forwarded, length);
                let out = datapath.run(Hook::Egress, &told);
                assert_eq!(out.verdict, PASS);
                let seen = read(&out.frame);
                assert_eq!((seen.source, seen.destination), (router(family), client(family).ip()));
                assert_eq!(seen.payload[4..ICMP], [0, 0, 5, 120], "what the error says beside");
                assert_eq!(seen.payload[ICMP..], packet_of(&sent)[..length], "{kind:?}");
            }
        }
    });
}

#[test]
fn a_backend_that_refuses_speaks_as_the_frontend() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        let sent = frame(transport, client(family), frontend(family), SYN);
        let forwarded = datapath.run(Hook::PodIngress, &sent).frame;
        let length = packet_of(&sent).len();
        let told = error(
            backend(family, 1).ip(),
            client(family).ip(),
            port_unreachable(family),
            &forwarded,
            length,
        );
        let seen = read(&datapath.run(Hook::Egress, &told).frame);
        assert_eq!(
            (seen.source, seen.destination),
            (frontend(family).ip(), client(family).ip())
        );
        assert_eq!(seen.payload[ICMP..], *packet_of(&sent));
    });
}

#[test]
fn a_backend_reads_of_a_router_that_could_not_send_its_answer_on() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        datapath.run(
            Hook::OutsideIngress,
            &frame(transport, client(family), frontend(family), SYN),
        );
        let answer = frame(transport, backend(family, 1), client(family), SYN | ACK);
        let forwarded = datapath.run(Hook::Egress, &answer).frame;
        assert_eq!(read(&forwarded).from(), frontend(family));
        for source in [router(family), client(family).ip()] {
            for kind in errors(family) {
                for length in lengths(family, &answer) {
                    let told = error(source, frontend(family).ip(), kind, &forwarded, length);
                    let out = datapath.run(Hook::OutsideIngress, &told);
                    assert_eq!(out.verdict, PASS);
                    let seen = read(&out.frame);
                    assert_eq!((seen.source, seen.destination), (source, backend(family, 1).ip()));
                    assert_eq!(seen.payload[ICMP..], packet_of(&answer)[..length], "{kind:?}");
                    // The connection is masqueraded, and so is what is said of it.
                    assert_eq!(out.mark, MARK);
                }
            }
        }
    });
}

#[test]
fn what_is_said_to_the_backend_of_a_client_that_keeps_its_address_bears_no_mark() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        datapath.run(
            Hook::PodIngress,
            &frame(transport, client(family), frontend(family), SYN),
        );
        let answer = frame(transport, backend(family, 1), client(family), SYN | ACK);
        let forwarded = datapath.run(Hook::Egress, &answer).frame;
        let length = packet_of(&answer).len();
        let told = error(
            client(family).ip(),
            frontend(family).ip(),
            too_big(family),
            &forwarded,
            length,
        );
        let out = datapath.run(Hook::PodIngress, &told);
        assert_eq!(read(&out.frame).destination, backend(family, 1).ip());
        assert_eq!(out.mark, 0);
    });
}

#[test]
fn a_client_whose_port_had_to_change_reads_of_its_own_port() {
    each(|mut datapath, family, transport| {
        // Two frontends, one backend: the second flow of one client port needs another one.
        let other = SocketAddr::new(frontend(family).ip(), 81);
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        datapath.simple(transport, other, &[backend(family, 1)]);
        datapath.run(
            Hook::PodIngress,
            &frame(transport, client(family), frontend(family), SYN),
        );
        let sent = frame(transport, client(family), other, SYN);
        let forwarded = datapath.run(Hook::PodIngress, &sent).frame;
        let changed = read(&forwarded).from();
        assert_ne!(changed, client(family));
        for length in lengths(family, &sent) {
            let told = error(router(family), client(family).ip(), too_big(family), &forwarded, length);
            let seen = read(&datapath.run(Hook::Egress, &told).frame);
            assert_eq!(seen.payload[ICMP..], packet_of(&sent)[..length]);
        }

        let answer = frame(transport, backend(family, 1), changed, SYN | ACK);
        let forwarded = datapath.run(Hook::Egress, &answer).frame;
        for length in lengths(family, &answer) {
            let told = error(client(family).ip(), other.ip(), too_big(family), &forwarded, length);
            let seen = read(&datapath.run(Hook::PodIngress, &told).frame);
            assert_eq!(seen.payload[ICMP..], packet_of(&answer)[..length]);
        }
    });
}

#[test]
fn a_datagram_without_checksum_is_quoted_without() {
    let mut datapath = Datapath::new();
    let (client, frontend) = (client(Family::V4), frontend(Family::V4));
    datapath.simple(Transport::Udp, frontend, &[backend(Family::V4, 1)]);
    let mut sent = frame(Transport::Udp, client, frontend, 0);
    sent[40..42].copy_from_slice(&[0, 0]);
    let forwarded = datapath.run(Hook::PodIngress, &sent).frame;
    let length = packet_of(&sent).len();
    let told = error(router(Family::V4), client.ip(), too_big(Family::V4), &forwarded, length);
    let seen = read(&datapath.run(Hook::Egress, &told).frame);
    assert_eq!(seen.payload[ICMP..], *packet_of(&sent));
}

#[test]
fn errors_about_anything_else_pass_as_they_are() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        datapath.run(
            Hook::PodIngress,
            &frame(transport, client(family), frontend(family), SYN),
        );
        let length = packet_of(&frame(transport, client(family), frontend(family), SYN)).len();
        let stranger = SocketAddr::new(client(family).ip(), 1);
        let about = frame(transport, stranger, backend(family, 1), SYN);
        let told = error(router(family), stranger.ip(), too_big(family), &about, length);
        let answer = frame(transport, frontend(family), stranger, ACK);
        let told_back = error(router(family), frontend(family).ip(), too_big(family), &answer, length);
        // It claims to be about the connection, and goes to somebody else.
        let answer = frame(transport, frontend(family), client(family), ACK);
        let elsewhere = error(
            router(family),
            backend(family, 2).ip(),
            too_big(family),
            &answer,
            length,
        );
        for (hook, sent) in [
            (Hook::Egress, told),
            (Hook::PodIngress, told_back),
            (Hook::PodIngress, elsewhere),
        ] {
            let out = datapath.run(hook, &sent);
            assert_eq!((out.verdict, out.frame), (PASS, sent));
        }
    });
}

#[test]
fn an_echo_is_no_error_and_what_is_cut_short_is_left_alone() {
    for family in Family::BOTH {
        let datapath = Datapath::new();
        let (protocol, echo) = match family {
            Family::V4 => (1, 8),
            Family::V6 => (58, 128),
        };
        for payload in [
            vec![echo; 40],
            vec![too_big(family).0; 8],
            vec![too_big(family).0; 20],
            vec![],
        ] {
            let sent = raw(client(family).ip(), frontend(family).ip(), protocol, &payload);
            for hook in [Hook::PodIngress, Hook::OutsideIngress, Hook::Egress] {
                let out = datapath.run(hook, &sent);
                assert_eq!((out.verdict, out.frame), (PASS, sent.clone()));
            }
        }
    }
}
