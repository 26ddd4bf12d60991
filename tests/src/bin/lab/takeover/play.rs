//! Takes the steps, while connections run.

use std::process::Output;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use lb_tests::agent::{self, Agent, Maps, Options};
use lb_tests::controlplane::{ControlPlane, KubeProxy, KubeProxyOptions, Mode};
use lb_tests::interrupt;
use lb_tests::source::Source;
use lb_tests::stage::Stage;

use super::Args;
use super::way::Action;
use crate::progress::{Step, say};
use crate::traffic::{Timeline, Traffic};

/// Long connections that were opened through kube-proxy.
pub(crate) const THROUGH_KUBE_PROXY: &str = "opened through kube-proxy";
/// Long connections that were opened through lb-agent.
pub(crate) const THROUGH_AGENT: &str = "opened through lb-agent";

/// Takes all of them, and waits until the last connection is over. Says too how many of the long connections of a group are
/// of TCP.
pub(crate) fn play(
    mode: Mode,
    stage: &Stage,
    traffic: &mut Traffic,
    args: &Args,
    pause: Duration,
) -> Result<(Timeline, usize)> {
    let node = stage.network().node1();
    let cluster = cluster(stage)?;
    let options = KubeProxyOptions::in_mode(mode);
    let step = Step::start(format!("kube-proxy in {} mode", mode.word()));
    let mut kube_proxy = Some(KubeProxy::start(node, cluster, &options)?);
    step.done();
    let step = Step::start(format!(
        "{} long connections, {} new ones a second",
        args.long, args.rate
    ));
    // As many as the other group has, which takes the same ways.
    let tcp = traffic.keep(THROUGH_KUBE_PROXY, args.long, false)?;
    traffic.start_fresh(args.rate)?;
    step.done();

    let mut agent = None;
    let mut timeline = Timeline::default();
    for action in Action::ALL {
        let step = Step::start(action.to_string());
        timeline.mark(format!("the begin of \"{action}\""), traffic.record());
        match action {
            Action::Before => {}
            Action::StartAgent => agent = Some(Agent::start(node, stage.source(), &of_agent())?),
            Action::StopKubeProxy => drop(kube_proxy.take()),
            Action::CleanUpKubeProxy => check(agent::offline(node, "cleanup", &["--kube-proxy"])?)?,
            Action::OpenMore => traffic.keep(THROUGH_AGENT, args.long, false).map(drop)?,
            Action::StartKubeProxy => kube_proxy = Some(KubeProxy::start(node, cluster, &options)?),
            Action::StopAgent => agent.take().map_or(Ok(()), Agent::stop)?,
            Action::CleanUpAgent => check(agent::cleanup(node)?)?,
        }
        timeline.mark(format!("the end of \"{action}\""), traffic.record());
        interrupt::sleep(pause)?;
        step.done();
        timeline.end_event(action.to_string(), traffic.record());
        say(timeline.how_it_went(traffic.record()));
    }
    let step = Step::start("the last answers");
    traffic.finish()?;
    timeline.end_event("after", traffic.record());
    step.done();
    Ok((timeline, tcp))
}

fn cluster(stage: &Stage) -> Result<&ControlPlane> {
    match stage.source() {
        Source::ApiServer(cluster) => Ok(cluster),
        Source::Folder(_) => bail!("kube-proxy reads no folder"),
    }
}

fn of_agent() -> Options {
    Options {
        maps: Maps::Default,
        // These ports are kube-proxy's, as long as it runs.
        args: ["--healthz-bind-address=", "--metrics-bind-address="]
            .map(Into::into)
            .into(),
        ..Options::default()
    }
}

fn check(output: Output) -> Result<()> {
    ensure!(
        output.status.success(),
        "lb-agent cleanup: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
