//! Where a client is: what namespace and control group its sockets are made in.
//!
//! Both stick to a socket when it is made, and the kernel goes by the socket. So a client need not run where its
//! sockets are made. A pod's are made by a thread in its namespace. A process of the host must also be in the node's
//! control group, which version 2 does not allow a single thread: there a child process makes them, and this process
//! takes copies. Only where a program goes by the process that calls must the child itself connect.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use std::{fmt, io};

use anyhow::{Context as _, Result, bail};
use socket2::{Domain, Socket, Type};

use crate::cgroup::Cgroup;
use crate::client::TIMEOUT;
use crate::netns::Netns;
use crate::process;

/// Makes sockets at some place.
pub trait Place: fmt::Debug + Send + Sync {
    /// Makes one.
    fn socket(&self, domain: Domain, kind: Type) -> Result<Socket>;
}

impl Place for Netns {
    fn socket(&self, domain: Domain, kind: Type) -> Result<Socket> {
        self.run(|| Socket::new(domain, kind, None))?
            .with_context(|| format!("making a socket in {}", self.name()))
    }
}

/// Where the calling thread is. For a thread that has entered a namespace and makes many sockets.
#[derive(Debug)]
pub struct Here;

impl Place for Here {
    fn socket(&self, domain: Domain, kind: Type) -> Result<Socket> {
        Socket::new(domain, kind, None).context("making a socket")
    }
}

/// A process in a namespace and a control group: of a node, or of a pod.
#[derive(Debug)]
pub struct HostProcess {
    child: Mutex<Helper>,
}

#[derive(Debug)]
struct Helper {
    child: Child,
    pidfd: OwnedFd,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl HostProcess {
    /// Starts it.
    pub fn start(netns: &Netns, cgroup: &Cgroup) -> Result<Self> {
        let mut command = Command::new(program("lab", "LB_LAB")?);
        command.arg("sockets").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process::spawn(command, netns, Some(cgroup))?;
        let pidfd = pidfd_open(child.id()).context("pidfd_open of a helper")?;
        let (Some(requests), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a child has no pipes");
        };
        let answers = BufReader::new(stdout);
        let child = Mutex::new(Helper {
            child,
            pidfd,
            requests,
            answers,
        });
        Ok(Self { child })
    }
}

impl HostProcess {
    /// Has it open that many sockets one after the other, begin to connect each and abort it.
    pub fn open_and_abort(&self, kind: Type, to: SocketAddr, times: u32) -> Result<()> {
        let answer = self.helper()?.ask(&format!("abort {} {to} {times}", i32::from(kind)))?;
        if answer != "done" {
            bail!("the helper answered {answer:?}");
        }
        Ok(())
    }

    /// Has it connect a socket itself, for programs that ask who calls.
    pub fn connect(&self, kind: Type, to: SocketAddr) -> Result<Socket> {
        let request = format!("connect {} {to}", i32::from(kind));
        self.helper()?
            .take(&request)
            .with_context(|| format!("connecting to {to} in a process of the node"))
    }

    fn helper(&self) -> Result<std::sync::MutexGuard<'_, Helper>> {
        // Whoever panicked with the lock may have left an answer unread.
        self.child
            .lock()
            .ok()
            .context("the helper is out of step after a panic")
    }
}

impl Place for HostProcess {
    fn socket(&self, domain: Domain, kind: Type) -> Result<Socket> {
        self.helper()?
            .socket(domain, kind)
            .context("making a socket in a process of the node")
    }
}

impl Helper {
    fn socket(&mut self, domain: Domain, kind: Type) -> Result<Socket> {
        self.take(&format!("socket {} {}", i32::from(domain), i32::from(kind)))
    }

    /// Asks for a socket and takes a copy of it.
    fn take(&mut self, request: &str) -> Result<Socket> {
        let answer = self.ask(request)?;
        let fd = answer
            .parse()
            .with_context(|| format!("the helper answered {answer:?}"))?;
        let socket = pidfd_getfd(&self.pidfd, fd).context("taking a copy of the helper's socket")?;
        Ok(Socket::from(socket))
    }

    fn ask(&mut self, request: &str) -> Result<String> {
        writeln!(self.requests, "{request}").context("asking the helper")?;
        let mut answer = String::new();
        self.answers
            .read_line(&mut answer)
            .context("reading the helper's answer")?;
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It has nothing to tidy up.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the helper process does. For "socket DOMAIN TYPE" it makes such a socket and answers its descriptor; it keeps
/// it until the next request, by when the other side has its copy. For "connect TYPE ADDRESS" it makes one and connects
/// it. For "abort TYPE ADDRESS TIMES" it opens so many sockets, and aborts each.
pub fn serve_sockets() -> Result<()> {
    let mut kept = None;
    for line in io::stdin().lock().lines() {
        let line = line.context("reading a request")?;
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["socket", domain, kind] => {
                let (domain, kind): (i32, i32) = (domain.parse()?, kind.parse()?);
                let socket = Socket::new(Domain::from(domain), Type::from(kind), None).context("making a socket")?;
                println!("{}", std::os::fd::AsRawFd::as_raw_fd(&socket));
                kept.replace(socket);
            }
            ["connect", kind, to] => {
                let to: SocketAddr = to.parse()?;
                let kind = Type::from(kind.parse::<i32>()?);
                let socket = Socket::new(Domain::for_address(to), kind, None).context("making a socket")?;
                socket
                    .connect_timeout(&to.into(), TIMEOUT)
                    .with_context(|| format!("connecting to {to}"))?;
                println!("{}", std::os::fd::AsRawFd::as_raw_fd(&socket));
                kept.replace(socket);
            }
            ["abort", kind, to, times] => {
                let (kind, times) = (Type::from(kind.parse::<i32>()?), times.parse()?);
                for _ in 0..times {
                    open_and_abort(kind, to.parse()?)?;
                }
                println!("done");
            }
            _ => bail!("the request {line:?} is none"),
        }
    }
    Ok(())
}

fn open_and_abort(kind: Type, to: SocketAddr) -> Result<()> {
    let socket = Socket::new(Domain::for_address(to), kind, None).context("making a socket")?;
    socket.set_nonblocking(true).context("O_NONBLOCK")?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
            return Err(error).with_context(|| format!("connecting to {to}"));
        }
        _ => {}
    }
    // With what was sent and not received thrown away: TCP says so by a reset, not by a FIN.
    socket.set_linger(Some(Duration::ZERO)).context("SO_LINGER")
}

/// A program that cargo built beside this one, which may be a test; an environment variable can name another.
pub(crate) fn program(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let me = std::env::current_exe().context("finding this program")?;
    let beside = me.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    beside.into_iter().find(|path| path.is_file()).with_context(|| {
        format!(
            "the program {name} is not beside {}: `cargo build --bin {name}`, or set {variable}",
            me.display()
        )
    })
}

fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    new_fd(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

fn pidfd_getfd(pidfd: &OwnedFd, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    new_fd(unsafe { libc::syscall(libc::SYS_pidfd_getfd, std::os::fd::AsRawFd::as_raw_fd(pidfd), fd, 0) })
}

fn new_fd(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: the system call has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
