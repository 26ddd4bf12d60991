//! What the agent tells load balancers and kubelet of its node and of Services on it.

use std::net::SocketAddr;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Node, Taint};
use lb_tests::agent::{Agent, Options};
use lb_tests::http::{Answer, get};
use lb_tests::manifests::{self, Manifest, Service};
use lb_tests::network::Attachment;
use lb_tests::patience::patient;
use lb_tests::stage::TARGET;
use serde_json::Value;

use crate::fixture::{SOON, World};

const PORT: u16 = 10256;
/// Of a Service.
const CHECK_PORT: u16 = 32_001;

/// What a load balancer outside is told at both addresses of node 1.
fn told(world: &World, path: &str) -> [anyhow::Result<Answer>; 2] {
    told_at(world, PORT, path)
}

fn told_at(world: &World, port: u16, path: &str) -> [anyhow::Result<Answer>; 2] {
    let outside = world.network.outside().netns();
    let ask = |ip| get(outside, SocketAddr::new(ip, port), path);
    world.node1().addresses().map(ask)
}

#[track_caller]
fn becomes(world: &World, path: &str, status: u16) {
    becomes_at(world, PORT, path, status);
}

#[track_caller]
fn becomes_at(world: &World, port: u16, path: &str, status: u16) {
    let until = Instant::now() + patient(SOON);
    loop {
        let answers = told_at(world, port, path);
        if answers
            .iter()
            .all(|answer| answer.as_ref().is_ok_and(|answer| answer.status == status))
        {
            return;
        }
        assert!(Instant::now() < until, "{path} is to answer {status}: {answers:?}");
    }
}

fn apply(world: &World, node: &Node) {
    world.source.apply(&[Manifest::new(node).unwrap()]).unwrap();
}

#[test]
fn a_node_that_is_to_go_asks_for_no_traffic_and_for_no_restart() {
    let mut world = World::new();
    world.start_agent(1);
    becomes(&world, "/healthz", 200);
    becomes(&world, "/livez", 200);

    let node = manifests::node(world.node1());
    let mut leaving = node.clone();
    leaving.spec.as_mut().unwrap().taints = Some(vec![Taint {
        key: "ToBeDeletedByClusterAutoscaler".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    }]);
    apply(&world, &leaving);
    becomes(&world, "/healthz", 503);
    becomes(&world, "/livez", 200);
    for answer in told(&world, "/healthz") {
        let report: Value = serde_json::from_str(&answer.unwrap().body).unwrap();
        assert_eq!(
            (&report["nodeEligible"], &report["healthy"]),
            (&false.into(), &true.into())
        );
    }
    apply(&world, &node);
    becomes(&world, "/healthz", 200);
}

#[test]
fn nobody_is_told_anything_when_it_is_turned_off_or_has_ended() {
    let mut world = World::new();
    let is_silent = |world: &World| told(world, "/livez").iter().all(Result::is_err);
    world.start_agent(1);
    becomes(&world, "/livez", 200);
    world.agents.pop().unwrap().stop().unwrap();
    assert!(is_silent(&world));

    let options = Options {
        args: vec!["--healthz-bind-address=".into()],
        ..Options::default()
    };
    let agent = Agent::start(world.node1(), &world.source, &options).unwrap();
    world.agents.push(agent);
    assert!(is_silent(&world));
}

/// Such that load balancers ask each node for endpoints of its own.
fn with_health_check(service: &Service) -> Manifest {
    let mut object = service.service();
    let spec = object.spec.as_mut().unwrap();
    spec.type_ = Some("LoadBalancer".into());
    spec.external_traffic_policy = Some("Local".into());
    spec.health_check_node_port = Some(CHECK_PORT.into());
    Manifest::new(&object).unwrap()
}

#[test]
fn a_load_balancer_is_told_whether_an_endpoint_of_its_service_is_on_the_node() {
    let mut world = World::new();
    let here = world.backend(1, "here", Attachment::Veth);
    let there = world.backend(2, "there", Attachment::Veth);
    let service = Service::new("web", 1, TARGET).at_node_port(30_001);
    let at_both = service.clone().with_endpoints([&here, &there]);
    let at_there = service.clone().with_endpoints([&there]);
    world.apply(&at_both);
    world.source.apply(&[with_health_check(&service)]).unwrap();
    world.start_agent(1);
    becomes_at(&world, CHECK_PORT, "/", 200);
    for answer in told_at(&world, CHECK_PORT, "/") {
        assert_eq!(answer.unwrap().header("x-load-balancing-endpoint-weight"), Some("1"));
    }
    world.source.apply(&at_there.slice_manifests().unwrap()).unwrap();
    becomes_at(&world, CHECK_PORT, "/", 503);

    // NodePorts are served at the node's primary addresses, and so is this.
    let inside = world.node1().netns();
    for loopback in ["127.0.0.1", "::1"] {
        let at = SocketAddr::new(loopback.parse().unwrap(), CHECK_PORT);
        assert!(get(inside, at, "/").is_err(), "{at}");
    }

    world.delete(&service);
    let until = Instant::now() + patient(SOON);
    while told_at(&world, CHECK_PORT, "/").iter().any(Result::is_ok) {
        assert!(Instant::now() < until, "somebody still answers");
    }
}
