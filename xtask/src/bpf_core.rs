//! Rust's `core` for the BPF target, which no toolchain ships.
//!
//! It is compiled into a private sysroot from the library sources of the very same compiler. Where those are not to be had, Debian's
//! own compiler with its prebuilt `core` is unpacked beside it. Neither touches the installed toolchain.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::apt::{self, Os, PrivateApt};
use crate::packages::find_program;
use crate::run::{self, Interrupted, Step, say};
use crate::scratch::{Scratch, remove_dir};
use crate::toolchain::{Toolchain, rustc};
use crate::workspace;

/// The target of the BPF programs: little-endian, which every machine is that we run on.
pub const TARGET: &str = "bpfel-unknown-none";

/// Suites of Debian's archive that may have the sources of a newer compiler than the machine's own release.
const SUITES: &[&str] = &["trixie-backports", "sid"];
/// What of the library sources is compiled.
const LIBRARY_PARTS: &[&str] = &["core", "compiler-builtins", "stdarch", "portable-simd"];
/// Debian's newest compiler for its stable release, by beginnings of package names.
const WEB_PACKAGES: &[&str] = &["rustc-web", "libstd-rust-web-dev-bpf"];
const WEB_BEGINNINGS: &[&str] = &["rustc-web", "libstd-rust-web", "libllvm"];
const WEB_CLIPPY: &str = "rust-web-clippy";
const COMPILE_LIMIT: Duration = Duration::from_secs(15 * 60);
const RUSTUP_LIMIT: Duration = Duration::from_secs(180);

/// What compiles Rust for the BPF target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Core {
    /// The installed compiler with this sysroot.
    Sysroot(PathBuf),
    /// Debian's compiler and clippy, unpacked into this folder.
    Debian(PathBuf),
}

impl Core {
    /// Sets the compiler up for the BPF target in a command's arguments or a cargo's environment.
    pub fn rustflags(&self) -> Vec<String> {
        match self {
            Self::Sysroot(dir) => vec![format!("--sysroot={}", dir.display())],
            Self::Debian(_) => Vec::new(),
        }
    }

    /// The compiler, where it is not the one that cargo would take.
    pub fn rustc(&self) -> Option<PathBuf> {
        match self {
            Self::Sysroot(_) => None,
            Self::Debian(dir) => Some(dir.join("bin/rustc")),
        }
    }

    /// Clippy's driver, where it is not the one of `cargo clippy`.
    pub fn clippy(&self) -> Option<PathBuf> {
        match self {
            Self::Sysroot(_) => None,
            Self::Debian(dir) => Some(dir.join("bin/clippy-driver")),
        }
    }
}

/// Finds or makes it.
pub fn ensure(tools: &Path, toolchain: &Toolchain) -> Result<Core> {
    let sysroot = tools.join(format!("bpf-sysroot-{}", toolchain.key()));
    if is_complete(&sysroot) {
        return Ok(Core::Sysroot(sysroot));
    }
    if let Some(library) = rustup_library(toolchain) {
        compile(&sysroot, &library, toolchain)?;
        return Ok(Core::Sysroot(sysroot));
    }
    let debian = tools.join("debian-rust");
    if debian.join("bin/rustc").is_file() {
        return Ok(Core::Debian(debian));
    }

    let mut failures = Vec::new();
    let os = Os::detect();
    if os.is_debian() {
        match library_from_debian(tools, &os, toolchain, &sysroot) {
            Ok(()) => return Ok(Core::Sysroot(sysroot)),
            Err(error) => failed(&mut failures, error)?,
        }
        match compiler_from_debian(tools, &debian) {
            Ok(()) => return Ok(Core::Debian(debian)),
            Err(error) => failed(&mut failures, error)?,
        }
    }
    match library_from_rustup(toolchain) {
        Ok(library) => {
            compile(&sysroot, &library, toolchain)?;
            return Ok(Core::Sysroot(sysroot));
        }
        Err(error) => failed(&mut failures, error)?,
    }
    bail!(
        "there is no `core` for the target {TARGET}, and no way to make it worked:\n{}\n\
         Needed is one of: rustup with its component rust-src (`rustup component add rust-src`), or Debian's package \
         rust-src of version {}, or Debian's packages {}.",
        failures.join("\n"),
        toolchain.release,
        WEB_PACKAGES.join(", "),
    )
}

