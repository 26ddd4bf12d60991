//! Services whose backends go, come back, or are others by then: nobody keeps to what was, and nobody keeps
//! to a "no" either. The client never changes its socket, so addresses and ports are the same all along.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use lb_tests::client::{Client, Connection, Failure, Outcome, Protocol};
use lb_tests::manifests::{Endpoint, Service};
use lb_tests::network::{Attachment, Pod};
use lb_tests::patience::patient;
use lb_tests::server::Server;
use lb_tests::stage::{Family, TARGET};

use crate::fixture::{SOON, World, becomes, becomes_answered_by, cluster_ip, cluster_ips, host_that_is_served};

/// A client pod, a process of the node, two pods with servers, and a Service of the first one.
struct Scene {
    world: World,
    host: Option<Client>,
    client: Pod,
    pods: [Pod; 2],
    servers: [Server; 2],
    service: Service,
}

fn scene() -> Scene {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let pods = [
        world.network.nodes()[0].add_pod("one", Attachment::Bridge).unwrap(),
        world.network.nodes()[1].add_pod("two", Attachment::Veth).unwrap(),
    ];
    let servers = pods.each_ref().map(|pod| pod.serve(TARGET).unwrap());
    let service = Service::new("web", 1, TARGET).with_endpoints([&pods[0]]);
    world.apply(&service);
    world.start_agent(1);
    Scene {
        host: host_that_is_served(world.node1()),
        world,
        client,
        pods,
        servers,
        service,
    }
}

/// Asks over one connection until that server answers.
#[track_caller]
fn comes_to(connection: &mut Connection, server: &str) {
    let is_server = |outcome: &Outcome| matches!(outcome, Ok(answer) if answer.server == server);
    becomes(server, || connection.ask("who now?"), is_server);
}

/// Asks over one connection until it is refused.
#[track_caller]
fn comes_to_be_refused(connection: &mut Connection) {
    let is_refused = |outcome: &Outcome| *outcome == Err(Failure::Refused);
    becomes("refused", || connection.ask("anybody?"), is_refused);
}

#[test]
fn a_udp_client_of_a_service_that_is_scaled_to_zero_is_refused_and_served_again_when_it_is_back() {
    let scene = scene();
    for to in cluster_ips(&scene.service) {
        let mut connection = scene.client.client().connect(Protocol::Udp, to).unwrap();
        comes_to(&mut connection, "one");
        scene.world.apply(&scene.service.clone().with_endpoints([]));
        comes_to_be_refused(&mut connection);
        scene
            .world
            .apply(&scene.service.clone().with_endpoints([&scene.pods[1]]));
        comes_to(&mut connection, "two");
        scene.world.apply(&scene.service);
        comes_to(&mut connection, "one");
    }
}

#[test]
fn a_udp_client_follows_a_service_that_is_deleted_and_made_again() {
    let scene = scene();
    for to in cluster_ips(&scene.service) {
        let mut connection = scene.client.client().connect(Protocol::Udp, to).unwrap();
        comes_to(&mut connection, "one");
        scene.world.delete(&scene.service);
        let until = Instant::now() + patient(SOON);
        while connection.ask("still there?").is_ok() {
            assert!(Instant::now() < until, "a Service that is deleted is still served");
        }
        scene
            .world
            .apply(&scene.service.clone().with_endpoints([&scene.pods[1]]));
        comes_to(&mut connection, "two");
        scene.world.apply(&scene.service);
        comes_to(&mut connection, "one");
    }
}

#[test]
fn that_there_was_no_service_is_forgotten_when_there_is_one() {
    let scene = scene();
    for (number, family) in [(2, Family::V4), (3, Family::V6)] {
        let later = Service::new(&format!("later-{number}"), number, TARGET).with_endpoints([&scene.pods[0]]);
        // To nobody at first: whatever becomes of that, the same socket is served once there is a Service.
        let pod = scene.client.client().with_timeout(Duration::from_millis(300));
        let to = cluster_ip(&later, family);
        let mut connection = pod.connect(Protocol::Udp, to).unwrap();
        assert!(connection.ask("anybody?").is_err());
        scene.world.apply(&later);
        comes_to(&mut connection, "one");
    }
}

#[test]
fn one_port_of_a_client_dials_again_after_its_backend_is_gone() {
    let scene = scene();
    let pod = scene.client.client();
    for to in cluster_ips(&scene.service) {
        becomes_answered_by(&pod, Protocol::Tcp, to, "one");
        scene
            .world
            .apply(&scene.service.clone().with_endpoints([&scene.pods[1]]));
        becomes_answered_by(&pod, Protocol::Tcp, to, "two");
        scene.world.apply(&scene.service);
        becomes_answered_by(&pod, Protocol::Tcp, to, "one");
    }
}

#[test]
fn an_endpoint_that_is_not_ready_any_more_gets_no_datagrams_from_those_it_had() {
    let scene = scene();
    for to in cluster_ips(&scene.service) {
        let mut connection = scene.client.client().connect(Protocol::Udp, to).unwrap();
        comes_to(&mut connection, "one");
        let mut unready = scene.service.clone().with_endpoints([&scene.pods[0], &scene.pods[1]]);
        unready.endpoints[0].ready = false;
        unready.endpoints[0].serving = false;
        scene.world.apply(&unready);
        comes_to(&mut connection, "two");
        // Terminating, and still serving: TCP may finish, datagrams go elsewhere.
        scene.world.apply(&scene.service);
        comes_to(&mut connection, "one");
        let terminating = Endpoint {
            ready: false,
            terminating: true,
            ..Endpoint::from(&scene.pods[0])
        };
        let mut both = scene.service.clone().with_endpoints([&scene.pods[1]]);
        both.endpoints.push(terminating);
        scene.world.apply(&both);
        comes_to(&mut connection, "two");
        scene.world.apply(&scene.service);
    }
}

/// Sends until `server` has got another ten datagrams. Nothing is read: no answer can tell the sender anything.
#[track_caller]
fn reaches(socket: &UdpSocket, to: SocketAddr, server: &Server) {
    let until = Instant::now() + patient(SOON);
    let enough = server.counts().udp() + 10;
    while server.counts().udp() < enough {
        assert!(Instant::now() < until, "no datagrams to {to} come to {}", server.name());
        // In between, an unreachable port may be told of an earlier datagram.
        let _ = socket.send_to(b"?", to);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_sender_that_never_reads_is_sent_on_to_what_serves() {
    let scene = scene();
    for client in [scene.client.client()].iter().chain(&scene.host) {
        for to in cluster_ips(&scene.service) {
            let socket = client.datagrams(to).unwrap();
            reaches(&socket, to, &scene.servers[0]);
            scene
                .world
                .apply(&scene.service.clone().with_endpoints([&scene.pods[1]]));
            reaches(&socket, to, &scene.servers[1]);
            scene.world.apply(&scene.service.clone().with_endpoints([]));
            scene.world.apply(&scene.service);
            reaches(&socket, to, &scene.servers[0]);
        }
    }
}
