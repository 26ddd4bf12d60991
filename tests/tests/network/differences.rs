//! What planes are declared to do differently, and no other test meets on its way.

use lb_tests::manifests::{Manifest, Service};
use lb_tests::netlink::End;
use lb_tests::network::{Attachment, Pod, plan};
use lb_tests::plane::Difference;
use lb_tests::stage::TARGET;

use crate::fixture::{BOTH, BRIEFLY, World, add_rules, answerers, becomes_answered_by, is_silence, node_ports, run};

/// A link of the node to somewhere else.
const UPLINK: &str = "eth9";
/// Of a mark, none that the agent knows.
const SOMEBODYS_BIT: u32 = 0x10_0000;

/// How many connections go to each address.
const EACH: usize = 10;

/// A Service at a NodePort whose only endpoint is on node 2, and which others than near clients reach by its own node
/// only.
fn world() -> (World, Pod, Service) {
    let (world, backend, service) = World::with_node_port(2);
    let mut object = service.service();
    object.spec.as_mut().unwrap().external_traffic_policy = Some("Local".into());
    world.source.apply(&[Manifest::new(&object).unwrap()]).unwrap();
    (world, backend, service)
}

#[test]
fn a_client_on_a_bridge_is_near_also_where_others_come_in_there() {
    let (mut world, _backend, service) = world();
    let node = world.node1();
    let pod = node.add_pod("client", Attachment::Bridge).unwrap();
    let client = pod.client();
    let netlink = node.netns().netlink().unwrap();
    let other = End {
        netns: world.network.switch(),
        name: "elsewhere",
    };
    netlink.add_veth(UPLINK, other, plan::MTU).unwrap();
    // A bridge has the lowest address of its ports, and the pod knows it by that already.
    run(node, &format!("ip link set {UPLINK} address fe:ff:ff:ff:ff:ff"));
    let uplink = netlink.link(UPLINK).unwrap().index;
    netlink.set_controller(uplink, node.bridge().index).unwrap();
    netlink.up(uplink).unwrap();
    world.start_agent_with(1, &["--link", &format!("{UPLINK}=uplink")]);
    for to in node_ports(&service, world.node1()) {
        for protocol in BOTH {
            if Difference::BridgeWithUplinkIsOutside.applies() {
                let outcome = client.with_timeout(BRIEFLY).ask(protocol, to);
                assert!(is_silence(&outcome), "{protocol} to {to}: {outcome:?}");
            } else {
                becomes_answered_by(&client, protocol, to, "backend");
            }
        }
    }
    // Without the uplink they are near on each plane.
    let netlink = world.node1().netns().netlink().unwrap();
    netlink.remove(uplink).unwrap();
    for to in node_ports(&service, world.node1()) {
        for protocol in BOTH {
            becomes_answered_by(&client, protocol, to, "backend");
        }
    }
}

#[test]
fn a_mark_of_somebody_else_stays_on_what_is_sent_to_a_backend() {
    let (mut world, there, service) = world();
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    // Near clients have both, far ones this.
    let here = world.backend(1, "here", Attachment::Veth);
    let service = service.with_endpoints([&here, &there]);
    world.source.apply(&service.slice_manifests().unwrap()).unwrap();
    add_rules(
        world.node1(),
        &format!(
            "add table inet another\n\
             add chain inet another first {{ type filter hook prerouting priority raw; }}\n\
             add rule inet another first iifname {} meta mark set meta mark or {SOMEBODYS_BIT}\n\
             add chain inet another last {{ type filter hook postrouting priority 300; }}\n\
             add rule inet another last th dport {TARGET} counter comment \"sent\"\n\
             add rule inet another last th dport {TARGET} meta mark and {SOMEBODYS_BIT} != 0 counter comment \"marked\"\n",
            pod.host_link().name
        ),
    );
    world.start_agent(1);
    for to in node_ports(&service, world.node1()) {
        for protocol in BOTH {
            answerers(&pod.client(), protocol, to, EACH);
        }
    }
    let [sent, marked] = ["sent", "marked"].map(|name| packets(&world, name));
    if Difference::MarksReplaced.applies() {
        // On what begins a connection.
        let begun = 2 * BOTH.len() * EACH;
        assert!(marked + begun as u64 <= sent, "{marked} of {sent}");
    } else {
        assert_eq!(marked, sent);
    }
}

/// What the rule with this comment has counted. (Older kernels have counters with names in a module that is not loaded by
/// itself everywhere.)
fn packets(world: &World, comment: &str) -> u64 {
    let text = run(world.node1(), "nft list chain inet another last");
    let comment = format!("comment \"{comment}\"");
    let rule = text.lines().find(|line| line.contains(&comment)).unwrap();
    let mut words = rule.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).unwrap().parse().unwrap()
}
