//! `lb-agent monitor` tells of each packet and each call that goes nowhere: when, why, what and where.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lb_tests::agent;
use lb_tests::capture::Capture;
use lb_tests::client::{Client, Protocol};
use lb_tests::interrupt::eventually;
use lb_tests::manifests::{Manifest, Service};
use lb_tests::network::{Attachment, Node, Pod, plan};
use lb_tests::owner::Folder;
use lb_tests::packet::{Macs, udp};
use lb_tests::plane::{Plane, other_than};
use lb_tests::process;
use lb_tests::stage::TARGET;
use serde_json::{Value, json};

use crate::fixture::{BRIEFLY, SOON, World, cluster_ips, host_that_is_served, service_cidr};

/// Why these are tests of one plane only.
const TOLD_BY_PROGRAMS: &str = "programs tell what they drop";

/// Longer than a monitor takes to end.
const END: Duration = Duration::from_secs(10);
/// What it says when it tells of all that comes.
const READY: &str = "watching what is dropped and refused";
const LOST: &str = " more were not shown: too many at once";
/// The number of an address that no Service has.
const UNALLOCATED: u8 = 99;

fn command(node: &Node, args: &[&str]) -> Command {
    let mut command = Command::new(agent::binary().unwrap());
    command
        .args(["monitor", "--bpffs"])
        .arg(node.bpffs().path())
        .args(args)
        .stdin(Stdio::null());
    command
}

/// A running monitor. Dropping it ends it.
struct Monitor {
    child: Child,
    folder: Folder,
}

impl Monitor {
    /// Starts one and waits until it tells of all that comes.
    fn start(node: &Node, args: &[&str]) -> Self {
        let folder = Folder::new().unwrap();
        let file = |name| File::create(folder.path().join(name)).unwrap();
        let mut command = command(node, args);
        command.stdout(file("out")).stderr(file("err"));
        let child = process::spawn(command, node.netns(), Some(node.cgroup())).unwrap();
        let monitor = Self { child, folder };
        let is_ready = || Ok(monitor.said().contains(READY).then_some(()));
        eventually(SOON, "a monitor", is_ready).unwrap_or_else(|error| panic!("{error:#}: {}", monitor.said()));
        monitor
    }

    /// What it has printed so far, without a line that is not complete.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("out")).unwrap();
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete.lines().map(str::to_owned).collect()
    }

    /// The same, when there are this many.
    #[track_caller]
    fn wait_for(&self, count: usize) -> Vec<String> {
        let enough = || Ok(Some(self.lines()).filter(|lines| lines.len() >= count));
        let lines = eventually(SOON, &format!("{count} lines"), enough);
        lines.unwrap_or_else(|error| panic!("{error:#}: {:#?}, {}", self.lines(), self.said()))
    }

    /// What it has said on standard error.
    fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("err")).unwrap()
    }

    /// How many it said it could not show.
    fn lost(&self) -> u64 {
        let said = self.said();
        let counts = said.lines().filter_map(|line| line.strip_suffix(LOST));
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    }

    /// Ends it with SIGTERM, and gives all that it has printed.
    #[track_caller]
    fn stop(mut self) -> Vec<String> {
        let status = process::stop(&mut self.child, END).unwrap();
        assert_eq!(status.code(), Some(0), "{}", self.said());
        self.lines()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = process::stop(&mut self.child, END);
    }
}

