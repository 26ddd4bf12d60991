//! Links that come and go while the agent runs.

use lb_tests::client::Protocol;
use lb_tests::manifests::Service;
use lb_tests::network::Attachment;
use lb_tests::stage::TARGET;

use crate::fixture::{BOTH, World, becomes_answered_by, cluster_ips, frontends, node_ports};

#[test]
fn a_pod_that_starts_later_reaches_services() {
    let mut world = World::new();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    for (name, attachment) in [("bridge", Attachment::Bridge), ("veth", Attachment::Veth)] {
        let pod = world.node1().add_pod(name, attachment).unwrap();
        for to in frontends(&service, world.node1()) {
            BOTH.iter()
                .for_each(|protocol| becomes_answered_by(&pod.client(), *protocol, to, "backend"));
        }
    }
}

#[test]
fn a_pod_that_is_replaced_by_another_is_no_trouble() {
    let mut world = World::new();
    let service = Service::new("web", 1, TARGET);
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    world.start_agent(1);
    for round in 1..=5 {
        let name = format!("backend-{round}");
        let backend = world.backend(1, &name, Attachment::Bridge);
        world.apply(&service.clone().with_endpoints([&backend]));
        for to in cluster_ips(&service) {
            becomes_answered_by(&client.client(), Protocol::Tcp, to, &name);
        }
    }
}

#[test]
fn services_answer_on_a_node_without_any_pod() {
    let mut world = World::new();
    let backend = world.backend(2, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    let outside = world.network.outside().client();
    for to in node_ports(&service, world.node1()) {
        BOTH.iter()
            .for_each(|protocol| becomes_answered_by(&outside, *protocol, to, "backend"));
    }
}

/// Who waits for the word counts on it: a single datagram that is sent right then must not be lost.
#[test]
fn links_that_are_there_are_served_when_the_agent_says_it_is_ready() {
    let mut world = World::new();
    let backend = world.backend(1, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&backend]);
    world.apply(&service);
    let pods: Vec<_> = (1..=6)
        .map(|n| world.node1().add_pod(&format!("pod-{n}"), Attachment::Bridge).unwrap())
        .collect();
    world.start_agent(1);
    for pod in &pods {
        for to in cluster_ips(&service) {
            let outcome = pod.client().ask(Protocol::Udp, to);
            assert!(outcome.is_ok(), "{} to {to}: {outcome:?}", pod.name());
        }
    }
}
