//! What the agent tells load balancers and kubelet of its node.

use std::net::SocketAddr;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Node, Taint};
use lb_tests::agent::{Agent, Options};
use lb_tests::http::{Answer, get};
use lb_tests::manifests::{self, Manifest};
use serde_json::Value;

use crate::fixture::{SOON, World};

const PORT: u16 = 10256;

/// What a load balancer outside is told at both addresses of node 1.
fn told(world: &World, path: &str) -> [anyhow::Result<Answer>; 2] {
    let outside = world.network.outside().netns();
    let ask = |ip| get(outside, SocketAddr::new(ip, PORT), path);
    world.node1().addresses().map(ask)
}

#[track_caller]
fn becomes(world: &World, path: &str, status: u16) {
    let until = Instant::now() + SOON;
    loop {
        let answers = told(world, path);
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
