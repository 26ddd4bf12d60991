//! A Service without endpoints refuses, whoever asks, and says so in a way that the client's kernel understands.

use std::net::SocketAddr;

use lb_tests::capture::Capture;
use lb_tests::client::{Client, Failure, Protocol};
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod};
use lb_tests::packet::Packet;
use lb_tests::plane::Difference;
use lb_tests::stage::TARGET;

use crate::fixture::{BOTH, World, cluster_ips, frontends, node_ports};

fn empty_service() -> Service {
    Service::new("empty", 9, TARGET).at_node_port(30_999)
}

#[track_caller]
fn refused(what: &str, client: &Client, to: impl IntoIterator<Item = SocketAddr>) {
    for to in to {
        for protocol in BOTH {
            assert_eq!(
                client.ask(protocol, to),
                Err(Failure::Refused),
                "{what}: {protocol} to {to}"
            );
        }
    }
}

#[test]
fn pods_are_refused() {
    let mut world = World::new();
    let service = empty_service();
    world.apply(&service);
    world.start_agent(1);
    for (name, attachment) in [("bridge", Attachment::Bridge), ("veth", Attachment::Veth)] {
        let pod = world.node1().add_pod(name, attachment).unwrap();
        // Its link is new to the agent.
        crate::fixture::becomes(
            name,
            || pod.client().ask(Protocol::Tcp, cluster_ips(&service)[0]),
            |outcome| *outcome == Err(Failure::Refused),
        );
        refused(name, &pod.client(), cluster_ips(&service));
        refused(name, &pod.client(), node_ports(&service, world.node1()));
    }
}

#[test]
fn processes_of_the_node_are_refused() {
    if lacks(Feature::SetRetval) {
        return;
    }
    let mut world = World::new();
    let service = empty_service();
    world.apply(&service);
    world.start_agent(1);
    let host = world.node1().client().unwrap();
    refused("host", &host, cluster_ips(&service));
    refused("host", &host, node_ports(&service, world.node1()));
    for to in cluster_ips(&service) {
        let outcome = host.ask_unconnected(to);
        let refusal = if Difference::HostDenied.applies() {
            Failure::Denied
        } else {
            Failure::Refused
        };
        assert_eq!(outcome, Err(refusal), "unconnected UDP to {to}");
    }
}

#[test]
fn a_client_outside_is_refused() {
    let mut world = World::new();
    let service = empty_service();
    world.apply(&service);
    world.start_agent(1);
    let outside = world.network.outside().client();
    refused("outside", &outside, node_ports(&service, world.node1()));
    refused("outside", &outside, cluster_ips(&service));
}

/// What the wire carries: one answer, port unreachable, about the very packet that the client sent.
#[test]
fn the_refusal_is_port_unreachable_and_quotes_the_client() {
    let mut world = World::new();
    let service = empty_service();
    world.apply(&service);
    let pods = [Attachment::Bridge, Attachment::Veth].map(|kind| {
        world
            .node1()
            .add_pod(&format!("{kind:?}").to_lowercase(), kind)
            .unwrap()
    });
    world.start_agent(1);
    for pod in &pods {
        for to in frontends(&service, world.node1()) {
            for protocol in BOTH {
                refusal_on_the_wire(pod, protocol, to);
            }
        }
    }
}

#[track_caller]
fn refusal_on_the_wire(pod: &Pod, protocol: Protocol, to: SocketAddr) {
    let what = format!("{}: {protocol} to {to}", pod.name());
    let capture = Capture::start(pod.netns(), pod.link()).unwrap();
    assert_eq!(pod.client().ask(protocol, to), Err(Failure::Refused), "{what}");
    let packets = capture.verified().unwrap_or_else(|error| panic!("{what}: {error:#}"));
    let shown = || packets.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let asked = packets.iter().filter_map(Packet::ends).filter(|ends| ends.1 == to);
    let refused = packets.iter().filter(|packet| packet.is_port_unreachable());
    // TCP may ask twice: a refusal that arrives while the kernel is still busy with `connect` is only noted.
    let (asked, refused): (Vec<_>, Vec<_>) = (asked.map(Some).collect(), refused.map(Packet::quoted_ends).collect());
    assert!(!asked.is_empty(), "{what}:\n{}", shown());
    assert_eq!(refused, asked, "{what}:\n{}", shown());
}

#[test]
fn a_service_that_gets_an_endpoint_answers_and_refuses_again_when_it_is_gone() {
    let mut world = World::new();
    let service = empty_service();
    world.apply(&service);
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let client = pod.client();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    world.start_agent(1);
    let to = cluster_ips(&service);
    refused("before", &client, to);
    world.apply(&service.clone().with_endpoints([&backend]));
    for to in to {
        for protocol in BOTH {
            crate::fixture::becomes_answered_by(&client, protocol, to, "backend");
        }
    }
    world.apply(&service);
    for to in to {
        for protocol in BOTH {
            let refused = |outcome: &_| *outcome == Err(Failure::Refused);
            crate::fixture::becomes("after", || client.ask(protocol, to), refused);
        }
    }
}
