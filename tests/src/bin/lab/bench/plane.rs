//! `bench plane`: what the plane under test needs for few services and for many, by the same measure: a cold start, a
//! restart that takes over what the kernel holds, and one endpoint that comes or goes.
//!
//! Objects come from a folder, in two files. What it takes to read them is in the figures of the agent, and grows with
//! their number; what the plane took of a start has a line of its own.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use comfy_table::{Table, presets};
use lb_agent::desired::Protocol;
use lb_agent::kernel::ipvs::{Ipvs, ServiceKey};
use lb_tests::agent::{Agent, Maps, Options};
use lb_tests::interrupt::{self, eventually};
use lb_tests::manifests::{self, Manifest, Service};
use lb_tests::network::{self, Network, Node};
use lb_tests::owner::Folder;
use lb_tests::patience::patient;
use lb_tests::plane::Plane;
use lb_tests::source::Source;
use lb_tests::usage;

use super::services_map::ServicesMap;
use super::{milliseconds, objects, quantile};
use crate::progress::Step;

/// Longer than any of it takes that works.
const LIMIT: Duration = Duration::from_secs(60);

/// Arguments of `bench plane`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many Services, each dual-stack with one port: measured with each of these numbers
    #[arg(long, value_delimiter = ',', default_values_t = [100, 5000])]
    services: Vec<usize>,
    /// How many endpoints each has
    #[arg(long, default_value_t = 10)]
    endpoints: usize,
    /// How many times a single endpoint comes or goes
    #[arg(long, default_value_t = 40)]
    changes: usize,
    /// Without IPVS's own estimates of rates (net.ipv4.vs.run_estimation=0, since Linux 6.2), whose threads share the
    /// processors with what is measured
    #[arg(long)]
    no_estimation: bool,
}

/// What was measured with one number of Services.
struct Figures {
    services: usize,
    /// From the start to readiness; the kernel holds nothing before.
    start: Start,
    /// The same, with all of it in the kernel.
    restart: Start,
    /// An endpoint that comes.
    comes: Changes,
    /// An endpoint that goes, which the kernel keeps for the connections that it has.
    goes: Changes,
    /// The agent's processor time for one of either.
    change_cpu: Duration,
}

/// Changes of one kind: all take much the same.
struct Changes {
    /// From the write of the file to the kernel, sorted.
    took: Vec<Duration>,
    /// What of each the plane took until all of it was written, sorted.
    writes: Vec<Duration>,
}

impl Changes {
    /// Every other one of these, from the `first` on.
    fn of(first: usize, took: &[Duration], writes: &[Duration]) -> Self {
        let sorted = |all: &[Duration]| {
            let mut some: Vec<Duration> = all.iter().skip(first).step_by(2).copied().collect();
            some.sort();
            some
        };
        Self {
            took: sorted(took),
            writes: sorted(writes),
        }
    }
}

