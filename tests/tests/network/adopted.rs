//! What IPVS holds already when an agent of the IPVS plane starts: what an earlier agent left is gone on with, and what
//! is somebody else's stays as it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use lb_tests::agent;
use lb_tests::client::Protocol;
use lb_tests::interrupt::eventually;
use lb_tests::ipvs::{self, Served, Table, Virtual};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node, Pod};
use lb_tests::nft::frontend_maps;
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;

use crate::fixture::{SOON, World, answerers, becomes_answered_by, cluster_ips, frontends, names, run};

const REASON: &str = "it finds what is in the kernel's IPVS";
const TABLE: &str = "inet lb-agent-ipvs";
/// How often the agent looks whether everything is there still, and more.
const VERIFY: Duration = Duration::from_secs(40);

/// Virtual services as keepalived makes them: one by an address that is none of ours, one by a mark.
const THEIRS: &str = "-A -t 198.51.100.7:80 -s wlc -p 60\n\
                      -a -t 198.51.100.7:80 -r 192.0.2.8:8080 -m -w 3\n\
                      -a -t 198.51.100.7:80 -r 192.0.2.9:8080 -m -w 0\n\
                      -A -f 7 -s wrr\n\
                      -a -f 7 -r 192.0.2.8:8080 -m -w 2\n";

/// Those of them that are there, as they are.
fn theirs(node: &Node) -> BTreeMap<Virtual, Served> {
    let mut table = Table::of(node).unwrap();
    let address = Virtual::Address(ipvs::Protocol::Tcp, "198.51.100.7:80".parse().unwrap());
    let mark = Virtual::Mark { mark: 7, is_v6: false };
    table.0.retain(|key, _| *key == address || *key == mark);
    table.0
}

/// Three Services on two backends.
struct Scene {
    world: World,
    pod: Pod,
    backends: [Pod; 2],
    services: [Service; 3],
}

impl Scene {
    /// No agent runs yet.
    fn new() -> Self {
        let mut world = World::new();
        let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
        let backends = [
            world.backend(1, "here", Attachment::Veth),
            world.backend(2, "there", Attachment::Bridge),
        ];
        let services = [("same", 1), ("changed", 2), ("spoilt", 3)].map(|(name, number)| {
            let service = Service::new(name, number, TARGET).at_node_port(30_000 + u16::from(number));
            service.with_endpoints(&backends)
        });
        for service in &services {
            world.apply(service);
        }
        Self {
            world,
            pod,
            backends,
            services,
        }
    }

    fn node(&self) -> &Node {
        self.world.node1()
    }

    fn kill(&mut self) {
        self.world.agents.pop().unwrap().kill().unwrap();
    }

    #[track_caller]
    fn is_served(&self, service: &Service) {
        for to in cluster_ips(service) {
            for pod in &self.backends {
                becomes_answered_by(&self.pod.client(), Protocol::Tcp, to, pod.name());
            }
        }
    }
}

/// What of a table is of one Service.
fn of_service<T: Clone>(
    all: &BTreeMap<(Virtual, SocketAddr), T>,
    service: &Service,
    node: &Node,
) -> BTreeMap<(Virtual, SocketAddr), T> {
    let own: Vec<SocketAddr> = frontends(service, node).collect();
    let is_own = |key: &Virtual| matches!(key, Virtual::Address(_, to) if own.contains(to));
    let of = all.iter().filter(|((key, _), _)| is_own(key));
    of.map(|(key, value)| (*key, value.clone())).collect()
}

