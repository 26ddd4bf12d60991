//! Packets that the kernel has not made yet: segments and checksums that are left to the last link, and links that
//! take more than Ethernet does.

use std::net::SocketAddr;

use lb_tests::client::{Client, Protocol};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Options, Pod};
use lb_tests::server::Server;
use lb_tests::stage::TARGET;
use nix::sys::socket::{setsockopt, sockopt};

use crate::fixture::{SOON, World, cluster_ips, node_ports};

/// Links leave checksums to each other, so that all is CHECKSUM_PARTIAL until it leaves for the wire, and nothing of
/// it does: each end of a veth is the other's wire.
fn with_offload() -> World {
    World::with(Options {
        checksum_offload: true,
        ..Options::default()
    })
}

/// A client in a pod, and a server in one of either node.
fn scene(world: &mut World, backend: usize) -> (Pod, Pod, Server, Service) {
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let node = &world.network.nodes()[backend - 1];
    let backend = node.add_pod("backend", Attachment::Veth).unwrap();
    let server = backend.serve(TARGET).unwrap();
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_080)
        .with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    (client, backend, server, service)
}

fn dials(world: &World, pod: &Pod, service: &Service) -> Vec<(Client, SocketAddr)> {
    let inside = cluster_ips(service).map(|to| (pod.client(), to));
    let outside = node_ports(service, world.node1()).map(|to| (world.network.outside().client(), to));
    inside.into_iter().chain(outside).collect()
}

#[test]
fn segments_that_are_cut_at_the_end_of_the_way_arrive_whole() {
    for backend in [1, 2] {
        let mut world = with_offload();
        let (pod, _backend, _server, service) = scene(&mut world, backend);
        let question = "x".repeat(1 << 20);
        for (client, to) in dials(&world, &pod, &service) {
            let mut connection = client.connect(Protocol::Tcp, to).unwrap();
            // Compared with the question byte by byte, once it has been there and back.
            let answer = connection.ask(&question);
            assert!(answer.is_ok(), "to {to}, backend on node {backend}: {answer:?}");
        }
    }
}

#[test]
fn datagrams_that_are_cut_at_the_end_of_the_way_arrive_one_by_one() {
    const SIZE: u16 = 1_000;
    const COUNT: usize = 12;
    for backend in [1, 2] {
        let mut world = with_offload();
        let (pod, _backend, server, service) = scene(&mut world, backend);
        for (client, to) in dials(&world, &pod, &service) {
            let before = server.counts().udp();
            let socket = client.datagrams(to).unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            setsockopt(&socket, sockopt::UdpGsoSegment, &i32::from(SIZE)).unwrap();
            let bytes: Vec<u8> = (0..COUNT).flat_map(|n| vec![b'a' + n as u8; SIZE.into()]).collect();
            socket.send_to(&bytes, to).unwrap();
            let mut letters = Vec::new();
            let mut buffer = vec![0; 65_536];
            for _ in 0..COUNT {
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                assert_eq!(from, to);
                let is_whole = |letter: &u8| {
                    let count = buffer[..length].iter().filter(|byte| *byte == letter).count();
                    count >= usize::from(SIZE)
                };
                letters.extend((b'a'..=b'z').filter(is_whole));
            }
            letters.sort_unstable();
            assert_eq!(letters, (b'a'..).take(COUNT).collect::<Vec<_>>(), "to {to}");
            assert_eq!(server.counts().udp() - before, COUNT as u64);
        }
    }
}

#[test]
fn a_datagram_of_a_jumbo_frame_arrives_in_one_piece() {
    const MTU: u32 = 9_000;
    for checksum_offload in [false, true] {
        let mut world = World::with(Options {
            checksum_offload,
            ..Options::default()
        });
        let (client, backend, _server, service) = scene(&mut world, 1);
        for pod in [&client, &backend] {
            pod.netns().netlink().unwrap().set_mtu(pod.link().index, MTU).unwrap();
            let host = world.node1().netns().netlink().unwrap();
            host.set_mtu(pod.host_link().index, MTU).unwrap();
        }
        for to in cluster_ips(&service) {
            let mut socket = client.client().connect(Protocol::Udp, to).unwrap();
            socket.ask(&"x".repeat(8_000)).unwrap();
            assert_eq!(socket.path_mtu().unwrap(), MTU);
        }
    }
}
