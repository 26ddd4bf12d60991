//! A service whose slots are a table of Maglev's: the two ends of a flow say which slot, on every node the same.

use std::net::SocketAddr;

use lb_common::{
    FlowKey, Port,
    backend::SERVING,
    flow::{FORWARD, REVERSE},
    service::HASHED,
};

use crate::{
    Family, backend,
    datapath::{Datapath, Hook, PASS},
    frame::{ACK, SYN, Transport, frame, read},
    frontend,
};

const SLOTS: u32 = 61;

/// Backend `1 + slot` for each slot.
fn hashed(family: Family, transport: Transport) -> Datapath {
    let mut datapath = Datapath::new();
    let numbers: Vec<u32> = (1..=SLOTS)
        .map(|number| datapath.backend(number, backend(family, number.try_into().unwrap()), false))
        .collect();
    let range = datapath.slots(&numbers);
    datapath.service(transport, frontend(family), range, HASHED);
    datapath
}

fn client(family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(crate::client(family).ip(), port)
}

/// Where that says it is to go.
fn expected(family: Family, transport: Transport, client: SocketAddr) -> SocketAddr {
    let end = |socket: SocketAddr| (socket.ip().into(), Port::new(socket.port()));
    let key = FlowKey::new(FORWARD, transport.number(), end(client), end(frontend(family)));
    let slot = (u64::from(key.hash()) * u64::from(SLOTS)) >> 32;
    backend(family, u8::try_from(slot).unwrap() + 1)
}

#[test]
fn every_node_chooses_the_same_backend() {
    for family in Family::BOTH {
        for (transport, flags) in [(Transport::Tcp, SYN), (Transport::Udp, 0)] {
            let nodes = [hashed(family, transport), hashed(family, transport)];
            for port in 40_000..40_050 {
                let client = client(family, port);
                let sent = frame(transport, client, frontend(family), flags);
                for node in &nodes {
                    for hook in [Hook::PodIngress, Hook::OutsideIngress] {
                        let went = read(&node.run(hook, &sent).frame).to();
                        assert_eq!(went, expected(family, transport, client));
                    }
                }
            }
        }
    }
}

#[test]
fn a_connection_that_nobody_remembers_goes_on_to_its_backend() {
    for family in Family::BOTH {
        let mut datapath = hashed(family, Transport::Tcp);
        let client = client(family, 40_000);
        let goes_to = |datapath: &Datapath, flags| {
            let sent = frame(Transport::Tcp, client, frontend(family), flags);
            let out = datapath.run(Hook::OutsideIngress, &sent);
            assert_eq!(out.verdict, PASS);
            read(&out.frame).to()
        };
        let first = goes_to(&datapath, SYN);
        datapath.forget_flows(FORWARD);
        datapath.forget_flows(REVERSE);
        assert_eq!(goes_to(&datapath, ACK), first);
        // And answers come from the service again.
        let answer = frame(Transport::Tcp, first, client, ACK);
        assert_eq!(
            read(&datapath.run(Hook::Egress, &answer).frame).from(),
            frontend(family)
        );
    }
}

/// A client may have the same port through another frontend, to the same backend. It is the port that gives way.
#[test]
fn who_meets_another_flow_gets_another_port_and_the_same_backend() {
    let family = Family::V4;
    let mut datapath = hashed(family, Transport::Tcp);
    let client = client(family, 40_000);
    let to = expected(family, Transport::Tcp, client);
    let other = SocketAddr::new(frontend(family).ip(), 8_080);
    // Another service, all of whose slots lead to that backend.
    let number = datapath.backend(SLOTS + 1, to, false);
    let range = datapath.slots(&[number]);
    datapath.service(Transport::Tcp, other, range, 0);
    assert_eq!(datapath.get_backend(number).state, SERVING);
    datapath.run(Hook::PodIngress, &frame(Transport::Tcp, client, other, SYN));

    let sent = frame(Transport::Tcp, client, frontend(family), SYN);
    let went = read(&datapath.run(Hook::PodIngress, &sent).frame);
    assert_eq!(went.to(), to);
    assert_ne!(went.from().port(), client.port());
}