#[test]
fn a_restart_changes_what_is_not_as_it_should_be_and_nothing_else() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let mut scene = Scene::new();
    scene.world.start_agent(1);
    let client = scene.pod.client();
    for service in &scene.services {
        scene.is_served(service);
    }
    let mut connections = Vec::new();
    for service in &scene.services {
        for to in cluster_ips(service) {
            let mut connection = client.connect(Protocol::Tcp, to).unwrap();
            let server = connection.ask("who").unwrap().server;
            connections.push((connection, server));
        }
    }
    scene.kill();
    let [same, changed, spoilt] = scene.services.clone();
    let (table, given) = (Table::of(scene.node()).unwrap(), ipvs::given(scene.node()).unwrap());
    assert!(of_service(&given, &same, scene.node()).values().any(|count| *count > 0));
    scene.world.apply(&changed.clone().with_endpoints([&scene.backends[0]]));
    // Somebody else at one frontend: one destination with another weight, and one that goes.
    let [to, _] = cluster_ips(&spoilt);
    let [here, there] = scene
        .backends
        .each_ref()
        .map(|pod| SocketAddr::new(pod.addresses()[0], TARGET));
    let spoil = format!("-e -t {to} -r {here} -m -w 9\n-d -u {to} -r {there}\n");
    ipvs::restore(scene.node(), &spoil).unwrap();

    scene.world.start_agent(1);
    for (connection, server) in &mut connections {
        assert_eq!(connection.ask("still you?").unwrap().server, *server);
    }
    let (table_after, given_after) = (Table::of(scene.node()).unwrap(), ipvs::given(scene.node()).unwrap());
    // None of these was deleted and added anew.
    assert_eq!(
        of_service(&given_after, &same, scene.node()),
        of_service(&given, &same, scene.node())
    );
    let udp = Virtual::Address(ipvs::Protocol::Udp, to);
    let mut spoilt_before = of_service(&given, &spoilt, scene.node());
    spoilt_before.insert((udp, there), 0);
    assert_eq!(of_service(&given_after, &spoilt, scene.node()), spoilt_before);
    // And all is as before, but for what changed.
    let own: Vec<SocketAddr> = frontends(&changed, scene.node()).collect();
    for (key, served) in &table.0 {
        let after = table_after.taking(*key).unwrap();
        match key {
            Virtual::Address(_, to) if own.contains(to) => {
                let only = scene.backends[0].addresses().map(|ip| SocketAddr::new(ip, TARGET));
                assert!(
                    after.iter().eq(only.iter().filter(|ip| ip.is_ipv4() == to.is_ipv4())),
                    "{key:?}: {after:?}"
                );
            }
            _ => assert_eq!(table_after.0[key], *served, "{key:?}"),
        }
    }
    assert_eq!(table_after.0.len(), table.0.len());
}

#[test]
fn virtual_services_of_others_are_never_touched() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let mut scene = Scene::new();
    ipvs::restore(scene.node(), THEIRS).unwrap();
    let before = theirs(scene.node());
    assert_eq!(before.len(), 2);
    scene.world.start_agent(1);
    scene.is_served(&scene.services[0]);
    assert_eq!(theirs(scene.node()), before, "after the start");

    scene.world.delete(&scene.services[1]);
    scene
        .world
        .apply(&scene.services[2].clone().with_endpoints([&scene.backends[1]]));
    let to = cluster_ips(&scene.services[2])[0];
    becomes_answered_by(&scene.pod.client(), Protocol::Tcp, to, "there");
    assert_eq!(theirs(scene.node()), before, "after changes");

    scene.kill();
    scene.world.start_agent(1);
    assert_eq!(theirs(scene.node()), before, "after a restart");
    // Weights that are not ours to count: time for rounds of looking.
    thread::sleep(Duration::from_secs(5));
    assert_eq!(theirs(scene.node()), before, "a while later");

    scene.kill();
    let output = agent::cleanup(scene.node()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        Table::of(scene.node()).unwrap().0,
        before,
        "after cleanup nothing else is there"
    );
}

