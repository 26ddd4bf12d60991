//! Sockets of the host that dial services: what they may be bound to, whom they believe to talk to, what is left of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use aya::maps::HashMap;
use lb_common::{Translation, maps};
use lb_tests::client::{Failure, Protocol};
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::{Endpoint, Service};
use lb_tests::network::{Attachment, Node, Pod, plan};
use lb_tests::patience;
use lb_tests::plane::{Difference, Plane, other_than};
use lb_tests::server::Server;
use lb_tests::stage::TARGET;
use socket2::Type;

use crate::fixture::{BOTH, World, cluster_ips, frontends};

fn web(number: u8, pod: &Pod) -> Service {
    Service::new(&format!("web-{number}"), number, TARGET).with_endpoints([pod])
}

/// The IPv4 address as a socket of IPv6 dials it.
fn mapped(to: SocketAddr) -> Option<SocketAddr> {
    match to.ip() {
        IpAddr::V4(v4) => Some(SocketAddr::new(v4.to_ipv6_mapped().into(), to.port())),
        IpAddr::V6(_) => None,
    }
}

#[test]
fn a_socket_of_ipv6_dials_ipv4_services_and_knows_them_by_the_address_it_dialled() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let mut world = World::new();
    let pod = world.backend(2, "backend", Attachment::Bridge);
    let service = web(1, &pod).at_node_port(30_001);
    world.apply(&service);
    world.start_agent(1);
    let host = world.node1().client().unwrap();
    let dialled: Vec<_> = frontends(&service, world.node1()).filter_map(mapped).collect();
    assert_eq!(dialled.len(), 2);
    for to in dialled {
        for protocol in BOTH {
            let mut connection = host.connect(protocol, to).unwrap();
            assert_eq!(connection.ask("who").unwrap().server, "backend");
            assert_eq!(connection.peer().unwrap(), to, "{protocol}");
        }
        assert_eq!(host.ask_unconnected(to).unwrap().server, "backend", "{to}");
    }
}

/// Sends from a socket that is connected to nothing, and says whom the answer names as its sender.
fn sender(socket: &std::net::UdpSocket, to: SocketAddr) -> SocketAddr {
    socket.send_to(b"?", to).unwrap();
    let mut buffer = [0; 1024];
    socket.recv_from(&mut buffer).unwrap().1
}

#[test]
fn one_unconnected_socket_talks_to_many_services_and_to_pods_and_tells_them_apart() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let mut world = World::new();
    let pods: Vec<_> = (0..lb_common::Correspondents::ROOM)
        .map(|number| world.backend(1, &format!("pod-{number}"), Attachment::Bridge))
        .collect();
    let services: Vec<_> = pods.iter().zip(1..).map(|(pod, number)| web(number, pod)).collect();
    for service in &services {
        world.apply(service);
    }
    world.start_agent(1);
    let host = world.node1().client().unwrap();
    for family in [0, 1] {
        let frontends: Vec<_> = services.iter().map(|service| cluster_ips(service)[family]).collect();
        let socket = host.datagrams(frontends[0]).unwrap();
        // Twice, so that each is asked after all others.
        for to in frontends.iter().chain(&frontends) {
            assert_eq!(sender(&socket, *to), *to);
        }
        // The last one that the socket called by this name is who it is.
        let pod = SocketAddr::new(pods[3].addresses()[family], TARGET);
        assert_eq!(sender(&socket, pod), pod);
        assert_eq!(sender(&socket, frontends[3]), frontends[3]);
        assert_eq!(sender(&socket, frontends[4]), frontends[4]);
    }
}

#[test]
fn a_socket_that_leaves_a_service_for_the_pod_itself_is_connected_to_the_pod() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let mut world = World::new();
    let pod = world.backend(1, "pod", Attachment::Veth);
    let service = web(1, &pod);
    world.apply(&service);
    world.start_agent(1);
    let host = world.node1().client().unwrap();
    for (to, pod) in cluster_ips(&service).into_iter().zip(pod.addresses()) {
        let pod = SocketAddr::new(pod, TARGET);
        let mut connection = host.connect(Protocol::Udp, to).unwrap();
        assert_eq!(connection.peer().unwrap(), to);
        connection.connect_again(pod).unwrap();
        assert_eq!(connection.peer().unwrap(), pod);
        assert_eq!(connection.ask("who").unwrap().server, "pod");
    }
}

#[test]
fn a_socket_that_is_bound_to_an_address_of_the_node_keeps_it() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let mut world = World::new();
    let pods = [
        world.backend(1, "on-a-bridge", Attachment::Bridge),
        world.backend(1, "on-a-veth", Attachment::Veth),
    ];
    let services = [
        web(1, &pods[0]).at_node_port(30_001),
        web(2, &pods[1]).at_node_port(30_002),
    ];
    for service in &services {
        world.apply(service);
    }
    world.start_agent(1);
    let node = world.node1();
    let host = node.client().unwrap();
    let of_bridge = plan::bridge_cidrs(1).map(|cidr| cidr.address);
    for (service, pod) in services.iter().zip(&pods) {
        for to in frontends(service, node) {
            for own in node.addresses().into_iter().chain(of_bridge) {
                if own.is_ipv4() != to.is_ipv4() {
                    continue;
                }
                for protocol in BOTH {
                    let mut connection = host
                        .connect_with(protocol, to, |socket| socket.bind(&SocketAddr::new(own, 0).into()))
                        .unwrap();
                    let answer = connection.ask("who").unwrap();
                    assert_eq!(answer.server, pod.name(), "{protocol} to {to}");
                    let seen = answer.seen.ip();
                    if Difference::HostMasqueraded.applies() {
                        assert!(node.has_address(seen), "{protocol} to {to}: seen as {seen}");
                    } else {
                        assert_eq!(seen, own, "{protocol} to {to}");
                    }
                    assert_eq!(connection.peer().unwrap(), to);
                }
            }
        }
    }
}

