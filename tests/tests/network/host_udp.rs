//! Connected UDP sockets of the host, and of pods where theirs are translated, leave a backend that is gone. The kernel
//! asks no program when one sends, so there it is ended.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use lb_tests::client::{Client, Connection, Failure, Protocol};
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod};
use lb_tests::patience::patient;
use lb_tests::plane::{self, Plane, other_than};
use lb_tests::server::Reply;
use lb_tests::stage::TARGET;

use crate::fixture::{SOON, World, becomes_answered_by, cluster_ips, frontends};

/// Longer than until the agent looks at the sockets a second time.
const AGAIN: Duration = Duration::from_secs(2);

/// Whose sockets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Process {
    Host,
    Pod,
}

struct Running {
    world: World,
    client: Client,
    /// Of the client.
    _pod: Pod,
    pods: [Pod; 2],
    service: Service,
}

/// Two servers of which the first is the only endpoint.
fn running(process: Process) -> Running {
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let pods = [
        world.backend(1, "one", Attachment::Veth),
        world.backend(2, "two", Attachment::Bridge),
    ];
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&pods[0]]);
    world.apply(&service);
    let node = world.network.node1();
    let (client, args): (_, &[&str]) = match process {
        Process::Host => (node.client().unwrap(), &[]),
        Process::Pod => (pod.process(node.cgroup()).unwrap(), &["--socket-lb=all"]),
    };
    world.start_agent_with(1, args);
    Running {
        world,
        client,
        _pod: pod,
        pods,
        service,
    }
}

/// Where a process may dial the service, also by the IPv4 address from a socket of IPv6.
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
fn connected(client: &Client, to: impl IntoIterator<Item = SocketAddr>, server: &str) -> Vec<Connection> {
    let connect = |to| {
        let mut connection = client.connect(Protocol::Udp, to).unwrap();
        assert_eq!(connection.ask("who").unwrap().server, server, "{to}");
        connection
    };
    to.into_iter().map(connect).collect()
}

/// The sockets of a process that dials the pod itself.
fn direct(running: &Running) -> Vec<Connection> {
    let to = running.pods[0].addresses().map(|ip| SocketAddr::new(ip, TARGET));
    connected(&running.client, to, "one")
}

/// Waits until the sockets have left the pod that they were connected to, which answers until then.
#[track_caller]
fn leave(connections: &mut [Connection]) {
    let until = Instant::now() + patient(SOON);
    for connection in connections {
        while !has_left(connection) {
            assert!(
                Instant::now() < until,
                "the socket still sends to the backend that is gone"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Where the socket itself was translated, it is ended. Where each of its packets is, it goes on with the next pod.
#[track_caller]
fn has_left(connection: &mut Connection) -> bool {
    match connection.ask("still you?") {
        Ok(answer) if plane::is(Plane::Ipvs) => answer.server == "two",
        Ok(answer) => {
            assert_eq!(answer.server, "one");
            false
        }
        // What was on its way to the pod that is gone.
        Err(_) if plane::is(Plane::Ipvs) => false,
        // ECONNABORTED from a read, EDESTADDRREQ from a write.
        Err(Failure::Reset) => true,
        Err(Failure::Other(text)) if text.contains("os error 89") => true,
        Err(failure) => panic!("{failure}"),
    }
}

/// Who answers a socket that is not connected, under the name that it called.
#[track_caller]
fn answerer(socket: &std::net::UdpSocket, to: SocketAddr) -> String {
    socket.send_to(b"who", to).unwrap();
    let mut buffer = [0; 1024];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(from, to);
    serde_json::from_slice::<Reply>(&buffer[..length]).unwrap().server
}

#[track_caller]
fn still_answer(connections: &mut [Connection], server: &str) {
    for connection in connections {
        assert_eq!(connection.ask("still you?").unwrap().server, server);
    }
}

#[test]
fn a_socket_whose_backend_is_gone_is_ended_and_dials_another() {
    sockets_to_a_backend_that_goes(Process::Host);
}

#[test]
fn one_of_a_pod_too_where_those_are_translated() {
    if other_than(Plane::Ebpf, "programs translate sockets of pods") {
        return;
    }
    sockets_to_a_backend_that_goes(Process::Pod);
}

fn sockets_to_a_backend_that_goes(process: Process) {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let running = running(process);
    let dialled = dialled(&running);
    let mut connections = connected(&running.client, dialled.clone(), "one");
    let mut direct = direct(&running);
    // One that is not connected stays, and is sent elsewhere.
    let cluster_ip = cluster_ips(&running.service)[0];
    let unconnected = running.client.datagrams(cluster_ip).unwrap();
    assert_eq!(answerer(&unconnected, cluster_ip), "one");
    running
        .world
        .apply(&running.service.clone().with_endpoints([&running.pods[1]]));
    leave(&mut connections);
    for to in dialled {
        becomes_answered_by(&running.client, Protocol::Udp, to, "two");
    }
    assert_eq!(answerer(&unconnected, cluster_ip), "two");
    // Who has dialled the pod itself is not concerned, at the second look neither.
    thread::sleep(AGAIN);
    still_answer(&mut direct, "one");
}

#[test]
fn only_sockets_to_a_backend_that_drains_leave() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let running = running(Process::Host);
    let to = cluster_ips(&running.service);
    let mut ending = connected(&running.client, to, "one");
    let mut service = running
        .service
        .clone()
        .with_endpoints([&running.pods[0], &running.pods[1]]);
    running.world.apply(&service);
    for to in to {
        becomes_answered_by(&running.client, Protocol::Udp, to, "two");
    }
    service.endpoints[0].ready = false;
    service.endpoints[0].terminating = true;
    running.world.apply(&service);
    leave(&mut ending);
    let mut staying = connected(&running.client, to, "two");

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
    let mut running = running(Process::Host);
    let to = cluster_ips(&running.service);
    let mut connections = connected(&running.client, to, "one");
    let mut direct = direct(&running);
    running.world.agents.pop().unwrap().kill().unwrap();
    running
        .world
        .apply(&running.service.clone().with_endpoints([&running.pods[1]]));
    still_answer(&mut connections, "one");
    running.world.start_agent(1);
    leave(&mut connections);
    still_answer(&mut direct, "one");
}
