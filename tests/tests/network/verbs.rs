//! What the verbs that look tell of a node: in which forms, with which exit code, with the agent dead.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use lb_common::maps::LAYOUT_VERSION;
use lb_tests::agent;
use lb_tests::client::Protocol;
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node, Pod};
use lb_tests::plane::{Plane, other_than};
use lb_tests::process;
use lb_tests::stage::TARGET;
use serde_json::{Value, json};

use crate::fixture::{BOTH, World, cluster_ips, frontends, node_ports};

/// Longer than any of them takes.
const END: Duration = Duration::from_secs(30);
/// Those that look, without what they must be given.
const LOOKS: [&str; 5] = ["services", "backends", "flows", "links", "status"];

#[track_caller]
fn run(node: &Node, verb: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let output = agent::offline(node, verb, args).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn json(node: &Node, verb: &str, args: &[&str]) -> Value {
    let (code, printed, said) = run(node, verb, &[&["-o", "json"], args].concat());
    assert_eq!(code, Some(0), "{verb}: {printed}{said}");
    serde_json::from_str(&printed).unwrap()
}

struct Scene {
    world: World,
    client: Pod,
    backends: [Pod; 2],
    service: Service,
}

fn scene() -> Scene {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let backends = [
        world.backend(1, "here", Attachment::Veth),
        world.backend(2, "there", Attachment::Bridge),
    ];
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_081)
        .with_endpoints(&backends);
    world.apply(&service);
    world.start_agent(1);
    Scene {
        world,
        client,
        backends,
        service,
    }
}

#[test]
fn backends_are_those_of_the_service_with_where_they_are_and_what_leads_there() {
    let mut scene = scene();
    // It is not needed.
    scene.world.agents.pop().unwrap().kill().unwrap();
    let node = scene.world.node1();
    let told = json(node, "backends", &[]);
    let told: BTreeSet<(String, String, bool)> = told
        .as_array()
        .unwrap()
        .iter()
        .map(|backend| {
            let text = |field: &str| backend[field].as_str().unwrap().to_owned();
            (text("address"), text("protocol"), backend["onNode"].as_bool().unwrap())
        })
        .collect();
    let mut expected = BTreeSet::new();
    for (pod, on_node) in scene.backends.iter().zip([true, false]) {
        for ip in pod.addresses() {
            let address = SocketAddr::new(ip, TARGET).to_string();
            expected.extend(["TCP", "UDP"].map(|protocol| (address.clone(), protocol.to_owned(), on_node)));
        }
    }
    assert_eq!(told, expected);

    let [v4, _] = scene.backends[0].addresses();
    let one = json(node, "backends", &[&format!("{v4}:{TARGET}")]);
    let frontends_of_one: Vec<&str> = one[0]["frontends"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f.as_str().unwrap())
        .collect();
    assert!(frontends_of_one.contains(&cluster_ips(&scene.service)[0].to_string().as_str()));
    let (code, printed, _) = run(node, "backends", &["192.0.2.77"]);
    assert_eq!((code, printed.lines().count()), (Some(1), 1), "titles alone: {printed}");
}

#[test]
fn flows_are_the_connections_that_were_made_and_can_be_asked_for_by_their_ends() {
    if other_than(Plane::Ebpf, "its table is read") {
        return;
    }
    let scene = scene();
    let node = scene.world.node1();
    assert_eq!(json(node, "flows", &[]), json!([]));
    let outside = scene.world.network.outside().client();
    let [pod4, _] = scene.client.addresses();
    let mut expected = BTreeSet::new();
    let mut connections = Vec::new();
    for client in [&scene.client.client(), &outside] {
        for to in frontends(&scene.service, node) {
            for protocol in BOTH {
                let mut connection = client.connect(protocol, to).unwrap();
                let server = connection.ask("who?").unwrap().server;
                let of_server = scene.backends.iter().find(|pod| pod.name() == server).unwrap();
                let backend = SocketAddr::new(of_server.addresses()[usize::from(to.is_ipv6())], TARGET);
                let from = connection.local().unwrap();
                let protocol = protocol.to_string().to_lowercase();
                expected.insert([protocol, from.to_string(), to.to_string(), backend.to_string()]);
                connections.push(connection);
            }
        }
    }
    let ends = |told: &Value| -> BTreeSet<[String; 4]> {
        let of_one = |flow: &Value| {
            ["protocol", "client", "frontend", "backend"].map(|field| flow[field].as_str().unwrap().to_owned())
        };
        told.as_array().unwrap().iter().map(of_one).collect()
    };
    let all = json(node, "flows", &[]);
    assert_eq!(ends(&all), expected);
    let outside_of = |flow: &Value| !flow["client"].as_str().unwrap().starts_with(&format!("{pod4}:"));
    for flow in all.as_array().unwrap() {
        let there = scene.backends[1]
            .addresses()
            .map(|ip| SocketAddr::new(ip, TARGET).to_string());
        let goes_there = there.contains(&flow["backend"].as_str().unwrap().to_owned());
        let is_from_pod = scene
            .client
            .addresses()
            .iter()
            .any(|ip| flow["client"].as_str().unwrap().parse::<SocketAddr>().unwrap().ip() == *ip);
        // Only what would be answered past this node is.
        assert_eq!(flow["masquerade"], json!(goes_there && !is_from_pod), "{flow}");
        assert_eq!(flow["closing"], json!(false), "{flow}");
    }

    let to = cluster_ips(&scene.service)[0].to_string();
    let some = json(node, "flows", &["--client", &pod4.to_string(), "--service", &to]);
    let wanted = expected
        .iter()
        .filter(|flow| flow[1].starts_with(&format!("{pod4}:")) && flow[2] == to);
    assert_eq!(ends(&some), wanted.cloned().collect());
    assert!(all.as_array().unwrap().iter().any(outside_of));
    assert_eq!(json(node, "flows", &["--limit", "3"]).as_array().unwrap().len(), 3);
    let (code, _, said) = run(node, "flows", &["--client", "nobody"]);
    assert!(code == Some(2) && said.contains("neither an address"), "{said}");
}

