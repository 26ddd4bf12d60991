//! Pods whose links are netkit, with Ethernet addresses and without.

use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::Service;
use lb_tests::network::Attachment;
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;
use netlink_packet_route::link::NetkitMode;

use crate::fixture::{BOTH, World, answerers, frontends, names};

#[track_caller]
fn clients_and_backends_reach_each_other(mode: NetkitMode) {
    if other_than(Plane::Ebpf, "programs are on the links of pods") || lacks(Feature::Netkit) {
        return;
    }
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Netkit(mode)).unwrap();
    let backends = [
        world.backend(1, "here", Attachment::Netkit(mode)),
        world.backend(2, "there", Attachment::Veth),
    ];
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints(&backends);
    let own = Service::new("own", 2, TARGET).with_endpoints([&pod]);
    let _server = pod.serve(TARGET).unwrap();
    world.apply(&service);
    world.apply(&own);
    world.start_agent(1);
    for client in [pod.client(), world.network.outside().client()] {
        for to in frontends(&service, world.node1()) {
            for protocol in BOTH {
                assert_eq!(
                    answerers(&client, protocol, to, 40),
                    names(&backends),
                    "{protocol} to {to}"
                );
            }
        }
    }
    // The one that reaches itself.
    for to in crate::fixture::cluster_ips(&own) {
        for protocol in BOTH {
            assert_eq!(
                answerers(&pod.client(), protocol, to, 5),
                names([&pod]),
                "{protocol} to {to}"
            );
        }
    }
    let log = world.agents[0].log().unwrap();
    let served = format!("link is served link=\"{}\"", pod.host_link().name);
    assert!(
        log.lines()
            .any(|line| line.contains(&served) && line.ends_with("role=Pod")),
        "{log}"
    );
}

#[test]
fn without_ethernet_addresses_as_plugins_make_them() {
    clients_and_backends_reach_each_other(NetkitMode::L3);
}

#[test]
fn with_ethernet_addresses() {
    clients_and_backends_reach_each_other(NetkitMode::L2);
}
