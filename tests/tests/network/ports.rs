//! Ports that two could claim: NodePorts that somebody on the node sends from, and those that clients are masqueraded
//! to.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::capture::Capture;
use lb_tests::client::Protocol;
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod};
use lb_tests::plane::{Difference, Plane, other_than};
use lb_tests::server::Server;
use lb_tests::stage::TARGET;
use socket2::{Domain, SockRef, Socket, Type};

use crate::fixture::{BOTH, NODE_PORT, SOON, World, becomes_answered_by, node_ports};

/// A server outside that has nothing to do with Services.
const ELSEWHERE: u16 = 5_353;

fn scene(backend: usize) -> (World, Pod, Service) {
    let (mut world, backend, service) = World::with_node_port(backend);
    world.start_agent(1);
    (world, backend, service)
}

/// A question from the node, from the port `NODE_PORT`, and how often it is asked.
fn ask_from_node_port(world: &World, protocol: Protocol, to: SocketAddr, times: usize) {
    let kind = match protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    let from = world
        .node1()
        .addresses()
        .into_iter()
        .find(|ip| ip.is_ipv4() == to.is_ipv4());
    let mut socket = world
        .node1()
        .netns()
        .run(|| Socket::new(Domain::for_address(to), kind, None))
        .unwrap()
        .unwrap();
    socket.set_reuse_address(true).unwrap();
    // It ends with a reset: the kernel would keep the port from the next one for a while (TIME_WAIT).
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.bind(&SocketAddr::new(from.unwrap(), NODE_PORT).into()).unwrap();
    socket.connect_timeout(&to.into(), SOON).unwrap();
    for _ in 0..times {
        socket.write_all(b"?\n").unwrap();
        let mut buffer = vec![0; 4096];
        let length = socket
            .read(&mut buffer)
            .unwrap_or_else(|error| panic!("{protocol} from port {NODE_PORT} to {to}: {error}"));
        let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(answer.contains("elsewhere"), "{protocol} to {to}: {answer}");
    }
}

#[test]
fn the_node_may_send_from_a_node_port_while_clients_dial_it() {
    if Difference::NodePortAsSource.leaves_nothing() {
        return;
    }
    let (world, backend, service) = scene(2);
    let _elsewhere = Server::start(world.network.outside().netns(), "elsewhere", ELSEWHERE).unwrap();
    let outside = world.network.outside().client();
    for (address, frontend) in world
        .network
        .outside()
        .addresses()
        .into_iter()
        .zip(node_ports(&service, world.node1()))
    {
        for protocol in BOTH {
            for _ in 0..2 {
                ask_from_node_port(&world, protocol, SocketAddr::new(address, ELSEWHERE), 3);
                assert_eq!(outside.ask(protocol, frontend).unwrap().server, backend.name());
            }
        }
    }
}

#[test]
fn a_pod_may_send_from_a_node_port_number_while_clients_dial_it() {
    let (mut world, backend, service) = scene(2);
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let other = world.backend(2, "elsewhere", Attachment::Veth);
    for (own, to) in pod.addresses().into_iter().zip(other.addresses()) {
        let socket = pod.client().datagrams(SocketAddr::new(to, TARGET)).unwrap();
        SockRef::from(&socket)
            .bind(&SocketAddr::new(own, NODE_PORT).into())
            .unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        for _ in 0..2 {
            socket.send_to(b"?", SocketAddr::new(to, TARGET)).unwrap();
            let mut buffer = vec![0; 4096];
            let (_, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(from, SocketAddr::new(to, TARGET));
        }
    }
    for frontend in node_ports(&service, world.node1()) {
        for protocol in BOTH {
            // The pod came after the agent, which may not have seen it yet.
            becomes_answered_by(&pod.client(), protocol, frontend, backend.name());
        }
    }
}

#[test]
fn clients_are_masqueraded_to_ports_that_are_nobody_elses() {
    if other_than(Plane::Ebpf, "the range of ports is its own, the kernel has another") {
        return;
    }
    let (world, backend, service) = scene(2);
    let wire = Capture::start(backend.netns(), backend.link()).unwrap();
    let outside = world.network.outside().client();
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let ephemeral: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
    for frontend in node_ports(&service, world.node1()) {
        for protocol in BOTH {
            for _ in 0..50 {
                outside.ask(protocol, frontend).unwrap();
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    for frame in wire.frames().unwrap() {
        if let Some((from, to)) = frame.packet().unwrap().and_then(|packet| packet.ends())
            && to.port() == TARGET
        {
            assert!(
                world.node1().has_address(from.ip()) || from.ip().is_loopback(),
                "{from}"
            );
            assert!(
                (10_000..NODE_PORT.min(30_000).min(ephemeral)).contains(&from.port()),
                "{from}"
            );
            seen.insert(from);
        }
    }
    // Drawn at random, one a connection: that many alike do not happen.
    assert!(seen.len() > 150, "{} of 200", seen.len());
}
