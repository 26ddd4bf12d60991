//! Nodes where no program can be loaded: the agent serves by IPVS instead, and says so.
//!
//! The kernel is one that has BPF. What refuses the agent is a filter of its system calls, as container runtimes have one,
//! with the answer of a kernel that was built without BPF or with the runtime's own; or the kernel itself, where the
//! agent has not the right.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use lb_tests::agent::{self, Agent, Options};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod};
use lb_tests::plane::{Plane, other_than};
use lb_tests::process;
use lb_tests::stage::TARGET;
use lb_tests::without_bpf::Refusal;

use crate::fixture::{BOTH, SOON, World, answerers, frontends, names};

const REASON: &str = "programs cannot be loaded, so that it serves";

/// Two backends behind every kind of frontend.
fn scene() -> (World, Pod, [Pod; 2], Service) {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let pods = [
        world.backend(1, "here", Attachment::Bridge),
        world.backend(2, "there", Attachment::Veth),
    ];
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints(&pods);
    world.apply(&service);
    (world, client, pods, service)
}

/// An agent that may choose its plane, started so.
fn options(launcher: impl IntoIterator<Item = OsString>, wanted: &str) -> Options {
    Options {
        args: ["--plane", wanted].map(Into::into).into(),
        launcher: launcher.into_iter().collect(),
        ..Options::default()
    }
}

/// What starts a program without these privileges. The one with ptrace is for the files of the test, which are reached
/// through this process.
pub(crate) fn with_capabilities(capabilities: &str) -> Vec<OsString> {
    let bounding = format!("--bounding-set=-all,+sys_ptrace,{capabilities}");
    ["setpriv".to_owned(), bounding].map(Into::into).into()
}

#[track_caller]
pub(crate) fn is_served_by(plane: &str, launcher: Vec<OsString>) -> String {
    let (world, client, pods, service) = scene();
    let mut agent = Agent::start(world.node1(), &world.source, &options(launcher, "auto")).unwrap();
    let line = agent.wait_for_log(SOON, "plane=").unwrap();
    assert!(line.contains(&format!("plane=\"{plane}\"")), "{line}");
    let clients = [
        client.client(),
        world.network.outside().client(),
        world.node1().client().unwrap(),
    ];
    for client in &clients {
        for to in frontends(&service, world.node1()) {
            for protocol in BOTH {
                assert_eq!(answerers(client, protocol, to, 40), names(&pods), "{protocol} to {to}");
            }
        }
    }
    let status = agent::offline(world.node1(), "status", &[]).unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains(plane), "{status}");
    agent.stop().unwrap();
    line
}

/// The tests below believe this.
#[test]
fn who_is_started_so_is_answered_so() {
    let world = World::new();
    let said = [
        (Refusal::NoSuchCall, "Function not implemented"),
        (Refusal::NotPermitted, "Operation not permitted"),
    ];
    for (refusal, said) in said {
        let [lab, rest @ ..] = refusal.launcher().unwrap();
        let mut command = Command::new(&lab);
        // It asks the kernel for helpers of programs, with `bpf`.
        command.args(rest).arg(lab).arg("kernel").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = process::spawn(command, world.node1().netns(), None).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(said), "{refusal:?}: {text}");
    }
}

#[test]
fn where_bpf_is_refused_services_work_by_ipvs() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    for refusal in Refusal::ALL {
        let line = is_served_by("ipvs", refusal.launcher().unwrap().into());
        assert!(line.contains("cannot run ebpf"), "{refusal:?}: {line}");
    }
}

#[test]
fn where_the_agent_has_no_right_to_bpf_services_work_by_ipvs_and_the_right_is_named() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let line = is_served_by("ipvs", with_capabilities("+net_admin"));
    assert!(line.contains("CAP_BPF"), "{line}");
}

#[test]
fn where_both_can_serve_it_is_programs() {
    if other_than(Plane::Ipvs, "it chooses between both") {
        return;
    }
    is_served_by("ebpf", Vec::new());
}

#[test]
fn who_asks_for_programs_is_not_given_ipvs_instead() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let (world, _client, _pods, _service) = scene();
    for refusal in Refusal::ALL {
        let options = options(refusal.launcher().unwrap(), "ebpf");
        let error = Agent::start(world.node1(), &world.source, &options).unwrap_err();
        let said = format!("{error:#}");
        assert!(said.contains("it has ended: exit status 1"), "{said}");
        assert!(said.contains("this node cannot serve"), "{said}");
        assert!(!said.contains("plane=\"ipvs\""), "{said}");
    }
}

#[test]
fn where_neither_can_be_had_the_agent_ends_and_says_what_each_lacks() {
    if other_than(Plane::Ipvs, REASON) {
        return;
    }
    let (world, _client, _pods, _service) = scene();
    let options = options(with_capabilities("+net_raw"), "auto");
    let error = Agent::start(world.node1(), &world.source, &options).unwrap_err();
    let said = format!("{error:#}");
    for text in ["this node cannot serve", "ebpf", "ipvs", "CAP_NET_ADMIN"] {
        assert!(said.contains(text), "no {text:?} in: {said}");
    }
}
