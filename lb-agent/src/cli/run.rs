//! `lb-agent run`.

mod announce;
mod settings;

use std::{collections::BTreeSet, net::IpAddr, time::Instant};

use anyhow::{Context, bail};
use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::logging;
use crate::{
    agent::{self, Agent, Inputs, Outputs},
    config::{Arguments, Config, SocketLb, Source},
    health::{self, ProxyHealth},
    kernel::{
        addresses,
        links::{self, LinkRules},
    },
    metrics::{self, Metrics, Probes, Sources},
    model::Event,
    objects::{self, Batch, Skipped, folder, kube},
    plane::{
        PlaneName,
        choice::{self, Started},
    },
    run_dir::RunDir,
    status::{Progress, StatusFile},
};
use announce::{announce, keep_status, tell_outages, warn_of_kube_proxy};
use settings::Sysctls;

/// Serve the cluster's Services on this node until told to stop. What has been programmed goes on
/// serving then; `lb-agent cleanup` removes it
#[derive(Debug, Args)]
#[command(after_help = "\
Each flag is also a variable of the environment and a field of the --config file, there in
camelCase: --max-services, LB_AGENT_MAX_SERVICES, maxServices. The flag comes first, then the
environment, then the file. kube-proxy's flags and its configuration file are understood as well:
--help lists them.")]
pub(super) struct Run {
    #[command(flatten)]
    arguments: Arguments,
}

impl Run {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let started = Instant::now();
        let (config, warnings) = self.arguments.resolve()?;
        logging::start(config.log_level, config.log_format);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        // The loop has the main thread to itself; watches and links share the others.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        runtime.block_on(serve(config, started))
    }
}

/// Where objects come from, once they do.
struct Objects {
    /// In a word, for people.
    source: String,
    batches: mpsc::Receiver<Batch>,
    /// The API server, if it is one, and what watches it.
    server: Option<kube::ApiServer>,
    watches: JoinSet<()>,
    /// How these go.
    state: Option<kube::Watches>,
    skipped: Skipped,
}

async fn serve(config: Config, started: Instant) -> anyhow::Result<()> {
    let stop = stop_signal()?;
    let rules = LinkRules::parse(&config.link_rules)?.with_pods(config.pod_links.clone());

    let health = ProxyHealth::new();
    let probes = Probes::default();
    if let Some(address) = config.healthz_address {
        tokio::spawn(health::serve_healthz(address, health.clone(), probes.clone()));
    }

    // The source begins before the plane does: what is wrong with it is said before the kernel is
    // touched, and objects come in while programs are loaded.
    let objects = follow_objects(&config).await?;
    let run_dir = RunDir::take(&config.run_dir)?;
    let status = StatusFile::create(run_dir.path(), &config.node_name);
    let served = serve_objects(config, rules, objects, (health, probes), &status, started, stop).await;
    if let Err(error) = &served {
        status.update(|status| status.failed = Some(format!("{error:#}")));
    }
    served
}

async fn follow_objects(config: &Config) -> anyhow::Result<Objects> {
    let (sender, batches) = objects::channel();
    let mut watches = JoinSet::new();
    let mut server = None;
    let mut state = None;
    let skipped = Skipped::default();
    let source = match &config.source {
        Source::Folder(folder) => {
            folder::watch(folder.clone(), &config.node_name, sender.clone(), skipped.clone())?;
            folder.display().to_string()
        }
        Source::ApiServer { kubeconfig, url } => {
            let options = kube::ApiServerOptions {
                kubeconfig: kubeconfig.clone(),
                url: url.clone(),
            };
            let server = server.insert(kube::ApiServer::configure(&options).await?);
            let pods = match config.socket_lb {
                SocketLb::All => kube::Pods::Asked,
                SocketLb::Host | SocketLb::Off => kube::Pods::Ignored,
            };
            let state = state.insert(kube::Watches::default());
            watches = kube::watch(server, &config.node_name, pods, &sender, state, &skipped);
            server.url().to_owned()
        }
    };
    if config.rules.node_port_addresses.needs_links() {
        let (addresses, _) = addresses::watch();
        tokio::spawn(tell_addresses(addresses, sender));
    }
    Ok(Objects {
        source,
        batches,
        server,
        watches,
        state,
        skipped,
    })
}

