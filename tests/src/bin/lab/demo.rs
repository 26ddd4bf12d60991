//! `lab demo`: a cluster in miniature, and every kind of client of a Service in it.

mod change;
mod keep;
mod result;
mod table;

use std::time::Instant;

use anyhow::{Context as _, Result};
use lb_tests::agent;
use lb_tests::matrix::Cell;
use lb_tests::network::Network;
use lb_tests::source::Source;
use lb_tests::stage::Stage;

use crate::progress::{Step, say};

/// How many connections each cell of the matrix gets.
const TIMES: u32 = 40;

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object on stdout instead of tables
    #[arg(long)]
    json: bool,
    /// Give the agents their objects through a real kube-apiserver instead of a folder of manifests
    #[arg(long)]
    apiserver: bool,
    /// Leave everything up afterwards, say how to look around in it, and remove it on Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// Plays it. Says whether every probe was right.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let started = Instant::now();
    // Known at once, and not after the network has been built.
    agent::binary()?;
    let mut stage = build(args)?;
    let step = Step::start("an agent on each node: loading programs, reading objects, programming them");
    stage.start_agents(&agent::Options::default())?;
    step.done();

    let cells = Cell::all();
    let step = Step::of("connections of every kind", cells.len());
    let mut played = Vec::new();
    for cell in cells {
        played.push(cell.run(&stage, TIMES)?);
        step.advance();
    }
    step.done();
    let step = Step::start("an endpoint leaves and another comes while connections run");
    let change = change::play(&stage)?;
    step.done();

    let result = result::Demo::new(args.apiserver, &played, change, started.elapsed());
    if args.json {
        println!(
            "{}",
            serde_json::to_string(&result).context("writing the result as JSON")?
        );
        eprint!("\n{}", table::render(&played, &result));
    } else {
        print!("\n{}", table::render(&played, &result));
    }
    if args.keep {
        keep::wait(&stage)?;
    }
    let step = Step::start("taking it all down");
    drop(stage);
    step.done();
    Ok(result.failed == 0)
}

fn build(args: &Args) -> Result<Stage> {
    let step = Step::start("two nodes, a client outside, pods on bridges and on veths, a tunnel");
    let network = Network::new()?;
    step.done();
    let source = if args.apiserver {
        let step = Step::start("etcd and kube-apiserver");
        let source = Source::api_server(&network)?;
        step.done();
        source
    } else {
        Source::folder()?
    };
    let step = Step::start("pods, servers in them, Services");
    let stage = Stage::build(network, source)?;
    step.done();
    if let Source::Folder(folder) = stage.source() {
        say(format_args!("      the objects are in {}", folder.path().display()));
    }
    Ok(stage)
}
