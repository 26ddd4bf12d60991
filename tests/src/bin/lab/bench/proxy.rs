//! A service proxy that runs on the first node of a site.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use lb_tests::agent::{self, Agent, Maps};
use lb_tests::cgroup::Cgroup;
use lb_tests::controlplane::{KubeProxy, KubeProxyOptions};
use lb_tests::network::Node;
use lb_tests::usage::{self, Memory};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cluster::Cluster;
use super::target::Target;

/// The addresses of all pods: what kube-proxy takes for a pod.
const CLUSTER_CIDRS: &str = "10.244.0.0/16,fd00:244::/32";
/// How long the slowest of them may take to write its first rules.
const LIMIT: Duration = Duration::from_secs(600);

/// It. Dropping it ends it; what it has written stays until the site goes.
#[derive(Debug)]
pub(crate) struct Proxy {
    running: Running,
    // Of its own, so that the time of the programs that it calls is counted.
    cgroup: Cgroup,
}

#[derive(Debug)]
enum Running {
    Agent(Agent),
    KubeProxy(KubeProxy),
}

impl Proxy {
    /// Starts it without waiting for what it writes. `None` has none.
    pub(crate) fn spawn(target: Target, node: &Node, cluster: &Cluster) -> Result<Option<Self>> {
        let running = match target.kube_proxy() {
            Some((mode, tools)) => {
                let options = KubeProxyOptions {
                    tools,
                    detect_local_mode: "ClusterCIDR".to_owned(),
                    cluster_cidr: CLUSTER_CIDRS.to_owned(),
                    ..KubeProxyOptions::in_mode(mode)
                };
                Running::KubeProxy(KubeProxy::spawn(node, cluster.plane(), &options)?)
            }
            None if target.is_ours() => {
                let options = agent::Options {
                    maps: Maps::Default,
                    args: agent_args(target),
                    ..agent::Options::default()
                };
                let source: [OsString; 2] = ["--kubeconfig".into(), cluster.plane().kubeconfig_agent().into()];
                Running::Agent(Agent::spawn_reading(node, source, &options)?)
            }
            None => return Ok(None),
        };
        let cgroup = node.cgroup().below("proxy")?;
        cgroup.adopt(running.pid())?;
        Ok(Some(Self { running, cgroup }))
    }

    /// Waits until it says that its first rules are written.
    pub(crate) fn wait_ready(&mut self, node: &Node) -> Result<()> {
        match &mut self.running {
            Running::Agent(agent) => agent.wait_for_log(LIMIT, "ready").map(drop),
            Running::KubeProxy(proxy) => proxy.wait_synced(node, LIMIT),
        }
    }

    /// Its processor time so far, and that of all programs that it has called.
    pub(crate) fn processor(&self) -> Result<Duration> {
        self.cgroup.processor()
    }

    /// Its memory, without that of programs that it calls.
    pub(crate) fn memory(&self) -> Result<Memory> {
        usage::memory(self.running.pid())
    }

    /// Waits until it has nothing to do any more: until it has used next to no processor time for a while.
    pub(crate) fn settle(&self, within: Duration) -> Result<()> {
        const LOOK: Duration = Duration::from_millis(250);
        let begun = std::time::Instant::now();
        let mut before = self.processor()?;
        loop {
            lb_tests::interrupt::sleep(LOOK)?;
            let now = self.processor()?;
            // Timers and keep-alives take a thousandth.
            if now - before < LOOK / 50 {
                return Ok(());
            }
            before = now;
            if begun.elapsed() > within {
                bail!("it is still busy after {} s", within.as_secs());
            }
        }
    }

    /// Stops it where it is, until it is resumed: so that it takes no time from the others.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // It is a child that has not been waited for, so the number is still its own.
        let pid = Pid::from_raw(self.running.pid().cast_signed());
        kill(pid, signal).with_context(|| format!("sending {signal} to the process {pid}"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // A stopped process hears of no other signal. If it is gone there is nothing to do.
        let _ = self.resume();
    }
}

impl Running {
    fn pid(&self) -> u32 {
        match self {
            Self::Agent(agent) => agent.pid(),
            Self::KubeProxy(proxy) => proxy.pid(),
        }
    }
}

fn agent_args(target: Target) -> Vec<OsString> {
    match target {
        Target::LbAgentSocketAll => vec!["--socket-lb=all".into()],
        Target::LbAgentIpvs => vec!["--plane=ipvs".into()],
        _ => Vec::new(),
    }
}
