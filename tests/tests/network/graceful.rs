//! What goes on the IPVS plane goes without breaking a connection: it takes no new one, and is gone with its last.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lb_tests::client::{Client, Connection, Failure, Protocol};
use lb_tests::interrupt::eventually;
use lb_tests::ipvs::{self, Table, Virtual};
use lb_tests::manifests::{Manifest, Service};
use lb_tests::network::{Attachment, Node, Pod};
use lb_tests::nft::frontend_maps;
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;

use crate::fixture::{
    BRIEFLY, SOON, World, addresses_of, answerers, becomes, becomes_answered_by, cluster_ips, frontends, is_silence,
    names, node_ports, service_cidr,
};

const REASON: &str = "the kernel's IPVS counts connections";
/// Longer than it takes the agent to look twice for connections.
const TWO_LOOKS: Duration = Duration::from_secs(5);

/// A Service with an endpoint on each node, and an agent on the first.
struct Scene {
    world: World,
    pod: Pod,
    here: Pod,
    there: Pod,
    service: Service,
}

impl Scene {
    fn new() -> Self {
        let mut world = World::new();
        let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
        let here = world.backend(1, "here", Attachment::Veth);
        let there = world.backend(2, "there", Attachment::Bridge);
        let service = Service::new("web", 1, TARGET)
            .at_node_port(30_001)
            .with_endpoints([&here, &there]);
        world.source.apply(&[service_cidr()]).unwrap();
        world.apply(&service);
        world.start_agent(1);
        Self {
            world,
            pod,
            here,
            there,
            service,
        }
    }

    fn node(&self) -> &Node {
        self.world.node1()
    }

    /// With endpoints of these pods only.
    fn change(&self, pods: &[&Pod]) {
        self.world
            .apply(&self.service.clone().with_endpoints(pods.iter().copied()));
    }

    /// A connection to each frontend that this pod answers.
    fn connections(&self, pod: &Pod) -> Vec<Connection> {
        let cluster = cluster_ips(&self.service).map(|to| (self.pod.client(), to));
        let outside = self.world.network.outside().client();
        let ports = node_ports(&self.service, self.node()).map(|to| (outside.clone(), to));
        let all = cluster.into_iter().chain(ports);
        all.map(|(client, to)| connection(&client, to, pod)).collect()
    }

    /// The virtual service of each frontend.
    fn virtuals(&self, protocol: ipvs::Protocol) -> Vec<Virtual> {
        let frontends = frontends(&self.service, self.node());
        frontends.map(|to| Virtual::Address(protocol, to)).collect()
    }

    /// Waits until the destination of a pod is as it should become at all frontends: its weight, or that it is gone.
    #[track_caller]
    fn becomes(&self, protocol: ipvs::Protocol, pod: &Pod, weight: Option<u32>) {
        let keys = self.virtuals(protocol);
        let what = format!("{} of {protocol} has the weight {weight:?}", pod.name());
        eventually(SOON, &what, || {
            let table = Table::of(self.node())?;
            let is_so = |key: &Virtual| {
                table
                    .0
                    .get(key)
                    .is_some_and(|served| weight_of(&served.destinations, pod) == weight)
            };
            Ok(keys.iter().all(is_so).then_some(()))
        })
        .unwrap();
    }
}

fn weight_of(destinations: &std::collections::BTreeMap<SocketAddr, u32>, pod: &Pod) -> Option<u32> {
    let mut of_pod = destinations
        .iter()
        .filter(|(address, _)| pod.addresses().contains(&address.ip()));
    of_pod.next().map(|(_, weight)| *weight)
}

/// A connection that this pod answers, and which ends by a reset: IPVS forgets it after 10 s, and not after the two
/// minutes that TCP waits.
#[track_caller]
fn connection(client: &Client, to: SocketAddr, pod: &Pod) -> Connection {
    for _ in 0..20 {
        let connection = client.connect_with(Protocol::Tcp, to, |socket| socket.set_linger(Some(Duration::ZERO)));
        let mut connection = connection.unwrap();
        if connection.ask("who").unwrap().server == pod.name() {
            return connection;
        }
    }
    panic!("{to} is never answered by {}", pod.name());
}

