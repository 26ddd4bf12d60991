//! `cargo xtask bench`: builds what is to be measured, and measures it here or in a machine with another kernel.

use std::ffi::OsString;

use anyhow::{Context as _, Result};

use crate::lab::{self, Profile};
use crate::plane::Plane;
use crate::vm::{self, Job, Line, Memory, Program};
use crate::{build_ebpf, setup, workspace};

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// On Debian's newest kernel of this line, in a virtual machine. Its figures are good for comparison with each other only
    #[arg(long, value_name = "KERNEL", value_enum)]
    kernel: Option<Line>,
    /// The plane that the agents have. IPVS needs a kernel that has it
    #[arg(long, value_enum, default_value = "ebpf")]
    plane: Plane,
    /// In that machine, measure what the tests run: it is sooner built, and slower
    #[arg(long, requires = "kernel")]
    debug: bool,
    /// What to measure, and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// The verb.
pub fn run(args: &Args) -> Result<()> {
    match args.kernel {
        Some(line) => run_on(line, args),
        None => lab::run(&lab::BENCH, &args.args, &[(Plane::VARIABLE, args.plane.name())]),
    }
}

fn run_on(line: Line, args: &Args) -> Result<()> {
    setup::packages(&[])?;
    vm::packages()?;
    build_ebpf::build(&setup::bpf_tools()?, build_ebpf::Kind::Usual)?;
    let profile = if args.debug { Profile::Dev } else { Profile::Release };
    lab::build(profile)?;
    let lab = lab::program("lab", profile)?;
    let agent = lab::program("lb-agent", profile)?;
    let text = |text: &OsString| text.to_str().map(str::to_owned);
    let measured: Vec<String> = args
        .args
        .iter()
        .map(text)
        .collect::<Option<_>>()
        .context("an argument for the guest is not UTF-8")?;
    let program = Program {
        title: "bench".to_owned(),
        path: lab.to_string_lossy().into_owned(),
        args: std::iter::once("bench".to_owned()).chain(measured).collect(),
    };
    let environment = [
        ("LB_AGENT", agent.to_string_lossy().into_owned()),
        ("LB_LAB", lab.to_string_lossy().into_owned()),
        ("LB_TOOLS_DIR", workspace::tools_dir()?.to_string_lossy().into_owned()),
        (Plane::VARIABLE, args.plane.name().to_owned()),
    ];
    let job = Job {
        programs: vec![program],
        called: vec![agent, lab],
        environment: environment.map(|(name, value)| (name.to_owned(), value)).into(),
        memory: Memory::Large,
        ..Job::default()
    };
    let results = vm::run(line, args.plane, &job)?;
    match results.bad_ends.first() {
        Some(end) => anyhow::bail!("{end}"),
        None => Ok(()),
    }
}
