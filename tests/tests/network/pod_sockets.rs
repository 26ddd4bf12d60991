//! Sockets of pods, where they are translated too: what of a service is settled in the socket and what on the link, and
//! whose sockets are left alone.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use k8s_openapi::api::core::v1 as core;
use lb_tests::capture::Capture;
use lb_tests::client::{Client, Failure, Protocol};
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::{self, Manifest, Service};
use lb_tests::network::{Attachment, Pod};
use lb_tests::patience::patient;
use lb_tests::place::HostProcess;
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;
use socket2::Type;

use crate::fixture::{BOTH, BRIEFLY, SOON, World, cluster_ips, frontends, node_ports};

/// Why these are tests of one plane only.
const SOCKETS_OF_PODS: &str = "programs translate sockets of pods";

/// A pod that asks and one that answers, and what passes at the first one's link.
struct Scene {
    world: World,
    client: Client,
    pod: Pod,
    backend: Pod,
    link: Capture,
    service: Service,
}

fn scene() -> Scene {
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&backend]);
    world.apply(&service);
    Scene {
        client: pod.process(world.node1().cgroup()).unwrap(),
        link: Capture::start(pod.netns(), pod.link()).unwrap(),
        world,
        pod,
        backend,
        service,
    }
}

/// What a packet of the pod is sent to on its link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Sent {
    /// To the backend: the socket was translated.
    ToBackend,
    /// To what was dialled.
    ToFrontend,
}

impl Scene {
    /// Asks in every way that there is, by connections and by single datagrams, and says what each was on the link.
    /// Every question is answered, under the name that it was asked.
    #[track_caller]
    fn ask(&self, to: SocketAddr) -> BTreeMap<&'static str, Sent> {
        let mut all = BTreeMap::new();
        for protocol in BOTH {
            self.link.frames().unwrap();
            let mut connection = self.client.connect(protocol, to).unwrap();
            assert_eq!(connection.ask("who").unwrap().server, "backend", "{protocol} to {to}");
            assert_eq!(connection.peer().unwrap(), to, "{protocol}");
            let name = if protocol == Protocol::Tcp { "TCP" } else { "UDP" };
            all.insert(name, self.sent(to));
        }
        self.link.frames().unwrap();
        assert_eq!(self.client.ask_unconnected(to).unwrap().server, "backend", "{to}");
        all.insert("unconnected UDP", self.sent(to));
        all
    }

    #[track_caller]
    fn sent(&self, dialled: SocketAddr) -> Sent {
        let dialled = SocketAddr::new(dialled.ip().to_canonical(), dialled.port());
        let backend = self.backend.addresses().map(|ip| SocketAddr::new(ip, TARGET));
        let mut sent = None;
        let found = self.link.find(BRIEFLY, |packet| {
            sent = packet.ends().and_then(|(_, to)| match to {
                _ if to == dialled => Some(Sent::ToFrontend),
                _ if backend.contains(&to) => Some(Sent::ToBackend),
                _ => None,
            });
            sent.is_some()
        });
        assert!(found.unwrap().is_some(), "nothing was sent to {dialled}");
        sent.unwrap()
    }

    #[track_caller]
    fn all_are(&self, to: SocketAddr, expected: Sent) {
        let all = ["TCP", "UDP", "unconnected UDP"].map(|name| (name, expected));
        assert_eq!(self.ask(to), BTreeMap::from(all), "to {to}");
    }

    /// Writes the Service changed by `change`.
    fn change(&self, change: impl FnOnce(&mut core::ServiceSpec)) {
        let mut object = self.service.service();
        change(object.spec.as_mut().unwrap());
        self.world.source.apply(&[Manifest::new(&object).unwrap()]).unwrap();
    }

    fn mapped(&self) -> SocketAddr {
        match cluster_ips(&self.service)[0] {
            SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
            v6 @ SocketAddr::V6(_) => panic!("{v6} is not the IPv4 address"),
        }
    }
}

#[test]
fn sockets_of_pods_are_translated_where_that_is_asked_for() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    scene.world.start_agent_with(1, &["--socket-lb=all"]);
    let dialled = frontends(&scene.service, scene.world.node1()).chain([scene.mapped()]);
    for to in dialled {
        scene.all_are(to, Sent::ToBackend);
    }
}

