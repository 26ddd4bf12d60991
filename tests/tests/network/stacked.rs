//! Pods whose links hang on one of the node's, so that the node has no side of them.

use std::process::{Command, Stdio};
use std::time::Duration;

use lb_tests::netlink::End;
use lb_tests::netns::Netns;
use lb_tests::network::{Node, plan};
use lb_tests::plane::{Plane, other_than};
use lb_tests::process;

use crate::fixture::{SOON, World};

/// Runs `ip` on a node.
fn ip(node: &Node, args: &str) {
    let mut command = Command::new("ip");
    command.args(args.split_whitespace()).stdin(Stdio::null());
    let status = process::spawn(command, node.netns(), None).unwrap().wait().unwrap();
    assert!(status.success(), "ip {args}");
}

/// Makes a pod's macvlan on `parent`: in the pod's namespace right away, as plugins do, or by way of the node's.
fn add_macvlan(node: &Node, parent: &str, pod: &Netns, moves: bool) {
    // Links are moved to where a process is.
    let mut sleep = Command::new("sleep");
    sleep.arg("60").stdin(Stdio::null());
    let mut inside = process::spawn(sleep, pod, None).unwrap();
    let pid = inside.id();
    if moves {
        ip(node, &format!("link add pod0 link {parent} type macvlan mode bridge"));
        ip(node, &format!("link set pod0 netns {pid}"));
    } else {
        ip(
            node,
            &format!("link add name pod0 link {parent} netns {pid} type macvlan mode bridge"),
        );
    }
    let netlink = pod.netlink().unwrap();
    netlink.up(netlink.link("pod0").unwrap().index).unwrap();
    process::stop(&mut inside, Duration::from_secs(5)).unwrap();
}

#[test]
fn the_link_that_pods_hang_on_by_macvlan_is_named_once() {
    if other_than(Plane::Ebpf, "links of pods have programs") {
        return;
    }
    let mut world = World::new();
    // Another card of the node.
    let beside = Netns::new("beside").unwrap();
    let peer = End {
        netns: &beside,
        name: "eth0",
    };
    let node = world.node1();
    let netlink = node.netns().netlink().unwrap();
    netlink.add_veth("eth1", peer, plan::MTU).unwrap();
    netlink.up(netlink.link("eth1").unwrap().index).unwrap();
    // One of the node's own says nothing.
    ip(node, "link add own0 link eth0 type macvlan mode bridge");
    ip(node, "link set own0 up");

    world.start_agent_with(1, &["--link", "eth1=uplink"]);
    let mut agent = world.agents.pop().unwrap();
    let node = world.node1();
    let pods: Vec<Netns> = (1..=3).map(|n| Netns::new(format!("pod{n}")).unwrap()).collect();
    add_macvlan(node, "eth1", &pods[0], true);
    agent
        .wait_for_log(SOON, "pods hang on this link by macvlan or ipvlan")
        .unwrap();
    assert!(
        !agent
            .log()
            .unwrap()
            .contains("socket-lb all, or nothing is link=\"eth0\""),
        "{}",
        agent.log().unwrap()
    );
    for pod in &pods[1..] {
        add_macvlan(node, "eth0", pod, false);
    }
    let line = agent.wait_for_log(SOON, "or nothing is link=\"eth0\"").unwrap();
    assert!(line.contains("WARN") && line.contains("--socket-lb all"), "{line}");
    // Longer than it takes to look again.
    std::thread::sleep(Duration::from_secs(3));
    let log = agent.log().unwrap();
    assert_eq!(log.matches("pods hang on this link").count(), 2, "{log}");
}
