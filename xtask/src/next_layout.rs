//! An agent with another layout of its maps, for who tests what an upgrade to it and back does: the feature `next-layout`.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::lab::{self, Profile};
use crate::setup::BpfTools;
use crate::{build_ebpf, run, workspace};

const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);
/// The variable by which tests find it.
pub const VARIABLE: &str = "LB_AGENT_NEXT_LAYOUT";

/// Builds it, where it is kept beside the usual one. To be called before that is built: cargo puts both in one place.
pub fn build(tools: &BpfTools) -> Result<()> {
    let object = build_ebpf::build(tools, build_ebpf::Kind::NextLayout)?;
    let mut cargo = workspace::cargo("build");
    cargo.args(["--bin", "lb-agent", "--features", "lb-agent/next-layout"]);
    cargo.env("LB_EBPF_OBJECT", &object);
    if !run::show(&mut cargo, BUILD_LIMIT)?.success() {
        bail!("lb-agent with another layout does not build; the messages are above");
    }
    let built = lab::program("lb-agent", Profile::Dev)?;
    let kept = program()?;
    // A new file: the old one may be running.
    let new = kept.with_extension(format!("{}.new", std::process::id()));
    fs::copy(&built, &new).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, &kept).with_context(|| format!("cannot write {}", kept.display()))
}

/// Where it is kept.
pub fn program() -> Result<PathBuf> {
    Ok(lab::program("lb-agent", Profile::Dev)?.with_file_name("lb-agent-next-layout"))
}

/// Whether the tests that need it are among those that are asked for by parts of their names.
pub fn is_needed(runner: &[OsString]) -> bool {
    let mut names = runner
        .iter()
        .map(|arg| arg.to_string_lossy())
        .filter(|arg| !arg.starts_with('-'));
    let Some(first) = names.next() else {
        return true;
    };
    std::iter::once(first)
        .chain(names)
        .any(|name| name.starts_with("drain"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_needed_for_all_tests_and_for_those_that_begin_so() {
        let is_needed = |args: &[&str]| is_needed(&args.iter().map(Into::into).collect::<Vec<_>>());
        assert!(is_needed(&[]));
        assert!(is_needed(&["--nocapture"]));
        assert!(is_needed(&["restart::", "drain::"]));
        assert!(!is_needed(&["restart::"]));
    }
}