/// A start of an agent.
struct Start {
    /// From its begin to readiness.
    took: Duration,
    /// What of that the plane took to write its first state.
    sync: Duration,
    /// The agent's processor time until then.
    cpu: Duration,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Result<()> {
    let measure = |services: &usize| measure(*services, args);
    let figures: Vec<Figures> = args.services.iter().map(measure).collect::<Result<_>>()?;
    println!(
        "plane {}, {} endpoints a service",
        Plane::under_test().word(),
        args.endpoints
    );
    println!("{}", table(&figures));
    Ok(())
}

fn measure(count: usize, args: &Args) -> Result<Figures> {
    let endpoints = args.endpoints;
    let changes = args.changes.max(2);
    // What is measured is not to be slowed down by who looks on.
    let network = Network::with(network::Options {
        verify_checksums: false,
        ..network::Options::default()
    })?;
    let node = network.node1();
    if args.no_estimation {
        let file = "/proc/sys/net/ipv4/vs/run_estimation";
        let written = node.netns().run(|| std::fs::write(file, "0"))?;
        written.with_context(|| format!("writing {file}"))?;
    }
    let source = Source::folder()?;
    source.apply(&[Manifest::new(&manifests::node(node))?])?;
    let Source::Folder(folder) = &source else {
        bail!("the source is no folder");
    };
    let step = Step::start(format!("writing {count} Services"));
    write_most(folder, count, endpoints)?;
    source.apply(&objects::service(0, endpoints)?.manifests()?)?;
    step.done();

    let step = Step::start("a cold start");
    let (agent, start) = start(node, &source)?;
    let kernel = Kernel::open(node)?;
    kernel.wait(&objects::service(count - 1, endpoints)?)?;
    step.done();
    agent.kill()?;
    let step = Step::start("a restart");
    let (agent, restart) = self::start(node, &source)?;
    step.done();

    let step = Step::of("single endpoints that come and go", changes);
    let cpu = usage::processor(agent.pid())?;
    let (mut took, mut writes) = (Vec::new(), Vec::new());
    for number in 0..changes {
        interrupt::check()?;
        let service = objects::service(0, endpoints + 1 - number % 2)?;
        let begun = Instant::now();
        source.apply(&service.slice_manifests()?[..1])?;
        kernel.wait(&service)?;
        took.push(begun.elapsed());
        // What the plane still has to do for it is not to be in the way of the next one.
        writes = wait_for_writes(&agent, number + 1)?;
        step.advance();
    }
    let change_cpu = (usage::processor(agent.pid())? - cpu) / u32::try_from(changes)?;
    step.done();
    agent.stop()?;
    Ok(Figures {
        services: count,
        start,
        restart,
        comes: Changes::of(0, &took, &writes),
        goes: Changes::of(1, &took, &writes),
        change_cpu,
    })
}

/// All but the first, in one file.
fn write_most(folder: &Folder, count: usize, endpoints: usize) -> Result<()> {
    let mut texts = Vec::new();
    for number in 1..count {
        interrupt::check()?;
        for manifest in objects::service(number, endpoints)?.manifests()? {
            texts.push(manifest.yaml()?);
        }
    }
    let path = folder.path().join("most.yaml");
    std::fs::write(&path, texts.join("\n---\n")).with_context(|| format!("writing {}", path.display()))
}

fn start(node: &Node, source: &Source) -> Result<(Agent, Start)> {
    let options = Options {
        maps: Maps::Default,
        ..Options::default()
    };
    let begun = Instant::now();
    let mut agent = Agent::spawn(node, source, &options)?;
    let ready = agent.wait_for_log(LIMIT, "ready")?;
    let took = begun.elapsed();
    let start = Start {
        took,
        sync: sync(&ready)?,
        cpu: usage::processor(agent.pid())?,
    };
    Ok((agent, start))
}

/// What the plane took for each change of services, once the agent has made so many.
fn wait_for_writes(agent: &Agent, number: usize) -> Result<Vec<Duration>> {
    eventually(LIMIT, "the end of a change", || {
        let log = agent.log()?;
        let lines = log.lines().filter(|line| line.contains(" changed="));
        let writes: Vec<Duration> = lines.map(sync).collect::<Result<_>>()?;
        Ok((writes.len() >= number).then_some(writes))
    })
}

/// What the plane took, of a line of the agent's log.
fn sync(line: &str) -> Result<Duration> {
    let sync = line.split_whitespace().find_map(|word| word.strip_prefix("sync_ms="));
    let sync: f64 = sync.with_context(|| format!("no sync_ms in {line:?}"))?.parse()?;
    Ok(Duration::from_secs_f64(sync / 1e3))
}

/// Where the plane's services are.
enum Kernel {
    Map(ServicesMap),
    Ipvs(std::cell::RefCell<Ipvs>),
}

impl Kernel {
    fn open(node: &Node) -> Result<Self> {
        Ok(match Plane::under_test() {
            Plane::Ebpf => Self::Map(ServicesMap::open(&node.bpffs().path())?),
            Plane::Ipvs => Self::Ipvs(node.netns().run(Ipvs::open)??.into()),
        })
    }

    /// Waits until the first address of a Service has as many endpoints as it should.
    fn wait(&self, service: &Service) -> Result<()> {
        let (ip, port) = (service.cluster_ips[0], service.ports[0].port);
        let ipvs = match self {
            Self::Map(map) => {
                let endpoints = u32::try_from(service.endpoints.len())?;
                return map.wait(ip, port, endpoints, patient(LIMIT)).map(drop);
            }
            Self::Ipvs(ipvs) => ipvs,
        };
        let key = ServiceKey::Address {
            protocol: Protocol::Tcp,
            address: (ip, port).into(),
        };
        let until = Instant::now() + patient(LIMIT);
        loop {
            let found = ipvs.borrow_mut().destinations(&key)?;
            if found.iter().filter(|state| state.destination.weight > 0).count() == service.endpoints.len() {
                return Ok(());
            }
            interrupt::check()?;
            if Instant::now() > until {
                bail!(
                    "{key} has {} destinations, not {}",
                    found.len(),
                    service.endpoints.len()
                );
            }
            // Short against what is measured, and still leaves the processor to the agent.
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Picks the changes of one kind.
type Of = fn(&Figures) -> &Changes;

fn table(figures: &[Figures]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut row = |what: &str, value: &dyn Fn(&Figures) -> String| {
        table.add_row(std::iter::once(what.to_owned()).chain(figures.iter().map(value)));
    };
    let ms = |duration: Duration| format!("{:.1} ms", milliseconds(duration));
    row("services", &|figures| figures.services.to_string());
    row("a cold start, until it is ready", &|figures| ms(figures.start.took));
    row("of that the plane's first writing", &|figures| ms(figures.start.sync));
    row("the agent's processor time", &|figures| ms(figures.start.cpu));
    row("a restart, with all of it in the kernel", &|figures| {
        ms(figures.restart.took)
    });
    row("of that the plane's first writing", &|figures| ms(figures.restart.sync));
    row("the agent's processor time", &|figures| ms(figures.restart.cpu));
    let kinds: [(&str, Of); 2] = [
        ("an endpoint comes", |figures| &figures.comes),
        ("an endpoint goes", |figures| &figures.goes),
    ];
    for (kind, of) in kinds {
        row(&format!("{kind}, from its file to the kernel: median"), &|figures| {
            ms(quantile(&of(figures).took, 50))
        });
        row("99 of 100", &|figures| ms(quantile(&of(figures).took, 99)));
        row("the plane's writing, to its end: median", &|figures| {
            ms(quantile(&of(figures).writes, 50))
        });
        row("99 of 100", &|figures| ms(quantile(&of(figures).writes, 99)));
    }
    row("the agent's processor time for one of them", &|figures| {
        ms(figures.change_cpu)
    });
    table.trim_fmt()
}
