//! What a backend sees of its client, where the matrix does not look.

use std::net::SocketAddr;

use lb_tests::client::{Client, Protocol};
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Options, Pod};
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;

use crate::fixture::{BOTH, World, becomes_answered_by, cluster_ips, frontends, node_ports};

#[track_caller]
fn seen(client: &Client, protocol: Protocol, to: SocketAddr) -> SocketAddr {
    client
        .ask(protocol, to)
        .unwrap_or_else(|failure| panic!("{protocol} to {to}: {failure}"))
        .seen
}

/// For a NodePort of another node, a pod is a client from outside like any other.
#[test]
fn a_pod_that_dials_another_nodes_port_keeps_its_address_if_the_backend_is_there() {
    // The answer comes by the tunnel, though from the node's own address: only a loose filter lets that in.
    let mut world = World::with(Options {
        rp_filter: 2,
        ..Options::default()
    });
    let pod = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let here = world.backend(1, "here", Attachment::Veth);
    let there = world.backend(2, "there", Attachment::Veth);
    let near = Service::new("near", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&there]);
    let far = Service::new("far", 2, TARGET)
        .at_node_port(30_002)
        .with_endpoints([&here]);
    world.apply(&near);
    world.apply(&far);
    world.start_agent(1);
    world.start_agent(2);
    let node2 = world.network.node2();
    for protocol in BOTH {
        for to in node_ports(&near, node2) {
            let seen = seen(&pod.client(), protocol, to);
            assert!(
                pod.addresses().contains(&seen.ip()),
                "{protocol} to {to}: seen as {seen}"
            );
        }
        for to in node_ports(&far, node2) {
            let seen = seen(&pod.client(), protocol, to);
            assert!(node2.has_address(seen.ip()), "{protocol} to {to}: seen as {seen}");
        }
    }
}

#[test]
fn a_client_that_is_not_masqueraded_keeps_its_port_too() {
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let service = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    for to in cluster_ips(&service) {
        for protocol in BOTH {
            let mut connection = pod.client().connect(protocol, to).unwrap();
            let answer = connection.ask("whom do you see?").unwrap();
            assert_eq!(answer.seen, connection.local().unwrap());
            assert_eq!(connection.peer().unwrap(), to);
        }
    }
}

/// The name of the other side is the one that was dialled, also for a process whose socket was sent elsewhere.
#[test]
fn a_process_of_the_node_is_told_that_it_is_connected_to_what_it_dialled() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let mut world = World::new();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    let host = world.node1().client().unwrap();
    for to in frontends(&service, world.node1()) {
        for protocol in BOTH {
            let mut connection = host.connect(protocol, to).unwrap();
            assert_eq!(connection.ask("who").unwrap().server, "backend");
            assert_eq!(connection.peer().unwrap(), to, "{protocol}");
        }
        assert_eq!(host.ask_unconnected(to).unwrap().server, "backend");
    }
}

/// A node, a backend on another one, and a NodePort through which a client outside is masqueraded on its way there.
fn masquerading(snat: &str) -> (World, Pod, Service) {
    let mut world = World::new();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent_with(1, &["--snat", snat]);
    (world, backend, service)
}

/// Its ports come from a range of their own, so that they meet neither NodePorts nor tunnels.
#[test]
fn a_masqueraded_client_is_given_a_port_of_the_range() {
    if other_than(Plane::Ebpf, "the range of ports is its own, the kernel has another") {
        return;
    }
    for snat in ["bpf", "kernel"] {
        let (world, _backend, service) = masquerading(snat);
        let outside = world.network.outside().client();
        for to in node_ports(&service, world.node1()) {
            for protocol in BOTH {
                becomes_answered_by(&outside, protocol, to, "backend");
                for _ in 0..20 {
                    let seen = seen(&outside, protocol, to);
                    assert!(
                        world.node1().has_address(seen.ip()),
                        "{protocol} to {to}: seen as {seen}"
                    );
                    let range = lb_common::config::FIRST_SNAT_PORT..=lb_common::config::LAST_SNAT_PORT;
                    assert!(range.contains(&seen.port()), "{protocol} to {to}: seen as {seen}");
                }
            }
        }
    }
}

/// Tracking costs each packet of the node, whoever it is for.
#[test]
fn the_kernel_tracks_connections_only_where_it_is_to_masquerade() {
    if other_than(
        Plane::Ebpf,
        "IPVS has connections of its own, and has the kernel track them",
    ) {
        return;
    }
    for (snat, tracks) in [("bpf", false), ("kernel", true)] {
        let (world, _backend, service) = masquerading(snat);
        let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
        for to in frontends(&service, world.node1()) {
            for protocol in BOTH {
                for client in [&world.network.outside().client(), &pod.client()] {
                    becomes_answered_by(client, protocol, to, "backend");
                }
            }
        }
        let count = world.node1().netns().sysctl("netfilter.nf_conntrack_count").unwrap();
        assert_eq!(count != "0", tracks, "--snat {snat}: {count} connections");
    }
}