/// Runs one that ends by itself: its exit status and what it printed and said.
fn run(node: &Node, args: &[&str]) -> (Option<i32>, String, String) {
    let output = agent::offline(node, "monitor", args).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn counter(node: &Node, name: &str) -> u64 {
    let (code, printed, said) = run(node, &["--counters", "-o", "json"]);
    assert_eq!(code, Some(0), "{said}");
    let counters: Value = serde_json::from_str(&printed).unwrap();
    counters[name].as_u64().unwrap_or_else(|| panic!("{printed}"))
}

/// Services that serve nobody, each in a way of its own, and an agent on node 1.
struct Scene {
    world: World,
    bridge: Pod,
    veth: Pod,
    refusing: [SocketAddr; 2],
    /// Local, and its endpoint is on the other node.
    elsewhere: [SocketAddr; 2],
    unallocated: [SocketAddr; 2],
}

fn scene() -> Scene {
    let mut world = World::new();
    let there = world.backend(2, "there", Attachment::Bridge);
    let [bridge, veth] = [("bridge", Attachment::Bridge), ("veth", Attachment::Veth)]
        .map(|(name, attachment)| world.node1().add_pod(name, attachment).unwrap());
    let refusing = Service::new("refusing", 1, TARGET);
    let elsewhere = Service::new("elsewhere", 2, TARGET).with_endpoints([&there]);
    world.apply(&refusing);
    world.apply(&elsewhere);
    let mut local = elsewhere.service();
    local.spec.as_mut().unwrap().internal_traffic_policy = Some("Local".into());
    let objects = [Manifest::new(&local).unwrap(), service_cidr()];
    world.source.apply(&objects).unwrap();
    world.start_agent(1);
    Scene {
        refusing: cluster_ips(&refusing),
        elsewhere: cluster_ips(&elsewhere),
        unallocated: plan::service_addresses(UNALLOCATED).map(|ip| SocketAddr::new(ip, 80)),
        world,
        bridge,
        veth,
    }
}

impl Scene {
    fn node(&self) -> &Node {
        self.world.node1()
    }

    /// Each address that serves nobody, with what is said of who dials it.
    fn dials(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        [
            ("rejected", self.refusing),
            ("dropped_no_local_endpoint", self.elsewhere),
            ("dropped_unallocated", self.unallocated),
        ]
        .into_iter()
        .flat_map(|(reason, to)| to.map(|to| (reason, to)))
    }
}

/// A pod sends one datagram; says where from.
fn send(pod: &Pod, to: SocketAddr) -> SocketAddr {
    let socket = pod.client().datagrams(to).unwrap();
    socket.send_to(b"?", to).unwrap();
    let [v4, v6] = pod.addresses();
    SocketAddr::new(if to.is_ipv4() { v4 } else { v6 }, socket.local_addr().unwrap().port())
}

/// A process of the node makes a call that is denied; says where from, as far as the kernel knows then.
fn call(host: &Client, to: SocketAddr) -> IpAddr {
    assert!(host.with_timeout(BRIEFLY).ask(Protocol::Tcp, to).is_err(), "{to}");
    if to.is_ipv4() {
        "0.0.0.0".parse().unwrap()
    } else {
        "::".parse().unwrap()
    }
}

/// A line without the time, which is one of RFC 3339 to the microsecond.
#[track_caller]
fn untimed(line: &str) -> &str {
    let (time, rest) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
    assert!(
        time.len() == "2026-11-30T10:20:30.123456Z".len() && time.ends_with('Z'),
        "{line}"
    );
    rest
}

#[test]
fn what_goes_nowhere_is_told_with_its_reason_and_its_link_and_nothing_else_is() {
    if other_than(Plane::Ebpf, TOLD_BY_PROGRAMS) {
        return;
    }
    let scene = scene();
    // Nobody reads this.
    send(&scene.bridge, scene.refusing[0]);
    let monitor = Monitor::start(scene.node(), &[]);
    let mut expected = Vec::new();
    for pod in [&scene.bridge, &scene.veth] {
        let link = &pod.host_link().name;
        for (reason, to) in scene.dials() {
            let from = send(pod, to);
            expected.push(format!("{reason} udp {from} -> {to} ingress={link}"));
            // The next is sent when this one is told of: they may be received on different CPUs.
            monitor.wait_for(expected.len());
        }
    }
    let host = host_that_is_served(scene.node());
    if let Some(host) = &host {
        for (reason, to) in scene.dials() {
            let from = call(host, to);
            expected.push(format!("{reason} tcp {from} -> {to} process"));
            monitor.wait_for(expected.len());
        }
    }
    let lines = monitor.stop();
    let told: Vec<_> = lines.iter().map(|line| untimed(line)).collect();
    assert_eq!(told, expected);

    // Both pods in both families, and the host.
    let each = 2 * (2 + u64::from(host.is_some()));
    for (name, count) in [
        ("rejected", each + 1),
        ("dropped_no_local_endpoint", each),
        ("dropped_unallocated", each),
        ("dropped_source_range", 0),
        ("events_lost", 0),
    ] {
        assert_eq!(counter(scene.node(), name), count, "{name}");
    }
}

#[test]
fn a_program_reads_the_same_as_json_and_of_the_reasons_that_it_asks_for() {
    if other_than(Plane::Ebpf, TOLD_BY_PROGRAMS) {
        return;
    }
    let scene = scene();
    let reasons = [
        "-o",
        "json",
        "--reason",
        "dropped_unallocated",
        "--reason",
        "dropped_source_range",
    ];
    let monitor = Monitor::start(scene.node(), &reasons);
    let mut expected = Vec::new();
    for (reason, to) in scene.dials() {
        let from = send(&scene.veth, to);
        if reason == "dropped_unallocated" {
            expected.push(json!({
                "reason": reason,
                "protocol": "udp",
                "source": from.ip(),
                "source_port": from.port(),
                "destination": to.ip(),
                "destination_port": to.port(),
                "hook": "ingress",
                "link": scene.veth.host_link().name,
                "link_index": scene.veth.host_link().index,
            }));
            monitor.wait_for(expected.len());
        }
    }
    let mut told: Vec<Value> = monitor
        .stop()
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for event in &mut told {
        let time = event.as_object_mut().unwrap().remove("time").unwrap();
        assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
    }
    assert_eq!(told, expected);

    let (code, printed, said) = run(scene.node(), &["--counters", "--reason", "dropped_unallocated"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(
        printed.split_whitespace().collect::<Vec<_>>(),
        ["COUNTER", "TOTAL", "dropped_unallocated", "2"]
    );
}

#[test]
fn of_a_flood_a_part_is_told_and_of_the_rest_how_many_there_were() {
    if other_than(Plane::Ebpf, TOLD_BY_PROGRAMS) {
        return;
    }
    let scene = scene();
    let monitor = Monitor::start(scene.node(), &[]);
    let (pod, to) = (&scene.veth, scene.refusing[0]);
    let wire = Capture::start(pod.netns(), pod.link()).unwrap();
    let macs = Macs {
        from: pod.link().mac,
        to: pod.gateway_mac(scene.node()).unwrap(),
    };
    let frame = udp(macs, SocketAddr::new(pod.addresses()[0], 4321), to, b"?").unwrap();
    // As many a second as this machine can; a slow one needs more of them for as many at once.
    let flood = || {
        for _ in 0..5_000 {
            wire.send(&frame).unwrap();
        }
        Ok((counter(scene.node(), "events_lost") > 0).then_some(()))
    };
    eventually(SOON, "too many at once", flood).unwrap();
    let all_told = || {
        let rejected = counter(scene.node(), "rejected");
        let told = (monitor.lines().len() as u64, monitor.lost());
        Ok((told.0 + told.1 == rejected).then_some(told))
    };
    let (shown, lost) = eventually(SOON, "an account of every packet", all_told).unwrap();
    assert!(shown > 0 && lost > 0, "{shown} shown, {lost} lost");
    assert_eq!(lost, counter(scene.node(), "events_lost"));
}

#[test]
fn there_is_one_at_a_time_and_the_agent_is_not_needed() {
    if other_than(Plane::Ebpf, TOLD_BY_PROGRAMS) {
        return;
    }
    let mut scene = scene();
    scene.world.agents.pop().unwrap().stop().unwrap();
    let monitor = Monitor::start(scene.node(), &[]);
    let (code, printed, said) = run(scene.node(), &[]);
    assert_eq!((code, printed.as_str()), (Some(2), ""));
    assert!(
        said.contains("another `lb-agent monitor` reads the events") && said.contains("stop it first"),
        "{said}"
    );
    // That takes nothing from the first one.
    assert_eq!(counter(scene.node(), "rejected"), 0);
    send(&scene.veth, scene.refusing[0]);
    assert_eq!(monitor.wait_for(1).len(), 1);
    monitor.stop();
    Monitor::start(scene.node(), &[]).stop();
}

#[test]
fn it_ends_well_when_nobody_reads_it_and_says_so_when_the_maps_are_gone() {
    if other_than(Plane::Ebpf, TOLD_BY_PROGRAMS) {
        return;
    }
    let mut scene = scene();
    let mut command = command(scene.node(), &[]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = process::spawn(command, scene.node().netns(), Some(scene.node().cgroup())).unwrap();
    drop(child.stdout.take());
    let status = process::wait(&mut child, END).unwrap();
    assert_eq!(status.and_then(|status| status.code()), Some(0));

    let mut monitor = Monitor::start(scene.node(), &[]);
    scene.world.agents.pop().unwrap().stop().unwrap();
    assert!(agent::cleanup(scene.node()).unwrap().status.success());
    let status = process::wait(&mut monitor.child, END).unwrap();
    assert_eq!(status.and_then(|status| status.code()), Some(2));
    assert!(monitor.said().contains("start the monitor again"), "{}", monitor.said());

    for args in [&[] as &[_], &["--counters"]] {
        let (code, printed, said) = run(scene.node(), args);
        assert_eq!((code, printed.as_str()), (Some(2), ""));
        assert!(said.contains("no agent has filled maps here"), "{said}");
    }
}

#[test]
fn without_privileges_it_says_which_are_missing() {
    if other_than(Plane::Ebpf, TOLD_BY_PROGRAMS) {
        return;
    }
    let world = World::new();
    // User 65534 can read this folder, wherever the agent was built.
    let folder = Folder::new().unwrap();
    let program = folder.path().join("lb-agent");
    fs::copy(agent::binary().unwrap(), &program).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--",
        ])
        .arg(program)
        .args(["monitor", "--bpffs"])
        .arg(world.node1().bpffs().path())
        .stderr(Stdio::piped());
    let child = process::spawn(command, world.node1().netns(), None).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("reading BPF maps needs CAP_BPF: run as root"), "{said}");
}
