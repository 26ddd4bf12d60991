//! Connected UDP sockets of the host: the kernel asks nobody when one sends, so one whose backend is gone is ended.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use lb_tests::client::{Client, Connection, Failure, Protocol};
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod};
use lb_tests::patience::patient;
use lb_tests::stage::TARGET;

use crate::fixture::{SOON, World, becomes_answered_by, cluster_ips, frontends};

/// Longer than until the agent looks at the sockets a second time.
const AGAIN: Duration = Duration::from_secs(2);

struct Running {
    world: World,
    host: Client,
    pods: [Pod; 2],
    service: Service,
}

/// Two servers of which the first is the only endpoint.
fn running() -> Running {
    let mut world = World::new();
    let pods = [
        world.backend(1, "one", Attachment::Veth),
        world.backend(2, "two", Attachment::Bridge),
    ];
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&pods[0]]);
    world.apply(&service);
    world.start_agent(1);
    let host = world.node1().client().unwrap();
    Running {
        world,
        host,
        pods,
        service,
    }
}

/// Where a process of the host may dial the service, also by the IPv4 address from a socket of IPv6.
fn dialled(running: &Running) -> Vec<SocketAddr> {
    let mut all: Vec<_> = frontends(&running.service, running.world.node1()).collect();
    if let IpAddr::V4(v4) = running.service.cluster_ips[0] {
        all.push(SocketAddr::new(
            v4.to_ipv6_mapped().into(),
            running.service.ports[0].port,
        ));
    }
    assert_eq!(all.len(), 5);
    all
}

/// Connected sockets that have an answer already.
#[track_caller]
fn connected(host: &Client, to: impl IntoIterator<Item = SocketAddr>, server: &str) -> Vec<Connection> {
    let connect = |to| {
        let mut connection = host.connect(Protocol::Udp, to).unwrap();
        assert_eq!(connection.ask("who").unwrap().server, server, "{to}");
        connection
    };
    to.into_iter().map(connect).collect()
}

/// The sockets of a process that dials the pod itself.
fn direct(running: &Running) -> Vec<Connection> {
    let to = running.pods[0].addresses().map(|ip| SocketAddr::new(ip, TARGET));
    connected(&running.host, to, "one")
}

/// Waits until the sockets are ended; until then the pod that they are connected to answers.
#[track_caller]
fn are_ended(connections: &mut [Connection]) {
    let until = Instant::now() + patient(SOON);
    for connection in connections {
        while !is_ended(connection) {
            assert!(
                Instant::now() < until,
                "the socket still sends to the backend that is gone"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[track_caller]
fn is_ended(connection: &mut Connection) -> bool {
    match connection.ask("still you?") {
        Ok(answer) => {
            assert_eq!(answer.server, "one");
            false
        }
        // ECONNABORTED from a read, EDESTADDRREQ from a write.
        Err(Failure::Reset) => true,
        Err(Failure::Other(text)) if text.contains("os error 89") => true,
        Err(failure) => panic!("{failure}"),
    }
}

#[track_caller]
fn still_answer(connections: &mut [Connection], server: &str) {
    for connection in connections {
        assert_eq!(connection.ask("still you?").unwrap().server, server);
    }
}

#[test]
fn a_socket_whose_backend_is_gone_is_ended_and_dials_another() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let running = running();
    let dialled = dialled(&running);
    let mut connections = connected(&running.host, dialled.clone(), "one");
    let mut direct = direct(&running);
    running
        .world
        .apply(&running.service.clone().with_endpoints([&running.pods[1]]));
    are_ended(&mut connections);
    for to in dialled {
        becomes_answered_by(&running.host, Protocol::Udp, to, "two");
    }
    // Who has dialled the pod itself is not concerned, at the second look neither.
    thread::sleep(AGAIN);
    still_answer(&mut direct, "one");
}

#[test]
fn only_sockets_to_a_backend_that_drains_are_ended() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let running = running();
    let to = cluster_ips(&running.service);
    let mut ending = connected(&running.host, to, "one");
    let mut service = running
        .service
        .clone()
        .with_endpoints([&running.pods[0], &running.pods[1]]);
    running.world.apply(&service);
    for to in to {
        becomes_answered_by(&running.host, Protocol::Udp, to, "two");
    }
    service.endpoints[0].ready = false;
    service.endpoints[0].terminating = true;
    running.world.apply(&service);
    are_ended(&mut ending);
    let mut staying = connected(&running.host, to, "two");

    // It goes altogether.
    running.world.apply(&service.with_endpoints([&running.pods[1]]));
    thread::sleep(AGAIN);
    still_answer(&mut staying, "two");
}

#[test]
fn what_went_while_no_agent_ran_is_made_up_for() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let mut running = running();
    let to = cluster_ips(&running.service);
    let mut connections = connected(&running.host, to, "one");
    let mut direct = direct(&running);
    running.world.agents.pop().unwrap().kill().unwrap();
    running
        .world
        .apply(&running.service.clone().with_endpoints([&running.pods[1]]));
    still_answer(&mut connections, "one");
    running.world.start_agent(1);
    are_ended(&mut connections);
    still_answer(&mut direct, "one");
}
