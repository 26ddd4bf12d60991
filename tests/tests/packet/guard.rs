//! Datagrams that the node, or a pod that it masquerades, sends from a port that is a NodePort as well.

use std::net::SocketAddr;

use crate::{
    Family, backend, client,
    datapath::{Datapath, Hook, PASS, each},
    frame::{ACK, SYN, Transport, error, frame, read},
    frontend, node,
};

const NODE_PORT: u16 = 30_080;

fn server(family: Family) -> SocketAddr {
    family.pick("198.51.100.53:53", "[2001:db8:53::53]:53")
}

fn node_port(family: Family) -> SocketAddr {
    SocketAddr::new(node(family), NODE_PORT)
}

fn with_node_port(datapath: &mut Datapath, family: Family, transport: Transport) {
    datapath.node_address(node(family));
    let any = family.pick("0.0.0.0:30080", "[::]:30080");
    datapath.simple(transport, any, &[backend(family, 1)]);
}

fn passes_untouched(datapath: &Datapath, hook: Hook, sent: &[u8], what: &str) {
    let out = datapath.run(hook, sent);
    assert!(
        out.verdict == PASS && out.frame == sent,
        "{what}: {:?}",
        read(&out.frame)
    );
}

#[test]
fn an_answer_to_what_left_from_a_node_port_is_no_client_of_it() {
    each(|mut datapath, family, transport| {
        with_node_port(&mut datapath, family, transport);
        for _ in 0..2 {
            let asked = frame(transport, node_port(family), server(family), SYN);
            passes_untouched(&datapath, Hook::Egress, &asked, "the question");
            let answer = frame(transport, server(family), node_port(family), SYN | ACK);
            passes_untouched(&datapath, Hook::OutsideIngress, &answer, "the answer");
        }
    });
}

#[test]
fn an_error_about_what_left_from_a_node_port_passes_untouched() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        with_node_port(&mut datapath, family, Transport::Udp);
        let asked = frame(Transport::Udp, node_port(family), server(family), 0);
        datapath.run(Hook::Egress, &asked);
        let unreachable = if family == Family::V4 { (3, 3) } else { (1, 4) };
        let header = if family == Family::V4 { 20 } else { 40 };
        let sent = error(server(family).ip(), node(family), unreachable, &asked, header + 8);
        passes_untouched(&datapath, Hook::OutsideIngress, &sent, "the error");
    }
}

#[test]
fn clients_of_the_node_port_are_served_meanwhile() {
    each(|mut datapath, family, transport| {
        with_node_port(&mut datapath, family, transport);
        let asked = frame(transport, node_port(family), server(family), SYN);
        datapath.run(Hook::Egress, &asked);
        for _ in 0..2 {
            let sent = frame(transport, client(family), node_port(family), SYN);
            let seen = read(&datapath.run(Hook::OutsideIngress, &sent).frame);
            assert_eq!(seen.to(), backend(family, 1));
            let answer = frame(transport, backend(family, 1), client(family), SYN | ACK);
            let translated = datapath.run(Hook::Egress, &answer).frame;
            assert_eq!(read(&translated).from(), node_port(family));
            // A VLAN and the link below it, a bridge and its port.
            passes_untouched(&datapath, Hook::Egress, &translated, "the answer on its second link");
        }
    });
}

#[test]
fn what_was_silent_for_too_long_is_a_client_again() {
    for family in Family::BOTH {
        let mut datapath = Datapath::with_udp_timeout(0);
        with_node_port(&mut datapath, family, Transport::Udp);
        datapath.run(
            Hook::Egress,
            &frame(Transport::Udp, node_port(family), server(family), 0),
        );
        let sent = frame(Transport::Udp, server(family), node_port(family), 0);
        let seen = read(&datapath.run(Hook::OutsideIngress, &sent).frame);
        assert_eq!(seen.to(), backend(family, 1));
    }
}

#[test]
fn datagrams_from_other_ports_and_addresses_leave_no_row() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        with_node_port(&mut datapath, family, Transport::Udp);
        let other_port = SocketAddr::new(node(family), 30_081);
        let of_a_pod = SocketAddr::new(client(family).ip(), NODE_PORT);
        for from in [other_port, of_a_pod] {
            let sent = frame(Transport::Udp, from, server(family), 0);
            passes_untouched(&datapath, Hook::Egress, &sent, "a datagram");
        }
        assert!(datapath.flows().is_empty());
    }
}

#[test]
fn a_client_that_claims_an_address_of_the_node_or_of_a_service_is_not_served() {
    each(|mut datapath, family, transport| {
        with_node_port(&mut datapath, family, transport);
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        datapath.address(frontend(family).ip(), lb_common::address::CLUSTER_IP);
        for source in [node(family), frontend(family).ip()] {
            let from = SocketAddr::new(source, 40_000);
            for hook in [Hook::PodIngress, Hook::OutsideIngress] {
                let sent = frame(transport, from, node_port(family), SYN);
                assert_eq!(datapath.run(hook, &sent).verdict, crate::datapath::DROP);
            }
        }
        assert!(datapath.flows().is_empty());
        assert_eq!(datapath.counter(lb_common::Counter::DroppedSpoofedSource), 4);
    });
}
