//! `cargo xtask test`: builds what the tests need and runs them, here or on other kernels.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::controlplane_build::{self, Component};
use crate::count::Count;
use crate::plane::Plane;
use crate::results::Results;
use crate::vm::{self, Job, Line, Memory, Program};
use crate::{build_ebpf, chart, compatibility, image, lab, next_layout, packages, run, setup, workspace};

const LIMIT: Duration = Duration::from_secs(80 * 60);
/// How parity runs in a guest: in the mode that decides.
const PARITY_IN_A_GUEST: [&str; 2] = ["parity", "--mode=nftables"];
/// And unless something is said, with a part of the probes: all of them would take an hour there.
const PART_OF_PARITY: &str = "--one-in=7";

/// A set of tests that run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Suite {
    /// Tests beside the code they test, and the model's scripts
    Unit,
    /// BPF programs on single packets
    Packet,
    /// Whole nodes made of network namespaces
    Network,
    /// The same behind a real API server
    Controlplane,
    /// The image with the agent in it, and the Helm chart
    Deploy,
    /// A comparison with the real kube-proxy, on another kernel; here `cargo xtask parity` makes it
    Parity,
}

impl Suite {
    const ALL: [Self; 5] = [
        Self::Unit,
        Self::Packet,
        Self::Network,
        Self::Controlplane,
        Self::Deploy,
    ];

    /// Those whose outcome is the kernel's too, and which therefore run on others.
    pub fn on_kernels(plane: Plane) -> &'static [Self] {
        match plane {
            Plane::Ebpf => &[Self::Packet, Self::Network],
            // Its packets go through no program of ours.
            Plane::Ipvs => &[Self::Network, Self::Parity],
        }
    }

    /// What of the workspace belongs to it, as arguments of `cargo test`.
    fn targets(self) -> &'static [&'static str] {
        match self {
            Self::Unit => &["--lib", "--bins", "--test", "scripts"],
            Self::Packet => &["--test", "packet"],
            Self::Network => &["--test", "network"],
            Self::Controlplane => &["--test", "controlplane"],
            Self::Deploy => &["--test", "deploy"],
            Self::Parity => &[],
        }
    }

    /// Its name, and that of its target where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Packet => "packet",
            Self::Network => "network",
            Self::Controlplane => "controlplane",
            Self::Deploy => "deploy",
            Self::Parity => "parity",
        }
    }
}

/// Which kernel.
#[derive(Debug, Clone, Copy)]
enum Kernel {
    All,
    Of(Line),
}

fn parse_kernel(text: &str) -> Result<Kernel, String> {
    if text == "all" {
        return Ok(Kernel::All);
    }
    <Line as clap::ValueEnum>::from_str(text, false)
        .map(Kernel::Of)
        .map_err(|_| {
            let names: Vec<_> = Line::ALL.iter().map(|line| line.name()).collect();
            format!("kernels are {} and all", names.join(", "))
        })
}

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// On Debian's newest kernel of this line, in a virtual machine: 5.10, 6.1, 6.12, 7.x, or all of them one after the other
    #[arg(long, value_name = "KERNEL", value_parser = parse_kernel)]
    kernel: Option<Kernel>,
    /// The plane that the agents of the tests have. IPVS is tested on other kernels only: on 6.1 and 6.12 if none is named
    #[arg(long, value_enum, default_value = "ebpf")]
    plane: Plane,
    /// Which tests to run; all if none is named: on another kernel packet and network, of the IPVS plane network and parity
    suites: Vec<Suite>,
    /// For the test runner: a part of the tests' names, --nocapture and the like; for parity what `cargo xtask parity` takes
    #[arg(last = true)]
    runner: Vec<OsString>,
}

