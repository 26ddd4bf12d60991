//! bpf-linker, which makes one BPF object of what rustc compiles.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::bpf_core::{Core, TARGET};
use crate::packages::find_program;
use crate::run::{Interrupted, Step, say};
use crate::toolchain::{Toolchain, rustc};
use crate::workspace;

/// The version that `setup` builds.
const VERSION: &str = "0.13.0";
/// The LLVM versions that it can be built for.
const LLVM_VERSIONS: std::ops::RangeInclusive<u32> = 21..=23;
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);

/// How the linker is called, which is how one that was found is tried, too.
pub fn link_flags() -> [&'static str; 2] {
    // Without the second one each fixed-size memset or memcpy becomes a loop over bytes, up to ten times the instructions to verify.
    ["-Clink-arg=--btf", "-Clink-arg=--disable-expand-memcpy-in-order"]
}

/// Finds one or builds it.
pub fn ensure(tools: &Path, toolchain: &Toolchain, core: &Core) -> Result<PathBuf> {
    let ours = tools.join(format!("bpf-linker-{VERSION}-{}", toolchain.key()));
    let linker = ours.join("bin/bpf-linker");
    // One that was built for another place does not start, since the place is in its run path.
    if linker.is_file() && starts(&linker) {
        return Ok(linker);
    }
    if let Some(found) = find_program("bpf-linker") {
        match try_link_once(&found, tools, toolchain, core) {
            Ok(()) => return Ok(found),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => say(format_args!(
                "{} does not work with this rustc: {error:#}",
                found.display()
            )),
        }
    }
    build(tools, toolchain, &ours)?;
    try_link(&linker, tools, core).context("the bpf-linker that was just built does not work")?;
    Ok(linker)
}

fn starts(linker: &Path) -> bool {
    let step = Step::new("bpf-linker --version", Duration::from_secs(20));
    step.ask(Command::new(linker).arg("--version"))
        .is_ok_and(|text| text.contains(VERSION))
}

/// Remembers the last one that worked, so that only its first use takes a second.
fn try_link_once(linker: &Path, tools: &Path, toolchain: &Toolchain, core: &Core) -> Result<()> {
    let changed = std::fs::metadata(linker).and_then(|metadata| metadata.modified());
    let changed = changed.with_context(|| format!("cannot look at {}", linker.display()))?;
    let tried = format!(
        "{} of {changed:?} with rustc {} and {core:?}\n",
        linker.display(),
        toolchain.key()
    );
    let note = tools.join("bpf-linker-tried");
    if std::fs::read_to_string(&note).is_ok_and(|text| text == tried) {
        return Ok(());
    }
    try_link(linker, tools, core)?;
    std::fs::write(&note, tried).with_context(|| format!("cannot write {}", note.display()))
}

/// Links a program of one line: only that shows whether the linker's LLVM understands what this rustc writes.
fn try_link(linker: &Path, tools: &Path, core: &Core) -> Result<()> {
    const PROGRAM: &str = "#![no_std]\n#![no_main]\n\
        #[panic_handler]\nfn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }\n\
        #[unsafe(no_mangle)]\n#[unsafe(link_section = \"socket\")]\npub extern \"C\" fn probe(value: u32) -> u32 { value }\n";
    let dir = tools.join("tmp/link");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let source = dir.join("probe.rs");
    std::fs::write(&source, PROGRAM).with_context(|| format!("cannot write {}", source.display()))?;
    let mut command = core.rustc().map_or_else(rustc, Command::new);
    command
        .args(core.rustflags())
        .args(link_flags())
        .args(["--edition", "2024", "--crate-type", "bin"]);
    command.args(["--target", TARGET, "-Copt-level=3", "-Cpanic=abort", "-Cdebuginfo=2"]);
    command
        .arg(format!("-Clinker={}", linker.display()))
        .arg("-o")
        .arg(dir.join("probe.o"))
        .arg(&source);
    Step::new("linking a first BPF program", Duration::from_secs(120))
        .ask(&mut command)
        .map(drop)
}