/// Serves what objects say until told to stop.
async fn serve_objects(
    config: Config,
    rules: LinkRules,
    objects: Objects,
    (health, probes): (ProxyHealth, Probes),
    status: &StatusFile,
    started: Instant,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let Objects {
        source,
        batches,
        server,
        mut watches,
        state,
        skipped,
    } = objects;
    let Started { plane, links, choice } = choice::start(config.plane, &config.plane_options()?)?;
    announce(&choice, &config.node_name, &source, server.as_ref(), status);
    let api_server = server.as_ref().and_then(kube::ApiServer::address);
    tokio::spawn(warn_of_kube_proxy(config.node_name.clone(), server));
    let (progress, told_progress) = watch::channel(Progress::default());
    tokio::spawn(keep_status(status.clone(), told_progress));
    if let Some(state) = &state {
        tokio::spawn(tell_outages(status.clone(), state.outage()));
    }

    let (node_addresses, known_addresses) = watch::channel(None);
    let (families, served_families) = watch::channel(BTreeSet::new());
    let (notices, _watch) = links::watch(rules, known_addresses);
    let (is_filled, filled) = watch::channel(false);
    let served_links = agent::links::start(links, notices, filled.clone()).context("no thread for links")?;
    let all_links = served_links.all.clone();
    let sources = Sources {
        probes,
        watches: state,
        skipped,
        links: Some(served_links.standings.clone()),
        bpffs: (choice.plane == PlaneName::Ebpf).then(|| config.bpffs.clone()),
    };
    let metrics = Metrics::new(&choice, sources);
    if let Some(address) = config.metrics_address {
        tokio::spawn(metrics::serve(address, metrics.clone()));
    }
    let (serving, bpffs) = (choice.plane, config.bpffs.clone());
    tokio::spawn(async move {
        if serves_everybody(filled, all_links).await {
            choice::remove_leftovers(serving, bpffs).await;
        }
    });
    let sysctls = Sysctls {
        may_set: config.set_sysctls,
        run_dir: config.run_dir.clone(),
    };
    tokio::spawn(
        sysctls
            .clone()
            .check_return_paths(served_families.clone(), served_links.paths),
    );
    if choice.plane == PlaneName::Ipvs {
        let ports = served_links.bridge_port;
        tokio::spawn(sysctls.clone().check_bridges(served_families.clone(), ports));
    }
    tokio::spawn(sysctls.check(served_families));

    let (health_checks, wanted_checks) = watch::channel(health::Wanted::default());
    tokio::spawn(health::serve_checks(wanted_checks, health.clone()));

    let outputs = Outputs {
        node_addresses,
        families,
        is_filled,
        health,
        health_checks,
        metrics,
        progress,
    };
    let inputs = Inputs {
        api_server,
        batches,
        links: served_links.all,
    };
    for family in config.rules.node_port_addresses.unrestricted() {
        tracing::warn!("--node-port-addresses names no {family} address: NodePorts are served on each of them");
    }
    let mut agent = Agent::new(plane, config.rules, outputs, started);
    tokio::select! {
        result = agent.run(inputs, stop) => result?,
        Some(ended) = watches.join_next() => bail!("a watch of the API server ended: {ended:?}"),
    }
    tracing::info!("stopped; what has been programmed goes on serving");
    Ok(())
}

/// Waits until the plane holds a complete state and every link that was there at the start leads to it. `false` if that
/// will not be.
async fn serves_everybody(mut filled: watch::Receiver<bool>, mut all_links: watch::Receiver<bool>) -> bool {
    filled.wait_for(|is_filled| *is_filled).await.is_ok() && all_links.wait_for(|are_all| *are_all).await.is_ok()
}

/// Tells the agent the addresses of the node's links, as they come and go.
async fn tell_addresses(mut addresses: watch::Receiver<Option<BTreeSet<IpAddr>>>, batches: mpsc::Sender<Batch>) {
    while addresses.changed().await.is_ok() {
        let Some(known) = addresses.borrow_and_update().clone() else {
            continue;
        };
        if batches.send(vec![Event::NodeAddresses(known)].into()).await.is_err() {
            return;
        }
    }
}

/// Resolves when the process is asked to stop.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
