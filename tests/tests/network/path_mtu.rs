//! Path MTU discovery through a service: the packet that is too big is one to a backend, and its sender knows
//! the frontend only.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lb_tests::client::{Client, Protocol};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod, plan};
use lb_tests::patience::patient;
use lb_tests::stage::TARGET;

use crate::fixture::{SOON, World, cluster_ips, node_ports};

/// Less than any link of a client or a backend takes, and no less than IPv6 has.
const NARROW: u32 = 1300;

struct Scene {
    world: World,
    clients: [Pod; 2],
    _backend: Pod,
    service: Service,
}

/// Clients on one node, the only backend on the other one, and a tunnel between them that takes less than the
/// links on either side.
fn scene() -> Scene {
    let mut world = World::new();
    let node = world.node1();
    let clients = [
        node.add_pod("bridge", Attachment::Bridge).unwrap(),
        node.add_pod("veth", Attachment::Veth).unwrap(),
    ];
    let backend = world.backend(2, "there", Attachment::Veth);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_080)
        .with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    let netlink = world.node1().netns().netlink().unwrap();
    let tunnel = netlink.link(plan::TUNNEL).unwrap();
    netlink.set_mtu(tunnel.index, NARROW).unwrap();
    Scene {
        world,
        clients,
        _backend: backend,
        service,
    }
}

/// The client learns what fits, and what does not fit at once gets there in parts.
#[track_caller]
fn learns(who: &str, client: &Client, to: SocketAddr) {
    let mut tcp = client.connect(Protocol::Tcp, to).unwrap();
    let big = "x".repeat(20_000);
    let answer = tcp.ask(&big);
    assert!(answer.is_ok(), "{who} to {to}: {answer:?}");

    let mut udp = client
        .with_timeout(Duration::from_millis(200))
        .connect(Protocol::Udp, to)
        .unwrap();
    let until = Instant::now() + patient(SOON);
    loop {
        // The first of them is lost, as it always is.
        let _ = udp.ask(&"x".repeat(1_380));
        let mtu = udp.path_mtu().unwrap();
        if mtu == NARROW {
            return;
        }
        assert!(Instant::now() < until, "{who} to {to}: the way takes {mtu}");
    }
}

#[test]
fn a_pod_learns_what_fits_on_the_way_to_a_backend_of_another_node() {
    let scene = scene();
    for pod in &scene.clients {
        for to in cluster_ips(&scene.service) {
            learns(pod.name(), &pod.client(), to);
        }
    }
}

#[test]
fn a_client_outside_learns_what_fits_on_the_way_from_the_node_to_a_backend() {
    let scene = scene();
    let outside = scene.world.network.outside().client();
    for to in node_ports(&scene.service, scene.world.node1()) {
        learns("outside", &outside, to);
    }
}
