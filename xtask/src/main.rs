//! Every developer command of lb-agent. `cargo xtask help` lists them.

// A binary has no other crate to offer anything to: here `pub` marks what a module offers the others.
#![allow(unreachable_pub)]

mod apt;
mod bench;
mod bpf_core;
mod bpf_linker;
mod build_ebpf;
mod chart;
mod cluster;
mod compatibility;
mod controlplane_build;
mod count;
mod elsewhere;
mod go;
mod image;
mod lab;
mod libraries;
mod lint;
mod next_layout;
mod object;
mod packages;
mod plane;
mod results;
mod run;
mod scratch;
mod setup;
mod takeover;
mod test;
mod toolchain;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Every developer command of lb-agent"
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Bring what building and testing need; the other commands do so themselves
    Setup(setup::Args),
    /// Build the BPF object that lb-agent embeds
    BuildEbpf(build_ebpf::Args),
    /// Check formatting and run clippy on every crate
    Lint,
    /// Run the tests
    Test(test::Args),
    /// Build the OCI image of the agent
    Image(image::Args),
    /// Check the Helm chart, and write the manifests in deploy/ that it renders
    Chart,
    /// Write docs/compatibility.md from the last runs of the tests on each kernel
    Compatibility,
    /// Show Services at work on two nodes made of network namespaces (`demo --help` for more)
    #[command(disable_help_flag = true)]
    Demo(lab::Args),
    /// Compare every rule of a Service with the real kube-proxy's (`parity --help` for more)
    #[command(disable_help_flag = true)]
    Parity(lab::Args),
    /// Measure (`bench --help` for more)
    #[command(disable_help_flag = true)]
    Bench(bench::Args),
    /// Send the BPF programs packets that nobody would send (`fuzz --help` for more)
    #[command(disable_help_flag = true)]
    Fuzz(lab::Args),
    /// Kill, upgrade and cut off the agent while connections run (`chaos --help` for more)
    #[command(disable_help_flag = true)]
    Chaos(lab::Args),
    /// Replace the real kube-proxy while connections run, and put it back (`takeover --help` for more)
    #[command(disable_help_flag = true)]
    Takeover(takeover::Args),
    /// Start or stop a real API server on loopback (`controlplane --help` for more)
    #[command(disable_help_flag = true)]
    Controlplane(lab::Args),
    /// Run the image and the chart in a whole cluster of one node (`cluster --help` for more)
    #[command(disable_help_flag = true)]
    Cluster(lab::Args),
}

fn main() -> ExitCode {
    if vm::guest::is_init() {
        return vm::guest::main();
    }
    let cli = Cli::parse();
    let result = run::forward_signals().and_then(|()| match &cli.verb {
        Verb::Setup(args) => setup::run(args),
        Verb::BuildEbpf(args) => build_ebpf::run(args),
        Verb::Lint => lint::run(),
        Verb::Test(args) => test::run(args),
        Verb::Image(args) => image::run(args),
        Verb::Chart => chart::run(),
        Verb::Compatibility => compatibility::run(),
        Verb::Demo(args) => lab::run(&lab::DEMO, args.all(), &[]),
        Verb::Parity(args) => lab::run(&lab::PARITY, args.all(), &[]),
        Verb::Bench(args) => bench::run(args),
        Verb::Fuzz(args) => lab::run(&lab::FUZZ, args.all(), &[]),
        Verb::Chaos(args) => lab::run(&lab::CHAOS, args.all(), &[]),
        Verb::Takeover(args) => takeover::run(args),
        Verb::Controlplane(args) => lab::run(&lab::CONTROLPLANE, args.all(), &[]),
        Verb::Cluster(args) => cluster::run(args.all()),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            run::say(format_args!("error: {error:#}"));
            match error.downcast_ref::<run::Interrupted>() {
                // As a shell reports a program that a signal ended.
                Some(run::Interrupted(signal)) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
                None => ExitCode::FAILURE,
            }
        }
    }
}
