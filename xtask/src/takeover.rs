//! `cargo xtask takeover`: here, or in a machine with another kernel.

use std::ffi::OsString;

use anyhow::Result;

use crate::elsewhere;
use crate::lab::{self, Profile};
use crate::plane::Plane;
use crate::vm::Line;

/// Arguments of `takeover`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// On Debian's newest kernel of this line, in a virtual machine. `--from ipvs` needs one that has IPVS
    #[arg(long, value_name = "KERNEL", value_enum)]
    kernel: Option<Line>,
    /// What is taken over from, and how
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// The verb.
pub fn run(args: &Args) -> Result<()> {
    match args.kernel {
        Some(line) => elsewhere::run(&lab::TAKEOVER, Profile::Dev, line, Plane::Ebpf, &args.args),
        None => lab::run(&lab::TAKEOVER, &args.args, &[]),
    }
}
