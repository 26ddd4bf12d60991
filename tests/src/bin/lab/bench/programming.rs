//! `bench programming`: from a write to the API server to what the kernel holds.
//!
//! One node with an agent, a real API server beside it. First the agent runs and many Services are written; then it is
//! started anew beside all of them; then single endpoints come and go. Times are taken where the kernel's map changes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use comfy_table::{Table, presets};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use lb_tests::agent::{self, Agent, Maps};
use lb_tests::interrupt;
use lb_tests::manifests::{self, Manifest, NAMESPACE, Service};
use lb_tests::network::{self, Network};
use lb_tests::source::Source;
use lb_tests::usage;
use serde::Serialize;
use serde_json::json;

use super::services_map::ServicesMap;
use super::{milliseconds, objects, quantile};
use crate::progress::Step;

/// Longer than any of it takes that works.
const LIMIT: Duration = Duration::from_secs(120);

/// Arguments of `bench programming`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many Services, each dual-stack with one port
    #[arg(long, default_value_t = 1000)]
    services: usize,
    /// How many endpoints each has
    #[arg(long, default_value_t = 10)]
    endpoints: usize,
    /// How many times a single endpoint comes or goes
    #[arg(long, default_value_t = 200)]
    changes: usize,
    /// Write the figures to this file as well, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A tenth of everything: to see that it works
    #[arg(long)]
    quick: bool,
}

/// The figures.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    services: usize,
    endpoints: usize,
    /// Writing all objects.
    write_ms: f64,
    /// From the last write's answer to the last entry in the kernel.
    catch_up_ms: f64,
    /// The agent's processor time for all of that.
    catch_up_cpu_ms: f64,
    /// From the start of an agent beside all objects to its readiness; the kernel holds nothing before.
    start_ms: f64,
    /// Its processor time for that.
    start_cpu_ms: f64,
    /// Its memory then.
    rss_mib: f64,
    rss_most_mib: f64,
    change: Change,
}

/// A single endpoint that comes or goes.
#[derive(Clone, Debug, Serialize)]
struct Change {
    changes: usize,
    /// From the request to the API server to the kernel's map: half of them took no longer.
    median_ms: f64,
    /// 99 of 100 took no longer.
    p99_ms: f64,
    most_ms: f64,
    /// From the request to the API server's answer, for comparison.
    api_median_ms: f64,
    /// The agent's processor time for each.
    cpu_ms: f64,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Result<()> {
    let tenth = if args.quick { 10 } else { 1 };
    let (services, changes) = ((args.services / tenth).max(1), (args.changes / tenth).max(2));
    let figures = measure(services, args.endpoints, changes)?;
    println!("{}", table(&figures));
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&figures).context("writing the figures as JSON")?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn measure(services: usize, endpoints: usize, changes: usize) -> Result<Figures> {
    let services: Vec<_> = (0..services)
        .map(|number| objects::service(number, endpoints))
        .collect::<Result<_>>()?;
    // What is measured is not to be slowed down by who looks on.
    let network = Network::with(network::Options {
        verify_checksums: false,
        ..network::Options::default()
    })?;
    let step = Step::start("etcd and kube-apiserver");
    let source = Source::api_server(&network)?;
    let Source::ApiServer(cluster) = &source else {
        bail!("the source is no API server")
    };
    let kubeconfig = cluster.kubeconfig_admin();
    step.done();
    source.apply(&[Manifest::new(&manifests::node(network.node1()))?])?;

    // Single-threaded, so that all its sockets are made in the namespace that the thread is in.
    let measured = network.switch().run(|| -> Result<Figures> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("making a runtime")?;
        runtime.block_on(async {
            let client = objects::client(&kubeconfig).await?;
            Bench {
                network: &network,
                source: &source,
                client,
                services: &services,
            }
            .run(changes)
            .await
        })
    })?;
    let step = Step::start("taking it all down");
    drop((source, network));
    step.done();
    measured
}

struct Bench<'a> {
    network: &'a Network,
    source: &'a Source,
    client: Client,
    services: &'a [Service],
}