/// Builds it against the LLVM inside rustc: nothing else has to be installed, and the two always understand each other.
fn build(tools: &Path, toolchain: &Toolchain, to: &Path) -> Result<()> {
    if !LLVM_VERSIONS.contains(&toolchain.llvm) {
        bail!(
            "rustc {} has LLVM {}, and bpf-linker {VERSION} can be built for LLVM {} to {}: \
             use another Rust toolchain, or put a bpf-linker for this LLVM into PATH",
            toolchain.release,
            toolchain.llvm,
            LLVM_VERSIONS.start(),
            LLVM_VERSIONS.end(),
        );
    }
    let llvm = tools.join(format!("llvm-{}", toolchain.key()));
    link_llvm(&find_llvm(&toolchain.sysroot.join("lib"))?, &llvm.join("lib"))?;
    say(format_args!(
        "Building bpf-linker {VERSION} into {} (a few minutes)",
        tools.display()
    ));
    let target = tools.join("tmp/bpf-linker-target");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    workspace::scrub(&mut cargo);
    cargo.args([
        "install",
        "bpf-linker",
        "--version",
        VERSION,
        "--locked",
        "--force",
        "--no-default-features",
    ]);
    cargo
        .args(["--features", &format!("llvm-{}", toolchain.llvm), "--root"])
        .arg(to)
        .arg("--target-dir")
        .arg(&target);
    cargo
        .env("LLVM_PREFIX", &llvm)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env_remove("RUSTFLAGS");
    Step::new(format!("building bpf-linker {VERSION}"), BUILD_LIMIT)
        .hint("What was compiled is kept, so a second try goes on from there. A bpf-linker in PATH would be used instead.")
        .run(&mut cargo)?;
    // Half a gigabyte that nobody needs any more; not worth a failure.
    let _ = std::fs::remove_dir_all(&target);
    Ok(())
}

/// The shared library of the LLVM inside rustc.
fn find_llvm(folder: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut found: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|file| {
            file.file_name()
                .is_some_and(|name| is_llvm_library(&name.to_string_lossy()))
        })
        .collect();
    found.sort();
    found.into_iter().next().with_context(|| {
        format!(
            "there is no libLLVM.so in {}: this rustc comes without a shared LLVM. Use a rustup toolchain, \
             or put a bpf-linker into PATH",
            folder.display()
        )
    })
}

/// "libLLVM.so.22.1-rust-1.95.0-stable", but not the linker script "libLLVM-22-rust-1.95.0-stable.so" that stands beside it at times.
fn is_llvm_library(name: &str) -> bool {
    name.starts_with("libLLVM.so.")
}

/// Two names for it: one for the linker's `-lLLVM`, one that the loader looks for when the program starts.
fn link_llvm(library: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let own_name = library
        .file_name()
        .with_context(|| format!("{} has no file name", library.display()))?;
    for name in [std::ffi::OsStr::new("libLLVM.so"), own_name] {
        let link = folder.join(name);
        if std::fs::symlink_metadata(&link).is_ok() {
            std::fs::remove_file(&link).with_context(|| format!("cannot remove {}", link.display()))?;
        }
        std::os::unix::fs::symlink(library, &link).with_context(|| format!("cannot create {}", link.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_llvm_by_name() {
        assert!(is_llvm_library("libLLVM.so.22.1-rust-1.95.0-stable"));
        assert!(!is_llvm_library("libLLVM-22-rust-1.95.0-stable.so"));
        assert!(!is_llvm_library("librustc_driver-ea0e99b300280386.so"));
    }

    #[test]
    fn links_are_made_anew() {
        let dir = std::env::temp_dir().join(format!("xtask-llvm-{}", std::process::id()));
        for target in ["/old/libLLVM.so.1", "/new/libLLVM.so.1"] {
            link_llvm(Path::new(target), &dir).unwrap();
            for name in ["libLLVM.so", "libLLVM.so.1"] {
                assert_eq!(std::fs::read_link(dir.join(name)).unwrap(), Path::new(target));
            }
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