/// The verb.
pub fn run(args: &Args) -> Result<()> {
    match (args.kernel, args.plane) {
        (None, Plane::Ebpf) => run_here(args),
        // Not every machine's kernel has IPVS, and those two are what most nodes have.
        (None, Plane::Ipvs) => run_on(&[Line::V6_1, Line::V6_12], args),
        (Some(Kernel::All), _) => run_on(&Line::ALL, args),
        (Some(Kernel::Of(line)), _) => run_on(&[line], args),
    }
}

fn run_here(args: &Args) -> Result<()> {
    let suites = if args.suites.is_empty() {
        &Suite::ALL[..]
    } else {
        &args.suites
    };
    if suites.contains(&Suite::Parity) {
        bail!("on this machine's kernel it is `cargo xtask parity`; `--kernel` has `test` make it on another");
    }
    if suites.iter().any(|suite| *suite != Suite::Unit) {
        setup::packages(&[packages::IPVSADM])?;
    }
    let tools = setup::bpf_tools()?;
    build_ebpf::build(&tools, build_ebpf::Kind::Usual)?;
    if suites.contains(&Suite::Controlplane) {
        setup::packages(&[packages::IPTABLES])?;
        controlplane_build::build(&workspace::tools_dir()?, Component::FOR_PARITY)?;
    }
    if suites.contains(&Suite::Deploy) {
        controlplane_build::build(&workspace::tools_dir()?, Component::FOR_TESTS)?;
    }
    let mut environment = Vec::new();
    if suites.contains(&Suite::Network) && next_layout::is_needed(&args.runner) {
        next_layout::build(&tools)?;
        environment.push((next_layout::VARIABLE, next_layout::program()?));
    }
    lab::build(lab::Profile::Dev)?;
    if suites.contains(&Suite::Deploy) {
        let image = image::folder()?.join("lb-agent-test.tar");
        image::write(lab::Profile::Dev, "localhost/lb-agent:test", &image)?;
        environment.extend([("LB_IMAGE", image), ("LB_HELM", chart::helm(&workspace::tools_dir()?)?)]);
    }

    // Always the default members with the same features, so that no suite makes cargo compile anything twice.
    let mut cargo = workspace::cargo("test");
    cargo.arg("--no-fail-fast");
    for suite in suites {
        cargo.args(suite.targets());
    }
    // The runner's stdout is read here on its way, so it cannot see for itself that there is a terminal.
    let color = if io::stdout().is_terminal() { "always" } else { "never" };
    cargo.args(["--", "--color", color]).args(&args.runner);
    lab::set_env(&mut cargo, lab::Profile::Dev)?;
    cargo.envs(environment);
    let mut count = Count::default();
    let status = run::show_and_read(&mut cargo, LIMIT, &mut io::stdout(), |line| count.read(line))?;
    println!("\n{count}");
    match (status.success(), count.failed) {
        (true, _) => Ok(()),
        (false, 0) => bail!("a test program did not build, or did not get to its end: see above"),
        (false, failed) => bail!("{failed} failed"),
    }
}

fn run_on(lines: &[Line], args: &Args) -> Result<()> {
    let suites = suites_on_kernels(args)?;
    setup::packages(&[])?;
    vm::packages()?;
    let tools = setup::bpf_tools()?;
    build_ebpf::build(&tools, build_ebpf::Kind::Usual)?;
    if suites.contains(&Suite::Parity) {
        controlplane_build::build(&workspace::tools_dir()?, Component::FOR_PARITY)?;
    }
    if suites.contains(&Suite::Network) && args.plane == Plane::Ebpf && next_layout::is_needed(&args.runner) {
        next_layout::build(&tools)?;
    }
    lab::build(lab::Profile::Dev)?;

    let job = job(&suites, args.plane, &args.runner)?;
    let mut bad = Vec::new();
    for line in lines {
        // One kernel does not stop the others.
        let outcome = vm::run(*line, args.plane, &job);
        // Of a part of the tests nothing follows for the rest.
        let note = if args.runner.is_empty() {
            compatibility::keep
        } else {
            compatibility::amend
        };
        suites.iter().try_for_each(|suite| note(*line, args.plane, *suite))?;
        match outcome {
            Ok(results) => bad.extend(summary(*line, &results)),
            Err(error) if error.is::<run::Interrupted>() => return Err(error),
            Err(error) => {
                run::say(format_args!("error: {error:#}"));
                bad.push(line.name().to_owned());
            }
        }
    }
    match bad.as_slice() {
        [] => Ok(()),
        bad => bail!("failed on kernel {}", bad.join(", ")),
    }
}