/// Tells of the failure of one way so that the next can be tried, unless it was the person who stopped it.
fn failed(failures: &mut Vec<String>, error: anyhow::Error) -> Result<()> {
    if error.is::<Interrupted>() {
        return Err(error);
    }
    say(format_args!("{error:#}\nTrying another way."));
    failures.push(format!("* {}", run::brief(&error)));
    Ok(())
}

/// The library sources that belong to a rustup toolchain, if they are there.
fn rustup_library(toolchain: &Toolchain) -> Option<PathBuf> {
    let library = toolchain.sysroot.join("lib/rustlib/src/rust/library");
    library.join("core/src/lib.rs").is_file().then_some(library)
}

fn library_from_rustup(toolchain: &Toolchain) -> Result<PathBuf> {
    if find_program("rustup").is_none() {
        bail!("there is no rustup");
    }
    say("Adding the sources of Rust's library to the rustup toolchain");
    let mut rustup = Command::new("rustup");
    rustup
        .args(["component", "add", "rust-src"])
        .current_dir(workspace::root())
        // Its own stack trace would say nothing to anybody here.
        .env_remove("RUST_BACKTRACE");
    Step::new("rustup component add rust-src", RUSTUP_LIMIT).run(&mut rustup)?;
    rustup_library(toolchain).with_context(|| {
        format!(
            "rustup added rust-src to another toolchain than {}",
            toolchain.sysroot.display()
        )
    })
}

fn library_from_debian(tools: &Path, os: &Os, toolchain: &Toolchain, sysroot: &Path) -> Result<()> {
    let sources = apt::machine_sources();
    let archive = apt::main_archive(&sources, &os.codename)
        .context("none of the machine's apt sources is Debian's main archive")?;
    let mut found = Vec::new();
    for suite in SUITES {
        let scratch = Scratch::new(tools, "rust-src")?;
        let apt = PrivateApt::with_suite(scratch.dir(), archive, suite)?;
        if let Err(error) = apt.update(suite) {
            if error.is::<Interrupted>() {
                return Err(error);
            }
            found.push(run::brief(&error));
            continue;
        }
        let versions = apt.versions("rust-src")?;
        let Some(version) = versions.iter().find(|version| is_release(version, &toolchain.release)) else {
            found.push(format!(
                "{suite} has {}",
                if versions.is_empty() {
                    "none".into()
                } else {
                    versions.join(", ")
                }
            ));
            continue;
        };
        say(format_args!(
            "Fetching the sources of Rust's library {version} (45 MB) into {}",
            tools.display()
        ));
        let debs = apt.download(&[format!("rust-src={version}")])?;
        let patterns: Vec<_> = LIBRARY_PARTS
            .iter()
            .map(|part| format!("./usr/src/*/library/{part}/*"))
            .collect();
        let patterns: Vec<_> = patterns.iter().map(String::as_str).collect();
        let unpacked = scratch.dir().join("unpacked");
        for deb in &debs {
            apt::unpack(deb, &unpacked, &patterns)?;
        }
        let library = unpacked_library(&unpacked)?;
        return compile(sysroot, &library, toolchain);
    }
    bail!(
        "Debian's package rust-src {} could not be found: {}",
        toolchain.release,
        found.join("; ")
    )
}

/// Whether a Debian version is of this upstream release.
fn is_release(version: &str, release: &str) -> bool {
    let upstream = version.split_once(':').map_or(version, |(_, upstream)| upstream);
    upstream
        .strip_prefix(release)
        .is_some_and(|rest| rest.starts_with(['+', '-', '~']))
}

