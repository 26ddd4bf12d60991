//! `cargo xtask test`: builds what the tests need and runs them.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::controlplane_build::{self, Component};
use crate::count::Count;
use crate::{build_ebpf, lab, run, setup, workspace};

const LIMIT: Duration = Duration::from_secs(80 * 60);

/// A set of tests that run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// Tests beside the code they test, and the model's scripts
    Unit,
    /// BPF programs on single packets
    Packet,
    /// Whole nodes made of network namespaces
    Network,
    /// The same behind a real API server
    Controlplane,
}

impl Suite {
    const ALL: [Self; 4] = [Self::Unit, Self::Packet, Self::Network, Self::Controlplane];

    /// What of the workspace belongs to it, as arguments of `cargo test`.
    fn targets(self) -> &'static [&'static str] {
        match self {
            Self::Unit => &["--lib", "--bins", "--test", "scripts"],
            Self::Packet => &["--test", "packet"],
            Self::Network => &["--test", "network"],
            Self::Controlplane => &["--test", "controlplane"],
        }
    }
}

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which tests to run; all if none is named
    suites: Vec<Suite>,
    /// For the test runner: a part of the tests' names, --nocapture and the like
    #[arg(last = true)]
    runner: Vec<OsString>,
}

/// The verb.
pub fn run(args: &Args) -> Result<()> {
    let suites = if args.suites.is_empty() {
        &Suite::ALL[..]
    } else {
        &args.suites
    };
    if suites.iter().any(|suite| *suite != Suite::Unit) {
        setup::packages(&[])?;
    }
    let tools = setup::bpf_tools()?;
    build_ebpf::build(&tools, false)?;
    if suites.contains(&Suite::Controlplane) {
        controlplane_build::build(&workspace::tools_dir()?, Component::FOR_TESTS)?;
    }
    lab::build(lab::Profile::Dev)?;

    // Always the default members with the same features, so that no suite makes cargo compile anything twice.
    let mut cargo = workspace::cargo("test");
    cargo.arg("--no-fail-fast");
    for suite in suites {
        cargo.args(suite.targets());
    }
    // The runner's stdout is read here on its way, so it cannot see for itself that there is a terminal.
    let color = if std::io::stdout().is_terminal() {
        "always"
    } else {
        "never"
    };
    cargo.args(["--", "--color", color]).args(&args.runner);
    lab::set_env(&mut cargo, lab::Profile::Dev)?;
    let mut count = Count::default();
    let status = run::show_and_read(&mut cargo, LIMIT, &mut std::io::stdout(), |line| count.read(line))?;
    println!("\n{count}");
    match (status.success(), count.failed) {
        (true, _) => Ok(()),
        (false, 0) => bail!("a test program did not build, or did not get to its end: see above"),
        (false, failed) => bail!("{failed} failed"),
    }
}
