//! `bench links`: pods' links that come and go fast, and what becomes of them and of services meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aya::programs::TcAttachType;
use comfy_table::{Table, presets};
use lb_tests::agent::{Agent, Options};
use lb_tests::churn::{self, Churn, Rate};
use lb_tests::hooks;
use lb_tests::interrupt;
use lb_tests::manifests::{self, Manifest};
use lb_tests::network::{Network, Node};
use lb_tests::source::Source;
use lb_tests::usage;

use super::{milliseconds, objects, quantile, services_map::ServicesMap};
use crate::progress::Step;

/// Longer than any of it takes that works.
const LIMIT: Duration = Duration::from_secs(300);

/// Arguments of `bench links`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many links come each second, and go
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// For how many seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// For how many milliseconds each stays
    #[arg(long, default_value_t = 1000)]
    lifetime: u64,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Result<()> {
    let network = Network::new()?;
    let source = Source::folder()?;
    let node = network.node1();
    source.apply(&[Manifest::new(&manifests::node(node))?])?;
    let mut alone = Churn::new()?;
    let step = Step::start("the same without an agent, for five seconds");
    let rate = Rate {
        a_second: args.rate,
        lifetime: Duration::from_millis(args.lifetime),
    };
    let alone_for = Duration::from_secs(5);
    alone.run(node, rate, alone_for, |_| {})?;
    let alone_made = alone.made();
    step.done();
    drop(alone);

    let agent = Agent::start(node, &source, &Options::default())?;
    let map = ServicesMap::open(&node.bpffs().path())?;
    let quiet = changes(&source, &map, &AtomicBool::new(false), 20)?;
    let cpu = usage::processor(agent.pid())?;
    let step = Step::start(format!("{} links a second for {} s", args.rate, args.seconds));
    let came = Mutex::new(BTreeMap::new());
    let is_over = AtomicBool::new(false);
    let mut churn = Churn::new()?;
    let (stormy, served) = thread::scope(|scope| -> Result<_> {
        let changes = scope.spawn(|| changes(&source, &map, &is_over, usize::MAX));
        let served = scope.spawn(|| served(&agent.log_path(), &is_over));
        let time = Duration::from_secs(args.seconds);
        let ran = churn.run(node, rate, time, |number| {
            lock(&came).insert(number, Instant::now());
        });
        is_over.store(true, Ordering::SeqCst);
        let changes = changes.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let served = served.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ran?;
        Ok((changes?, served?))
    })?;
    step.done();
    let cpu = usage::processor(agent.pid())? - cpu;
    let came = came.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut waited: Vec<Duration> = served
        .iter()
        .filter_map(|(number, at)| Some(at.saturating_duration_since(*came.get(number)?)))
        .collect();
    waited.sort();

    let step = Step::start("waiting until those that have stayed have all their programs");
    let over = Instant::now();
    let living = churn.living(node)?.len();
    let once = wait_served_once(node, &churn)?;
    let settled = wait_settled(node, &churn)?;
    step.done();
    let log = agent.log()?;
    let rows = [
        (
            "links that came in five seconds without an agent".to_owned(),
            alone_made.to_string(),
        ),
        (
            format!("that came in {} s with one, a second", args.seconds),
            format!("{:.1}", f64::from(churn.made()) / args.seconds as f64),
        ),
        (
            "of them served while they were there, or since".into(),
            format!("{} of {}", waited.len(), churn.made()),
        ),
        ("from coming to served: median".into(), ms(quantile(&waited, 50))),
        (
            "99 of 100, and at most".into(),
            format!("{}, {}", ms(quantile(&waited, 99)), ms(quantile(&waited, 100))),
        ),
        (
            format!("of the {living} that stayed, not served once"),
            once.to_string(),
        ),
        (
            "until all of those were on TCX".into(),
            format!("{:.1} s", (settled - over).as_secs_f64()),
        ),
        (
            "pins and BPF links left of those that are gone".into(),
            leftovers(node, &churn)?.to_string(),
        ),
        (
            "times that all links had to be asked for".into(),
            log.matches("notifications of links were lost").count().to_string(),
        ),
        (
            "a service, from its file to the kernel, before: median, at most".into(),
            format!("{}, {}", ms(quantile(&quiet, 50)), ms(quantile(&quiet, 100))),
        ),
        (
            format!("meanwhile ({} times)", stormy.len()),
            format!("{}, {}", ms(quantile(&stormy, 50)), ms(quantile(&stormy, 100))),
        ),
        (
            "the agent's processor time for each link".into(),
            ms(cpu / churn.made().max(1)),
        ),
    ];
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.add_rows(rows.map(|(what, value)| [what, value]));
    println!("{}", table.trim_fmt());
    agent.stop()
}

