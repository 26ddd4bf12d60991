//! `lab takeover`: from the real kube-proxy to lb-agent and back while connections run, and which of them failed.

mod play;
mod report;
mod way;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::controlplane::Mode;
use lb_tests::{agent, plane};

use crate::progress::Step;
use crate::traffic::{self, Traffic};

/// Arguments of `takeover`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What kube-proxy makes Services with
    #[arg(long, value_enum, value_name = "MODE")]
    from: From,
    /// How many seconds connections run after each step
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pause: f64,
    /// How many new TCP connections come each second; with one question by UDP for five of them
    #[arg(long, value_name = "NUMBER", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// How many long connections are opened through each of the two, about half of them UDP
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    long: usize,
    /// Write what happened and what failed to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A mode of kube-proxy, as it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum From {
    Nftables,
    Iptables,
    /// Where the kernel has IPVS
    Ipvs,
}

/// Plays it. Says whether no new connection failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let pause = Duration::try_from_secs_f64(args.pause).context("--pause is no number of seconds")?;
    let mode = match args.from {
        From::Nftables => Mode::Nftables,
        From::Iptables => Mode::Iptables,
        From::Ipvs => Mode::Ipvs,
    };
    ensure!(
        mode != Mode::Ipvs || plane::has_ipvs(),
        "--from ipvs: this kernel has no IPVS: `cargo xtask takeover --kernel 6.12 --from ipvs`"
    );
    // Known at once, and not after the network has been built.
    agent::binary()?;
    let stage = traffic::stage(false)?;

    let mut traffic = Traffic::new(&stage)?;
    let (timeline, tcp) = play::play(mode, &stage, &mut traffic, args, pause)?;
    let report = report::Report::new(mode, args.rate, (tcp, args.long - tcp), timeline, traffic.record());
    drop(traffic);
    let step = Step::start("taking it all down");
    drop(stage);
    step.done();
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", report.json()?))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    print!("\n{}", report.render());
    Ok(report.is_right())
}
