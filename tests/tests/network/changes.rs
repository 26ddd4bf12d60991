//! Services that come and go while the agent runs.

use lb_tests::client::Protocol;
use lb_tests::manifests::Service;
use lb_tests::network::Attachment;
use lb_tests::stage::{Family, TARGET};

use crate::fixture::{
    BOTH, BRIEFLY, World, answerers, becomes, becomes_answered_by, cluster_ip, cluster_ips, frontends, is_silence,
    names,
};

#[test]
fn a_service_that_is_created_is_served_and_one_that_is_deleted_is_not() {
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let client = pod.client();
    let backend = world.backend(1, "backend", Attachment::Veth);
    let other = Service::new("other", 2, TARGET).with_endpoints([&backend]);
    world.apply(&other);
    world.start_agent(1);

    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&backend]);
    for to in cluster_ips(&service) {
        assert!(is_silence(&client.with_timeout(BRIEFLY).ask(Protocol::Tcp, to)));
    }
    world.apply(&service);
    let frontends = frontends(&service, world.node1());
    for to in frontends {
        BOTH.iter()
            .for_each(|protocol| becomes_answered_by(&client, *protocol, to, "backend"));
    }
    world.delete(&service);
    let hasty = client.with_timeout(BRIEFLY);
    for to in cluster_ips(&service) {
        for protocol in BOTH {
            becomes("the deleted service", || hasty.ask(protocol, to), is_silence);
        }
    }
    for to in cluster_ips(&other) {
        BOTH.iter()
            .for_each(|protocol| becomes_answered_by(&client, *protocol, to, "backend"));
    }
}

#[test]
fn a_service_that_moves_to_another_port_leaves_the_old_one() {
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let client = pod.client();
    let backend = world.backend(2, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    let before = cluster_ip(&service, Family::V4);
    becomes_answered_by(&client, Protocol::Tcp, before, "backend");

    let mut moved = service;
    moved.ports.iter_mut().for_each(|port| port.port = 8000);
    world.apply(&moved);
    for to in cluster_ips(&moved) {
        BOTH.iter()
            .for_each(|protocol| becomes_answered_by(&client, *protocol, to, "backend"));
    }
    let hasty = client.with_timeout(BRIEFLY);
    becomes(
        "the old port",
        || hasty.ask(Protocol::Tcp, before),
        |outcome| outcome.is_err(),
    );
}

#[test]
fn one_port_of_a_service_does_not_take_the_other_ones_endpoints() {
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let client = pod.client();
    let pods = [
        world.backend(1, "a", Attachment::Bridge),
        world.backend(2, "b", Attachment::Bridge),
    ];
    let first = Service::new("first", 1, TARGET).with_endpoints([&pods[0]]);
    let second = Service::new("second", 2, TARGET).with_endpoints([&pods[1]]);
    world.apply(&first);
    world.apply(&second);
    world.start_agent(1);
    for (service, pod) in [(&first, &pods[0]), (&second, &pods[1])] {
        for to in cluster_ips(service) {
            for protocol in BOTH {
                assert_eq!(answerers(&client, protocol, to, 10), names([pod]));
            }
        }
    }
}
