//! Programs of others on the links that ours are on.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use aya::programs::TcAttachType::{Egress, Ingress};
use lb_tests::agent::Agent;
use lb_tests::foreign::{Foreign, Place, Verdict};
use lb_tests::hooks;
use lb_tests::interrupt::eventually;
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod};
use lb_tests::plane::{Plane, other_than};
use lb_tests::process;
use lb_tests::stage::TARGET;

use crate::clsact::{answered, serve, state};
use crate::fixture::{BOTH, World, cluster_ips};

/// Why these are tests of one plane only.
const PROGRAMS: &str = "programs of others are on links";

/// How long it may take until the agent has looked at all links again.
const LOOKED: Duration = Duration::from_secs(30);

struct Scene {
    /// Ends before the links go.
    agent: Agent,
    to: [SocketAddr; 2],
    pods: Vec<Pod>,
    world: World,
}

/// An agent with these arguments on a node with so many pods. `before` is done to their links before it starts.
fn scene(pods: usize, args: &[&str], before: impl FnOnce(&World, &[Pod])) -> Scene {
    let mut world = World::new();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let service = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&service);
    let kinds = [Attachment::Veth, Attachment::Bridge].into_iter().cycle();
    let pods: Vec<Pod> = (1..=pods)
        .zip(kinds)
        .map(|(n, kind)| world.node1().add_pod(&format!("client-{n}"), kind).unwrap())
        .collect();
    before(&world, &pods);
    world.start_agent_with(1, args);
    let mut pods = pods;
    pods.push(backend);
    Scene {
        agent: world.agents.pop().unwrap(),
        to: cluster_ips(&service),
        pods,
        world,
    }
}

impl Scene {
    fn foreign(&self, name: &str, verdict: Verdict) -> Foreign {
        load(&self.world, name, verdict)
    }

    #[track_caller]
    fn is_served(&self, pod: usize) {
        for to in self.to {
            for protocol in BOTH {
                let answer = self.pods[pod].client().ask(protocol, to);
                assert!(
                    answer.is_ok(),
                    "{} {protocol} to {to}: {answer:?}",
                    self.pods[pod].name()
                );
            }
        }
    }

    fn names(&self, pod: usize, direction: aya::programs::TcAttachType) -> Vec<String> {
        let link = &self.pods[pod].host_link().name;
        let hook = hooks::on(self.world.node1(), link, direction).unwrap();
        hook.names().into_iter().map(str::to_owned).collect()
    }

    fn log_says(&mut self, texts: &[&str]) {
        let what = format!("a line of the log with {texts:?}");
        let found = eventually(LOOKED, &what, || {
            let log = self.agent.log()?;
            let mut lines = log.lines();
            Ok(lines
                .any(|line| texts.iter().all(|text| line.contains(text)))
                .then_some(()))
        });
        if let Err(error) = found {
            panic!("{error:#}\n{}", self.agent.log().unwrap());
        }
    }
}

/// Before all that are there, for one that comes when the agent has started: filters of one priority run from the last that
/// came to the first.
fn before_ours() -> Place {
    if Feature::Tcx.is_there().unwrap() {
        Place::TcxFirst
    } else {
        Place::Filter { priority: 1, handle: 1 }
    }
}

fn after_ours() -> Place {
    if Feature::Tcx.is_there().unwrap() {
        Place::TcxLast
    } else {
        Place::Filter { priority: 2, handle: 1 }
    }
}

/// What a program of the agent's is called on a link.
fn ours(program: &str) -> String {
    if Feature::Tcx.is_there().unwrap() {
        program.to_owned()
    } else {
        format!("lb-agent/{program}")
    }
}

fn load(world: &World, name: &str, verdict: Verdict) -> Foreign {
    Foreign::load(world.node1().netns(), name, verdict).unwrap()
}

#[test]
fn ours_is_first_and_those_of_others_see_what_we_let_go_on() {
    if other_than(Plane::Ebpf, PROGRAMS) {
        return;
    }
    if lacks(Feature::Tcx) {
        return;
    }
    let mut others = Vec::new();
    let scene = scene(1, &[], |world, pods| {
        let link = &pods[0].host_link().name;
        for (direction, place) in [
            (Ingress, Place::TcxFirst),
            (Egress, Place::TcxFirst),
            (Ingress, Place::Filter { priority: 1, handle: 1 }),
            (Egress, Place::Filter { priority: 1, handle: 1 }),
        ] {
            let mut other = load(world, "firewall", Verdict::Next);
            other.attach(link, direction, place).unwrap();
            others.push(other);
        }
    });
    assert_eq!(scene.names(0, Ingress), ["from_pod", "firewall", "firewall"]);
    assert_eq!(scene.names(0, Egress), ["to_link", "firewall", "firewall"]);
    let before: Vec<u64> = others.iter().map(|other| other.packets().unwrap()).collect();
    scene.is_served(0);
    for (other, before) in others.iter().zip(before) {
        // A request or an answer of each family and protocol.
        assert!(other.packets().unwrap() >= before + 4, "{other:?}");
    }
    assert!(!scene.agent.log().unwrap().contains("before ours"), "it is first");
}

