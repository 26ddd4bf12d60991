//! A verb of `lab` in a machine with another kernel, with what kube-proxy calls in each of its modes.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::lab::{self, Profile, Verb};
use crate::packages::{self, find_program};
use crate::plane::Plane;
use crate::vm::{self, Job, Line, Memory, Program};
use crate::{build_ebpf, controlplane_build, setup, workspace};

/// What kube-proxy calls, beyond what agents do.
const KUBE_PROXY_CALLS: [&str; 7] = [
    "ipset",
    "iptables-legacy",
    "iptables-legacy-save",
    "iptables-legacy-restore",
    "ip6tables-legacy",
    "ip6tables-legacy-save",
    "ip6tables-legacy-restore",
];

/// Builds all that the verb needs, and runs it there. Fails if it does.
pub fn run(verb: &Verb, profile: Profile, line: Line, plane: Plane, args: &[OsString]) -> Result<()> {
    setup::packages(&[])?;
    vm::packages()?;
    build_ebpf::build(&setup::bpf_tools()?, build_ebpf::Kind::Usual)?;
    lab::build(profile)?;
    let lab = lab::program("lab", profile)?;
    let agent = lab::program("lb-agent", profile)?;
    let tools = workspace::tools_dir()?;
    let components = verb.components(args);
    let args = args.iter().map(|arg| arg.to_str().map(str::to_owned));
    let args: Vec<String> = args
        .collect::<Option<_>>()
        .context("an argument for the guest is not UTF-8")?;
    let program = Program {
        title: verb.name().to_owned(),
        path: lab.to_string_lossy().into_owned(),
        args: std::iter::once(verb.name().to_owned()).chain(args).collect(),
    };
    let environment = [
        ("LB_AGENT", agent.to_string_lossy().into_owned()),
        ("LB_LAB", lab.to_string_lossy().into_owned()),
        ("LB_TOOLS_DIR", tools.to_string_lossy().into_owned()),
        (Plane::VARIABLE, plane.name().to_owned()),
    ];
    let mut job = Job {
        called: vec![agent, lab],
        environment: environment.map(|(name, value)| (name.to_owned(), value)).into(),
        memory: Memory::Large,
        ..Job::default()
    };
    if !components.is_empty() {
        setup::packages(&[packages::IPTABLES, packages::IPSET])?;
        controlplane_build::build(&tools, components)?;
        let bin = controlplane_build::bin_dir(&tools)?;
        let components = components.iter().map(|component| bin.join(component.program()));
        job.called.extend(components);
        for name in KUBE_PROXY_CALLS {
            let path = find_program(name).with_context(|| format!("there is no program {name}"))?;
            job.called.push(path);
        }
        job.files = iptables_extensions()?;
        job.modules = vm::KUBE_PROXY_MODULES;
    }
    job.programs = vec![program];
    let results = vm::run(line, plane, &job)?;
    match results.bad_ends.first() {
        Some(end) => bail!("{end}"),
        None => Ok(()),
    }
}

/// What the programs of iptables load: a file a match or target of a rule.
fn iptables_extensions() -> Result<Vec<PathBuf>> {
    let folder = PathBuf::from(format!("/usr/lib/{}-linux-gnu/xtables", std::env::consts::ARCH));
    let reading = || format!("reading {}", folder.display());
    let entries = std::fs::read_dir(&folder).with_context(reading)?;
    entries.map(|entry| Ok(entry.with_context(reading)?.path())).collect()
}
