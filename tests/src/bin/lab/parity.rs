//! `lab parity`: the real kube-proxy and lb-agent on two copies of one network, with the same objects and the same
//! questions.

mod actors;
mod catalogue;
mod differences;
mod expect;
mod outcome;
mod play;
mod probe;
mod report;
mod service;
mod settings;
mod twin;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use lb_tests::agent::{self, Agent};
use lb_tests::controlplane::{ControlPlane, KubeProxy, Mode};
use lb_tests::interrupt;
use lb_tests::manifests::{self, Manifest};
use lb_tests::network::plan;
use lb_tests::relay::Relay;
use lb_tests::source::Source;

use crate::progress::{Step, say};
use probe::{Entry, Probe};
use report::{Judged, Sum};
use settings::{DetectLocal, NodePorts, Settings};
use twin::Twin;

/// A run of fewer probes proves nothing.
const FEWEST: usize = 1500;
/// The API server's port in the namespace of its network's switch.
const API_PORT: u16 = 6443;

/// Which kube-proxy to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Modes {
    /// The nftables mode
    Nftables,
    /// The iptables mode
    Iptables,
    /// One after the other
    Both,
}

impl Modes {
    fn all(self) -> &'static [Mode] {
        match self {
            Self::Nftables => &[Mode::Nftables],
            Self::Iptables => &[Mode::Iptables],
            Self::Both => &[Mode::Nftables, Mode::Iptables],
        }
    }
}

/// Arguments of `parity`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which mode of kube-proxy to compare with
    #[arg(long, value_enum, default_value = "both")]
    mode: Modes,
    /// How both tell pods from what is not in the cluster
    #[arg(long, value_enum, default_value = "NodeCIDR")]
    detect_local_mode: DetectLocal,
    /// Which addresses of the node have NodePorts on both sides
    #[arg(long, value_enum, default_value = "primary")]
    node_port_addresses: NodePorts,
    /// Only probes whose description has this text, such as "hints", "NodePort" or "UDP IPv6"; any number will do then
    #[arg(long)]
    filter: Option<String>,
    /// Write every probe to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// More arguments of lb-agent
    #[arg(long = "agent-arg", value_name = "ARG", allow_hyphen_values = true)]
    agent_args: Vec<String>,
    /// Leave everything up afterwards, say how to look around in it, and remove it on Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// Compares. Says whether the two agree in all but what is declared.
pub(crate) fn run(args: &Args) -> Result<bool> {
    // Known at once, and not after the networks have been built.
    agent::binary()?;
    let settings = Settings {
        detect_local: args.detect_local_mode,
        node_ports: args.node_port_addresses,
    };
    let entries = catalogue::all();
    let probes: Vec<Probe> = entries
        .iter()
        .flat_map(Probe::of)
        .filter(|probe| args.filter.as_ref().is_none_or(|text| probe.to_string().contains(text)))
        .collect();
    if probes.is_empty() {
        bail!("no probe has this text in its description");
    }

    let ours = Ours::start(&entries, args)?;
    let mut judged = Vec::new();
    for mode in args.mode.all() {
        judged.extend(compare(*mode, &settings, &probes, &ours, args.keep)?);
    }
    let step = Step::start("taking it all down");
    drop(ours);
    step.done();

    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", report::json(&judged)))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let sum = Sum::of(&judged);
    let text = report::render(&judged);
    println!("\n{text}");
    if args.filter.is_none() && sum.probes < FEWEST {
        println!("fewer than {FEWEST} probes");
    }
    println!(
        "parity: {} of {} probes agree, {} declared differences, {} undeclared",
        sum.agree,
        sum.probes,
        sum.differ(),
        sum.undeclared
    );
    let enough = args.filter.is_some() || sum.probes >= FEWEST;
    Ok(enough && sum.undeclared == 0 && sum.unexpected == 0)
}

/// Our copy of the network, with the API server of both in it. Fields are dropped in their order.
struct Ours {
    agent: Agent,
    source: Source,
    twin: Twin,
}

impl Ours {
    fn start(entries: &[Entry], args: &Args) -> Result<Self> {
        let step = Step::start("the network for lb-agent: two nodes, pods, a client outside");
        let twin = Twin::build()?;
        step.done();
        let step = Step::start("etcd and kube-apiserver");
        let source = Source::api_server(twin.network())?;
        step.done();
        let step = Step::of(
            format!("{} Services and their EndpointSlices", entries.len()),
            entries.len(),
        );
        write_objects(entries, &twin, &source, &step)?;
        step.done();
        let step = Step::start("lb-agent: loading programs, reading objects, programming them");
        let options = agent::Options {
            args: args.agent_args.iter().map(Into::into).collect(),
            ..agent::Options::default()
        };
        let agent = Agent::start(twin.network().node1(), &source, &options)?;
        step.done();
        Ok(Self { agent, source, twin })
    }