fn unpacked_library(unpacked: &Path) -> Result<PathBuf> {
    let folder = unpacked.join("usr/src");
    std::fs::read_dir(&folder)
        .with_context(|| format!("cannot list {}", folder.display()))?
        .flatten()
        .map(|entry| entry.path().join("library"))
        .find(|library| library.join("core/src/lib.rs").is_file())
        .with_context(|| format!("there is no library/core below {}", folder.display()))
}

/// Compiles `core` and what it calls (`memcpy` and the like) into the sysroot.
fn compile(sysroot: &Path, library: &Path, toolchain: &Toolchain) -> Result<()> {
    // Beside its place first: another build may be using what is there.
    let new = sysroot.with_added_extension("new");
    remove_dir(&new)?;
    let out = library_dir(&new);
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;

    let mut core = rustc();
    core.args(["--crate-name", "core"])
        .args(compile_flags(library, toolchain))
        .arg("--out-dir")
        .arg(&out);
    core.args(["-Cmetadata=lbcore", "-Cextra-filename=-lbcore"])
        .arg(library.join("core/src/lib.rs"));
    // Only the compiler's own library may use what is unstable in it.
    core.env("RUSTC_BOOTSTRAP", "1");
    Step::new(format!("compiling Rust's core for {TARGET}"), COMPILE_LIMIT).run(&mut core)?;

    let mut builtins = rustc();
    builtins
        .args(["--crate-name", "compiler_builtins"])
        .args(compile_flags(library, toolchain));
    builtins
        .arg("--out-dir")
        .arg(&out)
        .args(["-Cmetadata=lbcb", "-Cextra-filename=-lbcb"]);
    for cfg in ["compiler-builtins", "mem", "mem-unaligned", "unstable-intrinsics"] {
        builtins.args(["--cfg", &format!("feature={cfg:?}")]);
    }
    builtins
        .args([
            "--cfg",
            "intrinsics_enabled",
            "--cfg",
            "optimizations_enabled",
            "--sysroot",
        ])
        .arg(&new);
    builtins
        .arg("--extern")
        .arg(format!("core={}", out.join("libcore-lbcore.rlib").display()));
    builtins.arg(library.join("compiler-builtins/compiler-builtins/src/lib.rs"));
    // These three are read while it is compiled; its build script would set them.
    builtins
        .env("CFG_CARGO_FEATURES", "[]")
        .env("CFG_OPT_LEVEL", "3")
        .env("CFG_TARGET_FEATURES", "[]");
    builtins.env("RUSTC_BOOTSTRAP", "1");
    Step::new(
        format!("compiling Rust's compiler_builtins for {TARGET}"),
        COMPILE_LIMIT,
    )
    .run(&mut builtins)?;

    let recipe = new.join("recipe");
    std::fs::write(&recipe, RECIPE).with_context(|| format!("cannot write {}", recipe.display()))?;
    remove_dir(sysroot)?;
    std::fs::rename(&new, sysroot).with_context(|| format!("cannot move {} into place", new.display()))?;
    // Cargo does not know of the sysroot, so what was compiled with an older one would be taken for fresh.
    remove_dir(&workspace::ebpf_target_dir().join(TARGET))
}

/// Written into a finished sysroot. Change it with the flags below, so that older sysroots are made anew.
const RECIPE: &str = "1\n";

fn compile_flags(library: &Path, toolchain: &Toolchain) -> Vec<String> {
    let mut flags: Vec<_> = [
        "--target",
        TARGET,
        "--edition",
        "2024",
        "--crate-type",
        "rlib",
        "--cap-lints",
        "allow",
    ]
    .map(str::to_owned)
    .into();
    // With less debug information the BTF of an object that holds parts of core is invalid.
    flags.extend(
        [
            "-Copt-level=3",
            "-Cpanic=abort",
            "-Ccodegen-units=1",
            "-Cembed-bitcode=yes",
        ]
        .map(str::to_owned),
    );
    flags.extend(["-Cdebuginfo=2", "-Zforce-unstable-if-unmarked"].map(str::to_owned));
    // The same sources give the same library wherever it is made.
    let places = [
        (workspace::root(), "/lb-agent".to_owned()),
        (library, format!("/rustc/{}/library", toolchain.key())),
    ];
    flags.extend(places.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())));
    flags
}

