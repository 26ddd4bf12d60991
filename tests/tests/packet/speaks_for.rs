//! The node speaks for a client that is masqueraded: what has the mark goes out with its address and a port of its own, and
//! the answer to that goes on to the client.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use lb_common::{
    Counter,
    config::{DEFAULT_MASQUERADE_MARK as MARK, FIRST_SNAT_PORT, LAST_SNAT_PORT},
    flow::{FORWARD, REVERSE},
    source::ANY_LINK,
};

use crate::{
    Family, backend, client,
    datapath::{DROP, Datapath, Hook, PASS, each},
    frame::{ACK, FIN, RST, SYN, Transport, error, frame, packet_of, read},
    node,
};

/// The kernel runs programs for a test as if on this link.
const LOOPBACK: u32 = 1;
/// Of kube-proxy, of the CNI plugins, of whoever.
const OTHER_MARKS: u32 = 0x8001;

fn address(family: Family, n: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([172, 18, 0, n]),
        Family::V6 => IpAddr::from([0xfd00, 0x172, 0x18, 0, 0, 0, 0, n.into()]),
    }
}

/// Sends a packet of a client out to a backend, and gives what goes out as the node's.
fn goes_out(datapath: &Datapath, transport: Transport, from: SocketAddr, to: SocketAddr, flags: u8) -> SocketAddr {
    let out = datapath.run_marked(Hook::Egress, &frame(transport, from, to, flags), MARK | OTHER_MARKS);
    assert_eq!((out.verdict, out.mark), (PASS, OTHER_MARKS), "no mark leaves the node");
    let seen = read(&out.frame);
    assert_eq!(seen.to(), to);
    seen.from()
}

fn is_snat_port(port: u16) -> bool {
    (FIRST_SNAT_PORT..=LAST_SNAT_PORT).contains(&port)
}

#[test]
fn a_marked_packet_goes_out_as_the_nodes_and_its_answer_goes_on_to_the_client() {
    each(|mut datapath, family, transport| {
        datapath.source(ANY_LINK, node(family));
        let (client, backend) = (client(family), backend(family, 1));
        let source = goes_out(&datapath, transport, client, backend, SYN);
        assert_eq!(source.ip(), node(family));
        assert!(is_snat_port(source.port()), "{source}");
        for flags in [ACK, ACK | FIN] {
            let answer = datapath.run(Hook::OutsideIngress, &frame(transport, backend, source, flags));
            assert_eq!((answer.verdict, answer.mark), (PASS, 0));
            let seen = read(&answer.frame);
            assert_eq!((seen.from(), seen.to()), (backend, client));
            assert_eq!(goes_out(&datapath, transport, client, backend, flags), source);
        }
    });
}

/// The kernel, or programs of another agent, may give a port that a connection of ours has had.
#[test]
fn the_first_answer_to_who_has_a_port_after_us_is_not_our_clients() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.source(ANY_LINK, node(family));
        let (client, backend) = (client(family), backend(family, 1));
        let source = goes_out(&datapath, Transport::Tcp, client, backend, SYN);
        goes_out(&datapath, Transport::Tcp, client, backend, FIN | ACK);
        let comes = |datapath: &Datapath, flags| {
            let answer = frame(Transport::Tcp, backend, source, flags);
            read(&datapath.run(Hook::OutsideIngress, &answer).frame).to()
        };
        // The backend has more to say, and says it to our client.
        assert_eq!(comes(&datapath, ACK), client);
        // From its first answer on, it speaks to somebody else.
        for flags in [SYN | ACK, ACK, FIN | ACK] {
            assert_eq!(comes(&datapath, flags), source, "{flags:#x}");
        }
    }
}

#[test]
fn the_address_is_that_of_the_link() {
    each(|mut datapath, family, transport| {
        let (any, own) = (address(family, 7), address(family, 8));
        datapath.source(ANY_LINK, any);
        datapath.source(LOOPBACK + 1, address(family, 9));
        let from = goes_out(&datapath, transport, client(family), backend(family, 1), SYN);
        assert_eq!(from.ip(), any);
        datapath.source(LOOPBACK, own);
        let from = goes_out(&datapath, transport, client(family), backend(family, 2), SYN);
        assert_eq!(from.ip(), own);
    });
}

#[test]
fn without_an_address_the_packet_is_dropped_and_told() {
    each(|mut datapath, family, transport| {
        let other = match family {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        };
        datapath.source(ANY_LINK, node(other));
        let sent = frame(transport, client(family), backend(family, 1), SYN);
        let out = datapath.run_marked(Hook::Egress, &sent, MARK);
        assert_eq!((out.verdict, out.mark), (DROP, 0));
        assert_eq!(datapath.counter(Counter::DroppedNoSource), 1);
        assert_eq!(datapath.flows(), []);
    });
}

#[test]
fn what_another_has_masqueraded_goes_out_as_it_is() {
    each(|mut datapath, family, transport| {
        datapath.source(ANY_LINK, node(family));
        let own = SocketAddr::new(node(family), 61_000);
        assert_eq!(goes_out(&datapath, transport, own, backend(family, 1), SYN), own);
        assert_eq!(datapath.flows(), []);
    });
}

