//! Runs test programs in virtual machines with Debian's own kernels, one machine a kernel.

pub mod guest;
mod initramfs;
mod kernel;
mod machine;
mod modules;
mod plan;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};

use initramfs::Initramfs;
use kernel::Kernel;
pub use kernel::Line;
pub use machine::Memory;
pub use modules::KUBE_PROXY as KUBE_PROXY_MODULES;
use plan::Plan;
pub use plan::Program;

use crate::packages::{self, find_program};
use crate::plane::Plane;
use crate::results::Results;
use crate::run::say;
use crate::{setup, workspace};

/// What the tests and the agent call.
const CALLED: &[&str] = &["ip", "ipvsadm", "nft", "setpriv", "sh", "sleep", "tc"];
/// What those read.
const READ: &[&str] = &["/etc/protocols", "/etc/services", "/etc/ssl/certs/ca-certificates.crt"];
/// Folders that programs expect.
const FOLDERS: &[&str] = &["/dev", "/proc", "/sys", "/run", "/tmp", "/root"];
/// How much longer everything may take than outside: about as much as the processor is slower.
const PATIENCE: &str = "10";
/// Variables that mean to tests in a guest what they mean here.
const PASSED_ON: &[&str] = &["CI", FUZZ_PACKETS];
/// How many made-up packets each run of the fuzzer is, and how many unless the caller says: here it is 150,000.
const FUZZ_PACKETS: &str = "LB_FUZZ_PACKETS";
const FEWER_PACKETS: &str = "10000";

/// What a guest runs, and what it has for that. All paths are those of this machine, and of the guest too.
#[derive(Debug, Default)]
pub struct Job {
    /// Run one after the other.
    pub programs: Vec<Program>,
    /// Programs that those call.
    pub called: Vec<PathBuf>,
    /// Files that those read.
    pub files: Vec<PathBuf>,
    /// Modules of the kernel that they need beyond what all tests do.
    pub modules: &'static [&'static str],
    /// The environment of all.
    pub environment: Vec<(String, String)>,
    /// How much memory that takes.
    pub memory: Memory,
}

/// Where the files of a plane's last run on a kernel are: what it printed in `output`, what the kernel said in `console`.
pub fn folder(line: Line, plane: Plane) -> Result<PathBuf> {
    let name = match plane {
        Plane::Ebpf => line.name().to_owned(),
        Plane::Ipvs => format!("{}-{}", line.name(), plane.name()),
    };
    Ok(workspace::target_dir()?.join("vm").join(name))
}

/// Does the job in a machine with this kernel, and says how the tests in it ended.
pub fn run(line: Line, plane: Plane, job: &Job) -> Result<Results> {
    let kernel = kernel::ensure(line)?;
    let folder = folder(line, plane)?;
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let archive = folder.join("initramfs");
    fill(&kernel, job)?.write(&archive)?;
    say(format_args!("Booting kernel {} in qemu, without KVM", kernel.version));
    let started = Instant::now();
    let mut results = Results::default();
    machine::boot(&kernel, &archive, job.memory, &folder, |line| results.read(line))?;
    say(format_args!(
        "Kernel {} ran for {:.0} s",
        kernel.version,
        started.elapsed().as_secs_f32()
    ));
    Ok(results)
}

/// Installs the programs that make and run a machine.
pub fn packages() -> Result<()> {
    setup::packages(&packages::MACHINE)?;
    setup::packages(&[packages::IPVSADM]).map(drop)
}

fn fill(kernel: &Kernel, job: &Job) -> Result<Initramfs> {
    let mut initramfs = Initramfs::default();
    for folder in FOLDERS {
        initramfs.folder(folder);
    }
    let read = READ.iter().map(Path::new).filter(|file| file.is_file());
    for file in read.chain(job.files.iter().map(PathBuf::as_path)) {
        initramfs.file(file);
    }
    let me = std::env::current_exe().context("cannot find out where xtask itself is")?;
    initramfs.program_as(&me, Path::new(guest::INIT))?;
    let mut search = BTreeSet::new();
    for name in CALLED {
        let path = find_program(name).with_context(|| format!("there is no program {name}"))?;
        initramfs.program(&path)?;
        search.extend(path.parent().map(|folder| folder.to_string_lossy().into_owned()));
    }
    for program in job.programs.iter().map(|program| Path::new(&program.path)) {
        initramfs.program(program)?;
    }
    for program in &job.called {
        initramfs.program(program)?;
    }
    let mut environment = job.environment.clone();
    let search: Vec<_> = search.into_iter().collect();
    environment.push(("PATH".into(), search.join(":")));
    environment.push(("HOME".into(), "/root".into()));
    environment.push(("LB_TEST_PATIENCE".into(), PATIENCE.into()));
    for name in PASSED_ON {
        environment.extend(std::env::var(name).ok().map(|value| ((*name).to_owned(), value)));
    }
    if std::env::var_os(FUZZ_PACKETS).is_none() {
        say(format_args!(
            "Fuzzing with {FEWER_PACKETS} packets a run, since this is slow: {FUZZ_PACKETS} says how many else"
        ));
        environment.push((FUZZ_PACKETS.into(), FEWER_PACKETS.into()));
    }
    let mut plan = Plan {
        environment,
        programs: vec![loopback()?],
        ..Plan::default()
    };
    plan.programs.extend_from_slice(&job.programs);
    for file in modules::files(kernel, job.modules)? {
        plan.modules.push(file.to_string_lossy().into_owned());
        initramfs.file(&file);
    }
    initramfs.text(plan::PATH, plan.text()?);
    Ok(initramfs)
}

/// The network namespace that the kernel begins with is to be as on any Linux.
fn loopback() -> Result<Program> {
    let ip = find_program("ip").context("there is no program ip")?;
    Ok(Program {
        title: "loopback".to_owned(),
        path: ip.to_string_lossy().into_owned(),
        args: ["link", "set", "dev", "lo", "up"].map(str::to_owned).into(),
    })
}