#[test]
fn else_they_are_left_to_the_pods_link() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    for args in [&[] as &[&str], &["--socket-lb=host"], &["--socket-lb=off"]] {
        let mut scene = scene();
        scene.world.start_agent_with(1, args);
        for to in frontends(&scene.service, scene.world.node1()) {
            scene.all_are(to, Sent::ToFrontend);
        }
    }
}

/// Affinity goes by the client's address, which a socket need not have before it is connected.
#[test]
fn a_service_with_session_affinity_is_left_to_the_link() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    scene.change(|spec| spec.session_affinity = Some("ClientIP".into()));
    scene.world.start_agent_with(1, &["--socket-lb=all"]);
    for to in cluster_ips(&scene.service) {
        scene.all_are(to, Sent::ToFrontend);
    }
}

/// A packet is masqueraded for a mark on it.
#[test]
fn where_every_client_is_masqueraded_sockets_are_left_to_the_link() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    scene
        .world
        .start_agent_with(1, &["--socket-lb=all", "--masquerade-all"]);
    for to in cluster_ips(&scene.service) {
        scene.all_are(to, Sent::ToFrontend);
    }
}

/// Where addresses tell who is near, only a service for which that is all the same is settled in the socket.
#[test]
fn where_networks_of_pods_are_known_a_service_that_treats_clients_differently_is_left_to_the_link() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    scene.change(|spec| spec.external_traffic_policy = Some("Local".into()));
    let args = [
        "--socket-lb=all",
        "--detect-local-mode=ClusterCIDR",
        "--cluster-cidr=10.244.0.0/15,fd00:244::/31",
    ];
    scene.world.start_agent_with(1, &args);
    for to in cluster_ips(&scene.service) {
        scene.all_are(to, Sent::ToBackend);
    }
    for to in node_ports(&scene.service, scene.world.node1()) {
        scene.all_are(to, Sent::ToFrontend);
    }
}

#[test]
fn a_refusal_is_left_to_the_link_as_for_any_pod() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    scene.world.start_agent_with(1, &["--socket-lb=all"]);
    scene.world.apply(&scene.service.clone().with_endpoints([]));
    for to in cluster_ips(&scene.service) {
        for protocol in BOTH {
            crate::fixture::becomes(
                "a service without endpoints",
                || scene.client.ask(protocol, to),
                |outcome| *outcome == Err(Failure::Refused),
            );
            scene.link.frames().unwrap();
            assert_eq!(scene.client.ask(protocol, to), Err(Failure::Refused));
            assert_eq!(scene.sent(to), Sent::ToFrontend);
        }
    }
}

/// The loopback addresses of a pod are its own, also where those of the node serve NodePorts.
#[test]
fn a_pods_loopback_address_serves_no_node_port() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    scene
        .world
        .start_agent_with(1, &["--socket-lb=all", "--node-port-addresses=primary,localhost"]);
    let host = scene.world.node1().client().unwrap();
    for ip in ["127.0.0.1", "::1", "0.0.0.0", "::"].map(|ip| ip.parse::<IpAddr>().unwrap()) {
        let to = SocketAddr::new(ip, 30_001);
        for protocol in BOTH {
            assert_eq!(host.ask(protocol, to).unwrap().server, "backend", "{protocol} to {to}");
            assert_eq!(
                scene.client.ask(protocol, to),
                Err(Failure::Refused),
                "{protocol} to {to}"
            );
        }
    }
}

/// It needs no packet: the pod connects to its own address, and sees itself.
#[test]
fn a_pod_that_reaches_itself_does_so_within_itself() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    let _server = scene.pod.serve(TARGET).unwrap();
    let own = Service::new("own", 2, TARGET).with_endpoints([&scene.pod]);
    scene.world.apply(&own);
    scene.world.start_agent_with(1, &["--socket-lb=all"]);
    for to in cluster_ips(&own) {
        for protocol in BOTH {
            let mut connection = scene.client.connect(protocol, to).unwrap();
            let answer = connection.ask("who").unwrap();
            assert_eq!(answer.server, scene.pod.name());
            assert!(scene.pod.addresses().contains(&answer.seen.ip()), "{protocol} to {to}");
            assert_eq!(connection.peer().unwrap(), to);
        }
        assert_eq!(scene.client.ask_unconnected(to).unwrap().server, scene.pod.name());
    }
}

const UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";
/// As the kubelet names it with systemd, and a container's in it.
const CGROUP: &str = "kubepods.slice/kubepods-burstable.slice/\
                      kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-1.scope";
