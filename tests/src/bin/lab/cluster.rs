//! `lab cluster`: etcd, API server, controllers, scheduler and a kubelet with containerd, the agent's image and chart in it,
//! and no kube-proxy. All of it runs in a sandbox, which goes with one process.

mod chart;
mod inside;
mod load;
mod network;
mod node;
mod requests;
mod state;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use lb_tests::interrupt::{self, Interrupted};
use lb_tests::sandbox::Sandbox;

use crate::progress::say;
use inside::Errand;
use state::Place;

/// What to do with it.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Starts one, with a Service of each type, and says how to look around
    Up,
    /// Asks through each Service, then upgrades the chart under load. Where none is up, one is for as long
    Check,
    /// Calls kubectl in the one that is up
    Kubectl {
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Ends it, with all that it has made
    Down,
    /// Is the first process of the sandbox
    #[command(hide = true)]
    Hold {
        /// Its folder
        folder: PathBuf,
    },
    /// Does what is done inside the sandbox
    #[command(hide = true)]
    Inside {
        /// What it is
        #[arg(value_enum)]
        errand: Errand,
        /// The folder of the cluster
        folder: PathBuf,
    },
}

/// Does it, and says whether all was right.
pub(crate) fn run(verb: &Verb) -> Result<bool> {
    match verb {
        Verb::Up => up().map(|()| true),
        Verb::Check => check(),
        Verb::Kubectl { args } => kubectl(args),
        Verb::Down => down().map(|()| true),
        Verb::Hold { folder } => lb_tests::sandbox::hold(folder).map(|()| true),
        Verb::Inside { errand, folder } => inside::run(*errand, folder),
    }
}

fn up() -> Result<()> {
    let place = Place::open()?;
    match place.sandbox()? {
        Some(sandbox) if sandbox.runs() => println!("a cluster is up already"),
        left => {
            if let Some(left) = left {
                say("ending what an earlier cluster left");
                end(&left, &place)?;
            }
            start(&place)?;
        }
    }
    println!("look around: cargo xtask cluster kubectl get pods -A -o wide");
    println!("ask through each service, and upgrade under load: cargo xtask cluster check");
    println!("end it: cargo xtask cluster down");
    Ok(())
}

/// Starts a cluster, or leaves nothing of it but logs.
fn start(place: &Place) -> Result<Sandbox> {
    let started = Instant::now();
    place.make()?;
    let mut sandbox = Sandbox::new()?;
    // Before there is more, for the next `down`.
    let begun = place.write(&sandbox).and_then(|()| {
        let mut hold = lab()?;
        hold.args(["cluster", "hold"]).arg(place.folder());
        sandbox.start(hold, place.folder())?;
        place.write(&sandbox)?;
        visit(&sandbox, place, Errand::Up)
    });
    match begun {
        Ok(true) => {
            println!("the cluster is up after {:.0} s", started.elapsed().as_secs_f32());
            Ok(sandbox)
        }
        failed => {
            if !matches!(&failed, Err(error) if error.is::<Interrupted>()) {
                say(format_args!("logs: {}", place.keep_logs()?.display()));
            }
            end(&sandbox, place)?;
            failed?;
            bail!("the cluster did not come up; what went wrong is above")
        }
    }
}

fn check() -> Result<bool> {
    let place = Place::open()?;
    let there = place.sandbox()?.filter(Sandbox::runs);
    if let Some(sandbox) = there {
        return visit(&sandbox, &place, Errand::Check);
    }
    if let Some(left) = place.sandbox()? {
        end(&left, &place)?;
    }
    let sandbox = start(&place)?;
    let checked = visit(&sandbox, &place, Errand::Check);
    if !matches!(checked, Ok(true)) {
        say(format_args!("logs: {}", place.keep_logs()?.display()));
    }
    end(&sandbox, &place)?;
    checked
}

fn kubectl(args: &[OsString]) -> Result<bool> {
    let place = Place::open()?;
    let Some(sandbox) = place.sandbox()?.filter(Sandbox::runs) else {
        bail!("no cluster is up: `cargo xtask cluster up` starts one");
    };
    let mut command = place.administrator()?.command();
    command.args(args);
    wait(&sandbox, command)
}

fn down() -> Result<()> {
    let place = Place::open()?;
    match place.sandbox()? {
        Some(sandbox) => {
            end(&sandbox, &place)?;
            println!("the cluster is down");
        }
        None => println!("no cluster is up"),
    }
    Ok(())
}

fn end(sandbox: &Sandbox, place: &Place) -> Result<()> {
    sandbox.end()?;
    place.remove()
}

fn lab() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("finding this program")?))
}

/// Has something done inside, and says whether all was right.
fn visit(sandbox: &Sandbox, place: &Place, errand: Errand) -> Result<bool> {
    let mut command = lab()?;
    command.args(["cluster", "inside", errand.name()]).arg(place.folder());
    wait(sandbox, command)
}

/// Runs a command inside. When this program is told to stop, so is the command.
fn wait(sandbox: &Sandbox, command: Command) -> Result<bool> {
    let mut child = sandbox.spawn(command)?;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a child")? {
            return Ok(status.success());
        }
        if let Err(interrupted) = interrupt::sleep(Duration::from_millis(20)) {
            child.kill().and_then(|()| child.wait()).context("ending a child")?;
            return Err(interrupted.into());
        }
    }
}
