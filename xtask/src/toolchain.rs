//! Which Rust compiler there is.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::run::Step;
use crate::workspace;

/// The Rust compiler that cargo uses here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    /// "1.95.0"
    pub release: String,
    /// The first nine characters of the commit, as in `rustc --version`; "unknown" for a compiler that does not say.
    pub commit: String,
    /// The major version of the LLVM inside it.
    pub llvm: u32,
    /// Its `rustc --print sysroot`.
    pub sysroot: PathBuf,
}

impl Toolchain {
    /// Asks rustc.
    pub fn detect() -> Result<Self> {
        let ask = |args: &[&str]| {
            Step::new("asking rustc for its version", Duration::from_secs(60))
                .hint("A Rust toolchain with rustc and cargo is what this project starts from.")
                .ask(rustc().args(args))
        };
        let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?.trim());
        Self::parse(&ask(&["-Vv"])?, sysroot)
    }

    fn parse(version: &str, sysroot: PathBuf) -> Result<Self> {
        let field = |name: &str| {
            version
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
                .with_context(|| format!("rustc -Vv does not name its {name}; it says:\n{version}"))
        };
        let commit = field("commit-hash")?;
        let llvm = field("LLVM version")?;
        let llvm = llvm
            .split('.')
            .next()
            .and_then(|major| major.parse().ok())
            .with_context(|| format!("rustc -Vv names an LLVM version {llvm:?} that is none"))?;
        Ok(Self {
            release: field("release")?.to_owned(),
            commit: commit.get(..9).unwrap_or(commit).to_owned(),
            llvm,
            sysroot,
        })
    }

    /// Release and commit: what things that belong to this very compiler are named by, so that none outlives it.
    pub fn key(&self) -> String {
        format!("{}-{}", self.release, self.commit)
    }
}

/// The compiler that cargo would call.
pub fn rustc() -> Command {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc")));
    rustc.current_dir(workspace::root());
    rustc
}

#[cfg(test)]
mod tests {
    use super::*;

    const STABLE: &str = "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\n\
        commit-hash: 59807616e1fa2540724bfbac14d7976d7e4a3860\ncommit-date: 2026-04-14\n\
        host: x86_64-unknown-linux-gnu\nrelease: 1.95.0\nLLVM version: 22.1.2\n";

    #[test]
    fn parses_a_release() {
        let toolchain = Toolchain::parse(STABLE, PathBuf::from("/s")).unwrap();
        assert_eq!(toolchain.key(), "1.95.0-59807616e");
        assert_eq!(toolchain.llvm, 22);
    }

    #[test]
    fn parses_a_distribution_build() {
        let text =
            "rustc 1.96.0 (built from a source tarball)\ncommit-hash: unknown\nrelease: 1.96.0\nLLVM version: 22.1\n";
        let toolchain = Toolchain::parse(text, PathBuf::new()).unwrap();
        assert_eq!(toolchain.key(), "1.96.0-unknown");
    }

    #[test]
    fn says_what_is_missing() {
        let error = Toolchain::parse("release: 1.0.0\ncommit-hash: abc\n", PathBuf::new()).unwrap_err();
        assert!(error.to_string().contains("LLVM version"));
    }
}
