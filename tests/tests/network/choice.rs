//! Which plane serves: what the node can do decides, and everybody is told.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lb_tests::agent::{self, Agent, Maps, Options};
use lb_tests::client::Protocol;
use lb_tests::http;
use lb_tests::kernel::{Feature, has, lacks};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node};
use lb_tests::owner::Folder;
use lb_tests::patience::patient;
use lb_tests::process;
use lb_tests::stage::TARGET;
use serde_json::Value;

use crate::fixture::{SOON, World, becomes_answered_by, cluster_ips, host_that_is_served};

/// Where the agent tells its metrics, unless it is told otherwise.
const METRICS: u16 = 10249;

/// What a command that ends by itself says, and how it ends.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn by(node: &Node, verb: &str, args: &[&str]) -> Self {
        agent::offline(node, verb, args).unwrap().into()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// An agent, or a probe, on node 1 with another BPF file system, which ends by itself.
#[track_caller]
fn in_vain(world: &World, verb: &str, bpffs: &Path) -> Said {
    let node = world.node1();
    let mut command = Command::new(agent::binary().unwrap());
    command
        .args([verb, "--plane", "auto", "--node-name", node.name()])
        .args(world.source.agent_args())
        .arg("--bpffs")
        .arg(bpffs)
        .arg("--run-dir")
        .arg(node.run_dir())
        .arg("--cgroup")
        .arg(node.cgroup().path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = process::spawn(command, node.netns(), Some(node.cgroup())).unwrap();
    if process::wait(&mut child, patient(SOON)).unwrap().is_none() {
        process::stop(&mut child, Duration::ZERO).unwrap();
        panic!("it runs");
    }
    child.wait_with_output().unwrap().into()
}

/// The status, once it is as it should become.
#[track_caller]
fn status_becomes(node: &Node, good: impl Fn(&Value) -> bool) -> Said {
    let until = Instant::now() + patient(SOON);
    loop {
        let said = Said::by(node, "status", &["-o", "json"]);
        if good(&said.json()) {
            return said;
        }
        assert!(Instant::now() < until, "{said:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn metrics(node: &Node, path: &str) -> http::Answer {
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), METRICS);
    http::get(node.netns(), at, path).unwrap()
}

#[test]
fn auto_takes_bpf_where_the_node_can_and_says_so_everywhere() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let mut world = World::new();
    let backend = world.backend(1, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&service);
    let said = Said::by(world.node1(), "status", &[]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert_eq!(said.out, "Agent:      not running, and none has been here\n");

    world.start_agent_with(1, &["--plane", "auto"]);
    let log = world.agents[0].log().unwrap();
    let started = log.lines().find(|line| line.contains(" started ")).unwrap();
    assert!(
        started.contains("plane=\"ebpf\"") && started.contains("reason=this node can do all that it needs"),
        "{started}"
    );

    // Two families and two protocols.
    let ready = |status: &Value| status["ready"] == true && status["servicePorts"] == 4;
    let said = status_becomes(world.node1(), ready);
    assert_eq!(said.code, Some(0), "{said:?}");
    let status = said.json();
    assert_eq!(status["state"], "ready");
    assert_eq!(
        status["plane"],
        serde_json::json!({ "plane": "ebpf", "reason": "preferred" })
    );
    assert_eq!(status["pid"], world.agents[0].pid());
    assert_eq!((&status["services"], &status["frontends"]), (&1.into(), &4.into()));
    assert_eq!(status["failures"], serde_json::json!([]));
    let text = Said::by(world.node1(), "status", &[]).out;
    assert!(text.starts_with("Agent:      ready, v"), "{text}");
    assert!(
        text.contains("\nPlane:      ebpf (this node can do all that it needs)\n"),
        "{text}"
    );
    let yaml = Said::by(world.node1(), "status", &["-o", "yaml"]).out;
    assert!(yaml.lines().any(|line| line == "state: ready"), "{yaml}");

    let mode = metrics(world.node1(), "/proxyMode");
    assert_eq!((mode.status, mode.body.as_str()), (200, "ebpf"));
    let answer = metrics(world.node1(), "/metrics");
    for series in [
        r#"lb_plane_info{plane="ebpf",reason="preferred"} 1"#,
        "lb_ready 1",
        "lb_services 1",
        "lb_service_ports 4",
        "lb_frontends 4",
        "lb_failing 0",
    ] {
        assert!(
            answer.body.lines().any(|line| line == series),
            "no {series} in {}",
            answer.body
        );
    }
    for family in ["IPv4", "IPv6"] {
        let series = format!("kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"{family}\"}} ");
        assert!(answer.body.contains(&series), "no {series} in {}", answer.body);
    }

    // What it knew last is told when it is dead, and what it programmed serves on.
    world.agents.pop().unwrap().kill().unwrap();
    let said = Said::by(world.node1(), "status", &["-o", "json"]);
    assert_eq!((said.code, &said.json()["state"]), (Some(2), &"notRunning".into()));
    assert_eq!(said.json()["plane"]["plane"], "ebpf");
    if let Some(host) = host_that_is_served(world.node1()) {
        becomes_answered_by(&host, Protocol::Tcp, cluster_ips(&service)[0], "backend");
    }
}

#[test]
fn what_the_kernel_refuses_is_told_by_the_status_while_it_does() {
    let mut world = World::new();
    let backend = world.backend(1, "backend", Attachment::Veth);
    let [first, second] = [("first", 1), ("second", 2)]
        .map(|(name, number)| Service::new(name, number, TARGET).with_endpoints([&backend]));
    world.apply(&first);
    let options = Options {
        maps: Maps::Default,
        args: [
            "--plane=ebpf",
            "--max-services=4",
            "--max-slots=1024",
            "--max-backends=1024",
            "--max-flows=1024",
            "--max-sockets=1024",
        ]
        .map(Into::into)
        .into(),
        ..Options::default()
    };
    let agent = Agent::start(world.node1(), &world.source, &options).unwrap();
    world.agents.push(agent);
    world.apply(&second);
    // Its ports, two families and two protocols, and its cluster addresses.
    let has_failed = |status: &Value| status["failures"].as_array().is_some_and(|them| them.len() == 5);
    let said = status_becomes(world.node1(), has_failed);
    assert_eq!((said.code, &said.json()["state"]), (Some(1), &"degraded".into()));
    assert_eq!(said.json()["plane"]["reason"], "configured");
    let text = Said::by(world.node1(), "status", &[]).out;
    assert!(
        text.contains("default/second") && text.contains("raise --max-services"),
        "{text}"
    );
    world.delete(&second);
    let said = status_becomes(world.node1(), |status| status["state"] == "ready");
    assert_eq!(said.code, Some(0));
}

#[test]
fn a_plane_that_the_node_cannot_run_is_an_error_that_says_what_to_do() {
    if has(Feature::Ipvs) {
        return;
    }
    let world = World::new();
    let options = Options {
        args: ["--plane", "ipvs"].map(Into::into).into(),
        ..Options::default()
    };
    let mut agent = Agent::spawn(world.node1(), &world.source, &options).unwrap();
    for said in ["this node cannot serve", "ipvs cannot be run", "modprobe ip_vs"] {
        agent.wait_for_log(SOON, said).unwrap();
    }
    assert!(
        !agent.log().unwrap().contains("ebpf cannot be run"),
        "it was not asked for"
    );
    assert_eq!(pins(&world.node1().bpffs().path()), [""; 0]);
}

#[test]
fn where_no_plane_can_be_run_it_says_of_each_what_is_missing() {
    if has(Feature::Ipvs) {
        return;
    }
    let world = World::new();
    // No BPF file system: programs would go with the agent.
    let folder = Folder::new().unwrap();
    let ended = in_vain(&world, "run", folder.path());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for said in [
        "ebpf cannot be run",
        "is not on a bpf filesystem",
        "ipvs cannot be run",
        "modprobe ip_vs",
    ] {
        assert!(ended.err.contains(said), "no {said:?} in {ended:?}");
    }
    let said = Said::by(world.node1(), "status", &["-o", "json"]);
    assert_eq!((said.code, &said.json()["state"]), (Some(2), &"notRunning".into()));
    let failed = said.json()["failed"].as_str().unwrap().to_owned();
    assert!(failed.contains("mount -t bpf bpf"), "{failed}");

    let said = in_vain(&world, "probe", folder.path());
    assert_eq!(said.code, Some(1), "{said:?}");
    for text in [
        "ebpf cannot be run\n",
        "  × bpf filesystem: ",
        "ipvs cannot be run\n",
        "\nthis node cannot serve\n",
    ] {
        assert!(said.out.contains(text), "no {text:?} in {said:?}");
    }
}

#[test]
fn a_probe_says_what_the_node_can_do_and_leaves_nothing_behind() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let world = World::new();
    let node = world.node1();
    let cgroup = node.cgroup().path().to_str().unwrap().to_owned();
    let before = Surroundings::of(node);
    let text = Said::by(node, "probe", &["--cgroup", &cgroup]);
    assert_eq!(text.code, Some(0), "{text:?}");
    for line in ["ebpf can be run", "  √ maps and programs: 15 programs loaded"] {
        assert!(text.out.lines().any(|said| said == line), "no {line:?} in {text:?}");
    }
    assert!(text.out.contains("\n  √ links: attached with "), "{text:?}");
    assert!(
        text.out.contains(&format!("\n  √ sockets: attached below {cgroup}\n")),
        "{text:?}"
    );
    assert!(
        text.out
            .ends_with("\nebpf would serve: this node can do all that it needs\n"),
        "{text:?}"
    );
    let json = Said::by(node, "probe", &["--cgroup", &cgroup, "-o", "json"]).json();
    assert_eq!(
        json["chosen"],
        serde_json::json!({ "plane": "ebpf", "reason": "preferred" })
    );
    assert_eq!(json["planes"][0]["plane"], "ebpf");
    assert_eq!(json["planes"][1]["plane"], "ipvs");
    assert_eq!(Surroundings::of(node), before);
}