/// The suites that were asked for, if other kernels have them.
fn suites_on_kernels(args: &Args) -> Result<Vec<Suite>> {
    let usual = Suite::on_kernels(args.plane);
    if args.suites.is_empty() {
        // A part of the tests' names is nothing that parity understands.
        let is_meant = |suite: &&Suite| args.runner.is_empty() || **suite != Suite::Parity;
        return Ok(usual.iter().filter(is_meant).copied().collect());
    }
    let can_run = |suite: &Suite| usual.contains(suite) || *suite == Suite::Parity;
    if let Some(suite) = args.suites.iter().find(|suite| !can_run(suite)) {
        let names: Vec<_> = usual.iter().map(|suite| suite.name()).collect();
        bail!(
            "there is no suite {} of the plane {} on other kernels: there are {}",
            suite.name(),
            args.plane.name(),
            names.join(" and ")
        );
    }
    if !args.runner.is_empty() && args.suites.len() > 1 && args.suites.contains(&Suite::Parity) {
        bail!("what follows `--` means another thing to parity than to the test runner: run them one at a time");
    }
    Ok(args.suites.clone())
}

/// What a guest does for these suites: it says what its kernel has, and runs their tests.
fn job(suites: &[Suite], plane: Plane, args: &[OsString]) -> Result<Job> {
    let lab = lab::program("lab", lab::Profile::Dev)?;
    let agent = lab::program("lb-agent", lab::Profile::Dev)?;
    let object = workspace::ebpf_object();
    let tools = workspace::tools_dir()?;
    let next_layout = next_layout::program()?;
    let path = |path: &PathBuf| path.to_string_lossy().into_owned();
    let mut environment: Vec<_> = [
        ("LB_AGENT", &agent),
        ("LB_LAB", &lab),
        (next_layout::VARIABLE, &next_layout),
        ("LB_EBPF_OBJECT", &object),
        ("LB_TOOLS_DIR", &tools),
    ]
    .map(|(name, file)| (name.to_owned(), path(file)))
    .into();
    environment.push((Plane::VARIABLE.to_owned(), plane.name().to_owned()));
    let args: Vec<String> = args
        .iter()
        .map(|arg| arg.to_str().map(str::to_owned))
        .collect::<Option<_>>()
        .context("an argument for the guest is not UTF-8")?;
    let mut called = vec![agent, lab.clone()];
    let mut programs = vec![program("kernel", &lab, ["kernel"], &[])];
    for suite in suites {
        programs.push(match suite {
            Suite::Parity => {
                let bin = controlplane_build::bin_dir(&tools)?;
                let components = Component::FOR_PARITY.iter();
                called.extend(components.map(|component| bin.join(component.program())));
                let part = [PART_OF_PARITY.to_owned()];
                let more = if args.is_empty() { &part[..] } else { &args };
                program(suite.name(), &lab, PARITY_IN_A_GUEST, more)
            }
            _ => program(suite.name(), &built(*suite)?, ["--color", "never"], &args),
        });
    }
    Ok(Job {
        programs,
        called,
        files: [vec![object], corpus()?].concat(),
        modules: &[],
        environment,
        memory: if suites.contains(&Suite::Parity) {
            Memory::Large
        } else {
            Memory::Usual
        },
    })
}