#[test]
fn a_program_that_comes_later_and_goes_first_is_named_and_so_is_its_end() {
    if other_than(Plane::Ebpf, PROGRAMS) {
        return;
    }
    let mut scene = scene(1, &[], |_, _| {});
    let link = scene.pods[0].host_link().name.clone();
    let mut behind = scene.foreign("laggard", Verdict::Next);
    behind.attach(&link, Ingress, after_ours()).unwrap();
    let mut before = scene.foreign("pushy", Verdict::Next);
    let place = before.attach(&link, Egress, before_ours()).unwrap();
    assert_eq!(scene.names(0, Ingress), [ours("from_pod"), "laggard".to_owned()]);
    assert_eq!(scene.names(0, Egress), ["pushy".to_owned(), ours("to_link")]);
    let quoted = format!("link={link}");
    scene.log_says(&["WARN", "before ours", &quoted, "egress", "pushy ("]);
    scene.is_served(0);
    before.detach(place).unwrap();
    scene.log_says(&["first again", &quoted, "egress"]);
    let log = scene.agent.log().unwrap();
    assert_eq!(log.matches("before ours").count(), 1, "said once: {log}");
    assert!(!log.contains("laggard"), "who comes after us is no trouble: {log}");
}

#[test]
fn a_program_of_ours_that_somebody_takes_off_is_put_back() {
    if other_than(Plane::Ebpf, PROGRAMS) {
        return;
    }
    let mut scene = scene(1, &[], |_, _| {});
    let link = scene.pods[0].host_link().clone();
    for direction in [Ingress, Egress] {
        hooks::take_off(scene.world.node1(), &link, direction).unwrap();
    }
    scene.log_says(&["WARN", "taken off", &format!("link={}", link.name)]);
    eventually(LOOKED, "our programs are back", || {
        let names = (scene.names(0, Ingress), scene.names(0, Egress));
        Ok((names == (vec![ours("from_pod")], vec![ours("to_link")])).then_some(()))
    })
    .unwrap();
    scene.is_served(0);
}

#[test]
fn a_link_with_another_proxys_programs_is_left_alone_until_they_go_unless_a_rule_says_otherwise() {
    if other_than(Plane::Ebpf, PROGRAMS) {
        return;
    }
    let mut cilium = None;
    // The second pod of the node, which hangs on the bridge.
    let mut scene = scene(3, &["--link", "br2=pod"], |world, pods| {
        assert_eq!(pods[1].host_link().name, "br2");
        let mut program = load(world, "cil_from_container", Verdict::Next);
        for pod in &pods[..2] {
            program.attach(&pod.host_link().name, Ingress, before_ours()).unwrap();
        }
        cilium = Some(program);
    });
    let links: Vec<String> = scene
        .pods
        .iter()
        .map(|pod| format!("link={}", pod.host_link().name))
        .collect();
    scene.log_says(&["WARN", "left alone", "Cilium", "cil_from_contai", &links[0]]);
    assert_eq!(scene.names(0, Ingress), ["cil_from_contai"]);
    assert_eq!(scene.names(0, Egress), [""; 0]);
    for pod in [1, 2] {
        scene.is_served(pod);
    }
    assert_eq!(scene.names(1, Ingress)[0], ours("from_pod"));

    // Another comes to a link that is served.
    let mut calico = scene.foreign("cali_tc_preamble", Verdict::Next);
    let filter = Place::Filter {
        priority: 49152,
        handle: 1,
    };
    calico.attach(&scene.pods[2].host_link().name, Egress, filter).unwrap();
    scene.log_says(&["WARN", "left alone", "Calico", "cali_tc_preambl", &links[2]]);
    // The kernel takes its time to take off what nobody holds any more.
    eventually(LOOKED, "our programs are gone", || {
        let is_gone = scene.names(2, Ingress).is_empty() && scene.names(2, Egress) == ["cali_tc_preambl"];
        Ok(is_gone.then_some(()))
    })
    .unwrap();

    // They go.
    drop((cilium, calico));
    for pod in [0, 2] {
        eventually(LOOKED, "our programs", || {
            let names = (scene.names(pod, Ingress), scene.names(pod, Egress));
            Ok((names == (vec![ours("from_pod")], vec![ours("to_link")])).then_some(()))
        })
        .unwrap();
        scene.is_served(pod);
    }
    let log = scene.agent.log().unwrap();
    assert_eq!(log.matches("left alone").count(), 2, "each said once: {log}");
}

/// Below kernel 6.6: a priority is of one kind of filter, and its filters run from the last that came to the first.
#[test]
fn as_a_filter_ours_goes_first_where_it_can_and_others_see_what_it_lets_go_on() {
    if other_than(Plane::Ebpf, PROGRAMS) {
        return;
    }
    let mut world = World::new();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let node = world.node1();
    let link = &pod.host_link().name;
    let state = state(node, &backend);
    let at = |priority| Place::Filter { priority, handle: 1 };

    let mut same = load(&world, "same", Verdict::Next);
    same.attach(link, Ingress, at(1)).unwrap();
    // Of another kind, at the first priority: nothing else can be there.
    let mut tc = Command::new("tc");
    tc.args(["filter", "add", "dev", link, "egress", "prio", "1", "protocol", "all"]);
    // It matches no packet, since none has this length: all go on to the next filter.
    tc.args(["u32", "match", "u16", "0xffff", "0xffff", "at", "2"]);
    tc.args(["classid", "1:1"]).stdin(Stdio::null());
    assert!(
        process::spawn(tc, node.netns(), None)
            .unwrap()
            .wait()
            .unwrap()
            .success()
    );
    let mut after = load(&world, "after", Verdict::Next);
    after.attach(link, Egress, at(3)).unwrap();

    serve(node, &pod, &state);
    let names = |direction| {
        let mut names = hooks::on(node, link, direction).unwrap().filters;
        // One of the other kind is told of with its table.
        names.dedup();
        names
    };
    assert_eq!(names(Ingress), ["lb-agent/from_pod", "same"]);
    assert_eq!(names(Egress), ["another kind", "lb-agent/to_link", "after"]);
    let (seen, seen_after) = (same.packets().unwrap(), after.packets().unwrap());
    answered(&pod.client(), node);
    assert!(same.packets().unwrap() > seen);
    assert!(after.packets().unwrap() > seen_after);
}
