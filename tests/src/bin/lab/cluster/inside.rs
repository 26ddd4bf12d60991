//! What is done inside the sandbox.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use lb_tests::controlplane::{Administrator, ControlPlane};

use super::load::Load;
use super::state::CONTROL_PLANE;
use super::{chart, network, node, requests};
use crate::progress::Step;

const MANIFESTS: [&str; 4] = [
    include_str!("dns.yaml"),
    include_str!("web.yaml"),
    include_str!("ingress.yaml"),
    include_str!("client.yaml"),
];
const BALANCER: &str = include_str!("balancer.yaml");
/// What has to run before somebody asks.
const DEPLOYMENTS: [(&str, &str); 3] = [("kube-system", "coredns"), ("default", "web"), ("default", "ingress")];

/// How long requests go on without an upgrade, and before and after one.
const QUIET: Duration = Duration::from_secs(10);
const MARGIN: Duration = Duration::from_secs(3);

/// Whose last words say what is wrong.
const LOGS: [(&str, &str); 4] = [
    ("kube-system", "daemonset/lb-agent"),
    ("kube-system", "deployment/coredns"),
    ("default", "deployment/web"),
    ("default", "deployment/ingress"),
];

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Errand {
    /// Start all that a cluster is.
    Up,
    /// Ask through each Service, and upgrade the chart under load.
    Check,
}

impl Errand {
    /// As it is named on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Check => "check",
        }
    }
}

/// Does it, and says whether all was right.
pub(super) fn run(errand: Errand, folder: &Path) -> Result<bool> {
    match errand {
        Errand::Up => up(folder).map(|()| true),
        Errand::Check => check(folder),
    }
}

fn up(folder: &Path) -> Result<()> {
    let step = Step::start("etcd, API server, controllers, scheduler");
    network::make()?;
    let control_plane =
        ControlPlane::start_whole(network::NODE_V4.into(), chart::API_PORT, &folder.join(CONTROL_PLANE))?;
    let controllers = control_plane.start_controllers()?;
    step.done();
    let step = Step::start("containerd, images, kubelet");
    node::start(&control_plane, folder)?;
    step.done();
    let step = Step::start("helm install lb-agent");
    let administrator = Administrator::of(&folder.join(CONTROL_PLANE))?;
    let [first, _] = node::AGENT_TAGS;
    chart::install(&administrator, folder, first, &[]).with_context(|| what_is_wrong(&administrator))?;
    step.done();
    let step = Step::start("CoreDNS, a Service of each type, an ingress");
    for manifest in MANIFESTS {
        control_plane.apply(manifest)?;
    }
    control_plane.apply_status(BALANCER)?;
    wait_for_pods(&administrator).with_context(|| what_is_wrong(&administrator))?;
    for controller in controllers {
        controller.check()?;
    }
    step.done();
    Ok(())
}

fn wait_for_pods(administrator: &Administrator) -> Result<()> {
    for (namespace, name) in DEPLOYMENTS {
        let deployment = format!("deployment/{name}");
        // kubectl ends a request that takes a minute: ask again.
        let status = [
            "--namespace",
            namespace,
            "rollout",
            "status",
            "--timeout=50s",
            &deployment,
        ];
        administrator
            .kubectl(&status)
            .or_else(|_| administrator.kubectl(&status))?;
    }
    let wait = ["wait", "--for=condition=Ready", "--timeout=50s", "pod/client"];
    administrator.kubectl(&wait).map(drop)
}

/// The pods, and what was last said of them.
fn what_is_wrong(administrator: &Administrator) -> String {
    let ask = |args: &[&str]| {
        administrator
            .kubectl(args)
            .unwrap_or_else(|error| format!("{error:#}\n"))
    };
    let events = ask(&["get", "events", "-A", "--sort-by=.lastTimestamp"]);
    let events: Vec<_> = events.lines().collect();
    let last = events[events.len().saturating_sub(25)..].join("\n");
    let mut text = format!("{}{last}\n", ask(&["get", "pods", "-A", "-o", "wide"]));
    for (namespace, of) in LOGS {
        text.push_str(&format!("the last lines of {of}:\n"));
        text.push_str(&ask(&["-n", namespace, "logs", of, "--tail=10"]));
    }
    text
}

fn check(folder: &Path) -> Result<bool> {
    let administrator = Administrator::of(&folder.join(CONTROL_PLANE))?;
    let answered = requests::through_each(&administrator)?;
    let upgraded = upgrade(&administrator, folder)?;
    println!();
    let status = [
        "-n",
        chart::NAMESPACE,
        "exec",
        "daemonset/lb-agent",
        "--",
        "lb-agent",
        "status",
    ];
    print!("{}", administrator.kubectl(&status)?);
    Ok(answered && upgraded)
}

/// Upgrades the chart while requests go on, and says whether none failed.
fn upgrade(administrator: &Administrator, folder: &Path) -> Result<bool> {
    let pods = [
        "-n",
        chart::NAMESPACE,
        "get",
        "pods",
        "-l",
        "app.kubernetes.io/name=lb-agent",
    ];
    let names = || administrator.kubectl(&[&pods[..], &["-o", "name"]].concat());
    let image =
        || administrator.kubectl(&[&pods[..], &["-o", "jsonpath={.items[*].spec.containers[*].image}"]].concat());
    let (before, old) = (names()?, image()?);
    // Back and forth, so that each check is an upgrade.
    let [first, second] = node::AGENT_TAGS;
    let tag = if old.ends_with(second) { first } else { second };

    let ways = requests::ways(administrator)?;
    // What the machine itself does to so many requests.
    let step = Step::start("requests, and nothing else");
    let load = Load::start(ways.clone())?;
    load.wait(QUIET)?;
    let quiet = load.end()?;
    step.done();
    let step = Step::start("helm upgrade under load");
    let load = Load::start(ways)?;
    load.wait(MARGIN)?;
    chart::install(administrator, folder, tag, &["log.level=debug"]).with_context(|| what_is_wrong(administrator))?;
    load.wait(MARGIN)?;
    let upgrade = load.end()?;
    step.done();
    let (after, new) = (names()?, image()?);
    anyhow::ensure!(
        before != after && new.ends_with(tag),
        "the upgrade left the pod {after} with {new}"
    );
    println!("\nhelm upgrade from {old} to {new}, under load:\n{}", upgrade.table);
    println!("upgrade: {upgrade}\nbefore:  {quiet}");
    Ok(upgrade.is_good() && quiet.is_good())
}
