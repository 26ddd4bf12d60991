//! An agent takes the place of another whose flow table it cannot share: what is open goes on, and whoever comes is
//! answered at every moment of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use aya::programs::TcAttachType;
use lb_tests::agent::{self, Agent, Build, Maps, Options};
use lb_tests::hooks;
use lb_tests::interrupt::eventually;
use lb_tests::kernel::Feature;
use lb_tests::network::plan::TUNNEL;
use lb_tests::plane::{Plane, other_than};

use lb_tests::client::{Connection, Protocol};

use crate::fixture::{BOTH, SOON, becomes, frontends, names};
use crate::restart::{Running, running};

/// What an agent says when programs of the one before are gone.
const ENDED: &str = "programs of an earlier agent are gone";

/// What it says when those begin no flow any more, and go on with what they have.
const DRAINS: &str = "(--drain)";

/// Between two questions of one client.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two over a connection that stays.
const AGAIN: Duration = Duration::from_millis(200);

fn of(maps: Maps) -> Options {
    Options {
        maps,
        ..Options::default()
    }
}

fn built(build: Build, args: &[&str]) -> Options {
    Options {
        build,
        args: args.iter().map(Into::into).collect(),
        ..Options::default()
    }
}

fn other(build: Build) -> Build {
    match build {
        Build::Usual => Build::NextLayout,
        Build::NextLayout => Build::Usual,
    }
}

/// Says that it is over when it goes, also with a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Has every client ask at every frontend over and over again, by a connection of its own each time, and over those that
/// are open, while `work` is done. None may fail.
fn while_asked<T>(running: &Running, open: &mut [(Connection, String)], work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    let ask = |client: &lb_tests::client::Client| {
        let mut asked = 0;
        while !over.load(Ordering::Relaxed) {
            for to in frontends(&running.service, running.world.node1()) {
                for protocol in BOTH {
                    if let Err(failure) = client.ask(protocol, to) {
                        panic!("question {asked}, {protocol} to {to}: {failure}");
                    }
                    asked += 1;
                    // More would fill the small tables, which then forget what is open.
                    thread::sleep(PAUSE);
                }
            }
        }
        asked
    };
    thread::scope(|scope| {
        let askers: Vec<_> = running
            .clients
            .iter()
            .map(|client| scope.spawn(move || ask(client)))
            .collect();
        let asked_again = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                Running::still_answer("meanwhile", open);
                thread::sleep(AGAIN);
            }
        });
        let is_over = Over(&over);
        let done = work();
        drop(is_over);
        asked_again.join().unwrap();
        for asker in askers {
            assert!(asker.join().unwrap() > 0);
        }
        done
    })
}

/// How many programs of ours are on each hook, by link and direction.
fn programs(running: &Running) -> Vec<(String, usize)> {
    let node = running.world.node1();
    let mut programs = Vec::new();
    for link in [&*running.client_pod.host_link().name, &*node.uplink().name, TUNNEL] {
        for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
            let ours = hooks::on(node, link, direction).unwrap().ours();
            programs.push((format!("{link} {direction:?}"), ours));
        }
    }
    programs
}

#[track_caller]
fn are_alone(running: &Running) {
    for (hook, ours) in programs(running) {
        assert_eq!(ours, 1, "{hook}");
    }
    let draining = running.world.node1().bpffs().path().join("lb-agent/draining");
    assert!(!draining.exists(), "{}", draining.display());
}

#[test]
fn nothing_is_lost_when_maps_get_other_sizes() {
    if other_than(Plane::Ebpf, "maps have a size") {
        return;
    }
    let mut running = running();
    let mut connections = running.connections();
    let mut agent = running.agent();
    for maps in [Maps::Resized, Maps::Small, Maps::Resized] {
        let when = format!("{maps:?}");
        agent = while_asked(&running, &mut connections, || {
            agent.stop().unwrap();
            let mut next = Agent::start(running.world.node1(), &running.world.source, &of(maps)).unwrap();
            next.wait_for_log(SOON, ENDED).unwrap();
            next
        });
        are_alone(&running);
        Running::still_answer(&when, &mut connections);
        running.new_ones_are_answered();
        connections.extend(running.connections());
    }
}

#[test]
fn an_agent_that_is_killed_at_any_moment_of_it_leaves_what_the_next_one_goes_on_with() {
    if other_than(Plane::Ebpf, "maps have a size") {
        return;
    }
    let mut running = running();
    let mut connections = running.connections();
    let mut agent = running.agent();
    // Before the first link, between links, in the moment of the switch, and behind it.
    let moments = ["started", "link is served", "ready", "carrying its flows over"];
    let (mut now, mut other) = (Maps::Small, Maps::Resized);
    for (moment, stays) in moments.into_iter().flat_map(|moment| [(moment, true), (moment, false)]) {
        let when = format!(
            "killed at {moment:?}, followed by one of {}",
            if stays { "its sizes" } else { "those before" }
        );
        agent = while_asked(&running, &mut connections, || {
            agent.kill().unwrap();
            let node = running.world.node1();
            let mut killed = Agent::spawn(node, &running.world.source, &of(other)).unwrap();
            killed.wait_for_log(SOON, moment).unwrap();
            killed.kill().unwrap();
            let next = if stays { other } else { now };
            let next = Agent::start(node, &running.world.source, &of(next)).unwrap();
            eventually(SOON, "one program on each hook", || {
                Ok(programs(&running).iter().all(|(_, ours)| *ours == 1).then_some(()))
            })
            .unwrap();
            next
        });
        Running::still_answer(&when, &mut connections);
        running.new_ones_are_answered();
        if stays {
            (now, other) = (other, now);
        }
    }
    agent.stop().unwrap();
    are_alone(&running);
}

