//! The network namespaces of this machine, as far as processes are in them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    panic, thread,
};

use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace.
#[derive(Debug)]
pub struct Netns {
    file: File,
    /// The kernel's number of it.
    inode: u64,
}

impl Netns {
    /// That of this thread.
    pub fn current() -> io::Result<Self> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// The kernel's number of it. Another may have it when this one is gone.
    pub(super) const fn inode(&self) -> u64 {
        self.inode
    }

    fn open(path: &str) -> io::Result<Self> {
        let file = File::open(path)?;
        let inode = file.metadata()?.ino();
        Ok(Self { file, inode })
    }

    /// Those of all other processes that are to be seen in `/proc`: of this machine, if this is its namespace of
    /// processes. Needs `CAP_SYS_PTRACE`; a process that does not let itself be looked at is left out.
    pub fn others(&self) -> io::Result<Vec<Self>> {
        let mut others = BTreeMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name
                .to_str()
                .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
            else {
                continue;
            };
            // It may have ended meanwhile.
            let Ok(netns) = Self::open(&format!("/proc/{pid}/ns/net")) else {
                continue;
            };
            if netns.inode != self.inode {
                others.entry(netns.inode).or_insert(netns);
            }
        }
        Ok(others.into_values().collect())
    }

    /// Does something in there, on this thread, whose own namespace `own` is. Needs `CAP_SYS_ADMIN`. What is made
    /// there stays there.
    pub fn run<T>(&self, own: &Self, action: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        setns(&self.file, CloneFlags::CLONE_NEWNET)?;
        let result = action();
        setns(&own.file, CloneFlags::CLONE_NEWNET)?;
        result
    }
}

/// Does something in a new network namespace, on a thread of its own. The namespace goes when nothing that was made
/// there is held any more. Needs `CAP_SYS_ADMIN`.
pub fn in_new<T: Send>(action: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("new-netns".to_owned());
        let thread = thread.spawn_scoped(scope, || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(action())
        })?;
        thread.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_new_namespace_has_its_own_thread_and_one_link() {
        let own = Netns::current().unwrap().inode;
        let (new, links) = in_new(|| {
            let links: Vec<u32> = nix::net::if_::if_nameindex()
                .unwrap()
                .iter()
                .map(|link| link.index())
                .collect();
            (Netns::current().unwrap().inode, links)
        })
        .unwrap();
        assert_ne!(new, own);
        assert_eq!(links, [1]);
        assert_eq!(Netns::current().unwrap().inode, own);
    }

    #[test]
    fn each_namespace_is_found_once_and_the_own_one_is_no_other() {
        // A process in a namespace of its own, and one that it has started.
        let mut child = Command::new("unshare")
            .args(["--user", "--net", "sh", "-c", "exec 3<&0; cat <&3 & cat"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let own = Netns::current().unwrap();
        let path = format!("/proc/{}/ns/net", child.id());
        let inode = loop {
            let inode = Netns::open(&path).unwrap().inode;
            if inode != own.inode {
                break inode;
            }
        };
        let others = own.others().unwrap();
        // They end with their input.
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(others.iter().filter(|netns| netns.inode == inode).count(), 1);
        assert!(others.iter().all(|netns| netns.inode != own.inode));
    }
}
