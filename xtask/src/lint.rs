//! `cargo xtask lint`: formatting and clippy, on the BPF programs too.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::run::Step;
use crate::setup::{self, BpfTools};
use crate::{build_ebpf, run, workspace};

const LIMIT: Duration = Duration::from_secs(60 * 60);

/// The verb. What fails soonest comes first.
pub fn run() -> Result<()> {
    for (verb, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        Step::new(format!("cargo {verb}"), Duration::from_secs(60))
            .hint(format!(
                "Is the component there? `rustup component add {component}` brings it."
            ))
            .ask(workspace::cargo(verb).arg("--version"))?;
    }
    check(
        "formatting (`cargo fmt --all` mends it)",
        workspace::cargo("fmt").args(["--all", "--check"]),
    )?;
    let tools = setup::bpf_tools()?;
    check("clippy on lb-ebpf", &mut clippy_for_bpf(&tools)?)?;
    // lb-agent embeds the object, so it has to be there before lb-agent can be looked at.
    build_ebpf::build(&tools, build_ebpf::Kind::Usual)?;
    check(
        "clippy",
        workspace::cargo("clippy").args(["--all-targets", "--", "-Dwarnings"]),
    )?;
    run::say("lint: nothing found");
    Ok(())
}

fn check(what: &str, command: &mut Command) -> Result<()> {
    if run::show(command, LIMIT)?.success() {
        return Ok(());
    }
    bail!("lint: {what}: see above")
}

fn clippy_for_bpf(tools: &BpfTools) -> Result<Command> {
    let Some(driver) = tools.core.clippy() else {
        let mut cargo = build_ebpf::cargo(tools, "clippy")?;
        cargo.args(["--", "-Dwarnings"]);
        return Ok(cargo);
    };
    // What `cargo clippy` does, with the clippy that belongs to the compiler at hand.
    let mut cargo = build_ebpf::cargo(tools, "check")?;
    cargo
        .env("RUSTC_WORKSPACE_WRAPPER", driver)
        .env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    Ok(cargo)
}
