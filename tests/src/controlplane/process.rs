//! Child processes that cannot outlive a killed test, and processes of an earlier command found again by pid.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CloneFlags;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::process::spawn_kept;

/// How long a process may take to end by itself once asked to.
const GRACE: Duration = Duration::from_secs(5);

/// What ends a process that nobody stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tie {
    /// It is killed when this process ends, however that ends.
    Ours,
    /// It lives on, in a session of its own.
    Detached,
}

/// A pid, with what tells its process from a later one that was given the same number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pid: i32,
    /// Clock ticks from boot to its start.
    start: u64,
    /// The boot those ticks count from.
    boot: String,
}

impl ProcessId {
    /// That of the process which has this number now.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        Ok(Self {
            pid,
            start: start_time(pid)?,
            boot: boot_id()?,
        })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether that very process runs.
    pub(crate) fn runs(&self) -> bool {
        self.open().is_some()
    }

    /// Holds on to the process, if it is still that one: what the descriptor names never becomes another process.
    fn open(&self) -> Option<OwnedFd> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the kernel just opened it for us, and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        (Self::of(self.pid).ok()? == *self && !ended(&fd, Duration::ZERO)).then_some(fd)
    }

    /// Asks the process to end and makes it end if it does not. Fine if it has ended before.
    pub(super) fn stop(&self) -> Result<()> {
        let Some(fd) = self.open() else { return Ok(()) };
        send(&fd, Signal::SIGTERM)?;
        if ended(&fd, GRACE) {
            return Ok(());
        }
        self.kill()
    }

    /// Ends the process at once. Fine if it has ended before.
    pub(crate) fn kill(&self) -> Result<()> {
        let Some(fd) = self.open() else { return Ok(()) };
        send(&fd, Signal::SIGKILL)?;
        if !ended(&fd, GRACE) {
            bail!("process {} does not end, not even by SIGKILL", self.pid);
        }
        Ok(())
    }
}

fn send(pidfd: &OwnedFd, signal: Signal) -> Result<()> {
    // SAFETY: a null siginfo is allowed and means the same as kill(2).
    let rc = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal as i32,
            std::ptr::null::<u8>(),
            0,
        )
    };
    let error = io::Error::last_os_error();
    if rc != 0 && error.raw_os_error() != Some(libc::ESRCH) {
        return Err(error).with_context(|| format!("sending {signal}"));
    }
    Ok(())
}

/// Waits for the end of a process; its descriptor is readable from then on, even before anybody reaped it.
fn ended(pidfd: &OwnedFd, within: Duration) -> bool {
    let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
    poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], timeout).is_ok_and(|ready| ready > 0)
}

fn start_time(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the name in parentheses and may hold anything, so fields are counted from the last one.
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .and_then(|ticks| ticks.parse().ok())
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has no start time")))
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// A running program of the control plane.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    id: ProcessId,
}

impl Daemon {
    /// Starts it with its output appended to a log (in whose folder it works), in a network namespace if one is named.
    pub(super) fn spawn(mut command: Command, log: &Path, netns: Option<&Path>, tie: Tie) -> Result<Self> {
        let program = command.get_program().to_owned();
        let out = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        let err = out.try_clone().context("duplicating a descriptor")?;
        if let Some(dir) = log.parent() {
            command.current_dir(dir);
        }
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        prepare(&mut command, netns, tie)?;
        let child = spawn_kept(command).with_context(|| format!("starting {}", program.display()))?;
        let pid = i32::try_from(child.id()).context("a pid is a positive i32")?;
        // A child that ended already is still a zombie and keeps its entry in /proc.
        let id = ProcessId::of(pid).with_context(|| format!("reading the start time of {}", program.display()))?;
        Ok(Self { child, id })
    }

    pub(super) fn id(&self) -> &ProcessId {
        &self.id
    }

    /// How it ended, if it did.
    pub(super) fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("waiting for a child")
    }

    /// Asks it to end, makes it end if it does not, and reaps it.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.id.stop()?;
        self.child.wait().context("reaping a child")?;
        Ok(())
    }

    /// Ends it at once and reaps it.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.id.kill()?;
        self.child.wait().context("reaping a child")?;
        Ok(())
    }
}

/// Makes a command start in a namespace and end with what it is tied to, and connect directly to whatever it connects
/// to: a machine's proxy has no way into our networks.
pub(super) fn prepare(command: &mut Command, netns: Option<&Path>, tie: Tie) -> Result<()> {
    let netns = netns.map(open_netns).transpose()?;
    command.env("NO_PROXY", "*").env("no_proxy", "*");
    let parent = nix::unistd::getpid();
    let in_child = move || {
        if let Some(netns) = &netns {
            nix::sched::setns(netns, CloneFlags::CLONE_NEWNET)?;
        }
        match tie {
            Tie::Detached => {
                nix::unistd::setsid()?;
            }
            Tie::Ours => {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                // The parent may have ended before the line above; then nobody would send the signal.
                if nix::unistd::getppid() != parent {
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
        }
        Ok(())
    };
    if tie == Tie::Ours {
        // Ctrl-C in a terminal reaches it only through us.
        command.process_group(0);
    }
    // SAFETY: the closure makes system calls only; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(in_child) };
    Ok(())
}

fn open_netns(path: &Path) -> Result<OwnedFd> {
    let file = fs::File::open(path).with_context(|| format!("opening the network namespace {}", path.display()))?;
    Ok(file.into())
}

/// Runs a function in a network namespace, on a thread of its own, or right here if none is given.
pub(super) fn in_netns<T: Send>(netns: Option<&Path>, what: impl FnOnce() -> T + Send) -> Result<T> {
    let Some(netns) = netns else { return Ok(what()) };
    let fd = open_netns(netns)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::setns(fd, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("entering the network namespace {}", netns.display()))?;
            Ok(what())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Daemon {
        let mut command = Command::new("sleep");
        command.arg("60");
        Daemon::spawn(command, Path::new("/dev/null"), None, Tie::Ours).unwrap()
    }

    #[test]
    fn stops_the_process_and_no_other() {
        let mut daemon = sleeper();
        let mut stale = daemon.id().clone();
        stale.start += 1;
        assert!(!stale.runs());
        stale.kill().unwrap();
        assert!(
            daemon.id().runs(),
            "a process that was given the pid of an earlier one must not be touched"
        );
        daemon.stop().unwrap();
        assert!(!daemon.id().runs());
        daemon.id().stop().unwrap();
    }

    #[test]
    fn children_outlive_the_thread_that_asked_for_them() {
        let daemon = std::thread::spawn(sleeper).join().unwrap();
        assert!(!ended(&daemon.id().open().unwrap(), Duration::from_millis(200)));
        daemon.id().kill().unwrap();
    }
}
