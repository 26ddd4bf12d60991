//! `lb-agent cleanup` leaves nothing of ours behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use aya::programs::SchedClassifier;
use aya::programs::tc::TcAttachType;
use lb_agent::plane::PlaneName;
use lb_agent::plane::choice::{hand_over, remove_leftovers};
use lb_tests::agent;
use lb_tests::client::{Failure, Protocol};
use lb_tests::ipvs::Table;
use lb_tests::kernel::Feature;
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node};
use lb_tests::patience::patient;
use lb_tests::plane::{Plane, other_than};
use lb_tests::process;
use lb_tests::stage::TARGET;

use crate::fixture::{
    BRIEFLY, SOON, World, becomes_answered_by, cluster_ips, host_that_is_served, is_silence, node_ports,
};

/// What has the addresses of Services on a node of the IPVS plane.
const IPVS_LINK: &str = "lb-ipvs0";

#[test]
fn nothing_is_left() {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let backend = world.backend(2, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&backend]);
    world.apply(&service);
    let settings_before = settings(world.node1());
    world.start_agent(1);
    let host = host_that_is_served(world.node1());
    for client in [client.client(), world.network.outside().client()].iter().chain(&host) {
        becomes_answered_by(client, Protocol::Tcp, cluster_ips(&service)[0], "backend");
    }
    assert!(!traces(world.node1()).is_empty());
    assert!(!ruleset(world.node1()).is_empty());

    world.agents.pop().unwrap().stop().unwrap();
    let output = agent::cleanup(world.node1()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    assert_eq!(traces(world.node1()), [""; 0]);
    assert_eq!(settings(world.node1()), settings_before);
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
    let before = (traces(world.node1()), ruleset(world.node1()));

    let output = agent::cleanup(world.node1()).unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("an lb-agent is running on this node") && said.contains("stop it first"),
        "{said}"
    );
    assert_eq!((traces(world.node1()), ruleset(world.node1())), before);
    becomes_answered_by(&client.client(), Protocol::Tcp, cluster_ips(&service)[0], "backend");

    // However it ends, it can be cleaned up after.
    world.agents.pop().unwrap().kill().unwrap();
    let output = agent::cleanup(world.node1()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        (traces(world.node1()), ruleset(world.node1())),
        (Vec::new(), String::new())
    );
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
        let bpffs = node.bpffs().path();
        let removed = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.unwrap().block_on(async {
                let removed = remove_leftovers(PlaneName::Ipvs, bpffs);
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

/// As `cleanup` does where a kube-proxy runs, which is in the tests of the control plane.
#[test]
fn what_is_open_goes_on_when_new_connections_are_left_to_somebody_else() {
    if other_than(Plane::Ebpf, "whoever comes before IPVS has new connections anyway") {
        return;
    }
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let client = pod.client();
    let backend = world.backend(2, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    let mut open = Vec::new();
    for to in cluster_ips(&service) {
        becomes_answered_by(&client, Protocol::Tcp, to, "backend");
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            open.push(client.connect(protocol, to).unwrap());
        }
    }
    for connection in &mut open {
        assert_eq!(connection.ask("who").unwrap().server, "backend");
    }
    let bpffs = world.node1().bpffs().path();
    assert!(hand_over(&bpffs).is_err(), "the agent holds it");
    world.agents.pop().unwrap().stop().unwrap();

    hand_over(&bpffs).unwrap();
    for connection in &mut open {
        assert_eq!(connection.ask("still you?").unwrap().server, "backend");
    }
    for to in cluster_ips(&service) {
        assert!(is_silence(&client.with_timeout(BRIEFLY).ask(Protocol::Tcp, to)));
    }
}

#[test]
fn cleaning_up_twice_or_where_nothing_is_does_no_harm() {
    let world = World::new();
    for _ in 0..2 {
        let output = agent::cleanup(world.node1()).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// What is ours in a node's kernel beside its packet filter.
fn traces(node: &Node) -> Vec<String> {
    match Plane::under_test() {
        Plane::Ebpf => match programs(node) {
            0 => Vec::new(),
            programs => vec![format!("{programs} programs on links")],
        },
        Plane::Ipvs => {
            let services = Table::of(node).unwrap().to_string();
            let links = node.netns().netlink().unwrap().links().unwrap().into_iter();
            let ours = links.map(|link| link.name).filter(|name| name == IPVS_LINK);
            services.lines().map(str::to_owned).chain(ours).collect()
        }
    }
}

/// The node's settings of IPv4 and IPVS, and their values.
fn settings(node: &Node) -> BTreeMap<String, String> {
    let read = || {
        let mut settings = BTreeMap::new();
        for folder in ["vs", "conf/all", "conf/default", "conf/lo"] {
            let folder = Path::new("/proc/sys/net/ipv4").join(folder);
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                // Some can be written only.
                if let Ok(value) = fs::read_to_string(entry.path()) {
                    settings.insert(entry.path().to_string_lossy().into_owned(), value);
                }
            }
        }
        settings
    };
    node.netns().run(read).unwrap()
}

/// How many programs are attached to links of a node, in whichever way this kernel has.
pub(crate) fn programs(node: &Node) -> usize {
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
pub(crate) fn ruleset(node: &Node) -> String {
    let mut command = std::process::Command::new("nft");
    command.args(["list", "ruleset"]).stdout(std::process::Stdio::piped());
    let child = process::spawn(command, node.netns(), None).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What is pinned below a folder, but for what the kernel itself puts there.
pub(crate) fn pins(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| !["maps.debug", "progs.debug"].contains(&name.as_str()))
        .collect()
}
