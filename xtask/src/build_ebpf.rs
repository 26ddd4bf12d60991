//! `cargo xtask build-ebpf`: the BPF object that lb-agent embeds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::bpf_core::TARGET;
use crate::bpf_linker::link_flags;
use crate::setup::{self, BpfTools};
use crate::{lab, object, run, workspace};

const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Its settings are in the workspace's Cargo.toml.
const PROFILE: &str = "bpf";

/// Arguments of `build-ebpf`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Load the programs into the kernel and print type, instructions, stack and maps of each
    #[arg(long)]
    report: bool,
    /// Compile log messages into the programs (each costs the verifier some 1,500 instructions)
    #[arg(long, conflicts_with = "report")]
    log: bool,
}

/// The verb.
pub fn run(args: &Args) -> Result<()> {
    let tools = setup::bpf_tools()?;
    let kind = if args.log { Kind::Logging } else { Kind::Usual };
    let object = build(&tools, kind)?;
    run::say(format_args!("BPF object: {}", object.display()));
    if args.report {
        return lab::run(&lab::REPORT, &[], &[]);
    }
    Ok(())
}

/// What is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What is released
    Usual,
    /// With log messages
    Logging,
    /// With another layout of the maps, beside the usual one
    NextLayout,
}

/// Builds the object, checks it, and puts it where lb-agent's build script looks for it.
pub fn build(tools: &BpfTools, kind: Kind) -> Result<PathBuf> {
    let mut cargo = cargo(tools, "build")?;
    match kind {
        Kind::Usual => {}
        Kind::Logging => {
            cargo.args(["--features", "log"]);
        }
        Kind::NextLayout => {
            cargo.args(["--features", "next-layout"]);
        }
    }
    if !run::show(&mut cargo, BUILD_LIMIT)?.success() {
        bail!("lb-ebpf does not build; its messages are above");
    }
    let built = workspace::ebpf_target_dir().join(TARGET).join(PROFILE).join("lb-ebpf");
    let bytes = std::fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    object::check(&bytes)?;
    let place = match kind {
        Kind::Usual | Kind::Logging => workspace::ebpf_object(),
        Kind::NextLayout => workspace::ebpf_object().with_file_name("lb-ebpf-next-layout.o"),
    };
    write_if_changed(&place, &bytes)?;
    Ok(place)
}

/// A cargo that works on lb-ebpf for the BPF target.
pub fn cargo(tools: &BpfTools, verb: &str) -> Result<Command> {
    let mut cargo = workspace::cargo(verb);
    cargo.args([
        "--package",
        "lb-ebpf",
        "--profile",
        PROFILE,
        "--target",
        TARGET,
        "--target-dir",
    ]);
    cargo.arg(workspace::ebpf_target_dir());
    cargo.env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &tools.linker);
    // Inline assembly for BPF is the one unstable thing that aya-ebpf needs.
    cargo.env("RUSTC_BOOTSTRAP", "aya_ebpf");
    let mut flags = tools.core.rustflags();
    flags.extend(link_flags().map(str::to_owned));
    // Version 3 of the instruction set is the newest that every supported kernel has.
    flags.push("-Ctarget-cpu=v3".to_owned());
    for (from, to) in [(workspace::root().to_owned(), "/lb-agent"), (cargo_home()?, "/cargo")] {
        // The same source gives the same object wherever it is built.
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    // This form allows blanks in paths. It goes before all other places of such flags, which are meant for the host.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    if let Some(rustc) = tools.core.rustc() {
        cargo.env("RUSTC", rustc);
    }
    Ok(cargo)
}

fn cargo_home() -> Result<PathBuf> {
    std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
        .context("neither CARGO_HOME nor HOME is set")
}

/// Leaves the file alone if it is the same already, so that cargo does not build lb-agent anew.
fn write_if_changed(place: &Path, bytes: &[u8]) -> Result<()> {
    if std::fs::read(place).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    // Another build may be reading it.
    let new = place.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&new, bytes).with_context(|| format!("cannot write {}", new.display()))?;
    std::fs::rename(&new, place).with_context(|| format!("cannot write {}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unchanged_object_is_not_written() {
        let place = std::env::temp_dir().join(format!("xtask-object-{}.o", std::process::id()));
        write_if_changed(&place, b"one").unwrap();
        let first = std::fs::metadata(&place).unwrap().modified().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        write_if_changed(&place, b"one").unwrap();
        assert_eq!(std::fs::metadata(&place).unwrap().modified().unwrap(), first);
        write_if_changed(&place, b"two").unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"two");
        std::fs::remove_file(place).unwrap();
    }
}