impl Bench<'_> {
    async fn run(&self, changes: usize) -> Result<Figures> {
        let agent = self.start_agent()?;
        let map = self.map()?;
        let cpu = usage::processor(agent.pid())?;
        let begun = Instant::now();
        objects::create(&self.client, self.services).await?;
        let written = Instant::now();
        let step = Step::start("waiting until all of it is in the kernel");
        let caught_up = map.wait_all(self.services, LIMIT)?;
        step.done();
        let catch_up_cpu = usage::processor(agent.pid())? - cpu;

        agent.stop()?;
        let output = agent::cleanup(self.network.node1())?;
        if !output.status.success() {
            bail!("lb-agent cleanup failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        let step = Step::start("an agent that starts beside all of it");
        let starting = Instant::now();
        let agent = self.start_agent()?;
        let started = starting.elapsed();
        let start_cpu = usage::processor(agent.pid())?;
        let map = self.map()?;
        map.wait_all(self.services, LIMIT)?;
        step.done();
        let memory = usage::memory(agent.pid())?;

        let change = self.change(&agent, &map, changes).await?;
        agent.stop()?;
        Ok(Figures {
            services: self.services.len(),
            endpoints: self.services[0].endpoints.len(),
            write_ms: milliseconds(written - begun),
            catch_up_ms: milliseconds(caught_up.saturating_duration_since(written)),
            catch_up_cpu_ms: milliseconds(catch_up_cpu),
            start_ms: milliseconds(started),
            start_cpu_ms: milliseconds(start_cpu),
            rss_mib: mebibytes(memory.now),
            rss_most_mib: mebibytes(memory.most),
            change,
        })
    }

    fn start_agent(&self) -> Result<Agent> {
        let options = agent::Options {
            maps: Maps::Default,
            ..agent::Options::default()
        };
        Agent::start(self.network.node1(), self.source, &options)
    }

    fn map(&self) -> Result<ServicesMap> {
        ServicesMap::open(&self.network.node1().bpffs().path())
    }

    /// Lets an endpoint of one Service after another come, and in the second half of the changes go again.
    async fn change(&self, agent: &Agent, map: &ServicesMap, changes: usize) -> Result<Change> {
        let step = Step::of("single endpoints that come and go", changes);
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), NAMESPACE);
        let (mut programmed, mut answered) = (Vec::new(), Vec::new());
        let cpu = usage::processor(agent.pid())?;
        for number in 0..changes {
            interrupt::check()?;
            let mut service = self.services[(number / 2) % self.services.len()].clone();
            if number.is_multiple_of(2) {
                let number = u16::try_from((number / 2) % self.services.len())?;
                service
                    .endpoints
                    .push(objects::endpoint(number, service.endpoints.len())?);
            }
            let slice = &service.slices()[0];
            let name = slice.metadata.name.as_deref().context("a slice has a name")?;
            let patch = Patch::Merge(json!({ "endpoints": slice.endpoints }));
            let begun = Instant::now();
            slices
                .patch(name, &PatchParams::default(), &patch)
                .await
                .context("changing an EndpointSlice")?;
            answered.push(begun.elapsed());
            let count = u32::try_from(service.endpoints.len())?;
            programmed.push(map.wait(service.cluster_ips[0], service.ports[0].port, count, LIMIT)? - begun);
            step.advance();
        }
        let cpu = usage::processor(agent.pid())? - cpu;
        step.done();
        programmed.sort();
        answered.sort();
        Ok(Change {
            changes,
            median_ms: milliseconds(quantile(&programmed, 50)),
            p99_ms: milliseconds(quantile(&programmed, 99)),
            most_ms: milliseconds(quantile(&programmed, 100)),
            api_median_ms: milliseconds(quantile(&answered, 50)),
            cpu_ms: milliseconds(cpu / u32::try_from(changes)?),
        })
    }
}

fn mebibytes(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 20) * 10.0).round() / 10.0
}

fn table(figures: &Figures) -> String {
    let Figures {
        services,
        endpoints,
        change,
        ..
    } = figures;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let ms = |value: f64| format!("{value:.1} ms");
    let mib = |value: f64| format!("{value:.1} MiB");
    table.add_rows([
        [
            format!("{services} services × {endpoints} endpoints, dual-stack, written in"),
            ms(figures.write_ms),
        ],
        [
            "from the last write to the last entry in the kernel".into(),
            ms(figures.catch_up_ms),
        ],
        [
            "the agent's processor time until then".into(),
            ms(figures.catch_up_cpu_ms),
        ],
        [
            "an agent that starts beside all of it is ready after".into(),
            ms(figures.start_ms),
        ],
        ["its processor time until then".into(), ms(figures.start_cpu_ms)],
        [
            "its memory (RSS) then, and at most".into(),
            format!("{}, {}", mib(figures.rss_mib), mib(figures.rss_most_mib)),
        ],
        [
            format!(
                "one endpoint, from the request to the kernel ({} times): median",
                change.changes
            ),
            ms(change.median_ms),
        ],
        [
            "99 of 100, and at most".into(),
            format!("{}, {}", ms(change.p99_ms), ms(change.most_ms)),
        ],
        ["the API server's own answer: median".into(), ms(change.api_median_ms)],
        [
            "the agent's processor time for each".into(),
            format!("{:.3} ms", change.cpu_ms),
        ],
    ]);
    table.trim_fmt()
}