#[track_caller]
fn all_answered_by(connections: &mut [Connection], pod: &Pod) {
    for connection in connections {
        assert_eq!(connection.ask("still you?").unwrap().server, pod.name());
    }
}

#[test]
fn an_endpoint_that_goes_keeps_its_connections_and_is_gone_with_the_last() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let scene = Scene::new();
    let mut connections = scene.connections(&scene.there);
    scene.change(&[&scene.here]);
    scene.becomes(ipvs::Protocol::Tcp, &scene.there, Some(0));
    scene.becomes(ipvs::Protocol::Udp, &scene.there, None);
    all_answered_by(&mut connections, &scene.there);
    for to in cluster_ips(&scene.service) {
        assert_eq!(
            answerers(&scene.pod.client(), Protocol::Tcp, to, 5),
            names([&scene.here])
        );
    }
    std::thread::sleep(TWO_LOOKS);
    scene.becomes(ipvs::Protocol::Tcp, &scene.there, Some(0));
    all_answered_by(&mut connections, &scene.there);

    drop(connections);
    scene.becomes(ipvs::Protocol::Tcp, &scene.there, None);
    scene.becomes(ipvs::Protocol::Tcp, &scene.here, Some(1));
}

#[test]
fn an_endpoint_that_comes_back_before_it_is_gone_takes_connections_again() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let scene = Scene::new();
    let mut connections = scene.connections(&scene.there);
    scene.change(&[&scene.here]);
    scene.becomes(ipvs::Protocol::Tcp, &scene.there, Some(0));
    scene.change(&[&scene.here, &scene.there]);
    scene.becomes(ipvs::Protocol::Tcp, &scene.there, Some(1));
    all_answered_by(&mut connections, &scene.there);
    // Without connections it is nothing that is to go.
    drop(connections);
    std::thread::sleep(Duration::from_secs(12) + TWO_LOOKS);
    scene.becomes(ipvs::Protocol::Tcp, &scene.there, Some(1));
    for to in cluster_ips(&scene.service) {
        let both = names([&scene.here, &scene.there]);
        assert_eq!(answerers(&scene.pod.client(), Protocol::Tcp, to, 4), both);
    }
}

#[test]
fn affinity_to_an_endpoint_ends_when_it_goes_and_its_connections_do_not() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let mut scene = Scene::new();
    let sticky = Service::new("sticky", 2, TARGET).with_endpoints([&scene.here, &scene.there]);
    let mut object = sticky.service();
    object.spec.as_mut().unwrap().session_affinity = Some("ClientIP".into());
    let objects: Vec<Manifest> = [Manifest::new(&object).unwrap()]
        .into_iter()
        .chain(sticky.slice_manifests().unwrap())
        .collect();
    scene.world.source.apply(&objects).unwrap();
    scene.service = sticky;
    let client = scene.pod.client();
    for to in cluster_ips(&scene.service) {
        becomes(&format!("{to}"), || client.ask(Protocol::Tcp, to), Result::is_ok);
        let bound = answerers(&client, Protocol::Tcp, to, 6);
        let (left, other) = match bound == names([&scene.here]) {
            true => (&scene.here, &scene.there),
            false => (&scene.there, &scene.here),
        };
        assert_eq!(bound, names([left]), "one client, one endpoint");
        let mut kept = connection(&client, to, left);
        scene
            .world
            .source
            .apply(&scene.service.clone().with_endpoints([other]).slice_manifests().unwrap())
            .unwrap();
        becomes_answered_by(&client, Protocol::Tcp, to, other.name());
        assert_eq!(answerers(&client, Protocol::Tcp, to, 6), names([other]));
        assert_eq!(kept.ask("still you?").unwrap().server, left.name());
        scene
            .world
            .source
            .apply(&scene.service.slice_manifests().unwrap())
            .unwrap();
    }
}