#[test]
fn a_virtual_service_of_somebody_else_at_a_frontend_of_ours_is_named_and_left_to_them() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let mut scene = Scene::new();
    let [taken, later, _] = scene.services.clone();
    let [to, _] = cluster_ips(&taken);
    let theirs = SocketAddr::new(scene.backends[1].addresses()[0], TARGET);
    let key = Virtual::Address(ipvs::Protocol::Tcp, to);
    let rules = format!("-A -t {to} -s wlc\n-a -t {to} -r {theirs} -m -w 5\n");
    ipvs::restore(scene.node(), &rules).unwrap();
    let before = Table::of(scene.node()).unwrap().0;
    let is_untouched = |scene: &Scene| {
        let table = Table::of(scene.node()).unwrap();
        assert_eq!(table.0.get(&key), before.get(&key), "{table}");
    };
    let named = format!("IPVS service {to}/TCP is held by somebody else");
    scene.world.start_agent(1);
    scene.world.agents[0].wait_for_log(SOON, &named).unwrap();
    is_untouched(&scene);
    let says = |scene: &Scene| {
        let output = agent::offline(scene.node(), "status", &[]).unwrap();
        String::from_utf8(output.stdout).unwrap().contains(&named)
    };
    eventually(SOON, "the status names it", || Ok(says(&scene).then_some(()))).unwrap();
    for service in &scene.services[1..] {
        scene.is_served(service);
    }
    assert_eq!(
        answerers(&scene.pod.client(), Protocol::Tcp, to, 4),
        names([&scene.backends[1]]),
        "theirs"
    );
    // The same Service at its other family and protocol.
    becomes_answered_by(&scene.pod.client(), Protocol::Tcp, cluster_ips(&taken)[1], "here");
    becomes_answered_by(&scene.pod.client(), Protocol::Udp, to, "here");

    // Its endpoints change, and the agent is another: it is theirs all the same.
    scene.world.apply(&taken.clone().with_endpoints([&scene.backends[0]]));
    scene.world.apply(&later.clone().with_endpoints([&scene.backends[0]]));
    eventually(SOON, "a change is made", || {
        let table = Table::of(scene.node())?;
        let later = Virtual::Address(ipvs::Protocol::Udp, cluster_ips(&later)[0]);
        Ok((table.0[&later].destinations.len() == 1).then_some(()))
    })
    .unwrap();
    is_untouched(&scene);
    scene.kill();
    let output = agent::cleanup(scene.node()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    is_untouched(&scene);
    scene.world.start_agent(1);
    scene.world.agents[0].wait_for_log(SOON, &named).unwrap();
    scene.kill();
    scene.world.start_agent(1);
    scene.world.agents[0].wait_for_log(SOON, &named).unwrap();
    is_untouched(&scene);

    // They let go of it.
    ipvs::restore(scene.node(), &format!("-D -t {to}\n")).unwrap();
    becomes_answered_by(&scene.pod.client(), Protocol::Tcp, to, "here");
    assert_eq!(
        answerers(&scene.pod.client(), Protocol::Tcp, to, 5),
        names([&scene.backends[0]])
    );
}

#[test]
fn a_frontend_that_somebody_else_has_before_its_service_comes_is_left_to_them() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let mut scene = Scene::new();
    scene.world.start_agent(1);
    let late = Service::new("late", 4, TARGET).with_endpoints([&scene.backends[0]]);
    let [to, to_v6] = cluster_ips(&late);
    let theirs = SocketAddr::new(scene.backends[1].addresses()[0], TARGET);
    let key = Virtual::Address(ipvs::Protocol::Tcp, to);
    ipvs::restore(
        scene.node(),
        &format!("-A -t {to} -s sh\n-a -t {to} -r {theirs} -m -w 4\n"),
    )
    .unwrap();
    let before = Table::of(scene.node()).unwrap().0[&key].clone();
    scene.world.apply(&late);
    let named = format!("IPVS service {to}/TCP is held by somebody else");
    scene.world.agents[0].wait_for_log(SOON, &named).unwrap();
    becomes_answered_by(&scene.pod.client(), Protocol::Tcp, to_v6, "here");
    assert_eq!(Table::of(scene.node()).unwrap().0[&key], before);
    assert_eq!(
        answerers(&scene.pod.client(), Protocol::Tcp, to, 4),
        names([&scene.backends[1]]),
        "theirs"
    );
    // What the agent has written down of it is what the next one goes by.
    scene.kill();
    scene.world.start_agent(1);
    scene.world.delete(&late);
    // Of TCP it waits for connections.
    let is_gone = || {
        let table = Table::of(scene.node())?;
        Ok((!table.0.contains_key(&Virtual::Address(ipvs::Protocol::Udp, to_v6))).then_some(()))
    };
    eventually(SOON, "the Service is gone", is_gone).unwrap();
    assert_eq!(Table::of(scene.node()).unwrap().0[&key], before);
}

#[test]
fn what_somebody_flushes_is_put_back() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let mut scene = Scene::new();
    scene.world.start_agent(1);
    scene.is_served(&scene.services[0]);
    let state = |scene: &Scene| {
        let maps = frontend_maps(scene.node().netns(), TABLE).unwrap_or_default();
        (Table::of(scene.node()).unwrap(), maps)
    };
    let before = state(&scene);
    assert!(!before.0.0.is_empty() && !before.1.is_empty());
    run(scene.node(), "ipvsadm --clear");
    run(scene.node(), "nft flush ruleset");
    assert_ne!(state(&scene), before);
    eventually(VERIFY, "all is there again", || {
        Ok((state(&scene) == before).then_some(()))
    })
    .unwrap();
    for service in &scene.services {
        scene.is_served(service);
    }
}
