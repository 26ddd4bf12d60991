//! `lab`: shows and measures lb-agent in networks made of namespaces. `cargo xtask` builds and starts it.
//!
//! Results go to stdout, everything else to stderr. Exit status: 0 if all was right, 1 if not, 128 and the signal's
//! number if it was stopped.

mod bench;
mod chaos;
mod cluster;
mod controlplane;
mod demo;
mod fuzz;
mod kernel;
mod parity;
mod progress;
mod report;
mod takeover;
mod traffic;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lb_tests::container;
use lb_tests::interrupt::{self, Interrupted, Policy};
use lb_tests::without_bpf::Refusal;

/// Shows and measures lb-agent in networks made of namespaces.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Two nodes, an agent on each, and every kind of client of a Service
    Demo(demo::Args),
    /// The real kube-proxy and lb-agent side by side, and every kind of packet to both
    Parity(parity::Args),
    /// Measures
    Bench(bench::Args),
    /// Packets that nobody would send, through the BPF programs
    Fuzz(fuzz::Args),
    /// The agent killed, upgraded and cut off, and what becomes of connections meanwhile
    Chaos(chaos::Args),
    /// The real kube-proxy replaced and put back, and what becomes of connections meanwhile
    Takeover(takeover::Args),
    /// A real API server to play with
    #[command(subcommand)]
    Controlplane(controlplane::Verb),
    /// A whole cluster of one node, whose services the image and the chart serve
    #[command(subcommand)]
    Cluster(cluster::Verb),
    /// What the kernel's verifier says of the BPF programs
    Report(report::Args),
    /// What this kernel has of what not every supported one has
    #[command(hide = true)]
    Kernel,
    /// One end of a load that is measured
    #[command(subcommand, hide = true)]
    Load(bench::load::Verb),
    /// Makes sockets for the program that started this one
    #[command(hide = true)]
    Sockets,
    /// Becomes another program, which the kernel takes no BPF program from
    #[command(hide = true)]
    WithoutBpf {
        /// What it is told
        #[arg(value_enum)]
        refusal: Refusal,
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Becomes the agent of an unpacked image, with the arguments of another program
    #[command(hide = true)]
    InImage {
        /// The root of the image
        image: PathBuf,
        /// The number of a capability that it keeps
        #[arg(long)]
        capability: Vec<u8>,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(args.verb) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => match error.downcast_ref::<Interrupted>() {
            // What was being done then is not what is wrong.
            Some(interrupted) => {
                eprintln!("lab: {interrupted}");
                ExitCode::from(interrupted.exit_code())
            }
            None => {
                eprintln!("lab: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Says whether all was right.
fn run(verb: Verb) -> anyhow::Result<bool> {
    match &verb {
        Verb::Load(verb) => return bench::load::run(verb).map(|()| true),
        Verb::Cluster(cluster::Verb::Hold { folder }) => return lb_tests::sandbox::hold(folder).map(|()| true),
        Verb::Sockets => return lb_tests::place::serve_sockets().map(|()| true),
        Verb::WithoutBpf { refusal, command } => return refusal.exec(command).map(|()| false),
        Verb::InImage {
            image,
            capability,
            command,
        } => return container::exec(image, capability, command).map(|()| false),
        _ => {}
    }
    interrupt::install(Policy::Unwind)?;
    match verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Parity(args) => parity::run(&args),
        Verb::Bench(args) => bench::run(&args).map(|()| true),
        Verb::Fuzz(args) => fuzz::run(&args),
        Verb::Chaos(args) => chaos::run(&args),
        Verb::Takeover(args) => takeover::run(&args),
        Verb::Controlplane(verb) => controlplane::run(&verb).map(|()| true),
        Verb::Cluster(verb) => cluster::run(&verb),
        Verb::Report(args) => report::run(&args).map(|()| true),
        Verb::Kernel => kernel::run().map(|()| true),
        Verb::Load(_) | Verb::Sockets | Verb::WithoutBpf { .. } | Verb::InImage { .. } => Ok(true),
    }
}