/// A server in a node's own network.
fn host_backend(node: &Node) -> (Server, Endpoint) {
    let server = Server::start(node.netns(), node.name().to_owned(), TARGET).unwrap();
    let endpoint = Endpoint {
        name: node.name().to_owned(),
        addresses: node.addresses(),
        node: node.name().to_owned(),
        ready: true,
        serving: true,
        terminating: false,
    };
    (server, endpoint)
}

#[test]
fn a_socket_that_is_bound_to_a_link_goes_out_there() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    if Difference::BoundToLink.leaves_nothing() {
        return;
    }
    let mut world = World::new();
    let pod = world.backend(1, "on-a-bridge", Attachment::Bridge);
    let (_server, endpoint) = host_backend(world.network.node2());
    let near = web(1, &pod);
    let mut far = Service::new("far", 2, TARGET);
    far.endpoints.push(endpoint);
    world.apply(&near);
    world.apply(&far);
    world.start_agent(1);
    let host = world.node1().client().unwrap();
    for (service, link, server) in [(&near, plan::BRIDGE, "on-a-bridge"), (&far, plan::UPLINK, "node2")] {
        for to in cluster_ips(service) {
            for protocol in BOTH {
                let mut connection = host
                    .connect_with(protocol, to, |socket| socket.bind_device(Some(link.as_bytes())))
                    .unwrap();
                assert_eq!(connection.ask("who").unwrap().server, server, "{protocol} to {to}");
                assert_eq!(connection.peer().unwrap(), to);
            }
        }
    }
}

/// To dial the unspecified address is to dial the loopback one, which serves NodePorts only where that was asked for.
#[test]
fn the_unspecified_address_is_the_loopback_address() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let dial = |args: &[&str]| {
        let mut world = World::new();
        let pod = world.backend(1, "pod", Attachment::Veth);
        world.apply(&web(1, &pod).at_node_port(30_001));
        world.start_agent_with(1, args);
        let host = world.node1().client().unwrap();
        let addresses: [IpAddr; 3] = [
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into(),
        ];
        addresses.map(|ip| BOTH.map(|protocol| host.ask(protocol, SocketAddr::new(ip, 30_001))))
    };
    for outcome in dial(&[]).iter().flatten() {
        assert_eq!(outcome, &Err(Failure::Refused));
    }
    for outcome in dial(&["--node-port-addresses=primary,localhost"]).iter().flatten() {
        if Difference::NoLocalhostNodePorts.applies() {
            assert_eq!(outcome, &Err(Failure::Refused));
        } else {
            assert_eq!(outcome.as_ref().unwrap().server, "pod");
        }
    }
}

/// How many sockets the agent's map knows of.
fn known_sockets(node: &Node) -> usize {
    let rows: HashMap<_, u64, Translation> = node.bpffs().map(maps::CONNECTED).unwrap().try_into().unwrap();
    rows.keys().map(Result::unwrap).count()
}

#[test]
fn nothing_is_left_of_sockets_that_were_opened_and_aborted() {
    if other_than(Plane::Ebpf, "a map knows of sockets") || lacks(Feature::NetnsCookie) {
        return;
    }
    // Of each family and protocol: two hundred thousand in all, and fewer in a guest.
    let rounds = patience::times(50_000);
    let mut world = World::new();
    let pod = world.backend(1, "pod", Attachment::Veth);
    let service = web(1, &pod);
    world.apply(&service);
    world.start_agent(1);
    let host = world.node1().client().unwrap();
    let connect = |(protocol, to)| host.connect(protocol, to).unwrap();
    let live: Vec<_> = BOTH
        .into_iter()
        .flat_map(|protocol| cluster_ips(&service).map(|to| (protocol, to)))
        .map(connect)
        .collect();
    assert_eq!(known_sockets(world.node1()), live.len());

    let process = world.node1().process().unwrap();
    for to in cluster_ips(&service) {
        for kind in [Type::STREAM, Type::DGRAM] {
            process.open_and_abort(kind, to, rounds).unwrap();
        }
    }
    assert_eq!(known_sockets(world.node1()), live.len());
    for (connection, to) in live.iter().zip(cluster_ips(&service).iter().cycle()) {
        assert_eq!(connection.peer().unwrap(), *to);
    }

    // A process that dies closes nothing itself.
    drop((live, host));
    let kept = world.node1().client().unwrap();
    let last = kept.connect(Protocol::Tcp, cluster_ips(&service)[0]).unwrap();
    assert_eq!(known_sockets(world.node1()), 1);
    drop((last, kept));
    assert_eq!(known_sockets(world.node1()), 0);
}
