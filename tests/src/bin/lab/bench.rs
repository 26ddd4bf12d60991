//! `lab bench`: measures lb-agent against what else there is, and prints what it measured. Nothing here passes or fails.

mod cluster;
mod environment;
mod journal;
mod links;
pub(crate) mod load;
mod objects;
mod plane;
mod probe;
mod proxy;
mod recorder;
mod report;
mod row;
mod run;
mod sample;
mod scenario;
mod services_map;
mod site;
mod statistics;
mod target;
mod writer;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;

use target::Other;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_precedence_over_arg = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    alone: Option<Alone>,
    #[command(flatten)]
    compared: Compared,
}

/// What is measured of lb-agent against others.
#[derive(Debug, clap::Args)]
pub(crate) struct Compared {
    /// What to measure [default: all]
    #[arg(value_enum, value_name = "SCENARIO")]
    scenarios: Vec<scenario::Name>,
    /// What lb-agent is measured against [default: iptables,nftables,none, and ipvs where the kernel has it]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "TARGET")]
    against: Vec<Other>,
    /// How many Services there are: measured with each of these numbers [default: 1,100,1000,10000, or 10 with --quick]
    #[arg(long, value_delimiter = ',', value_name = "NUMBER")]
    services: Vec<usize>,
    /// How many endpoints each has
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    endpoints: usize,
    /// How many times everything is measured, by turns [default: 5, or 2 with --quick]
    #[arg(long, value_name = "NUMBER")]
    rounds: Option<u32>,
    /// Little of everything: to see that it works
    #[arg(long)]
    quick: bool,
    /// Write the rows to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write everything that was measured, a summary and plots to this folder [default: docs/benchmarks/DATE-KERNEL, and
    /// none with --quick]
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
    /// Begin anew, also where the last such run was interrupted and could go on
    #[arg(long)]
    from_scratch: bool,
}

/// What is measured of lb-agent alone.
#[derive(Debug, Subcommand)]
pub(crate) enum Alone {
    /// Links of pods that come and go fast: how soon they are served, what is left of them, and how services fare
    Links(links::Args),
    /// The plane under test with few services and with many: a cold start, a restart, and single changes
    Plane(plane::Args),
}

/// Measures it.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.alone {
        Some(Alone::Links(args)) => links::run(args),
        Some(Alone::Plane(args)) => plane::run(args),
        None => run::run(&args.compared),
    }
}
/// Of sorted values, the one that so many of a hundred do not exceed.
fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or_default()
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(quantile(&values, 50), Duration::from_millis(100));
        assert_eq!(quantile(&values, 99), Duration::from_millis(198));
        assert_eq!(quantile(&values, 100), Duration::from_millis(200));
        assert_eq!(quantile(&[], 50), Duration::ZERO);
    }
}