#[test]
fn where_the_kernel_masquerades_a_packet_loses_its_mark_only() {
    for family in Family::BOTH {
        for transport in [Transport::Tcp, Transport::Udp, Transport::Sctp] {
            let mut datapath = Datapath::with_kernel_masquerade();
            datapath.source(ANY_LINK, node(family));
            let from = goes_out(&datapath, transport, client(family), backend(family, 1), SYN);
            assert_eq!(from, client(family));
        }
    }
}

#[test]
fn the_same_client_without_a_mark_speaks_for_itself() {
    each(|mut datapath, family, transport| {
        datapath.source(ANY_LINK, node(family));
        let (client, backend) = (client(family), backend(family, 1));
        goes_out(&datapath, transport, client, backend, SYN);
        let sent = frame(transport, client, backend, ACK);
        let out = datapath.run(Hook::Egress, &sent);
        assert_eq!(out.frame, sent);
    });
}

#[test]
fn no_two_clients_have_one_port_towards_a_backend() {
    each(|mut datapath, family, transport| {
        datapath.source(ANY_LINK, node(family));
        let clients = (0..300).map(|n| SocketAddr::new(client(family).ip(), 40_000 + n));
        let ports: BTreeSet<u16> = clients
            .map(|client| goes_out(&datapath, transport, client, backend(family, 1), SYN).port())
            .collect();
        assert_eq!(ports.len(), 300);
    });
}

#[test]
fn a_client_that_comes_again_after_its_end_gets_another_port() {
    for family in Family::BOTH {
        for end in [FIN | ACK, RST] {
            let mut datapath = Datapath::new();
            datapath.source(ANY_LINK, node(family));
            let (client, backend) = (client(family), backend(family, 1));
            let out = |flags| goes_out(&datapath, Transport::Tcp, client, backend, flags);
            let ports: BTreeSet<u16> = (0..20)
                .map(|_| {
                    let port = out(SYN).port();
                    assert_eq!(out(SYN).port(), port, "a repeated SYN is of the same connection");
                    assert_eq!(out(end).port(), port);
                    assert_eq!(out(ACK).port(), port, "what follows a FIN is");
                    port
                })
                .collect();
            // 20 draws of 20,000.
            assert!(ports.len() > 10, "{ports:?}");
        }
    }
}

#[test]
fn a_datagram_whose_answer_has_lost_its_row_gets_another_port() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.source(ANY_LINK, node(family));
        let (client, backend) = (client(family), backend(family, 1));
        let first = goes_out(&datapath, Transport::Udp, client, backend, 0);
        assert_eq!(goes_out(&datapath, Transport::Udp, client, backend, 0), first);
        datapath.forget_flows(FORWARD);
        let second = goes_out(&datapath, Transport::Udp, client, backend, 0);
        let answer = datapath.run(Hook::OutsideIngress, &frame(Transport::Udp, backend, second, 0));
        assert_eq!(read(&answer.frame).to(), client);
    }
}

#[test]
fn silent_datagrams_are_over() {
    for family in Family::BOTH {
        // Less than any machine has been up for when it comes to this.
        let mut datapath = Datapath::with_udp_timeout(5_000_000_000);
        datapath.source(ANY_LINK, node(family));
        let (client, backend) = (client(family), backend(family, 1));
        let source = goes_out(&datapath, Transport::Udp, client, backend, 0);
        datapath.age_flows();
        let late = frame(Transport::Udp, backend, source, 0);
        assert_eq!(datapath.run(Hook::OutsideIngress, &late).frame, late);
    }
}

#[test]
fn a_connection_that_has_lost_its_row_goes_on_as_the_nodes() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.source(ANY_LINK, node(family));
        let (client, backend) = (client(family), backend(family, 1));
        goes_out(&datapath, Transport::Tcp, client, backend, SYN);
        datapath.forget_flows(REVERSE);
        // It is reset by the backend, which hears it from another port: better than a stranger's address on the wire.
        assert_eq!(
            goes_out(&datapath, Transport::Tcp, client, backend, ACK).ip(),
            node(family)
        );
    }
}

#[test]
fn an_error_about_what_went_out_as_the_nodes_reaches_the_client() {
    for family in Family::BOTH {
        for transport in [Transport::Tcp, Transport::Udp] {
            let mut datapath = Datapath::new();
            datapath.source(ANY_LINK, node(family));
            let (client, backend) = (client(family), backend(family, 1));
            let sent = frame(transport, client, backend, SYN);
            let left = datapath.run_marked(Hook::Egress, &sent, MARK).frame;
            let (router, kind) = match family {
                Family::V4 => (address(family, 200), (3, 4)),
                Family::V6 => (address(family, 200), (2, 0)),
            };
            let length = packet_of(&sent).len();
            let told = error(router, node(family), kind, &left, length);
            let out = datapath.run(Hook::OutsideIngress, &told);
            assert_eq!(out.verdict, PASS);
            let seen = read(&out.frame);
            assert_eq!((seen.source, seen.destination), (router, client.ip()));
            assert_eq!(seen.payload[8..], *packet_of(&sent));
        }
    }
}