#[test]
fn datagrams_of_a_socket_reach_another_endpoint_when_theirs_goes() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let scene = Scene::new();
    let clients = [
        (scene.pod.client(), cluster_ips(&scene.service)),
        (
            scene.world.network.outside().client(),
            node_ports(&scene.service, scene.node()),
        ),
    ];
    for (client, addresses) in clients {
        for to in addresses {
            let hasty = client.with_timeout(BRIEFLY);
            let mut socket = hasty.connect(Protocol::Udp, to).unwrap();
            let mut server = String::new();
            becomes(
                &format!("{to}"),
                || socket.ask("who"),
                |outcome| {
                    server = outcome.as_ref().map(|answer| answer.server.clone()).unwrap_or_default();
                    outcome.is_ok()
                },
            );
            let (stays, goes) = match server == scene.here.name() {
                true => (&scene.there, &scene.here),
                false => (&scene.here, &scene.there),
            };
            scene.change(&[stays]);
            scene.becomes(ipvs::Protocol::Udp, goes, None);
            let is_other =
                |outcome: &lb_tests::client::Outcome| matches!(outcome, Ok(answer) if answer.server == stays.name());
            becomes(
                &format!("{to} without {}", goes.name()),
                || socket.ask("and now?"),
                is_other,
            );
            scene.change(&[&scene.here, &scene.there]);
            scene.becomes(ipvs::Protocol::Udp, goes, Some(1));
        }
    }
}

/// What a node has of a Service.
#[derive(PartialEq, Eq, Debug)]
struct Traces {
    virtuals: usize,
    rows: usize,
    addresses: BTreeSet<IpAddr>,
}

impl Traces {
    fn of(scene: &Scene) -> anyhow::Result<Self> {
        let table = Table::of(scene.node())?;
        let maps = frontend_maps(scene.node().netns(), "inet lb-agent-ipvs")?;
        let rows = maps.iter().filter(|(name, _)| name.starts_with("frontends"));
        Ok(Self {
            virtuals: table.0.len(),
            rows: rows.map(|(_, rows)| rows.len()).sum(),
            addresses: addresses_of(scene.node(), "lb-ipvs0").unwrap(),
        })
    }
}

#[test]
fn a_service_that_goes_keeps_its_connections_and_takes_no_other_and_is_gone_with_the_last() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let scene = Scene::new();
    let mut connections = scene.connections(&scene.there);
    connections.extend(scene.connections(&scene.here));
    scene.world.delete(&scene.service);
    scene.becomes(ipvs::Protocol::Tcp, &scene.there, Some(0));
    scene.becomes(ipvs::Protocol::Tcp, &scene.here, Some(0));
    // One of TCP for each frontend; of UDP there is nothing to wait for.
    let addresses: BTreeSet<IpAddr> = scene.service.cluster_ips.into();
    let leaving = Traces {
        virtuals: 4,
        rows: 4,
        addresses: addresses.clone(),
    };
    std::thread::sleep(TWO_LOOKS);
    assert_eq!(Traces::of(&scene).unwrap(), leaving);
    let (there, here) = connections.split_at_mut(4);
    all_answered_by(there, &scene.there);
    all_answered_by(here, &scene.here);
    let pod = scene.pod.client().with_timeout(BRIEFLY);
    for to in cluster_ips(&scene.service) {
        let outcome = pod.ask(Protocol::Tcp, to);
        assert!(is_silence(&outcome), "{to}: {outcome:?}");
    }
    for to in node_ports(&scene.service, scene.node()) {
        let outcome = scene.world.network.outside().client().ask(Protocol::Tcp, to);
        assert_eq!(outcome, Err(Failure::Refused), "{to}");
    }

    drop(connections);
    let nothing = Traces {
        virtuals: 0,
        rows: 0,
        addresses: BTreeSet::new(),
    };
    eventually(SOON, "nothing is left of the Service", || {
        Ok((Traces::of(&scene)? == nothing).then_some(()))
    })
    .unwrap();
}
