//! What is not ours passes untouched, to the last byte.

use lb_common::Counter;

use crate::{
    Family, backend, client,
    datapath::{Datapath, Hook, PASS, each},
    frame::{ACK, FIN, RST, SYN, Transport, frame, raw},
    frontend, node,
};

fn passes_untouched(datapath: &mut Datapath, frame: &[u8], what: &str) {
    for hook in [Hook::PodIngress, Hook::OutsideIngress, Hook::Egress] {
        let out = datapath.run_marked(hook, frame, 0x10);
        assert_eq!((out.verdict, out.mark), (PASS, 0x10), "{what}");
        assert_eq!(out.frame, frame, "{what}");
    }
    assert!(datapath.flows().is_empty(), "{what} left a row");
}

fn with_services(family: Family) -> Datapath {
    let mut datapath = Datapath::new();
    for transport in Transport::BOTH {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        let node_port = family.pick("0.0.0.0:30080", "[::]:30080");
        datapath.simple(transport, node_port, &[backend(family, 1)]);
    }
    datapath.node_address(node(family));
    datapath
}

#[test]
fn traffic_between_pods() {
    for family in Family::BOTH {
        let mut datapath = with_services(family);
        for transport in Transport::BOTH {
            let sent = frame(transport, client(family), backend(family, 1), SYN);
            passes_untouched(&mut datapath, &sent, "pod to pod");
        }
    }
}

#[test]
fn traffic_to_no_address_at_all() {
    for family in Family::BOTH {
        let mut datapath = with_services(family);
        // As the rows of NodePorts have it.
        let nobody: std::net::SocketAddr = family.pick("0.0.0.0:30080", "[::]:30080");
        for transport in Transport::BOTH {
            passes_untouched(
                &mut datapath,
                &frame(transport, client(family), nobody, SYN),
                "to nobody",
            );
        }
    }
}

#[test]
fn traffic_of_the_node_itself() {
    for family in Family::BOTH {
        let mut datapath = with_services(family);
        let ssh = std::net::SocketAddr::new(node(family), 22);
        passes_untouched(&mut datapath, &frame(Transport::Tcp, client(family), ssh, SYN), "ssh");
    }
}

#[test]
fn segments_in_the_middle_of_a_connection_that_is_not_ours() {
    for family in Family::BOTH {
        for flags in [ACK, SYN | ACK, FIN | ACK, RST, 0] {
            let mut datapath = with_services(family);
            let sent = frame(Transport::Tcp, client(family), frontend(family), flags);
            passes_untouched(&mut datapath, &sent, "half a connection");
            assert_eq!(datapath.counter(Counter::PassedWithoutFlow), 2);
        }
    }
}

#[test]
fn other_protocols_to_a_service_address() {
    for family in Family::BOTH {
        let mut datapath = with_services(family);
        let (from, to) = (client(family).ip(), frontend(family).ip());
        for (protocol, what) in [(1, "ICMP"), (58, "ICMPv6"), (47, "GRE"), (33, "DCCP")] {
            passes_untouched(&mut datapath, &raw(from, to, protocol, &[8; 24]), what);
        }
    }
}

#[test]
fn ipv6_packets_that_carry_ipv4_addresses() {
    let mut datapath = with_services(Family::V4);
    let mapped = |address: std::net::SocketAddr| match address {
        std::net::SocketAddr::V4(v4) => std::net::SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        std::net::SocketAddr::V6(_) => unreachable!("an IPv4 test"),
    };
    let sent = frame(
        Transport::Tcp,
        mapped(client(Family::V4)),
        mapped(frontend(Family::V4)),
        SYN,
    );
    passes_untouched(&mut datapath, &sent, "IPv4-mapped on the wire");
}

#[test]
fn packets_cut_short_and_headers_that_lie() {
    for family in Family::BOTH {
        let mut datapath = with_services(family);
        let whole = frame(Transport::Tcp, client(family), frontend(family), SYN);
        // The kernel lends no program a frame with less than its IP header. Of the TCP header we
        // need to see the checksum.
        let header = if family == Family::V4 { 20 } else { 40 };
        for length in 14 + header..14 + header + 18 {
            passes_untouched(&mut datapath, &whole[..length], "cut short");
        }
    }
    let mut datapath = with_services(Family::V4);
    let mut lies = frame(Transport::Tcp, client(Family::V4), frontend(Family::V4), SYN);
    for length in [0x40, 0x44] {
        lies[14] = length;
        passes_untouched(&mut datapath, &lies, "IPv4 header shorter than it can be");
    }
}

#[test]
fn what_is_not_ip() {
    let mut datapath = Datapath::new();
    let mut arp = vec![0xff; 6];
    arp.extend_from_slice(&[2, 0, 0, 0, 0, 1, 0x08, 0x06]);
    arp.extend_from_slice(&[0; 28]);
    passes_untouched(&mut datapath, &arp, "ARP");
}

#[test]
fn answers_of_nobody_we_know() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        let answer = frame(transport, backend(family, 1), client(family), SYN | ACK);
        passes_untouched(&mut datapath, &answer, "an answer without a question");
    });
}
