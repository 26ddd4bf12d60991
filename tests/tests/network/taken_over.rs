//! What a kube-proxy in its IPVS mode left on a node: ours when we are told so, and else nothing of it is touched.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use lb_tests::client::{Connection, Protocol};
use lb_tests::interrupt::eventually;
use lb_tests::ipvs::{self, Table, Virtual};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node, Pod};
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;

use crate::fixture::{SOON, World, addresses_of, answerers, becomes_answered_by, cluster_ips, frontends, names, run};

const REASON: &str = "kube-proxy's IPVS mode is its own too";
const LINK: &str = "kube-ipvs0";

/// A node that kube-proxy has served until now.
struct Scene {
    world: World,
    pod: Pod,
    backend: Pod,
    /// One that there is still.
    stays: Service,
    /// One that is gone, and of which it heard no more.
    gone: Service,
}

impl Scene {
    fn new() -> Self {
        let mut world = World::new();
        let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
        let backend = world.backend(1, "backend", Attachment::Bridge);
        let service = |name, number| Service::new(name, number, TARGET).with_endpoints([&backend]);
        let (stays, gone) = (service("stays", 1).at_node_port(30_001), service("gone", 2));
        world.apply(&stays);
        let scene = Self {
            world,
            pod,
            backend,
            stays,
            gone,
        };
        scene.proxy();
        scene
    }

    fn node(&self) -> &Node {
        self.world.node1()
    }

    /// What kube-proxy makes: a link that is down and has the addresses, and a virtual service for each frontend.
    fn proxy(&self) {
        run(self.node(), &format!("ip link add {LINK} type dummy"));
        let mut rules = String::new();
        for service in [&self.stays, &self.gone] {
            for ip in service.cluster_ips {
                let length = if ip.is_ipv4() { 32 } else { 128 };
                run(self.node(), &format!("ip address add {ip}/{length} dev {LINK}"));
            }
            let node_ports = service.ports[0].node_port.is_some();
            let all = cluster_ips(service).into_iter();
            let of_node = node_ports.then(|| crate::fixture::node_ports(service, self.node()));
            for to in all.chain(of_node.into_iter().flatten()) {
                let backend = self.backend.addresses().into_iter();
                let mut of_family = backend.filter(|ip| ip.is_ipv4() == to.is_ipv4());
                let backend = std::net::SocketAddr::new(of_family.next().unwrap(), TARGET);
                for flag in ["-t", "-u"] {
                    writeln!(rules, "-A {flag} {to} -s rr\n-a {flag} {to} -r {backend} -m -w 1").unwrap();
                }
            }
        }
        ipvs::restore(self.node(), &rules).unwrap();
    }

    /// One to each frontend of the Service that stays.
    fn connections(&self) -> Vec<Connection> {
        let connect = |to| {
            let mut connection = self.pod.client().connect(Protocol::Tcp, to).unwrap();
            assert_eq!(connection.ask("who").unwrap().server, "backend");
            connection
        };
        frontends(&self.stays, self.node()).map(connect).collect()
    }

    fn virtuals(&self, service: &Service) -> Vec<Virtual> {
        let both = |to| [ipvs::Protocol::Tcp, ipvs::Protocol::Udp].map(|protocol| Virtual::Address(protocol, to));
        cluster_ips(service).into_iter().flat_map(both).collect()
    }
}

#[test]
fn what_kube_proxy_left_becomes_ours_and_its_connections_go_on() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let mut scene = Scene::new();
    let mut connections = scene.connections();
    let of_those_that_stay = |scene: &Scene| {
        let mut given = ipvs::given(scene.node()).unwrap();
        let gone = scene.virtuals(&scene.gone);
        given.retain(|(key, _), _| !gone.contains(key));
        given
    };
    let given = of_those_that_stay(&scene);
    assert!(given.values().any(|count| *count > 0));
    scene.world.start_agent_with(1, &["--ipvs-take-over"]);
    assert_eq!(addresses_of(scene.node(), LINK), None);
    // None was deleted and added anew.
    assert_eq!(of_those_that_stay(&scene), given);
    for connection in &mut connections {
        assert_eq!(connection.ask("still you?").unwrap().server, "backend");
    }
    for to in frontends(&scene.stays, scene.node()) {
        for protocol in crate::fixture::BOTH {
            assert_eq!(answerers(&scene.pod.client(), protocol, to, 2), names([&scene.backend]));
        }
    }
    eventually(SOON, "what nobody wants is gone", || {
        let table = Table::of(scene.node())?;
        let gone = scene.virtuals(&scene.gone);
        Ok((!gone.iter().any(|key| table.0.contains_key(key))).then_some(()))
    })
    .unwrap();
    let addresses: Vec<IpAddr> = addresses_of(scene.node(), "lb-ipvs0").unwrap().into_iter().collect();
    assert_eq!(addresses, scene.stays.cluster_ips);
    assert!(!scene.world.agents[0].log().unwrap().contains("held by somebody else"));
}

#[test]
fn unless_told_so_nothing_of_kube_proxy_is_touched_and_its_frontends_are_named() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let mut scene = Scene::new();
    let ours = Service::new("ours", 3, TARGET).with_endpoints([&scene.backend]);
    scene.world.apply(&ours);
    let mut connections = scene.connections();
    let addresses = addresses_of(scene.node(), LINK);
    let theirs: BTreeMap<_, _> = Table::of(scene.node()).unwrap().0;
    let is_untouched = |scene: &Scene, when: &str| {
        assert_eq!(addresses_of(scene.node(), LINK), addresses, "{when}");
        let mut table = Table::of(scene.node()).unwrap().0;
        table.retain(|key, _| !scene.virtuals(&ours).contains(key));
        assert_eq!(table, theirs, "{when}");
    };
    scene.world.start_agent(1);
    let named = format!(
        "IPVS service {}/TCP is held by somebody else",
        cluster_ips(&scene.stays)[0]
    );
    scene.world.agents[0].wait_for_log(SOON, &named).unwrap();
    is_untouched(&scene, "after the start");
    for to in cluster_ips(&ours) {
        becomes_answered_by(&scene.pod.client(), Protocol::Tcp, to, "backend");
    }
    for connection in &mut connections {
        assert_eq!(connection.ask("still you?").unwrap().server, "backend");
    }
    scene.world.agents.pop().unwrap().stop().unwrap();
    let output = lb_tests::agent::cleanup(scene.node()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    is_untouched(&scene, "after cleanup");
}
