//! How long a flow keeps to its backend.

use std::net::SocketAddr;

use lb_common::{
    Counter, Port,
    backend::{DRAINING, FREE},
    flow::{FORWARD, REVERSE},
};

use crate::{
    Family, backend, client,
    datapath::{DROP, Datapath, Hook, each},
    frame::{ACK, FIN, RST, SYN, Transport, frame, read},
    frontend,
};

/// Where a packet of the client goes.
fn destination(datapath: &Datapath, family: Family, transport: Transport, flags: u8) -> SocketAddr {
    let sent = frame(transport, client(family), frontend(family), flags);
    read(&datapath.run(Hook::PodIngress, &sent).frame).to()
}

/// A service with backend 1, a flow to it, and then backend 2 in its place.
fn replaced(family: Family, transport: Transport, state: u8) -> Datapath {
    let mut datapath = Datapath::new();
    datapath.simple(transport, frontend(family), &[backend(family, 1)]);
    assert_eq!(destination(&datapath, family, transport, SYN), backend(family, 1));
    let second = datapath.backend(2, backend(family, 2), false);
    let range = datapath.slots(&[second]);
    datapath.service(transport, frontend(family), range, 0);
    let mut first = datapath.get_backend(1);
    first.state = state;
    datapath.set_backend(1, first);
    datapath
}

#[test]
fn datagrams_leave_a_backend_that_stops_serving_at_once() {
    for family in Family::BOTH {
        for state in [DRAINING, FREE] {
            let datapath = replaced(family, Transport::Udp, state);
            assert_eq!(destination(&datapath, family, Transport::Udp, 0), backend(family, 2));
        }
    }
}

#[test]
fn a_connection_keeps_to_its_backend_and_a_new_one_does_not() {
    for family in Family::BOTH {
        for state in [DRAINING, FREE] {
            let datapath = replaced(family, Transport::Tcp, state);
            assert_eq!(destination(&datapath, family, Transport::Tcp, ACK), backend(family, 1));
            assert_eq!(destination(&datapath, family, Transport::Tcp, SYN), backend(family, 2));
        }
    }
}

#[test]
fn a_number_given_to_another_endpoint_does_not_inherit_flows() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.simple(Transport::Udp, frontend(family), &[backend(family, 1)]);
        destination(&datapath, family, Transport::Udp, 0);
        let mut reused = datapath.get_backend(1);
        reused.address = backend(family, 9).ip().into();
        reused.generation += 1;
        datapath.set_backend(1, reused);
        assert_eq!(destination(&datapath, family, Transport::Udp, 0), backend(family, 9));
    }
}

#[test]
fn a_repeated_syn_goes_where_the_first_went() {
    let mut datapath = Datapath::new();
    let backends: Vec<_> = (1..=50).map(|n| backend(Family::V4, n)).collect();
    datapath.simple(Transport::Tcp, frontend(Family::V4), &backends);
    let first = destination(&datapath, Family::V4, Transport::Tcp, SYN);
    for _ in 0..20 {
        assert_eq!(destination(&datapath, Family::V4, Transport::Tcp, SYN), first);
    }
}

#[test]
fn a_syn_on_a_closing_connection_draws_afresh() {
    for family in Family::BOTH {
        for (hook, flags) in [
            (Hook::PodIngress, FIN | ACK),
            (Hook::PodIngress, RST),
            (Hook::Egress, RST),
            (Hook::Egress, FIN | ACK),
        ] {
            let mut datapath = Datapath::new();
            let backends: Vec<_> = (1..=100).map(|n| backend(family, n)).collect();
            datapath.simple(Transport::Tcp, frontend(family), &backends);
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..40 {
                let to = destination(&datapath, family, Transport::Tcp, SYN);
                seen.insert(to);
                let closing = match hook {
                    Hook::Egress => frame(Transport::Tcp, to, client(family), flags),
                    _ => frame(Transport::Tcp, client(family), frontend(family), flags),
                };
                datapath.run(hook, &closing);
            }
            // 40 draws of 100: fewer than ten different ones do not happen.
            assert!(seen.len() > 10, "{} backends in 40 connections", seen.len());
        }
    }
}

/// The backend may remember the last connection from that port, and take the first segment of another for an old one.
#[test]
fn a_port_that_has_just_ended_a_connection_is_not_its_again_through_another_frontend() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        let other = family.pick("10.96.0.11:80", "[fd00:96::11]:80");
        let number = datapath.backend(1, backend(family, 1), false);
        let range = datapath.slots(&[number]);
        for frontend in [frontend(family), other] {
            datapath.service(Transport::Tcp, frontend, range, 0);
        }
        let source = |datapath: &Datapath, to, flags| {
            let sent = frame(Transport::Tcp, client(family), to, flags);
            read(&datapath.run(Hook::PodIngress, &sent).frame).from()
        };
        for flags in [SYN, FIN | ACK] {
            assert_eq!(source(&datapath, frontend(family), flags), client(family));
        }
        let second = source(&datapath, other, SYN);
        assert_eq!(second.ip(), client(family).ip());
        assert_ne!(second.port(), client(family).port());
    }
}