fn library_dir(sysroot: &Path) -> PathBuf {
    sysroot.join("lib/rustlib").join(TARGET).join("lib")
}

fn is_complete(sysroot: &Path) -> bool {
    std::fs::read_to_string(sysroot.join("recipe")).is_ok_and(|recipe| recipe == RECIPE)
}

/// Debian builds its newest compiler for its stable release under another name, with `core` for BPF. Everything in it is of one build.
fn compiler_from_debian(tools: &Path, to: &Path) -> Result<()> {
    let scratch = Scratch::new(tools, "debian-rust")?;
    let apt = PrivateApt::with_machine_sources(scratch.dir())?;
    apt.update("the machine's own sources")?;
    let mut packages = apt.with_dependencies(WEB_PACKAGES, WEB_BEGINNINGS)?;
    if packages.is_empty() {
        bail!("the machine's apt sources have no package {}", WEB_PACKAGES.join(", "));
    }
    packages.push(WEB_CLIPPY.to_owned());
    say(format_args!(
        "Fetching Debian's Rust compiler (120 MB) into {}",
        tools.display()
    ));
    let unpacked = scratch.dir().join("unpacked");
    for deb in apt.download(&packages)? {
        apt::unpack(&deb, &unpacked, &[])?;
    }
    let bin = unpacked.join("bin");
    std::fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    for program in ["rustc", "clippy-driver"] {
        if !unpacked.join("usr/bin").join(program).is_file() {
            bail!("Debian's packages {} hold no program {program}", packages.join(", "));
        }
        let file = bin.join(program);
        std::fs::write(&file, wrapper(program)).with_context(|| format!("cannot write {}", file.display()))?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot make {} executable", file.display()))?;
    }
    let mut rustc = Command::new(bin.join("rustc"));
    Step::new("asking Debian's rustc for its version", Duration::from_secs(60)).ask(rustc.arg("-Vv"))?;
    remove_dir(to)?;
    std::fs::rename(&unpacked, to).with_context(|| format!("cannot move {} to {}", unpacked.display(), to.display()))
}

/// Starts a program of the unpacked packages with their libraries, instead of the ones of the toolchain that cargo may have named.
fn wrapper(program: &str) -> String {
    format!(
        "#!/bin/sh\n\
         # Written by `cargo xtask setup`.\n\
         here=$(dirname \"$(dirname \"$(readlink -f \"$0\")\")\")\n\
         for folder in \"$here\"/usr/lib/*-linux-gnu; do LD_LIBRARY_PATH=$folder; done\n\
         export LD_LIBRARY_PATH\n\
         exec \"$here/usr/bin/{program}\" \"$@\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_of_a_release() {
        assert!(is_release("1.95.0+dfsg1-2~bpo13+1", "1.95.0"));
        assert!(is_release("1:1.95.0-1", "1.95.0"));
        assert!(!is_release("1.95.01-1", "1.95.0"));
        assert!(!is_release("1.96.0+dfsg1-1", "1.95.0"));
        assert!(!is_release("1.95.0", "1.95.0"));
    }

    #[test]
    fn a_half_made_sysroot_does_not_count() {
        let dir = std::env::temp_dir().join(format!("xtask-sysroot-{}", std::process::id()));
        std::fs::create_dir_all(library_dir(&dir)).unwrap();
        assert!(!is_complete(&dir));
        std::fs::write(dir.join("recipe"), RECIPE).unwrap();
        assert!(is_complete(&dir));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
