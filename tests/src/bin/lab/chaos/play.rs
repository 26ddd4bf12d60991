//! Carries a plan out, while connections run and Services change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use aya::programs::TcAttachType;
use lb_tests::agent::Agent;
use lb_tests::hooks;
use lb_tests::interrupt::{self, eventually};
use lb_tests::network::{Node, plan::TUNNEL};
use lb_tests::plane::Plane;
use lb_tests::stage::Stage;
use nix::sys::signal::Signal;

use super::build::Build;
use super::cut::Cut;
use super::plan::{Event, Interruption, Plan};
use super::{Args, changes};
use crate::progress::{Step, say};
use crate::traffic::{Record, Timeline, Traffic};

/// How long an agent may take to end: it does not while the kernel verifies a program for it.
const STOP: Duration = Duration::from_secs(60);
/// How long it may take until each link has its program.
const SERVED: Duration = Duration::from_secs(30);

/// Who plays.
struct Player<'a> {
    stage: &'a Stage,
    record: &'a Record,
    timeline: Timeline,
    agent: Option<Agent>,
    /// What a start takes, from its begin to readiness.
    usual: Duration,
    pause: Duration,
    /// How many programs of the agent's were on each hook in the beginning.
    hooks: BTreeMap<String, usize>,
    /// How many more there may be: those of another layout go on with what they have.
    draining: usize,
}

/// Plays it to its end, and waits until the last connection is over.
pub(crate) fn play(
    plan: &Plan,
    stage: &Stage,
    traffic: &mut Traffic,
    args: &Args,
    pause: Duration,
) -> Result<Timeline> {
    let node = stage.network().node1();
    let step = Step::start("lb-agent: loading programs, reading objects, programming them");
    let begun = Instant::now();
    let agent = Agent::start(node, stage.source(), &Build::Usual.options())?;
    let usual = begun.elapsed();
    step.done();
    let step = Step::start(format!(
        "{} long connections, {} new ones a second",
        args.long, args.rate
    ));
    traffic.keep("long", args.long, true)?;
    traffic.start_fresh(args.rate)?;
    step.done();

    let over = AtomicBool::new(false);
    let timeline = thread::scope(|scope| -> Result<Timeline> {
        let changes = scope.spawn(|| changes::run(stage, &over));
        let _over = Over(&over);
        let mut player = Player {
            stage,
            record: traffic.record(),
            timeline: Timeline::default(),
            agent: Some(agent),
            usual,
            pause,
            hooks: programs(stage)?,
            draining: usize::from(args.to.contains(&Build::OtherLayout)),
        };
        interrupt::sleep(pause)?;
        player.end_of("before");
        for event in &plan.events {
            let step = Step::start(event.to_string());
            player.play(event)?;
            interrupt::sleep(pause)?;
            ensure!(!changes.is_finished(), "Services do not change any more");
            step.done();
            player.end_of(&event.to_string());
        }
        over.store(true, Ordering::Relaxed);
        changes.join().ok().context("what changes Services has panicked")??;
        Ok(player.timeline)
    });
    let mut timeline = timeline?;
    let step = Step::start("the last answers");
    traffic.finish()?;
    timeline.end_event("after", traffic.record());
    step.done();
    Ok(timeline)
}

impl Player<'_> {
    fn play(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Kill => {
                self.end(Signal::SIGKILL)?;
                interrupt::sleep(self.pause)?;
                self.start(Build::Usual)
            }
            Event::Stop => {
                self.end(Signal::SIGTERM)?;
                interrupt::sleep(self.pause)?;
                self.start(Build::Usual)
            }
            Event::Upgrade(build) => {
                self.end(Signal::SIGTERM)?;
                self.start(*build)
            }
            Event::Downgrade(_) => {
                self.end(Signal::SIGTERM)?;
                self.start(Build::Usual)
            }
            Event::Cut => self.cut(),
            Event::Interrupt(interruption) => self.interrupt(interruption),
        }
    }

    fn cut(&mut self) -> Result<()> {
        let cut = Cut::make(self.stage.network())?;
        self.mark("the cut");
        interrupt::sleep(self.pause * 3)?;
        self.end(Signal::SIGKILL)?;
        let mut agent = self.spawn(Build::Usual)?;
        // It has its programs in place by then, and waits for the API server.
        interrupt::sleep(self.usual * 2 + self.pause)?;
        self.mark("the way to the API server is back");
        cut.mend()?;
        agent.wait_ready()?;
        self.is_ready(agent)
    }

    fn interrupt(&mut self, interruption: &Interruption) -> Result<()> {
        self.end(Signal::SIGKILL)?;
        let agent = self.spawn(interruption.build)?;
        self.agent = Some(agent);
        interrupt::sleep(self.usual.mul_f64(interruption.after))?;
        self.end(interruption.signal)?;
        if interruption.is_repaired {
            interrupt::sleep(self.pause)?;
            self.start(Build::Usual)?;
        }
        Ok(())
    }

    /// Ends the agent that there is, if any.
    fn end(&mut self, signal: Signal) -> Result<()> {
        let Some(agent) = self.agent.take() else {
            return Ok(());
        };
        self.mark(signal.as_str());
        match signal {
            Signal::SIGKILL => agent.kill()?,
            _ => agent.stop_in_its_start(STOP)?,
        }
        self.mark("the end of the agent");
        Ok(())
    }

    fn spawn(&mut self, build: Build) -> Result<Agent> {
        self.mark("the begin of a start");
        Agent::spawn(self.stage.network().node1(), self.stage.source(), &build.options())
    }

    fn start(&mut self, build: Build) -> Result<()> {
        let mut agent = self.spawn(build)?;
        agent.wait_ready()?;
        self.is_ready(agent)
    }

    fn is_ready(&mut self, agent: Agent) -> Result<()> {
        self.mark("readiness");
        self.agent = Some(agent);
        eventually(SERVED, "as many programs on each hook as in the beginning", || {
            let now = programs(self.stage)?;
            let mut hooks = now.iter().zip(&self.hooks);
            let are_as_many = hooks.all(|((hook, now), (hook_before, before))| {
                hook == hook_before && (*before..=before + self.draining).contains(now)
            });
            Ok((are_as_many && now.len() == self.hooks.len()).then_some(()))
        })
    }

    fn mark(&mut self, what: &str) {
        self.timeline.mark(what, self.record);
    }

    /// Says what came of the connections while this happened.
    fn end_of(&mut self, event: &str) {
        self.timeline.end_event(event, self.record);
        say(self.timeline.how_it_went(self.record));
    }
}

/// How many programs of the agent's are on each hook of the first node, by link and direction.
fn programs(stage: &Stage) -> Result<BTreeMap<String, usize>> {
    let mut programs = BTreeMap::new();
    if Plane::under_test() != Plane::Ebpf {
        return Ok(programs);
    }
    let node: &Node = stage.network().node1();
    let pods = stage.here().iter().chain([stage.bridge_pod(), stage.veth_pod()]);
    let mut links: Vec<&str> = pods.map(|pod| pod.host_link().name.as_str()).collect();
    links.extend([&*node.uplink().name, &*node.bridge().name, TUNNEL]);
    for link in links {
        for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
            let ours = hooks::on(node, link, direction)?.ours();
            programs.insert(format!("{link} {direction:?}"), ours);
        }
    }
    Ok(programs)
}

/// Says that it is over when it goes.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
