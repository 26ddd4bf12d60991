//! Nobody gets in where they do not belong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use lb_tests::capture::Capture;
use lb_tests::client::Protocol;
use lb_tests::network::{Attachment, Pod};
use lb_tests::packet::{Macs, tcp, udp};
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;
use nix::sys::socket::{setsockopt, sockopt};

use crate::fixture::{BRIEFLY, NODE_PORT, SOON, World, cluster_ips, node_ports};

/// The bit that asks the node to masquerade.
const MARK: u32 = 0x4000;

/// Sends a first segment and a datagram to node 1 from a machine beside it, and says what of them reaches the backend.
fn reaches(world: &World, backend: &Pod, from: SocketAddr, to: SocketAddr) -> Option<String> {
    let outside = world.network.outside();
    let wire = Capture::start(outside.netns(), outside.uplink()).unwrap();
    let macs = Macs {
        from: outside.uplink().mac,
        to: world.node1().uplink().mac,
    };
    let seen = Capture::start(backend.netns(), backend.link()).unwrap();
    wire.send(&tcp(macs, from, to, |tcp| tcp.syn = true, b"").unwrap())
        .unwrap();
    wire.send(&udp(macs, from, to, b"?").unwrap()).unwrap();
    let to_target = |packet: &lb_tests::packet::Packet| packet.ends().is_some_and(|(_, to)| to.port() == TARGET);
    seen.find(BRIEFLY, to_target).unwrap().map(|packet| packet.to_string())
}

#[test]
fn packets_from_outside_to_a_loopback_address_are_not_served() {
    let (mut world, backend, _service) = World::with_node_port(1);
    // What an operator may have set for another proxy's sake.
    world
        .node1()
        .netns()
        .set_sysctl("ipv4.conf.all.route_localnet", "1")
        .unwrap();
    world.start_agent(1);
    let [v4, v6] = world.network.outside().addresses();
    for (from, to) in [
        (v4, IpAddr::from(Ipv4Addr::LOCALHOST)),
        (v4, IpAddr::from([127, 5, 6, 7])),
        (v6, IpAddr::from(Ipv6Addr::LOCALHOST)),
    ] {
        let (from, to) = (SocketAddr::new(from, 40_000), SocketAddr::new(to, NODE_PORT));
        assert_eq!(reaches(&world, &backend, from, to), None, "{to}");
    }
}

#[test]
fn clients_that_claim_an_address_of_the_node_are_not_believed() {
    let (mut world, backend, service) = World::with_node_port(1);
    world.start_agent(1);
    let frontends = node_ports(&service, world.node1())
        .into_iter()
        .zip(cluster_ips(&service));
    for (address, (node_port, cluster_ip)) in world.node1().addresses().into_iter().zip(frontends) {
        for to in [node_port, cluster_ip] {
            let from = SocketAddr::new(address, 40_000);
            assert_eq!(reaches(&world, &backend, from, to), None, "{from} to {to}");
        }
    }
    // The same frames from an address of nobody's do arrive.
    let honest = SocketAddr::from(([198, 18, 0, 1], 40_000));
    let [v4, _] = node_ports(&service, world.node1());
    assert!(reaches(&world, &backend, honest, v4).is_some());
}

#[test]
fn a_mark_that_a_pod_sets_gives_it_no_address_of_the_node() {
    let (mut world, backend, service) = World::with_node_port(2);
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    world.start_agent(1);
    let client = pod.client();
    for (own, (direct, through)) in pod
        .addresses()
        .into_iter()
        .zip(backend.addresses().into_iter().zip(cluster_ips(&service)))
    {
        crate::fixture::becomes_answered_by(&client, Protocol::Udp, through, backend.name());
        for to in [SocketAddr::new(direct, TARGET), through] {
            let socket = client.datagrams(to).unwrap();
            setsockopt(&socket, sockopt::Mark, &MARK).unwrap();
            let seen = Capture::start(backend.netns(), backend.link()).unwrap();
            socket.send_to(b"?", to).unwrap();
            let packet = seen
                .find(SOON, |packet| packet.payload == b"?")
                .unwrap()
                .expect("the datagram");
            assert_eq!(packet.source(), own, "to {to}");
        }
    }
}

/// Everything in and below a folder of the BPF file system.
fn below(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(below(&path));
        }
        found.push(path);
    }
    found
}

#[test]
fn what_is_pinned_is_roots_alone() {
    if other_than(Plane::Ebpf, "it pins") {
        return;
    }
    let (mut world, _backend, _service) = World::with_node_port(1);
    world.start_agent(1);
    let pins = below(&world.node1().bpffs().path());
    let ours: Vec<_> = pins
        .iter()
        .filter(|path| path.to_string_lossy().contains("lb-agent"))
        .collect();
    assert!(ours.len() > 10, "{pins:?}");
    for path in ours {
        let metadata = std::fs::symlink_metadata(path).unwrap();
        let others = metadata.permissions().mode() & 0o077;
        assert_eq!((metadata.uid(), others), (0, 0), "{}", path.display());
    }
}