#[test]
fn a_silent_udp_flow_is_over() {
    let mut datapath = Datapath::with_udp_timeout(0);
    let backends: Vec<_> = (1..=100).map(|n| backend(Family::V4, n)).collect();
    datapath.simple(Transport::Udp, frontend(Family::V4), &backends);
    let seen: std::collections::BTreeSet<_> = (0..40)
        .map(|_| destination(&datapath, Family::V4, Transport::Udp, 0))
        .collect();
    assert!(seen.len() > 10, "{seen:?}");
}

#[test]
fn one_client_port_through_two_frontends_to_one_backend_makes_two_flows() {
    each(|mut datapath, family, transport| {
        let (client, backend) = (client(family), backend(family, 1));
        let frontends = [
            frontend(family),
            family.pick("10.96.0.11:80", "[fd00:96::11]:80"),
            family.pick("10.96.0.12:80", "[fd00:96::12]:80"),
        ];
        let number = datapath.backend(1, backend, false);
        let range = datapath.slots(&[number]);
        for frontend in frontends {
            datapath.service(transport, frontend, range, 0);
        }
        let mut sources = Vec::new();
        for frontend in frontends {
            for flags in [SYN, ACK] {
                let sent = frame(transport, client, frontend, flags);
                let seen = read(&datapath.run(Hook::PodIngress, &sent).frame);
                assert_eq!((seen.source, seen.to()), (client.ip(), backend));
                sources.push(seen.from());
            }
        }
        assert_eq!(sources[0], client, "the first keeps its port");
        for (i, frontend) in frontends.into_iter().enumerate() {
            let from = sources[2 * i];
            assert_eq!(from, sources[2 * i + 1]);
            assert!(i == 0 || (10_000..30_000).contains(&from.port()), "{from}");
            let answer = frame(transport, backend, from, SYN | ACK);
            let seen = read(&datapath.run(Hook::Egress, &answer).frame);
            assert_eq!((seen.from(), seen.to()), (frontend, client));
        }
    });
}

#[test]
fn a_backend_that_went_while_the_slot_was_read_is_drawn_around_or_the_packet_dropped() {
    let mut datapath = Datapath::new();
    datapath.simple(Transport::Tcp, frontend(Family::V4), &[backend(Family::V4, 1)]);
    let mut gone = datapath.get_backend(1);
    gone.state = FREE;
    datapath.set_backend(1, gone);
    let sent = frame(Transport::Tcp, client(Family::V4), frontend(Family::V4), SYN);
    assert_eq!(datapath.run(Hook::PodIngress, &sent).verdict, DROP);
    assert_eq!(datapath.counter(Counter::DroppedNoBackend), 1);
}

#[test]
fn a_flow_has_a_forward_and_a_reverse_row_with_one_backend() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        destination(&datapath, family, transport, SYN);
        let mut rows = datapath.flows();
        rows.sort_by_key(|(key, _)| key.direction);
        let [(forward, there), (reverse, back)] = rows[..] else {
            panic!("{} rows", rows.len())
        };
        assert_eq!((forward.direction, reverse.direction), (FORWARD, REVERSE));
        assert_eq!((there.backend, there.generation), (back.backend, back.generation));
        assert_eq!((there.client_port, back.client_port), (Port::NONE, Port::NONE));
        assert_eq!(there.address, backend(family, 1).ip().into());
        assert_eq!(back.address, frontend(family).ip().into());
    });
}

/// A connection through the service, opened and closed by both sides.
fn connect_and_close(datapath: &Datapath, family: Family) {
    let (client, frontend, backend) = (client(family), frontend(family), backend(family, 1));
    for (hook, source, destination, flags) in [
        (Hook::PodIngress, client, frontend, SYN),
        (Hook::Egress, backend, client, SYN | ACK),
        (Hook::PodIngress, client, frontend, FIN | ACK),
        (Hook::Egress, backend, client, FIN | ACK),
    ] {
        datapath.run(hook, &frame(Transport::Tcp, source, destination, flags));
    }
}

fn untouched(datapath: &Datapath, hook: Hook, sent: &[u8], what: &str) {
    let out = datapath.run(hook, sent);
    assert!(out.frame == sent, "{what} was changed: {:?}", read(&out.frame));
}

#[test]
fn what_is_left_of_a_connection_does_not_touch_a_direct_one_between_the_same_ends() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.simple(Transport::Tcp, frontend(family), &[backend(family, 1)]);
        connect_and_close(&datapath, family);
        let (client, backend) = (client(family), backend(family, 1));
        for (hook, source, destination, flags, what) in [
            (Hook::PodIngress, client, backend, SYN, "SYN"),
            (Hook::Egress, backend, client, SYN | ACK, "SYN-ACK"),
            (Hook::PodIngress, client, backend, ACK, "ACK"),
            (Hook::Egress, backend, client, ACK, "answer"),
        ] {
            untouched(
                &datapath,
                hook,
                &frame(Transport::Tcp, source, destination, flags),
                what,
            );
        }
    }
}