#[test]
fn links_are_those_with_programs_and_one_that_has_lost_one_is_a_problem() {
    if other_than(Plane::Ebpf, "links have its programs") {
        return;
    }
    let mut scene = scene();
    scene.world.agents.pop().unwrap().kill().unwrap();
    let node = scene.world.node1();
    let told = json(node, "links", &[]);
    let program = |link: &str| {
        let links = told.as_array().unwrap();
        let link = links
            .iter()
            .find(|of| of["name"] == *link)
            .unwrap_or_else(|| panic!("no {link} in {told}"));
        let name = |hook: &str| link[hook]["program"]["name"].as_str().unwrap().to_owned();
        [name("ingress"), name("egress")]
    };
    assert_eq!(program(&scene.client.host_link().name), ["from_pod", "to_link"]);
    assert_eq!(program(&scene.backends[0].host_link().name), ["from_pod", "to_link"]);
    assert_eq!(program(&node.uplink().name), ["from_outside", "to_link"]);
    let is_bridge = |link: &Value| link["name"] == node.bridge().name.as_str();
    assert!(!told.as_array().unwrap().iter().any(is_bridge));
    let all = json(node, "links", &["--all"]);
    assert!(all.as_array().unwrap().iter().any(is_bridge));

    // Whoever unpins a program of TCX takes it off.
    if lacks(Feature::Tcx) {
        return;
    }
    let link = scene.client.host_link();
    let pin = format!("lb-agent/v{LAYOUT_VERSION}/links/egress-{}", link.index);
    fs::remove_file(node.bpffs().path().join(pin)).unwrap();
    let (code, printed, _) = run(node, "links", &[]);
    let line = printed.lines().find(|line| line.starts_with(&link.name)).unwrap();
    assert!(
        code == Some(1) && line.contains("no program where packets go out"),
        "{printed}"
    );
}

#[test]
fn each_prints_the_same_as_json_and_as_yaml() {
    let scene = scene();
    let node = scene.world.node1();
    scene
        .client
        .client()
        .ask(Protocol::Tcp, node_ports(&scene.service, node)[0])
        .unwrap();
    for verb in LOOKS.into_iter().chain(["probe", "config"]) {
        let is_of_programs = ["flows", "links"].contains(&verb);
        if is_of_programs && Plane::under_test() != Plane::Ebpf {
            continue;
        }
        let (code, printed, said) = run(node, verb, &["-o", "yaml"]);
        assert_eq!(code, Some(0), "{verb}: {said}");
        let mut yaml: Value =
            serde_saphyr::from_str(&printed).unwrap_or_else(|error| panic!("{verb}: {error}: {printed}"));
        let mut json = json(node, verb, &[]);
        if verb == "flows" {
            for flows in [&mut yaml, &mut json] {
                flows[0].as_object_mut().unwrap().remove("silentSeconds").unwrap();
            }
        }
        if verb != "probe" {
            assert_eq!(yaml, json, "{verb}");
        }
        let (code, printed, _) = run(node, verb, &[]);
        assert!(
            code == Some(0) && !printed.contains('\u{1b}'),
            "{verb}: no colours: {printed}"
        );
    }
}

#[test]
fn where_nothing_is_programmed_they_say_so_and_that_they_cannot_tell() {
    let world = World::new();
    for verb in LOOKS {
        let (code, printed, said) = run(world.node1(), verb, &[]);
        assert_eq!(code, Some(2), "{verb}: {printed}{said}");
        // A status of nobody is an answer.
        assert_eq!(printed.is_empty(), verb != "status", "{verb}: {printed}");
        let reason = match verb {
            "status" => "",
            "links" => "no link here has a program of ours",
            _ => "no agent has filled maps here",
        };
        assert!(said.contains(reason), "{verb}: {said}");
    }
}

#[test]
fn who_closes_the_pipe_is_no_failure() {
    let scene = scene();
    let node = scene.world.node1();
    for (verb, args) in [
        ("services", &[][..]),
        ("backends", &[]),
        ("completions", &["bash"]),
        ("version", &[]),
    ] {
        let mut command = Command::new(agent::binary().unwrap());
        command.arg(verb).args(args).env("LB_AGENT_BPFFS", node.bpffs().path());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdout(writer);
        let mut child = process::spawn(command, node.netns(), Some(node.cgroup())).unwrap();
        let status = process::wait(&mut child, END).unwrap().unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(0), ""), "{verb}");
    }
}
