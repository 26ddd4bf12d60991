//! What this program does as the first process of a guest: makes it a Linux that tests can run on, runs them, switches it off.
//!
//! The kernel's messages have the first serial port; what is printed here goes to the second one.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::{SetArg, cfmakeraw, tcdrain, tcgetattr, tcsetattr};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{Pid, dup2_stderr, dup2_stdout, sync};

use super::plan::{self, Plan, Program};

/// Where the kernel looks for its first process in an initramfs, and so the name that it calls this program by.
pub const INIT: &str = "/init";
/// The last line of a guest that did what it should. Without it there is no result.
pub const DONE: &str = "vm: done";

const OUTPUT: &str = "/dev/ttyS1";
const HOSTNAME: &str = "guest";
const MOUNTS: &[(&str, &str)] = &[
    ("devtmpfs", "/dev"),
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("bpf", "/sys/fs/bpf"),
];

/// Whether this process is the first one of a guest.
pub fn is_init() -> bool {
    std::process::id() == 1 && std::env::args_os().next().is_some_and(|name| name == INIT)
}

/// Runs the guest. Returns only if even that fails; the kernel then panics, and qemu ends.
pub fn main() -> ExitCode {
    if let Err(error) = serve() {
        println!("vm: {error:#}");
    }
    if let Ok(port) = File::open(OUTPUT) {
        // The port is slow, and switching off does not wait for it.
        let _ = tcdrain(port);
    }
    sync();
    let _ = reboot(RebootMode::RB_POWER_OFF);
    ExitCode::FAILURE
}

fn serve() -> Result<()> {
    for (kind, place) in MOUNTS {
        // Some are on others, where there was no folder before.
        fs::create_dir_all(place).with_context(|| format!("making {place}"))?;
        mount(Some(*kind), *place, Some(*kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("mounting {kind} at {place}"))?;
    }
    // Without one it is called "(none)", which an API server does not accept as a name.
    fs::write("/proc/sys/kernel/hostname", HOSTNAME).context("naming the guest")?;
    take_port()?;
    let text = fs::read_to_string(plan::PATH).with_context(|| format!("reading {}", plan::PATH))?;
    let plan = Plan::parse(&text)?;
    for file in &plan.modules {
        load(Path::new(file)).with_context(|| format!("loading {file}"))?;
    }
    let version = fs::read_to_string("/proc/version").unwrap_or_default();
    println!("vm: {}", version.trim());
    for program in &plan.programs {
        println!("vm: running {}", program.title);
        let end = run(program, &plan).with_context(|| format!("running {}", program.path))?;
        println!("vm: {} {end}", program.title);
    }
    println!("{DONE}");
    Ok(())
}

/// Prints to the port from now on, byte by byte as it is.
fn take_port() -> Result<()> {
    let port = OpenOptions::new()
        .read(true)
        .write(true)
        .open(OUTPUT)
        .with_context(|| format!("opening {OUTPUT}"))?;
    let mut settings = tcgetattr(&port).context("asking for the settings of the port")?;
    cfmakeraw(&mut settings);
    tcsetattr(&port, SetArg::TCSANOW, &settings).context("setting up the port")?;
    dup2_stdout(&port)?;
    dup2_stderr(&port)?;
    Ok(())
}

fn load(file: &Path) -> Result<()> {
    let module = File::open(file)?;
    match finit_module(&module, c"", ModuleInitFlags::empty()) {
        // Another one has brought it.
        Ok(()) | Err(nix::Error::EEXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Runs a program to its end, and buries orphans meanwhile, as tests expect of a first process.
fn run(program: &Program, plan: &Plan) -> Result<String> {
    let child = Command::new(&program.path)
        .args(&program.args)
        .env_clear()
        .envs(plan.environment.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .stdin(Stdio::null())
        .spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    loop {
        match wait()? {
            WaitStatus::Exited(ended, code) if ended == pid => return Ok(format!("ended with {code}")),
            WaitStatus::Signaled(ended, signal, _) if ended == pid => return Ok(format!("was ended by {signal}")),
            _ => {}
        }
    }
}