#[test]
fn beside_a_running_agent_a_probe_touches_nothing_that_serves() {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let backend = world.backend(2, "backend", Attachment::Veth);
    let service = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent_with(1, &["--plane", "ebpf"]);
    let cgroup = world.node1().cgroup().path().to_str().unwrap().to_owned();
    let before = Surroundings::of(world.node1());
    let said = Said::by(world.node1(), "probe", &["--cgroup", &cgroup]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(Surroundings::of(world.node1()), before);
    becomes_answered_by(&client.client(), Protocol::Tcp, cluster_ips(&service)[0], "backend");
}

#[test]
fn a_second_agent_of_a_node_is_refused_whatever_its_bpf_file_system() {
    let mut world = World::new();
    world.start_agent_with(1, &["--plane", "ebpf"]);
    let other = lb_tests::bpffs::Bpffs::new().unwrap();
    let second = in_vain(&world, "run", &other.path());
    assert_eq!(second.code, Some(1), "{second:?}");
    for said in ["an lb-agent is running on this node", "stop it first"] {
        assert!(second.err.contains(said), "no {said:?} in {second:?}");
    }
    assert_eq!(pins(&other.path()), [""; 0]);
    // It has not spoilt what is known of the first.
    let said = Said::by(world.node1(), "status", &["-o", "json"]);
    assert_eq!(said.json()["pid"], world.agents[0].pid());
}

/// What a plane could leave on a node.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Surroundings {
    pins: Vec<String>,
    cgroups: Vec<String>,
    links: Vec<String>,
    ruleset: String,
    run_dir: Vec<String>,
}