#[test]
fn cleanup_in_the_middle_of_it_takes_both() {
    if other_than(Plane::Ebpf, "maps have a size") {
        return;
    }
    let mut running = running();
    running.agent().stop().unwrap();
    let node = running.world.node1();
    let mut agent = Agent::spawn(node, &running.world.source, &of(Maps::Resized)).unwrap();
    agent.wait_for_log(SOON, "link is served").unwrap();
    agent.kill().unwrap();
    let output = agent::cleanup(node).unwrap();
    assert!(output.status.success(), "{output:?}");
    for (hook, ours) in programs(&running) {
        assert_eq!(ours, 0, "{hook}");
    }
    if Feature::Tcx.is_there().unwrap() {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("draining link"), "{said}");
    }
    assert!(!node.bpffs().path().join("lb-agent").exists());
}

#[test]
fn nothing_is_lost_by_an_upgrade_to_another_layout_nor_by_the_way_back() {
    if other_than(Plane::Ebpf, "maps have a layout") {
        return;
    }
    let mut running = running();
    let mut connections = running.connections();
    let mut agent = running.agent();
    for (round, build) in [Build::NextLayout, Build::Usual, Build::NextLayout]
        .into_iter()
        .enumerate()
    {
        let when = format!("round {round}, {build:?}");
        agent = while_asked(&running, &mut connections, || {
            agent.stop().unwrap();
            let mut next = Agent::start(running.world.node1(), &running.world.source, &built(build, &[])).unwrap();
            next.wait_for_log(SOON, DRAINS).unwrap();
            next
        });
        for (hook, ours) in programs(&running) {
            assert_eq!(ours, 2, "{hook}, {when}");
        }
        Running::still_answer(&when, &mut connections);
        running.new_ones_are_answered();
        connections.extend(running.connections());
        Running::still_answer(&when, &mut connections);
    }
    // One of the same layout goes on with it.
    agent.kill().unwrap();
    Running::still_answer("without an agent", &mut connections);
    drop(connections);
    let mut agent = while_asked(&running, &mut [], || {
        let node = running.world.node1();
        Agent::start(node, &running.world.source, &built(Build::NextLayout, &["--drain=1s"])).unwrap()
    });
    agent.wait_for_log(SOON, ENDED).unwrap();
    are_alone(&running);
    running.new_ones_are_answered();
}

#[test]
fn what_another_layout_has_open_ends_when_its_time_is_up_and_whoever_comes_is_answered_all_the_time() {
    if other_than(Plane::Ebpf, "maps have a layout") {
        return;
    }
    let mut running = running();
    let mut connections = running.connections();
    let agent = running.agent();
    let mut agent = while_asked(&running, &mut [], || {
        agent.stop().unwrap();
        let options = built(Build::NextLayout, &["--drain=3s"]);
        let mut next = Agent::start(running.world.node1(), &running.world.source, &options).unwrap();
        next.wait_for_log(SOON, DRAINS).unwrap();
        Running::still_answer("as long as they may", &mut connections);
        next.wait_for_log(SOON, ENDED).unwrap();
        next
    });
    are_alone(&running);
    assert!(agent.wait_for_log(SOON, DRAINS).unwrap().contains("seconds=3"));
    running.new_ones_are_answered();
}

#[test]
fn an_agent_of_another_layout_may_be_killed_at_any_moment() {
    if other_than(Plane::Ebpf, "maps have a layout") {
        return;
    }
    let mut running = running();
    let mut connections = running.connections();
    let mut agent = running.agent();
    let mut now = Build::Usual;
    let moments = ["started", "link is served", "ready", DRAINS];
    for (moment, stays) in moments.into_iter().flat_map(|moment| [(moment, true), (moment, false)]) {
        let next = if stays { other(now) } else { now };
        let when = format!("{:?} killed at {moment:?}, followed by {next:?}", other(now));
        agent = while_asked(&running, &mut connections, || {
            agent.kill().unwrap();
            let node = running.world.node1();
            let mut killed = Agent::spawn(node, &running.world.source, &built(other(now), &[])).unwrap();
            killed.wait_for_log(SOON, moment).unwrap();
            killed.kill().unwrap();
            Agent::start(node, &running.world.source, &built(next, &[])).unwrap()
        });
        Running::still_answer(&when, &mut connections);
        running.new_ones_are_answered();
        now = next;
    }
    drop(agent);
}

#[test]
fn datagrams_of_a_flow_that_drains_leave_a_backend_that_goes() {
    if other_than(Plane::Ebpf, "maps have a layout") {
        return;
    }
    let mut running = running();
    let agent = running.agent();
    let outside = &running.clients[1];
    let mut flows = Vec::new();
    for to in frontends(&running.service, running.world.node1()) {
        // As many as it takes for some to go to the backend that is to go.
        for _ in 0..6 {
            flows.push(outside.connect(Protocol::Udp, to).unwrap());
        }
    }
    flows.iter_mut().for_each(|flow| drop(flow.ask("who").unwrap()));
    agent.stop().unwrap();
    let options = built(Build::NextLayout, &[]);
    let mut agent = Agent::start(running.world.node1(), &running.world.source, &options).unwrap();
    agent.wait_for_log(SOON, DRAINS).unwrap();
    let [stays, _] = &running.pods;
    running.world.apply(&running.service.clone().with_endpoints([stays]));
    let stays = names([stays]);
    for mut flow in flows {
        becomes(
            "a flow that drained",
            || flow.ask("who"),
            |outcome| outcome.as_ref().is_ok_and(|answer| stays.contains(&answer.server)),
        );
    }
}
