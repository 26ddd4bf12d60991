//! `lb-agent cleanup` leaves nothing of ours behind.

use std::fs;
use std::path::Path;
use std::time::Duration;

use aya::programs::SchedClassifier;
use aya::programs::tc::TcAttachType;
use lb_agent::plane::PlaneName;
use lb_agent::plane::choice::{Places, remove_leftovers};
use lb_tests::agent;
use lb_tests::client::{Failure, Protocol};
use lb_tests::kernel::Feature;
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node};
use lb_tests::patience::patient;
use lb_tests::process;
use lb_tests::stage::TARGET;

use crate::fixture::{
    BRIEFLY, SOON, World, becomes_answered_by, cluster_ips, host_that_is_served, is_silence, node_ports,
};

#[test]
fn nothing_is_left() {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let backend = world.backend(2, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    let host = host_that_is_served(world.node1());
    for client in [client.client(), world.network.outside().client()].iter().chain(&host) {
        becomes_answered_by(client, Protocol::Tcp, cluster_ips(&service)[0], "backend");
    }
    assert!(programs(world.node1()) > 0);
    assert!(!ruleset(world.node1()).is_empty());

    world.agents.pop().unwrap().stop().unwrap();
    let output = agent::cleanup(world.node1()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    assert_eq!(programs(world.node1()), 0);
    assert_eq!(ruleset(world.node1()), "");
    assert_eq!(pins(&world.node1().bpffs().path()), Vec::<String>::new());
    assert!(!world.node1().run_dir().exists());
    for client in [client.client()].into_iter().chain(host) {
        let hasty = client.with_timeout(BRIEFLY);
        for to in cluster_ips(&service) {
            assert!(is_silence(&hasty.ask(Protocol::Tcp, to)));
        }
        for to in node_ports(&service, world.node1()) {
            assert_eq!(hasty.ask(Protocol::Tcp, to), Err(Failure::Refused));
        }
    }
}

#[test]
fn beside_a_running_agent_nothing_is_removed() {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let backend = world.backend(2, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    let before = (programs(world.node1()), ruleset(world.node1()));

    let output = agent::cleanup(world.node1()).unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("an lb-agent is running on this node") && said.contains("stop it first"),
        "{said}"
    );
    assert_eq!((programs(world.node1()), ruleset(world.node1())), before);
    becomes_answered_by(&client.client(), Protocol::Tcp, cluster_ips(&service)[0], "backend");

    // However it ends, it can be cleaned up after.
    world.agents.pop().unwrap().kill().unwrap();
    let output = agent::cleanup(world.node1()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((programs(world.node1()), ruleset(world.node1())), (0, String::new()));
}

#[test]
fn what_bpf_left_goes_when_another_plane_serves_and_not_while_its_agent_runs() {
    let mut world = World::new();
    let backend = world.backend(1, "backend", Attachment::Veth);
    world.apply(&Service::new("web", 1, TARGET).with_endpoints([&backend]));
    world.start_agent_with(1, &["--plane", "ebpf"]);
    let before = (programs(world.node1()), ruleset(world.node1()));
    assert!(before.0 > 0);

    let remove = |node: &Node, within: Duration| {
        let places = Places {
            bpffs: node.bpffs().path(),
            run_dir: node.run_dir().to_owned(),
        };
        let removed = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.unwrap().block_on(async {
                let removed = remove_leftovers(PlaneName::Ipvs, places);
                tokio::time::timeout(within, removed).await.is_ok()
            })
        };
        node.netns().run(removed).unwrap()
    };
    let held = world.node1();
    assert!(!remove(held, Duration::from_secs(2)), "the agent holds them");
    assert_eq!((programs(held), ruleset(held)), before);

    world.agents.pop().unwrap().stop().unwrap();
    let node = world.node1();
    assert!(remove(node, patient(SOON)));
    assert_eq!((programs(node), ruleset(node)), (0, String::new()));
    assert_eq!(pins(&node.bpffs().path()), [""; 0]);
}

#[test]
fn cleaning_up_twice_or_where_nothing_is_does_no_harm() {
    let world = World::new();
    for _ in 0..2 {
        let output = agent::cleanup(world.node1()).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// How many programs are attached to links of a node, in whichever way this kernel has.
fn programs(node: &Node) -> usize {
    let netlink = node.netns().netlink().unwrap();
    let links = netlink.links().unwrap();
    if !Feature::Tcx.is_there().unwrap() {
        return links.iter().map(|link| netlink.bpf_filters(link.index).unwrap()).sum();
    }
    node.netns()
        .run(|| {
            let directions = [TcAttachType::Ingress, TcAttachType::Egress];
            let of_link = |name: &str| {
                directions
                    .map(|direction| SchedClassifier::query_tcx(name, direction).unwrap().1.len())
                    .iter()
                    .sum()
            };
            links.iter().map(|link| -> usize { of_link(&link.name) }).sum()
        })
        .unwrap()
}

/// All rules of a node's packet filter.
fn ruleset(node: &Node) -> String {
    let mut command = std::process::Command::new("nft");
    command.args(["list", "ruleset"]).stdout(std::process::Stdio::piped());
    let child = process::spawn(command, node.netns(), None).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What is pinned below a folder, but for what the kernel itself puts there.
fn pins(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| !["maps.debug", "progs.debug"].contains(&name.as_str()))
        .collect()
}
