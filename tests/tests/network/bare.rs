//! Clients behind a link whose packets have no Ethernet header: a VPN, WireGuard, IP in IP.

use std::net::SocketAddr;
use std::sync::Arc;

use lb_tests::agent;
use lb_tests::client::{Client, Failure, Protocol};
use lb_tests::manifests::Service;
use lb_tests::netlink::{Cidr, Route};
use lb_tests::netns::Netns;
use lb_tests::network::Attachment;
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;
use lb_tests::tun::Tun;
use serde_json::{Value, json};

use crate::fixture::{BOTH, World, frontends};

/// A client of its own behind a tun to node 1.
fn behind_tun(world: &World, service: &Service) -> (Tun, Client) {
    let client = Netns::new("vpn").unwrap();
    let ends = |last: u8| {
        [
            Cidr::new([10, 99, 0, last], 24),
            Cidr::new([0xfd00, 0x99, 0, 0, 0, 0, 0, u16::from(last)], 64),
        ]
    };
    let tun = Tun::between([(world.node1().netns(), &ends(1)), (&client, &ends(2))]).unwrap();
    let link = Tun::end(&client).unwrap().index;
    let dialled = frontends(service, world.node1());
    for to in dialled.map(|to| Cidr::host(to.ip())) {
        let route = Route {
            to,
            via: None,
            link,
            onlink: false,
        };
        client.netlink().unwrap().add_route(route).unwrap();
    }
    (tun, Client::new(Arc::new(client)))
}

#[test]
fn they_reach_backends_here_with_their_address_and_elsewhere_with_the_nodes() {
    for (node, keeps_address) in [(1, true), (2, false)] {
        let mut world = World::new();
        let backend = world.backend(node, "backend", Attachment::Bridge);
        let service = Service::new("web", 1, TARGET)
            .at_node_port(30_001)
            .with_endpoints([&backend]);
        world.apply(&service);
        let (_tun, client) = behind_tun(&world, &service);
        world.start_agent(1);
        for to in frontends(&service, world.node1()) {
            for protocol in BOTH {
                let answer = client
                    .ask(protocol, to)
                    .unwrap_or_else(|failure| panic!("{protocol} to {to}: {failure}"));
                assert_eq!(answer.server, "backend");
                let kept = answer.seen.ip() == answer.local.ip();
                assert_eq!(kept, keeps_address, "{protocol} to {to}: seen as {}", answer.seen);
            }
        }
    }
}

#[test]
fn they_are_refused_where_there_is_no_endpoint() {
    let mut world = World::new();
    let service = Service::new("empty", 9, TARGET).at_node_port(30_999);
    world.apply(&service);
    let (_tun, client) = behind_tun(&world, &service);
    world.start_agent(1);
    for to in frontends(&service, world.node1()) {
        for protocol in BOTH {
            assert_eq!(client.ask(protocol, to), Err(Failure::Refused), "{protocol} to {to}");
        }
    }
}

/// The kernel runs no program on a packet without Ethernet header, so the one for frames is asked in its place.
#[test]
fn what_becomes_of_their_packets_can_be_asked_beforehand() {
    if other_than(Plane::Ebpf, "a program is asked") {
        return;
    }
    let mut world = World::new();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&backend]);
    world.apply(&service);
    let (_tun, client) = behind_tun(&world, &service);
    world.start_agent(1);
    for to in frontends(&service, world.node1()) {
        let from = if to.is_ipv4() {
            "10.99.0.2:1000"
        } else {
            "[fd00:99::2]:1000"
        };
        let args = ["-o", "json", "tcp", from, &to.to_string()];
        let output = agent::offline(world.node1(), "explain", &args).unwrap();
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["program"]["name"], "from_outside_l3", "{said}");
        let answer = client.ask(Protocol::Tcp, to).unwrap();
        let is_masqueraded = answer.seen.ip() != answer.local.ip();
        let backend = SocketAddr::new(backend.addresses()[usize::from(to.is_ipv6())], TARGET);
        let sent = json!([backend, is_masqueraded]);
        assert_eq!(
            json!([said["sent"]["backend"], said["sent"]["masquerade"]]),
            sent,
            "{said}"
        );
    }
}
