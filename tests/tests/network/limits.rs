//! A node with more to remember than it has room for.

use std::net::{IpAddr, SocketAddr};

use lb_tests::agent::{Agent, Maps, Options};
use lb_tests::capture::Capture;
use lb_tests::client::Protocol;
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod};
use lb_tests::packet::{Macs, tcp};
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;

use crate::fixture::{BOTH, SOON, World, becomes_answered_by, cluster_ips, node_ports};

/// Why these are tests of one plane only.
const MAPS: &str = "maps have a size";

/// Rows of the flow table, two a flow.
const ROWS: usize = 4_096;
/// Connections that are begun and never answered: many times what the table holds.
const FLOOD: u32 = 40_000;
/// After so many of them the others are looked at.
const BURST: u32 = 500;

fn scene(backend: usize, flags: &[&str]) -> (World, [Pod; 2], Service) {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let backend = world.backend(backend, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_080)
        .with_endpoints([&backend]);
    world.apply(&service);
    let options = Options {
        maps: Maps::Default,
        args: flags.iter().map(Into::into).collect(),
        ..Options::default()
    };
    let agent = Agent::start(world.node1(), &world.source, &options).unwrap();
    world.agents.push(agent);
    (world, [client, backend], service)
}

/// SYNs of clients that do not exist, to a NodePort.
struct Flood {
    wire: Capture,
    macs: Macs,
    to: SocketAddr,
    sent: u32,
}

impl Flood {
    fn of(world: &World, to: SocketAddr) -> Self {
        let outside = world.network.outside();
        Self {
            wire: Capture::start(outside.netns(), outside.uplink()).unwrap(),
            macs: Macs {
                from: outside.uplink().mac,
                to: world.node1().uplink().mac,
            },
            to,
            sent: 0,
        }
    }

    fn burst(&mut self) {
        for _ in 0..BURST {
            self.sent += 1;
            let [_, high, low, port] = self.sent.to_be_bytes();
            let from = match self.to.ip() {
                // 198.18.0.0/15 and 2001:2::/48 are for benchmarks: nobody's.
                IpAddr::V4(_) => IpAddr::from([198, 18, high, low]),
                IpAddr::V6(_) => IpAddr::from([0x2001, 2, 0, 0, 0, 0, high.into(), low.into()]),
            };
            let from = SocketAddr::new(from, 1_024 + u16::from(port));
            let syn = tcp(self.macs, from, self.to, |tcp| tcp.syn = true, b"").unwrap();
            self.wire.send(&syn).unwrap();
        }
    }
}

/// To a backend of this node: on the way to others clients are masqueraded, of which a backend can have 20,000.
#[test]
fn a_flood_of_connections_that_never_open_costs_the_others_nothing() {
    if other_than(Plane::Ebpf, MAPS) {
        return;
    }
    let (world, [pod, _backend], service) = scene(1, &[&format!("--max-flows={ROWS}")]);
    let outside = world.network.outside().client();
    let node_port = node_ports(&service, world.node1());
    let dials: Vec<_> = cluster_ips(&service)
        .map(|to| (pod.client(), to))
        .into_iter()
        .chain(node_port.map(|to| (outside.clone(), to)))
        .collect();
    let mut open: Vec<_> = dials
        .iter()
        .map(|(client, to)| client.connect(Protocol::Tcp, *to).unwrap())
        .collect();
    let mut flood = Flood::of(&world, node_port[0]);
    while flood.sent < FLOOD {
        flood.burst();
        for connection in &mut open {
            let answer = connection.ask("still there?");
            assert!(answer.is_ok(), "after {} SYNs: {answer:?}", flood.sent);
        }
        if flood.sent.is_multiple_of(10 * BURST) {
            for (client, to) in &dials {
                for protocol in BOTH {
                    let answer = client.ask(protocol, *to);
                    assert!(
                        answer.is_ok(),
                        "{protocol} to {to} after {} SYNs: {answer:?}",
                        flood.sent
                    );
                }
            }
        }
    }
}

#[test]
fn a_map_without_room_refuses_what_comes_and_serves_what_is_there() {
    if other_than(Plane::Ebpf, MAPS) {
        return;
    }
    // One Service with two families and two protocols has eight frontends and four endpoints; backend 0 is nobody.
    for (flag, room) in [("--max-services", 8), ("--max-slots", 4), ("--max-backends", 5)] {
        let (mut world, [_client, _backend], first) = scene(2, &[&format!("{flag}={room}")]);
        let second_backend = world.backend(2, "second", Attachment::Veth);
        let outside = world.network.outside().client();
        let second = Service::new("later", 2, TARGET)
            .at_node_port(30_081)
            .with_endpoints([&second_backend]);
        world.apply(&second);
        for said in [&format!("raise {flag}"), "default/later"] {
            let line = world.agents[0].wait_for_log(SOON, said);
            line.unwrap_or_else(|error| panic!("{flag}: {error:#}"));
        }
        for to in node_ports(&first, world.node1()) {
            for protocol in BOTH {
                let answer = outside.ask(protocol, to).unwrap();
                assert_eq!(answer.server, "backend", "{flag}: {protocol} to {to}");
            }
        }
        // Once there is room, it is taken.
        world.delete(&first);
        for to in node_ports(&second, world.node1()) {
            for protocol in BOTH {
                becomes_answered_by(&outside, protocol, to, "second");
            }
        }
    }
}