impl Surroundings {
    fn of(node: &Node) -> Self {
        let mut nft = Command::new("nft");
        nft.args(["list", "ruleset"]).stdout(Stdio::piped());
        let ruleset = process::spawn(nft, node.netns(), None).unwrap();
        let ruleset = ruleset.wait_with_output().unwrap();
        assert!(ruleset.status.success());
        let links = node.netns().netlink().unwrap().links().unwrap();
        Self {
            pins: pins(&node.bpffs().path()),
            cgroups: folders(node.cgroup().path()),
            links: links.into_iter().map(|link| link.name).collect(),
            ruleset: String::from_utf8(ruleset.stdout).unwrap(),
            run_dir: names(node.run_dir()),
        }
    }
}

/// What is pinned below a folder, but for what the kernel itself puts there.
fn pins(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for name in names(folder) {
        if ["maps.debug", "progs.debug"].contains(&name.as_str()) {
            continue;
        }
        let path = folder.join(&name);
        if path.is_dir() {
            let below = pins(&path);
            found.extend(below.into_iter().map(|below| format!("{name}/{below}")));
        }
        found.push(name);
    }
    found
}

fn folders(folder: &Path) -> Vec<String> {
    let mut names = names(folder);
    names.retain(|name| folder.join(name).is_dir());
    names
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}