    fn cluster(&self) -> Result<&ControlPlane> {
        match &self.source {
            Source::ApiServer(cluster) => Ok(cluster),
            Source::Folder(_) => bail!("kube-proxy reads no folder"),
        }
    }
}

fn write_objects(entries: &[Entry], twin: &Twin, source: &Source, step: &Step) -> Result<()> {
    let zones = [catalogue::ZONE_HERE, catalogue::ZONE_THERE];
    let mut nodes = Vec::new();
    for (node, zone) in twin.network().nodes().iter().zip(zones) {
        let mut object = manifests::node(node);
        let label = ("topology.kubernetes.io/zone".to_owned(), zone.to_owned());
        object.metadata.labels.get_or_insert_default().extend([label]);
        nodes.push(Manifest::new(&object)?);
    }
    source.apply(&nodes)?;
    let Source::ApiServer(cluster) = source else {
        bail!("a folder has no status to write");
    };
    // A call of kubectl costs more than what it writes.
    for entries in entries.chunks(25) {
        interrupt::check()?;
        let mut manifests = Vec::new();
        for entry in entries {
            manifests.extend(entry.service.manifests(|backend| twin.addresses(backend))?);
        }
        source.apply(&manifests)?;
        let statuses: Vec<_> = entries.iter().filter_map(|entry| entry.service.status()).collect();
        if !statuses.is_empty() {
            let texts: Vec<_> = statuses.iter().map(ToString::to_string).collect();
            cluster.apply_status(&texts.join("\n---\n"))?;
        }
        entries.iter().for_each(|_| step.advance());
    }
    Ok(())
}

/// Plays the probes on a fresh copy of the network with kube-proxy, and on ours.
fn compare(mode: Mode, settings: &Settings, probes: &[Probe], ours: &Ours, keep: bool) -> Result<Vec<Judged>> {
    let step = Step::start(format!("the same network for kube-proxy in {} mode", mode.word()));
    let twin = Twin::build()?;
    let api = (plan::SWITCH_V4, API_PORT).into();
    let switch = ours.twin.network().switch();
    let _relay = Relay::start(twin.network().switch(), std::sync::Arc::clone(switch), api)?;
    step.done();
    let step = Step::start("kube-proxy: reading objects, programming them");
    let proxy = KubeProxy::start(twin.network().node1(), ours.cluster()?, &settings.of_kube_proxy(mode))?;
    step.done();

    let step = Step::of(format!("{} probes of both", probes.len()), probes.len());
    let sides = play::Sides {
        mode,
        settings,
        theirs: &twin,
        ours: &ours.twin,
    };
    let played = play::play(probes, sides, &step)?;
    step.done();
    let judged = played.into_iter().map(|played| Judged::new(mode, played)).collect();
    if keep {
        wait(mode, &twin, &proxy, ours)?;
    }
    Ok(judged)
}

/// `--keep`: says how to look around, and waits for Ctrl-C.
fn wait(mode: Mode, twin: &Twin, proxy: &KubeProxy, ours: &Ours) -> Result<()> {
    for (whose, twin) in [("kube-proxy's", twin), ("lb-agent's", &ours.twin)] {
        say(format_args!("Namespaces of {whose} copy:"));
        for (name, path) in twin.namespaces() {
            say(format_args!("  {name:<17} nsenter --net={}", path.display()));
        }
    }
    say(format_args!(
        "kube-proxy in {} mode has pid {} and logs to {}",
        mode.word(),
        proxy.pid(),
        proxy.log_path().display()
    ));
    say(format_args!(
        "lb-agent has pid {}, logs to {} and pins its maps in {}",
        ours.agent.pid(),
        ours.agent.log_path().display(),
        ours.twin.network().node1().bpffs().path().display()
    ));
    say(format_args!(
        "objects: nsenter --net={} kubectl --kubeconfig {} get services",
        ours.twin.network().switch().path().display(),
        ours.cluster()?.kubeconfig_admin().display()
    ));
    say("Ctrl-C removes everything.");
    interrupt::sleep(Duration::from_secs(24 * 3600))?;
    Ok(())
}
