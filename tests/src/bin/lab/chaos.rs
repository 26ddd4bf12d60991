//! `lab chaos`: ends, starts, upgrades and cuts off the agent while connections run, and says which of them failed.

mod build;
mod changes;
mod cut;
mod plan;
mod play;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent;

use crate::progress::{Step, say};
use crate::traffic::{self, Traffic};
use build::Build;
use plan::{Kind, Plan};

/// Arguments of `chaos`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What happens to the agent
    #[arg(long, value_enum, value_delimiter = ',', value_name = "EVENT", default_values = ["kill", "stop", "upgrade", "cut", "interrupt"])]
    events: Vec<Kind>,
    /// What it is upgraded to, and back
    #[arg(long, value_enum, value_delimiter = ',', value_name = "BUILD", default_values = ["sizes", "mark", "sockets"])]
    to: Vec<Build>,
    /// How many times each event happens, other than `interrupt`
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    rounds: usize,
    /// How many starts are interrupted
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    interruptions: usize,
    /// How many seconds connections run before, after and in the middle of each event
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pause: f64,
    /// How many new TCP connections come each second; with one question by UDP for five of them
    #[arg(long, value_name = "NUMBER", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// How many long connections there are, half of them UDP
    #[arg(long, value_name = "NUMBER", default_value_t = 200)]
    long: usize,
    /// What chance goes by: the same number makes the same events
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Give the agent its objects through a folder of manifests instead of a real kube-apiserver, without the event `cut`
    #[arg(long)]
    folder: bool,
    /// Write what happened and what failed to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    fn pause(&self) -> Result<Duration> {
        Duration::try_from_secs_f64(self.pause).context("--pause is no number of seconds")
    }
}

/// Plays it. Says whether no connection failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let pause = args.pause()?;
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let mut kinds = args.events.clone();
    if args.folder {
        kinds.retain(|kind| *kind != Kind::Cut);
    }
    let builds: Vec<Build> = args.to.iter().copied().filter(|build| build.is_other()).collect();
    let plan = Plan::new(&kinds, &builds, args.rounds, args.interruptions, seed);
    ensure!(!plan.events.is_empty(), "nothing is to happen");
    // Known at once, and not after the network has been built.
    agent::binary()?;
    say(format_args!("      seed {seed}: {} events", plan.events.len()));
    let stage = traffic::stage(args.folder)?;

    let mut traffic = Traffic::new(&stage)?;
    let timeline = play::play(&plan, &stage, &mut traffic, args, pause)?;
    let report = report::Report {
        seed,
        rate: args.rate,
        long: args.long,
        events: timeline.events().to_vec(),
        slow_ways: traffic.record().slow_ways(),
        faults: traffic.record().faults(),
    };
    drop(traffic);
    let step = Step::start("taking it all down");
    drop(stage);
    step.done();
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", report.json()?))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    print!("\n{}", report.render(&timeline));
    Ok(report.faults.is_empty())
}