fn ms(duration: Duration) -> String {
    format!("{:.1} ms", milliseconds(duration))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Changes the endpoints of one Service over and over, and says how long each took to be in the kernel.
fn changes(source: &Source, map: &ServicesMap, is_over: &AtomicBool, most: usize) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    while !is_over.load(Ordering::SeqCst) && took.len() < most {
        let endpoints = 1 + took.len() % 2;
        let service = objects::service(0, endpoints)?;
        let begun = Instant::now();
        source.apply(&service.manifests()?)?;
        let count = u32::try_from(endpoints)?;
        took.push(map.wait(service.cluster_ips[0], service.ports[0].port, count, LIMIT)? - begun);
        thread::sleep(Duration::from_millis(100));
    }
    took.sort();
    Ok(took)
}

/// When the agent first said of each link, by its number, that it is served.
fn served(log: &Path, is_over: &AtomicBool) -> Result<BTreeMap<u32, Instant>> {
    let mut file = File::open(log).context("opening the agent's log")?;
    let (mut text, mut served) = (String::new(), BTreeMap::new());
    loop {
        let is_last = is_over.load(Ordering::SeqCst);
        file.read_to_string(&mut text).context("reading the agent's log")?;
        let now = Instant::now();
        let end = text.rfind('\n').map_or(0, |end| end + 1);
        for line in text[..end].lines().filter(|line| line.contains("link is served")) {
            let number = line.split_once(&format!("link=\"{}", churn::PREFIX));
            let number = number.and_then(|(_, rest)| rest.split_once('"')?.0.parse().ok());
            if let Some(number) = number {
                served.entry(number).or_insert(now);
            }
        }
        text.drain(..end);
        if is_last {
            return Ok(served);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

const BOTH: [(TcAttachType, &str); 2] = [(TcAttachType::Ingress, "ingress"), (TcAttachType::Egress, "egress")];

/// Waits until the links that have stayed are served, and says how many are not, or more than once, at the end.
fn wait_served_once(node: &Node, churn: &Churn) -> Result<usize> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let mut wrong = 0;
        for link in churn.living(node)? {
            for (direction, _) in BOTH {
                wrong += usize::from(hooks::on(node, &link.name, direction)?.ours() != 1);
            }
        }
        if wrong == 0 || Instant::now() > until {
            return Ok(wrong);
        }
        interrupt::sleep(Duration::from_millis(100))?;
    }
}

/// Waits until they are all on TCX.
fn wait_settled(node: &Node, churn: &Churn) -> Result<Instant> {
    interrupt::eventually(LIMIT, "all links on TCX", || {
        let pins = hooks::pins(node)?;
        let mut names = churn
            .living(node)?
            .into_iter()
            .map(|link| format!("ingress-{}", link.index));
        Ok(names.all(|name| pins.contains(&name)).then(Instant::now))
    })
}

/// How many pins, or BPF links of the programs on the living links, are of no link.
fn leftovers(node: &Node, churn: &Churn) -> Result<usize> {
    let mut links = churn.living(node)?;
    let tunnel = node.netns().netlink()?.link(lb_tests::network::plan::TUNNEL)?;
    links.extend([node.uplink().clone(), tunnel]);
    let (mut names, mut programs) = (BTreeSet::new(), BTreeSet::new());
    for link in links {
        for (direction, hook) in BOTH {
            names.insert(format!("{hook}-{}", link.index));
            programs.extend(
                hooks::on(node, &link.name, direction)?
                    .tcx
                    .into_iter()
                    .map(|(_, id)| id),
            );
        }
    }
    let pins = hooks::pins(node)?;
    Ok(pins.difference(&names).count() + hooks::holders(&programs).saturating_sub(names.len()))
}
