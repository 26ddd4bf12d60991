//! `cargo xtask bench`: builds what is to be measured, and measures it here or in a machine with another kernel.

use std::ffi::OsString;

use anyhow::Result;

use crate::elsewhere;
use crate::lab::{self, Profile};
use crate::plane::Plane;
use crate::vm::Line;

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
        Some(line) => {
            let profile = if args.debug { Profile::Dev } else { Profile::Release };
            elsewhere::run(&lab::BENCH, profile, line, args.plane, &args.args)
        }
        None => lab::run(&lab::BENCH, &args.args, &[(Plane::VARIABLE, args.plane.name())]),
    }
}