const ANNOTATION: &str = "lb-agent.io/socket-lb";

impl Scene {
    /// Says of the client's pod what its annotation says.
    fn annotate(&self, annotations: &[(&str, &str)]) {
        let object = manifests::pod(&self.pod, UID, annotations);
        self.world.source.apply(&[Manifest::new(&object).unwrap()]).unwrap();
    }

    /// How connections of a process leave the pod; all in the same way.
    #[track_caller]
    fn connections_of(&self, process: &HostProcess) -> Sent {
        let sent = [Type::STREAM, Type::DGRAM].map(|kind| {
            cluster_ips(&self.service).map(|to| {
                self.link.frames().unwrap();
                let socket = process.connect(kind, to).unwrap();
                socket.send(b"who\n").unwrap();
                self.sent(to)
            })
        });
        let first = sent[0][0];
        assert_eq!(sent, [[first; 2]; 2]);
        first
    }

    #[track_caller]
    fn connections_become(&self, process: &HostProcess, expected: Sent) {
        let until = Instant::now() + patient(SOON);
        loop {
            // While it changes they may differ.
            let socket = process.connect(Type::DGRAM, cluster_ips(&self.service)[0]).unwrap();
            self.link.frames().unwrap();
            socket.send(b"who").unwrap();
            if self.sent(cluster_ips(&self.service)[0]) == expected {
                break;
            }
            assert!(Instant::now() < until, "still not {expected:?}");
        }
        assert_eq!(self.connections_of(process), expected);
    }
}

#[test]
fn a_pod_that_opts_out_is_served_on_its_link() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    scene.world.start_agent_with(1, &["--socket-lb=all"]);
    // The object is there before the cgroup is.
    scene.annotate(&[(ANNOTATION, "off")]);
    let node = scene.world.node1();
    let cgroup = node.cgroup().below(CGROUP).unwrap();
    let process = HostProcess::start(scene.pod.netns(), &cgroup).unwrap();
    scene.connections_become(&process, Sent::ToFrontend);
    // It is the cgroup that tells, so one of another pod is another's.
    let other = node
        .cgroup()
        .below("kubepods.slice/kubepods-pod99999999_1111_2222_3333_444455556666.slice")
        .unwrap();
    let others = HostProcess::start(scene.pod.netns(), &other).unwrap();
    assert_eq!(scene.connections_of(&others), Sent::ToBackend);

    // Its mind changes.
    scene.annotate(&[]);
    scene.connections_become(&process, Sent::ToBackend);
    scene.annotate(&[(ANNOTATION, "off")]);
    scene.connections_become(&process, Sent::ToFrontend);
    drop((process, others));
}

#[test]
fn it_stays_left_alone_while_no_agent_runs_and_when_one_takes_over() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    scene.annotate(&[(ANNOTATION, "off")]);
    let cgroup = scene.world.node1().cgroup().below(CGROUP).unwrap();
    let process = HostProcess::start(scene.pod.netns(), &cgroup).unwrap();
    scene.world.start_agent_with(1, &["--socket-lb=all"]);
    scene.connections_become(&process, Sent::ToFrontend);
    scene.world.agents.pop().unwrap().kill().unwrap();
    assert_eq!(scene.connections_of(&process), Sent::ToFrontend);
    scene.world.start_agent_with(1, &["--socket-lb=all"]);
    assert_eq!(scene.connections_of(&process), Sent::ToFrontend);
    drop(process);
}

#[test]
fn an_annotation_that_says_nonsense_is_named_and_changes_nothing() {
    if other_than(Plane::Ebpf, SOCKETS_OF_PODS) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    scene.world.start_agent_with(1, &["--socket-lb=all"]);
    let cgroup = scene.world.node1().cgroup().below(CGROUP).unwrap();
    let process = HostProcess::start(scene.pod.netns(), &cgroup).unwrap();
    scene.annotate(&[(ANNOTATION, "maybe")]);
    let said = "metadata.annotations[lb-agent.io/socket-lb]: \"maybe\" is neither on nor off";
    let line = scene.world.agents[0].wait_for_log(SOON, said).unwrap();
    assert!(line.contains("WARN") && line.contains("Pod default/client"), "{line}");
    assert_eq!(scene.connections_of(&process), Sent::ToBackend);
    drop(process);
}
