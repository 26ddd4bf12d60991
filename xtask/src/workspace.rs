//! Where things are in the repository, and cargo as the verbs call it.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::run;

/// How long one run waits for another that is setting up the same folder.
const LOCK_LIMIT: Duration = Duration::from_secs(60 * 60);

/// The root of the repository.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The folder of what `setup` brings: `.tools` at the root of the repository, or `$LB_TOOLS_DIR`.
pub fn tools_dir() -> Result<PathBuf> {
    let dir = match std::env::var_os("LB_TOOLS_DIR") {
        Some(dir) if dir.is_empty() => bail!("LB_TOOLS_DIR is empty: unset it, or name a folder"),
        Some(dir) => PathBuf::from(dir),
        None => root().join(".tools"),
    };
    std::fs::create_dir_all(&dir).with_context(|| {
        format!(
            "cannot create the tools folder {} (LB_TOOLS_DIR can name another one)",
            dir.display()
        )
    })?;
    // Absolute, since it ends up in a linker's run path and in --sysroot.
    dir.canonicalize()
        .with_context(|| format!("cannot resolve {}", dir.display()))
}

/// Cargo's target folder, which is where this very program was built.
pub fn target_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot find out where xtask itself is")?;
    match exe.parent().and_then(Path::parent) {
        Some(dir) => Ok(dir.to_owned()),
        None => bail!("xtask is at {}, which is not inside a target folder", exe.display()),
    }
}

/// Where `build-ebpf` builds. Its own folder, because `RUSTC_BOOTSTRAP` is set there, and build scripts that look at it would make
/// cargo build everything anew each time that the two kinds of build alternate.
pub fn ebpf_target_dir() -> PathBuf {
    root().join("target/bpf")
}

/// The finished BPF object, which lb-agent embeds.
pub fn ebpf_object() -> PathBuf {
    ebpf_target_dir().join("lb-ebpf.o")
}

/// `cargo VERB` at the root of the repository.
pub fn cargo(verb: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    scrub(&mut cargo);
    cargo.current_dir(root()).arg(verb);
    cargo
}

/// Takes away what cargo set for xtask itself, lest a build script or a program believes that it was meant.
pub fn scrub(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "CARGO_BIN_NAME" {
            command.env_remove(&name);
        }
    }
}

/// Keeps other runs of xtask out of the tools folder while it is held.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for its turn, and says so.
    pub fn take(tools: &Path) -> Result<Self> {
        let path = tools.join("lock");
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let started = Instant::now();
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if !told {
                run::say(format_args!(
                    "...  waiting for another xtask that is setting up {}",
                    tools.display()
                ));
                told = true;
            }
            run::check_interrupted()?;
            if started.elapsed() > LOCK_LIMIT {
                bail!(
                    "another xtask has been setting up {} for an hour: end it and try again",
                    tools.display()
                );
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
