//! Endpoints that come and go: where new connections go, and what becomes of those that are there.

use std::time::{Duration, Instant};

use lb_tests::client::{Client, Connection, Protocol};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod};
use lb_tests::patience::patient;
use lb_tests::stage::TARGET;

use crate::fixture::{BOTH, SOON, World, answerers, becomes_answered_by, cluster_ips, names};

/// A client pod, two endpoints on both nodes, and a third pod that is none yet.
struct Three {
    world: World,
    client: Client,
    _client_pod: Pod,
    pods: [Pod; 3],
    service: Service,
}

fn three() -> Three {
    let mut world = World::new();
    let client_pod = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let pods = [
        world.backend(1, "one", Attachment::Veth),
        world.backend(2, "two", Attachment::Bridge),
        world.backend(2, "three", Attachment::Veth),
    ];
    let service = Service::new("web", 1, TARGET).with_endpoints([&pods[0], &pods[1]]);
    world.apply(&service);
    world.start_agent(1);
    Three {
        world,
        client: client_pod.client(),
        _client_pod: client_pod,
        pods,
        service,
    }
}

/// A connection that went to this server.
#[track_caller]
fn connected_to(client: &Client, protocol: Protocol, to: std::net::SocketAddr, server: &str) -> Connection {
    for _ in 0..200 {
        let mut connection = client.connect(protocol, to).unwrap();
        if connection.ask("who").unwrap().server == server {
            return connection;
        }
    }
    panic!("200 connections to {to}, and none went to {server}");
}

#[test]
fn new_connections_follow_a_change() {
    let Three {
        world,
        client,
        _client_pod,
        pods,
        service,
    } = three();
    for to in cluster_ips(&service) {
        assert_eq!(answerers(&client, Protocol::Tcp, to, 60), names([&pods[0], &pods[1]]));
    }
    world.apply(&service.clone().with_endpoints([&pods[1], &pods[2]]));
    for to in cluster_ips(&service) {
        for protocol in BOTH {
            becomes_answered_by(&client, protocol, to, "three");
            assert_eq!(answerers(&client, protocol, to, 60), names([&pods[1], &pods[2]]));
        }
    }
}

#[test]
fn connections_to_an_endpoint_that_stays_go_on() {
    let Three {
        world,
        client,
        _client_pod,
        pods,
        service,
    } = three();
    let to = cluster_ips(&service);
    let mut kept: Vec<_> = to
        .iter()
        .map(|to| connected_to(&client, Protocol::Tcp, *to, "two"))
        .collect();
    world.apply(&service.with_endpoints([&pods[1], &pods[2]]));
    for (connection, to) in kept.iter_mut().zip(to) {
        becomes_answered_by(&client, Protocol::Tcp, to, "three");
        for _ in 0..5 {
            assert_eq!(connection.ask("still you?").unwrap().server, "two");
        }
    }
}

#[test]
fn a_udp_client_of_an_endpoint_that_is_gone_is_sent_to_another() {
    let Three {
        world,
        client,
        _client_pod,
        pods,
        service,
    } = three();
    for to in cluster_ips(&service) {
        let mut connection = connected_to(&client, Protocol::Udp, to, "one");
        assert_eq!(connection.ask("still you?").unwrap().server, "one");
        world.apply(&service.clone().with_endpoints([&pods[1]]));
        let until = Instant::now() + patient(SOON);
        // The same socket, so the same addresses and ports.
        while connection.ask("who now?").map(|answer| answer.server) != Ok("two".into()) {
            assert!(
                Instant::now() < until,
                "the socket is still not served by the other endpoint"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        world.apply(&service);
        becomes_answered_by(&client, Protocol::Udp, to, "one");
    }
}

#[test]
fn a_terminating_endpoint_keeps_its_tcp_connections_and_gets_no_new_ones() {
    let Three {
        world,
        client,
        _client_pod,
        pods: _pods,
        service,
    } = three();
    let to = cluster_ips(&service);
    let mut kept: Vec<_> = to
        .iter()
        .map(|to| connected_to(&client, Protocol::Tcp, *to, "one"))
        .collect();
    let mut ending = service;
    ending.endpoints[0].ready = false;
    ending.endpoints[0].terminating = true;
    world.apply(&ending);
    for (connection, to) in kept.iter_mut().zip(to) {
        // Twenty times in a row "two" is not chance.
        let until = Instant::now() + patient(SOON);
        while answerers(&client, Protocol::Tcp, to, 20).contains("one") {
            assert!(
                Instant::now() < until,
                "new connections still go to the terminating endpoint"
            );
        }
        assert_eq!(connection.ask("still you?").unwrap().server, "one");
    }
}

#[test]
fn terminating_endpoints_serve_when_there_are_no_others() {
    let Three {
        world,
        client,
        _client_pod,
        pods,
        service,
    } = three();
    let mut ending = service.clone();
    for endpoint in &mut ending.endpoints {
        endpoint.ready = false;
        endpoint.terminating = true;
    }
    world.apply(&ending);
    // What is there to see is that nothing changes, so wait for something that does.
    let marker = Service::new("marker", 2, TARGET).with_endpoints([&pods[2]]);
    world.apply(&marker);
    becomes_answered_by(&client, Protocol::Tcp, cluster_ips(&marker)[0], "three");
    for to in cluster_ips(&service) {
        assert_eq!(answerers(&client, Protocol::Tcp, to, 60), names([&pods[0], &pods[1]]));
    }
}
