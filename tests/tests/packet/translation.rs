//! The client's packet reaches a backend, the backend's answer seems to come from the frontend.

use std::{collections::BTreeMap, net::SocketAddr};

use lb_common::Counter;

use crate::{
    Family, backend, client,
    datapath::{Datapath, Hook, PASS, each},
    frame::{ACK, SYN, Transport, frame, raw, read},
    frontend, node,
};

#[test]
fn a_first_packet_goes_to_a_backend_and_its_answer_comes_from_the_frontend() {
    each(|mut datapath, family, transport| {
        let (client, frontend, backend) = (client(family), frontend(family), backend(family, 1));
        datapath.simple(transport, frontend, &[backend]);

        let sent = frame(transport, client, frontend, SYN);
        let out = datapath.run(Hook::PodIngress, &sent);
        assert_eq!(out.verdict, PASS);
        let seen = read(&out.frame);
        assert_eq!((seen.from(), seen.to()), (client, backend));
        let before = read(&sent);
        assert_eq!(seen.payload[8..16], before.payload[8..16], "the rest is as it was");
        assert_eq!(seen.destination_mac, before.destination_mac);

        let answer = frame(transport, backend, client, SYN | ACK);
        let out = datapath.run(Hook::Egress, &answer);
        assert_eq!(out.verdict, PASS);
        let seen = read(&out.frame);
        assert_eq!((seen.from(), seen.to()), (frontend, client));
        assert_eq!(datapath.counter(Counter::FlowNew), 1);
    });
}

#[test]
fn later_packets_keep_to_the_backend_of_the_first() {
    each(|mut datapath, family, transport| {
        let (client, frontend) = (client(family), frontend(family));
        let backends: Vec<_> = (1..=50).map(|n| backend(family, n)).collect();
        datapath.simple(transport, frontend, &backends);
        let to = |flags| {
            let out = datapath.run(Hook::PodIngress, &frame(transport, client, frontend, flags));
            read(&out.frame).to()
        };
        let first = to(SYN);
        assert!(backends.contains(&first));
        for _ in 0..20 {
            assert_eq!(to(ACK), first);
        }
    });
}

#[test]
fn new_flows_spread_evenly() {
    let mut datapath = Datapath::new();
    let frontend = frontend(Family::V4);
    let backends: Vec<_> = (1..=4).map(|n| backend(Family::V4, n)).collect();
    datapath.simple(Transport::Udp, frontend, &backends);
    let mut hits = BTreeMap::<SocketAddr, u32>::new();
    for port in 10_000..11_600 {
        let client = SocketAddr::new(client(Family::V4).ip(), port);
        let out = datapath.run(Hook::PodIngress, &frame(Transport::Udp, client, frontend, 0));
        *hits.entry(read(&out.frame).to()).or_default() += 1;
    }
    // 400 each; six standard deviations are 104, so a false alarm comes once in 10^8 runs.
    for backend in backends {
        assert!((296..=504).contains(&hits[&backend]), "{hits:?}");
    }
}

#[test]
fn a_node_port_is_served_on_the_addresses_of_the_node_and_on_no_other() {
    each(|mut datapath, family, transport| {
        let node_port: SocketAddr = family.pick("0.0.0.0:30080", "[::]:30080");
        let backend = backend(family, 1);
        datapath.simple(transport, node_port, &[backend]);
        datapath.node_address(node(family));
        let outside = family.pick("198.51.100.7:40000", "[2001:db8:7::7]:40000");

        let served = SocketAddr::new(node(family), 30080);
        let out = datapath.run(Hook::OutsideIngress, &frame(transport, outside, served, SYN));
        assert_eq!(read(&out.frame).to(), backend);
        let answer = frame(transport, backend, outside, SYN | ACK);
        assert_eq!(read(&datapath.run(Hook::Egress, &answer).frame).from(), served);

        let elsewhere = family.pick("192.0.2.2:30080", "[2001:db8::2]:30080");
        let other = frame(transport, outside, elsewhere, SYN);
        assert_eq!(datapath.run(Hook::OutsideIngress, &other).frame, other);
    });
}

#[test]
fn one_port_of_an_address_is_not_another_and_tcp_is_not_udp() {
    each(|mut datapath, family, transport| {
        let frontend = frontend(family);
        datapath.simple(transport, frontend, &[backend(family, 1)]);
        let other_port = SocketAddr::new(frontend.ip(), frontend.port() + 1);
        let other_transport = match transport {
            Transport::Tcp | Transport::Sctp => Transport::Udp,
            Transport::Udp => Transport::Tcp,
        };
        for sent in [
            frame(transport, client(family), other_port, SYN),
            frame(other_transport, client(family), frontend, SYN),
        ] {
            let out = datapath.run(Hook::PodIngress, &sent);
            assert_eq!((out.verdict, &out.frame), (PASS, &sent));
        }
        assert!(datapath.flows().is_empty());
    });
}

#[test]
fn a_datagram_without_checksum_stays_without() {
    let mut datapath = Datapath::new();
    let frontend = frontend(Family::V4);
    datapath.simple(Transport::Udp, frontend, &[backend(Family::V4, 1)]);
    let datagram = [0x9c, 0x40, 0, 80, 0, 12, 0, 0, b'n', b'o', b'n', b'e'];
    let sent = raw(client(Family::V4).ip(), frontend.ip(), 17, &datagram);
    let seen = read(&datapath.run(Hook::PodIngress, &sent).frame);
    assert_eq!(seen.to(), backend(Family::V4, 1));
    assert_eq!(seen.payload[6..8], [0, 0]);
}

#[test]
fn ipv4_options_are_stepped_over() {
    let mut datapath = Datapath::new();
    let frontend = frontend(Family::V4);
    datapath.simple(Transport::Tcp, frontend, &[backend(Family::V4, 1)]);
    let plain = frame(Transport::Tcp, client(Family::V4), frontend, SYN);
    let (mut ip, _) = etherparse::Ipv4Header::from_slice(&plain[14..]).unwrap();
    ip.options = etherparse::Ipv4Options::try_from(&[7, 7, 4, 0, 0, 0, 0, 0][..]).unwrap();
    ip.total_len += 8;
    ip.header_checksum = ip.calc_header_checksum();
    let mut sent = plain[..14].to_vec();
    ip.write(&mut sent).unwrap();
    sent.extend_from_slice(&plain[34..]);
    let out = datapath.run(Hook::PodIngress, &sent);
    assert_eq!(read(&out.frame).to(), backend(Family::V4, 1));
}
