//! Flows that are spread by a hash: every node knows where each belongs, also of one that it has never seen.

use std::net::SocketAddr;

use aya::maps::HashMap;
use lb_common::maps;
use lb_tests::agent;
use lb_tests::client::Protocol;
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node, Pod};
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;
use serde_json::Value;

use crate::fixture::{World, answerers, cluster_ips, names};

const BY_HASH: [&str; 2] = ["--algorithm", "maglev"];

/// A Service of endpoints on both nodes, and who they are.
fn spread(world: &mut World) -> (Service, Vec<Pod>) {
    let pods: Vec<Pod> = ["a", "b", "c", "d"]
        .into_iter()
        .zip([1, 2, 1, 2])
        .map(|(name, node)| world.backend(node, name, Attachment::Bridge))
        .collect();
    let service = Service::new("web", 1, TARGET).with_endpoints(&pods);
    world.apply(&service);
    (service, pods)
}

/// Where the programs of a node send a client of its link to the outside that nobody has seen yet.
fn backend_of(node: &Node, client: SocketAddr, to: SocketAddr) -> String {
    let (client, to) = (client.to_string(), to.to_string());
    let output = agent::offline(node, "explain", &["-o", "json", "tcp", &client, &to]).unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    said["sent"]["backend"]
        .as_str()
        .unwrap_or_else(|| panic!("{said}"))
        .to_owned()
}

#[test]
fn two_nodes_send_a_client_to_one_backend() {
    if other_than(Plane::Ebpf, "IPVS has a table of its own") {
        return;
    }
    let mut world = World::new();
    let (service, _pods) = spread(&mut world);
    for node in [1, 2] {
        world.start_agent_with(node, &BY_HASH);
    }
    let outside = world.network.outside().addresses();
    let mut backends = std::collections::BTreeSet::new();
    for (client, to) in outside.into_iter().zip(cluster_ips(&service)) {
        for port in 40_000..40_010 {
            let client = SocketAddr::new(client, port);
            let [one, other] = [world.network.node1(), world.network.node2()].map(|node| backend_of(node, client, to));
            assert_eq!(one, other, "{client} to {to}");
            backends.insert(one);
        }
    }
    assert!(backends.len() > 2, "{backends:?}");
}

#[test]
fn a_service_that_is_spread_by_a_hash_has_all_its_endpoints_and_says_so() {
    let mut world = World::new();
    let (service, pods) = spread(&mut world);
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    world.start_agent_with(1, &BY_HASH);
    for to in cluster_ips(&service) {
        assert_eq!(answerers(&client.client(), Protocol::Tcp, to, 60), names(&pods));
    }
    let lines = services_of(world.node1());
    assert_eq!(lines.matches(" maglev").count(), 4, "{lines}");
}

/// The table may have been full, or another node may have had the connection until now.
#[test]
fn connections_go_on_though_nobody_remembers_them() {
    if other_than(Plane::Ebpf, "IPVS forgets a connection with its row") {
        return;
    }
    let mut world = World::new();
    let (service, _pods) = spread(&mut world);
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    world.start_agent_with(1, &BY_HASH);
    let mut connections = Vec::new();
    for to in cluster_ips(&service) {
        for _ in 0..8 {
            let mut connection = client.client().connect(Protocol::Tcp, to).unwrap();
            let server = connection.ask("who").unwrap().server;
            connections.push((connection, server));
        }
    }
    forget_flows(world.node1());
    for (connection, server) in &mut connections {
        assert_eq!(connection.ask("still you?").unwrap().server, *server);
    }
}

fn services_of(node: &Node) -> String {
    let output = agent::offline(node, "services", &[]).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn forget_flows(node: &Node) {
    let mut flows: HashMap<_, [u8; 40], [u8; 48]> = node.bpffs().map(maps::FLOWS).unwrap().try_into().unwrap();
    let keys: Vec<[u8; 40]> = flows.keys().map(Result::unwrap).collect();
    assert!(!keys.is_empty());
    for key in keys {
        // One may have been evicted meanwhile.
        let _ = flows.remove(&key);
    }
}
