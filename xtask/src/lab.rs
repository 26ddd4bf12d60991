//! The verbs that are carried out by the program `lab` of the package lb-tests: `demo`, `parity`, `bench`, `fuzz`, `chaos`,
//! `takeover`, `controlplane`, `cluster`, and the report of `build-ebpf`. It parses their arguments; here it is only built and
//! started.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::controlplane_build::{self, Component};
use crate::packages::{self, Package};
use crate::{build_ebpf, next_layout, run, setup, workspace};

const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// How cargo builds the agent and `lab`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Built fast
    Dev,
    /// Runs fast, for measurements
    Release,
}

/// A verb of `lab`.
#[derive(Debug)]
pub struct Verb {
    name: &'static str,
    profile: Profile,
    /// What of the control plane it needs, given its arguments.
    components: fn(&[OsString]) -> &'static [Component],
    /// Whose programs it calls, beyond those that every verb needs.
    packages: &'static [Package],
}

/// `cargo xtask demo`
pub const DEMO: Verb = Verb {
    name: "demo",
    profile: Profile::Dev,
    components: |args| {
        if args.iter().any(|arg| arg == "--apiserver") {
            Component::FOR_TESTS
        } else {
            &[]
        }
    },
    packages: &[],
};

/// `cargo xtask parity`
pub const PARITY: Verb = Verb {
    name: "parity",
    profile: Profile::Dev,
    components: |_| Component::FOR_PARITY,
    packages: &[packages::IPTABLES],
};

/// `cargo xtask bench`
pub const BENCH: Verb = Verb {
    name: "bench",
    profile: Profile::Release,
    components: |args| {
        // They measure lb-agent alone, with objects out of a folder.
        if args.first().is_some_and(|arg| arg == "links" || arg == "plane") {
            &[]
        } else {
            Component::FOR_PARITY
        }
    },
    packages: &[packages::IPTABLES],
};

/// `cargo xtask fuzz`
pub const FUZZ: Verb = Verb {
    name: "fuzz",
    profile: Profile::Dev,
    components: |_| &[],
    packages: &[],
};

/// `cargo xtask chaos`
pub const CHAOS: Verb = Verb {
    name: "chaos",
    profile: Profile::Dev,
    components: |args| {
        if args.iter().any(|arg| arg == "--folder") {
            &[]
        } else {
            Component::FOR_TESTS
        }
    },
    packages: &[],
};

/// `cargo xtask takeover`
pub const TAKEOVER: Verb = Verb {
    name: "takeover",
    profile: Profile::Dev,
    components: |_| Component::FOR_PARITY,
    packages: &[packages::IPTABLES],
};

/// `cargo xtask controlplane`
pub const CONTROLPLANE: Verb = Verb {
    name: "controlplane",
    profile: Profile::Dev,
    components: |args| {
        if args.first().is_some_and(|arg| arg == "up") {
            Component::FOR_TESTS
        } else {
            &[]
        }
    },
    packages: &[],
};

/// `cargo xtask cluster`
pub const CLUSTER: Verb = Verb {
    name: "cluster",
    profile: Profile::Dev,
    components: |args| {
        if args.first().is_some_and(|arg| arg == "down") {
            &[]
        } else {
            Component::FOR_CLUSTER
        }
    },
    packages: &[],
};

/// The table of `cargo xtask build-ebpf --report`
pub const REPORT: Verb = Verb {
    name: "report",
    profile: Profile::Dev,
    components: |_| &[],
    packages: &[],
};

/// Arguments that are `lab`'s to understand.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl Verb {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What of the control plane it needs, given its arguments.
    pub fn components(&self, args: &[OsString]) -> &'static [Component] {
        (self.components)(args)
    }
}

impl Args {
    /// As they were given.
    pub fn all(&self) -> &[OsString] {
        &self.args
    }
}

/// Builds all that the verb needs, and becomes `lab`, with these variables of the environment too.
pub fn run(verb: &Verb, args: &[OsString], variables: &[(&str, &str)]) -> Result<()> {
    let tools = setup::bpf_tools()?;
    build_ebpf::build(&tools, build_ebpf::Kind::Usual)?;
    let mut variables = variables.to_vec();
    let next_layout = next_layout::program()?;
    if verb.name == CHAOS.name && args.iter().any(|arg| arg.to_string_lossy().contains("layout")) {
        next_layout::build(&tools)?;
        let path = next_layout.to_str().context("the path of this folder is not UTF-8")?;
        variables.push((next_layout::VARIABLE, path));
    }
    // Who only asks for help shall not wait for more than it takes to print it.
    if !args.iter().any(|arg| arg == "--help" || arg == "-h" || arg == "help") {
        setup::packages(verb.packages)?;
        controlplane_build::build(&workspace::tools_dir()?, verb.components(args))?;
    }
    build(verb.profile)?;
    let mut lab = Command::new(program("lab", verb.profile)?);
    workspace::scrub(&mut lab);
    lab.arg(verb.name).args(args).envs(variables);
    set_env(&mut lab, verb.profile)?;
    Err(run::exec(&mut lab))
}

/// Builds the agent and `lab`.
pub fn build(profile: Profile) -> Result<()> {
    let mut cargo = workspace::cargo("build");
    cargo.args(["--bin", "lb-agent", "--bin", "lab"]);
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    if !run::show(&mut cargo, BUILD_LIMIT)?.success() {
        bail!("lb-agent or lab does not build; the messages are above");
    }
    Ok(())
}

/// Tells a program where the agent, `lab` and the tools are.
pub fn set_env(command: &mut Command, profile: Profile) -> Result<()> {
    command.env("LB_AGENT", program("lb-agent", profile)?);
    command.env("LB_LAB", program("lab", profile)?);
    command.env("LB_TOOLS_DIR", workspace::tools_dir()?);
    Ok(())
}

/// Where cargo puts a program.
pub fn program(name: &str, profile: Profile) -> Result<PathBuf> {
    let folder = match profile {
        Profile::Dev => "debug",
        Profile::Release => "release",
    };
    Ok(workspace::target_dir()?.join(folder).join(name))
}
