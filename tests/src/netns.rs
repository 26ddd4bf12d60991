//! Network namespaces as values.
//!
//! A namespace here has no name in the file system: it lives as long as a file descriptor, a process or a socket holds
//! it. Dropping the value, a panic and even `kill -9` therefore leave nothing behind, and any number of tests can run
//! beside each other. From outside it is reached with `nsenter --net=` and [`Netns::path`].

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{io, panic, process, thread};

use anyhow::{Context as _, Result, anyhow};
use nix::sched::{CloneFlags, setns, unshare};

use crate::netlink::Netlink;

/// A network namespace. Dropping it ends it, once the processes and sockets inside have ended too.
#[derive(Debug)]
pub struct Netns {
    name: String,
    fd: OwnedFd,
    netlink: OnceLock<Netlink>,
}

impl Netns {
    /// Makes one, with its loopback link up. The name is for messages only.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let fd = thread::scope(|scope| join(scope.spawn(make)))
            .with_context(|| format!("making the network namespace {name}: this needs root (CAP_SYS_ADMIN)"))?;
        let netns = Self {
            name,
            fd,
            netlink: OnceLock::new(),
        };
        let loopback = netns.netlink()?.link("lo")?;
        netns.netlink()?.up(loopback.index)?;
        Ok(netns)
    }

    /// The one that this process is in.
    pub fn current() -> Result<Self> {
        Self::open(Path::new("/proc/self/ns/net"), "this process's")
    }

    /// The one that a file stands for, such as those below `/run/netns`.
    pub fn open(path: &Path, name: impl Into<String>) -> Result<Self> {
        let file = fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
        Ok(Self {
            name: name.into(),
            fd: file.into(),
            netlink: OnceLock::new(),
        })
    }

    /// What it is called in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A path that other processes can open, as long as this process lives and `self` is not dropped.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", process::id(), self.fd.as_raw_fd()))
    }

    /// Runs a function on a thread inside, and passes its panic on.
    ///
    /// Sockets that it makes stay inside when they are used elsewhere later. It must not start processes: they would
    /// be killed when the thread ends, see [`crate::process::spawn`].
    pub fn run<T: Send>(&self, function: impl FnOnce() -> T + Send) -> Result<T> {
        thread::scope(|scope| {
            join(scope.spawn(|| {
                self.enter()?;
                Ok(function())
            }))
        })
    }

    /// Moves the calling thread inside, for as long as it lives.
    pub fn enter(&self) -> Result<()> {
        setns(&self.fd, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("entering the network namespace {}", self.name))
    }

    /// Its links, addresses and routes.
    pub fn netlink(&self) -> Result<&Netlink> {
        if let Some(netlink) = self.netlink.get() {
            return Ok(netlink);
        }
        let opened = self
            .run(Netlink::open)?
            .with_context(|| format!("opening netlink in {}", self.name))?;
        Ok(self.netlink.get_or_init(|| opened))
    }

    /// Sets a sysctl below `net`, such as `ipv4.ip_forward`. Names of links in it may hold no dot.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = sysctl_path(key);
        self.run(|| fs::write(&path, value))?
            .with_context(|| format!("setting the sysctl net.{key} to {value} in {}", self.name))
    }

    /// Reads a sysctl below `net`.
    pub fn sysctl(&self, key: &str) -> Result<String> {
        let path = sysctl_path(key);
        let text = self
            .run(|| fs::read_to_string(&path))?
            .with_context(|| format!("reading the sysctl net.{key} in {}", self.name))?;
        Ok(text.trim().to_owned())
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn make() -> Result<OwnedFd> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    let file = fs::File::open("/proc/thread-self/ns/net").context("opening the new namespace")?;
    Ok(file.into())
}

/// `/proc/sys/net` shows the namespace of the thread that opens it.
fn sysctl_path(key: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(key.replace('.', "/"))
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Says why, if this process may not make namespaces: for a first line of a test's failure that helps.
pub fn require_root() -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let error = io::Error::from_raw_os_error(libc::EPERM);
    Err(anyhow!(error).context("network namespaces, control groups and BPF need root: run it with sudo"))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn sockets_of_two_namespaces_do_not_meet() {
        let (a, b) = (Netns::new("a").unwrap(), Netns::new("b").unwrap());
        let listener = a.run(|| TcpListener::bind("127.0.0.1:80")).unwrap().unwrap();
        let at = listener.local_addr().unwrap();
        assert!(a.run(|| TcpStream::connect(at)).unwrap().is_ok());
        let elsewhere = b.run(|| TcpStream::connect(at)).unwrap().unwrap_err();
        assert_eq!(elsewhere.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_panic_inside_comes_out_and_ends_the_namespace() {
        let path = std::sync::Mutex::new(PathBuf::new());
        let panic = panic::catch_unwind(|| {
            let netns = Netns::new("panics").unwrap();
            *path.lock().unwrap() = fs::read_link(netns.path()).unwrap();
            netns.run(|| panic!("from inside")).unwrap();
        });
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"from inside"));
        let inode = path.into_inner().unwrap();
        let holders = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
            .filter(|target| *target == inode);
        assert_eq!(holders.count(), 0);
    }

    #[test]
    fn a_sysctl_is_set_inside_only() {
        let (a, b) = (Netns::new("a").unwrap(), Netns::new("b").unwrap());
        a.set_sysctl("ipv4.ip_forward", "1").unwrap();
        b.set_sysctl("ipv4.ip_forward", "0").unwrap();
        assert_eq!(a.sysctl("ipv4.ip_forward").unwrap(), "1");
    }
}