fn program<const N: usize>(title: &str, path: &Path, first: [&str; N], more: &[String]) -> Program {
    Program {
        title: title.to_owned(),
        path: path.to_string_lossy().into_owned(),
        args: first.map(str::to_owned).iter().chain(more).cloned().collect(),
    }
}

/// The packets that the fuzzer once found something with, which the packet tests play.
fn corpus() -> Result<Vec<PathBuf>> {
    let folder = workspace::root().join("tests/corpus");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Prints what came of a run, and returns the kernel's name if that was not good.
fn summary(line: Line, results: &Results) -> Option<String> {
    println!("\n{}: {}", results.kernel, results.count());
    if let Some(parity) = &results.parity {
        println!("  parity: {parity}");
    }
    for name in results.failed() {
        println!("  failed: {name}");
    }
    for end in &results.bad_ends {
        println!("  {end}");
    }
    let is_bad = results.failed().next().is_some() || !results.bad_ends.is_empty();
    is_bad.then(|| line.name().to_owned())
}

/// Builds the tests of a suite and returns their program.
fn built(suite: Suite) -> Result<PathBuf> {
    let mut cargo = workspace::cargo("test");
    cargo
        .args(["--no-run", "--message-format", "json-render-diagnostics"])
        .args(suite.targets());
    let mut program = None;
    let status = run::show_and_read(&mut cargo, LIMIT, &mut io::sink(), |line| {
        program = executable(line, suite.name()).or(program.take());
    })?;
    if !status.success() {
        bail!("the tests of the suite {} do not build: see above", suite.name());
    }
    program.with_context(|| format!("cargo names no program of the suite {}", suite.name()))
}

/// The program of a test target, if this message of cargo's names it.
fn executable(line: &str, target: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_it = message["target"]["name"] == target && message["profile"]["test"] == true;
    message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_suite_is_found_in_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"packet","kind":["test"]},"profile":{"test":true},"executable":"/t/packet-1"}"#;
        assert_eq!(executable(line, "packet"), Some(PathBuf::from("/t/packet-1")));
        assert_eq!(executable(line, "network"), None);
        assert_eq!(
            executable(r#"{"reason":"build-finished","success":true}"#, "packet"),
            None
        );
    }

    fn args(plane: Plane, suites: &[Suite], runner: &[&str]) -> Args {
        Args {
            kernel: None,
            plane,
            suites: suites.to_vec(),
            runner: runner.iter().map(Into::into).collect(),
        }
    }

    #[test]
    fn other_kernels_run_what_goes_through_the_plane() {
        let suites = |plane, suites: &[Suite], runner: &[&str]| suites_on_kernels(&args(plane, suites, runner));
        assert_eq!(suites(Plane::Ebpf, &[], &[]).unwrap(), [Suite::Packet, Suite::Network]);
        assert_eq!(suites(Plane::Ipvs, &[], &[]).unwrap(), [Suite::Network, Suite::Parity]);
        assert_eq!(suites(Plane::Ipvs, &[], &["changes"]).unwrap(), [Suite::Network]);
        assert_eq!(
            suites(Plane::Ebpf, &[Suite::Parity], &["--no-change"]).unwrap(),
            [Suite::Parity]
        );
        let error = suites(Plane::Ipvs, &[Suite::Packet], &[]).unwrap_err().to_string();
        assert!(error.contains("no suite packet of the plane ipvs"), "{error}");
        let mixed = suites(Plane::Ipvs, &[Suite::Network, Suite::Parity], &["changes"]);
        assert!(mixed.unwrap_err().to_string().contains("one at a time"));
    }

    #[test]
    fn an_unknown_kernel_is_answered_with_those_that_there_are() {
        assert!(matches!(parse_kernel("all"), Ok(Kernel::All)));
        assert!(matches!(parse_kernel("6.1"), Ok(Kernel::Of(Line::V6_1))));
        assert_eq!(
            parse_kernel("4.19").unwrap_err(),
            "kernels are 5.10, 6.1, 6.12, 7.x and all"
        );
    }
}
