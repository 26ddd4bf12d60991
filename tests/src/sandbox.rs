//! A machine within this one: its own processes, network, mounts and control groups, which all go when one process ends.
//!
//! That process, the holder, is the first of its namespace of processes: the kernel ends all others with it, and mounts and
//! links go with the last of them. Only control groups and a folder have to be removed by name. It outlives who made it, and
//! is found again by [`Sandbox::end`] out of what was written down.

mod groups;
mod hold;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::setsid;
use serde::{Deserialize, Serialize};

use crate::controlplane::ProcessId;
use crate::{cgroup, interrupt};
use groups::Groups;
pub use hold::hold;

/// Namespaces that a process itself enters. The one of processes is for its children.
const NAMESPACES: [(&str, CloneFlags); 5] = [
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("net", CloneFlags::CLONE_NEWNET),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
];
/// What the holder writes when all is mounted.
const HELD: &str = "held";
const PATIENCE: Duration = Duration::from_secs(10);

/// Such a machine.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sandbox {
    groups: Groups,
    holder: Option<ProcessId>,
}

impl Sandbox {
    /// Makes its control groups. Whoever wants to find it again writes it down now, and again when it is started.
    pub fn new() -> Result<Self> {
        let groups = Groups::make().context("making control groups: this needs root")?;
        Ok(Self { groups, holder: None })
    }

    /// Starts the holder by this command, which is to call [`hold`] with the same folder.
    pub fn start(&mut self, mut hold: Command, folder: &Path) -> Result<()> {
        let log = folder.join("holder.log");
        let out = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        hold.stdin(Stdio::null())
            .stdout(out.try_clone().context("duplicating a descriptor")?)
            .stderr(out)
            .current_dir("/");
        let (top, leaf) = (self.groups.top()?, self.groups.leaf()?);
        let become_one = move || {
            join(&top)?;
            for (_, namespace) in NAMESPACES {
                unshare(namespace)?;
            }
            join(&leaf)?;
            setsid()?;
            Ok(())
        };
        // SAFETY: the closure makes system calls only; it neither allocates nor takes a lock.
        unsafe { hold.pre_exec(become_one) };
        let mut child = as_parent(|| unshare(CloneFlags::CLONE_NEWPID), &mut hold).context("starting a sandbox")?;
        self.holder = Some(ProcessId::of(child.id().cast_signed())?);
        interrupt::eventually(PATIENCE, "mounting", || {
            if let Some(status) = child.try_wait()? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                bail!("the holder of the sandbox ended ({status}): {}", said.trim());
            }
            Ok(folder.join(HELD).exists().then_some(()))
        })
    }

    /// Whether it is there.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.holder.as_ref().is_some_and(ProcessId::runs)
    }

    /// Starts a command inside.
    pub fn spawn(&self, mut command: Command) -> Result<Child> {
        let Some(holder) = self.holder.as_ref().filter(|holder| holder.runs()) else {
            bail!("the sandbox is not there any more");
        };
        let open = |name: &str| -> Result<OwnedFd> {
            let path = format!("/proc/{}/ns/{name}", holder.pid());
            Ok(File::open(&path).with_context(|| format!("opening {path}"))?.into())
        };
        let leaf = self.groups.leaf()?;
        let mut namespaces = Vec::new();
        for (name, kind) in NAMESPACES {
            namespaces.push((open(name)?, kind));
        }
        let processes = open("pid")?;
        let enter = move || {
            join(&leaf)?;
            for (namespace, kind) in &namespaces {
                setns(namespace.as_fd(), *kind)?;
            }
            Ok(())
        };
        // Ctrl-C in a terminal is for us, who then end the sandbox.
        command.process_group(0);
        // SAFETY: the closure makes system calls only; it neither allocates nor takes a lock.
        unsafe { command.pre_exec(enter) };
        as_parent(|| setns(&processes, CloneFlags::CLONE_NEWPID), &mut command)
            .context("starting a program in the sandbox")
    }

    /// Ends all that is in it. Fine if it has ended before.
    pub fn end(&self) -> Result<()> {
        if let Some(holder) = &self.holder {
            holder.kill().context("ending a sandbox")?;
        }
        self.groups.remove()
    }
}

/// Starts a command from a thread that has first changed which namespace of processes its children are in.
fn as_parent(change: impl FnOnce() -> nix::Result<()> + Send, command: &mut Command) -> Result<Child> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            change().context("changing the namespace of processes")?;
            command.spawn().context("starting it")
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Moves the calling process, by descriptors of `cgroup.procs`.
fn join(groups: &[OwnedFd]) -> io::Result<()> {
    for group in groups {
        // SAFETY: one byte from a constant; 0 means whoever writes.
        if unsafe { libc::write(group.as_raw_fd(), b"0".as_ptr().cast(), 1) } != 1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::owner::Folder;
    use crate::place::program;

    const WRITTEN: &str = "/var/lb-sandbox-test";

    #[test]
    fn nothing_of_it_is_left() {
        let folder = Folder::new().unwrap();
        let mut sandbox = Sandbox::new().unwrap();
        let mut hold = Command::new(program("lab", "LB_LAB").unwrap());
        hold.args(["cluster", "hold"]).arg(folder.path());
        sandbox.start(hold, folder.path()).unwrap();

        let mut command = Command::new("sh");
        // That sleep loses its parent, as what container runtimes start does.
        let script =
            format!("echo > {WRITTEN}; (sleep 1000 >&- &); ls {WRITTEN}; ls /sys/class/net; echo /proc/[0-9]*");
        command.args(["-c", &script]).stdout(Stdio::piped());
        let mut child = sandbox.spawn(command).unwrap();
        assert!(child.wait().unwrap().success());
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines[..2], [WRITTEN, "lo"], "{said}");
        let processes = lines[2].split(' ').count();
        assert!(lines[2].starts_with("/proc/1 ") && processes < 6, "{said}");

        let folders = sandbox.groups.folders().to_vec();
        let inside = |folder: &Path| fs::read_to_string(folder.join("node/cgroup.procs")).unwrap_or_default();
        // The holder, and the orphan.
        assert!(
            folders.iter().all(|folder| inside(folder).lines().count() == 2),
            "{folders:?}"
        );
        let all: Vec<_> = inside(&folders[0]).lines().map(|pid| pid.parse().unwrap()).collect();
        let all: Vec<_> = all.into_iter().map(|pid| ProcessId::of(pid).unwrap()).collect();
        sandbox.end().unwrap();
        assert!(!all.iter().any(ProcessId::runs));
        assert!(!folders.iter().any(|folder| folder.exists()));
        assert!(!Path::new(WRITTEN).exists());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(folder.path().to_str().unwrap()), "{mounts}");
        assert!(!sandbox.runs());
        sandbox.end().unwrap();
    }
}