#[test]
fn a_translated_syn_that_passes_a_second_link_of_the_node_keeps_its_rows() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.simple(Transport::Tcp, frontend(family), &[backend(family, 1)]);
        connect_and_close(&datapath, family);
        let sent = frame(Transport::Tcp, client(family), frontend(family), SYN);
        let translated = datapath.run(Hook::PodIngress, &sent).frame;
        untouched(&datapath, Hook::OutsideIngress, &translated, "the translated SYN");
        let answer = frame(Transport::Tcp, backend(family, 1), client(family), SYN | ACK);
        assert_eq!(
            read(&datapath.run(Hook::Egress, &answer).frame).from(),
            frontend(family)
        );
    }
}

#[test]
fn what_is_left_of_a_service_does_not_touch_what_listens_there_now() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.simple(Transport::Tcp, frontend(family), &[backend(family, 1)]);
        destination(&datapath, family, Transport::Tcp, SYN);
        datapath.no_service(Transport::Tcp, frontend(family));
        let mut gone = datapath.get_backend(1);
        gone.state = FREE;
        datapath.set_backend(1, gone);
        for (flags, what) in [(SYN, "SYN"), (ACK, "ACK")] {
            let sent = frame(Transport::Tcp, client(family), frontend(family), flags);
            untouched(&datapath, Hook::PodIngress, &sent, what);
        }
    }
}

#[test]
fn datagrams_between_the_ends_of_a_flow_that_was_silent_for_too_long_are_their_own() {
    for family in Family::BOTH {
        let mut datapath = Datapath::with_udp_timeout(0);
        datapath.simple(Transport::Udp, frontend(family), &[backend(family, 1)]);
        destination(&datapath, family, Transport::Udp, 0);
        let answer = frame(Transport::Udp, backend(family, 1), client(family), 0);
        untouched(&datapath, Hook::Egress, &answer, "the datagram");
    }
}

#[test]
fn a_syn_on_a_row_whose_answers_cannot_be_translated_begins_afresh() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.simple(Transport::Tcp, frontend(family), &[backend(family, 1)]);
        destination(&datapath, family, Transport::Tcp, SYN);
        datapath.forget_flows(REVERSE);
        assert_eq!(destination(&datapath, family, Transport::Tcp, SYN), backend(family, 1));
        let answer = frame(Transport::Tcp, backend(family, 1), client(family), SYN | ACK);
        assert_eq!(
            read(&datapath.run(Hook::Egress, &answer).frame).from(),
            frontend(family)
        );
    }
}

#[test]
fn the_last_segment_of_a_backend_does_not_close_the_connection_that_came_after() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.simple(Transport::Tcp, frontend(family), &[backend(family, 1)]);
        let (client, frontend) = (client(family), frontend(family));
        destination(&datapath, family, Transport::Tcp, SYN);
        destination(&datapath, family, Transport::Tcp, FIN | ACK);
        // The client uses its port again, and gets another backend.
        let others: Vec<_> = (2..=60)
            .map(|n| datapath.backend(n.into(), backend(family, n), false))
            .collect();
        let range = datapath.slots(&others);
        datapath.service(Transport::Tcp, frontend, range, 0);
        let second = destination(&datapath, family, Transport::Tcp, SYN);
        assert_ne!(second, backend(family, 1));
        let late = frame(Transport::Tcp, backend(family, 1), client, FIN | ACK);
        assert_eq!(read(&datapath.run(Hook::Egress, &late).frame).from(), frontend);
        for _ in 0..5 {
            assert_eq!(destination(&datapath, family, Transport::Tcp, SYN), second);
        }
    }
}

#[test]
fn a_datagram_keeps_the_row_alive_that_is_for_its_answer() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.simple(Transport::Udp, frontend(family), &[backend(family, 1)]);
        let mut before = 0;
        for _ in 0..3 {
            destination(&datapath, family, Transport::Udp, 0);
            let rows = datapath.flows();
            let [(_, one), (_, other)] = rows[..] else {
                panic!("{} rows", rows.len())
            };
            assert_eq!(one.last_seen, other.last_seen);
            assert!(one.last_seen > before);
            before = one.last_seen;
        }
    }
}

#[test]
fn a_datagram_whose_answers_have_lost_their_row_gives_them_another() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.simple(Transport::Udp, frontend(family), &[backend(family, 1)]);
        destination(&datapath, family, Transport::Udp, 0);
        datapath.forget_flows(REVERSE);
        assert_eq!(destination(&datapath, family, Transport::Udp, 0), backend(family, 1));
        let answer = frame(Transport::Udp, backend(family, 1), client(family), 0);
        assert_eq!(
            read(&datapath.run(Hook::Egress, &answer).frame).from(),
            frontend(family)
        );
    }
}
