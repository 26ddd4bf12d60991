//! Child processes inside a network namespace and a control group, which end when this process ends.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cgroup::Cgroup;
use crate::netns::Netns;
use crate::patience::patient;

type Request = (Command, mpsc::Sender<io::Result<Child>>);

/// The thread that starts all children. The kernel kills a child at the end of the *thread* that started it, so this
/// one must live as long as the process.
static SPAWNER: LazyLock<mpsc::Sender<Request>> = LazyLock::new(|| {
    let (send, receive) = mpsc::channel::<Request>();
    thread::Builder::new()
        .name("lb-spawner".into())
        .spawn(move || {
            for (mut command, reply) in receive {
                // Nobody waits any more if this fails.
                let _ = reply.send(command.spawn());
            }
        })
        .expect("a process that may start children can start a thread");
    send
});

/// Starts a command in a namespace, and in a control group if one is given.
///
/// It gets a process group of its own, so that Ctrl-C in a terminal reaches it only through us, and is killed when this
/// process ends, however that comes about.
pub fn spawn(mut command: Command, netns: &Netns, cgroup: Option<&Cgroup>) -> Result<Child> {
    let netns_fd = netns.as_fd().try_clone_to_owned().context("duplicating a descriptor")?;
    let procs = cgroup
        .map(|cgroup| CString::new(cgroup.path().join("cgroup.procs").as_os_str().as_bytes()))
        .transpose()
        .context("the path of a control group")?;
    let parent = Pid::this();
    let enter = move || enter(&netns_fd, procs.as_deref().map(|path| path.as_ptr()), parent);
    command.process_group(0);
    // SAFETY: the function only makes system calls, and allocates nothing.
    unsafe { command.pre_exec(enter) };

    let program = command.get_program().to_string_lossy().into_owned();
    spawn_kept(command).with_context(|| format!("starting {program} in {}", netns.name()))
}

/// Starts a command as it is, from the thread that lives as long as this process: what one test starts and another goes
/// on using is not killed in between.
pub(crate) fn spawn_kept(command: Command) -> io::Result<Child> {
    let gone = || io::Error::other("the thread that starts processes is gone");
    let (reply, answer) = mpsc::channel();
    SPAWNER.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// What the child does between fork and exec.
fn enter(netns: &OwnedFd, procs: Option<*const libc::c_char>, parent: Pid) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    if Pid::parent() != parent {
        // It ended before it could take us along.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    setns(netns, CloneFlags::CLONE_NEWNET)?;
    procs.map_or(Ok(()), join_cgroup)
}

fn join_cgroup(procs: *const libc::c_char) -> io::Result<()> {
    // SAFETY: a C string, held by the closure that called us.
    let fd: RawFd = unsafe { libc::open(procs, libc::O_WRONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: one byte from a constant; 0 means whoever writes.
    let written = unsafe { libc::write(fd, b"0".as_ptr().cast(), 1) };
    if written == 1 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Asks a child to end, and kills it if it has not ended in time. Says how it ended.
pub fn stop(child: &mut Child, within: Duration) -> io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM)?;
    if let Some(status) = wait(child, within)? {
        return Ok(status);
    }
    child.kill()?;
    child.wait()
}

/// Waits for the end of a child, but not for ever.
pub fn wait(child: &mut Child, within: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + patient(within);
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if Instant::now() >= until => return Ok(None),
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// How a process ended, in words.
#[must_use]
pub fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown end".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_child_is_in_its_namespace_and_its_control_group() {
        let (netns, cgroup) = (Netns::new("here").unwrap(), Cgroup::new().unwrap());
        let mut command = Command::new("sh");
        command
            .args(["-c", "readlink /proc/self/ns/net; cat /proc/self/cgroup"])
            .stdout(Stdio::piped());
        let child = spawn(command, &netns, Some(&cgroup)).unwrap();
        let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let inside = std::fs::read_link(netns.path()).unwrap();
        assert!(output.contains(inside.to_str().unwrap()), "{output}");
        let group = cgroup.path().file_name().unwrap().to_str().unwrap();
        assert!(output.contains(&format!("0::/{group}\n")), "{output}");
    }

    #[test]
    fn a_child_that_does_not_stop_is_killed() {
        let netns = Netns::new("here").unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
            .stdout(Stdio::piped());
        let mut child = spawn(command, &netns, None).unwrap();
        let mut ready = [0; 6];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let status = stop(&mut child, Duration::from_millis(100)).unwrap();
        assert_eq!(ended(status), "signal 9");
    }
}
