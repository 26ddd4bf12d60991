//! `cargo xtask setup`: brings what building and testing need. The other verbs call parts of it.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;

use crate::bpf_core::{self, Core};
use crate::controlplane_build::{self, Component};
use crate::packages::Package;
use crate::run::say;
use crate::toolchain::Toolchain;
use crate::workspace::{self, Lock};
use crate::{bpf_linker, packages};

/// What compiles and links BPF programs.
#[derive(Debug)]
pub struct BpfTools {
    /// Compiler and `core`.
    pub core: Core,
    /// The path of bpf-linker.
    pub linker: PathBuf,
}

/// Arguments of `setup`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Build the control plane for tests as well (etcd, kube-apiserver, kubectl, kube-proxy), which takes some ten minutes
    #[arg(long)]
    controlplane: bool,
}

/// The verb.
pub fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    let programs = packages(&[])?;
    let bpf = bpf_tools()?;
    let mut all = vec![
        programs,
        format!("bpf-linker at {}", bpf.linker.display()),
        match &bpf.core {
            Core::Sysroot(dir) => format!("Rust's core for BPF in {}", dir.display()),
            Core::Debian(dir) => format!("Debian's Rust with core for BPF in {}", dir.display()),
        },
    ];
    if args.controlplane {
        let tools = workspace::tools_dir()?;
        controlplane_build::build(&tools, Component::FOR_PARITY)?;
        all.push(format!(
            "control plane in {}",
            controlplane_build::bin_dir(&tools)?.display()
        ));
    }
    say(format_args!("All is there ({:.1} s):", started.elapsed().as_secs_f32()));
    for line in all {
        say(format_args!("  {line}"));
    }
    Ok(())
}

/// The programs of Debian packages: those that every verb needs, and these.
pub fn packages(also: &[Package]) -> Result<String> {
    let _lock = Lock::take(&workspace::tools_dir()?)?;
    packages::ensure(also)
}

/// What building the BPF object needs.
pub fn bpf_tools() -> Result<BpfTools> {
    let tools = workspace::tools_dir()?;
    let _lock = Lock::take(&tools)?;
    let toolchain = Toolchain::detect()?;
    let core = bpf_core::ensure(&tools, &toolchain)?;
    let linker = bpf_linker::ensure(&tools, &toolchain, &core)?;
    Ok(BpfTools { core, linker })
}
