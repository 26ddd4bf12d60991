//! Things with a name in the file system, which a killed process would leave behind.
//!
//! Namespaces, links, mounts and pins of this harness hang on file descriptors, and children die with their parent, so
//! the kernel takes all of them back however a process ends. That leaves cgroups and temporary folders. Their names
//! carry the process that owns them: `lb-tests-<pid>-<start time>-<number>`. They are removed when they are dropped;
//! by the thread that handles signals when the process is told to stop ([`crate::interrupt`]); and by the next process
//! that makes one, if their owner was killed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, Once};

use anyhow::{Context as _, Result};

use crate::cgroup;

const PREFIX: &str = "lb-tests-";

static OWNED: Mutex<Owned> = Mutex::new(Owned {
    paths: BTreeSet::new(),
    closed: false,
});

struct Owned {
    paths: BTreeSet<PathBuf>,
    /// The process is about to end: nobody makes anything any more.
    closed: bool,
}

fn owned() -> MutexGuard<'static, Owned> {
    // A set of paths is whole between any two operations, so a panic elsewhere does not spoil it.
    OWNED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Makes `parent/<unique name>` a folder of this process and notes it. Cgroups are folders too.
pub(crate) fn make(parent: &Path) -> Result<PathBuf> {
    static SWEEP: Once = Once::new();
    SWEEP.call_once(sweep);
    let path = parent.join(unique_name());
    let mut owned = owned();
    if owned.closed {
        drop(owned);
        // The thread that cleans up ends the process in a moment.
        loop {
            std::thread::park();
        }
    }
    fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
    owned.paths.insert(path.clone());
    Ok(path)
}

/// Removes what [`make`] made.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = remove_unnoted(path);
    owned().paths.remove(path);
    removed
}

/// Removes all that this process made, and lets no thread make more: for the end of the process.
pub(crate) fn remove_all() {
    let paths = {
        let mut owned = owned();
        owned.closed = true;
        std::mem::take(&mut owned.paths)
    };
    for path in paths {
        if let Err(error) = remove_unnoted(&path) {
            eprintln!("lb-tests: {error:#}");
        }
    }
}

/// Removes what processes left behind that were killed.
pub fn sweep() {
    let parents = [cgroup::root().ok(), Some(std::env::temp_dir())];
    for parent in parents.into_iter().flatten() {
        let Ok(entries) = fs::read_dir(parent) else { continue };
        for entry in entries.flatten() {
            let abandoned = entry
                .file_name()
                .to_str()
                .and_then(owner_of)
                .is_some_and(|owner| !owner.is_alive());
            if abandoned {
                // Best effort: tidying up after others must not fail a test.
                let _ = remove_unnoted(&entry.path());
            }
        }
    }
}

/// What is there of a process of this harness that has ended: control groups, folders, mounts, children.
pub fn left_of(pid: u32) -> Result<Vec<String>> {
    let name = format!("{PREFIX}{pid}-");
    let mut left = Vec::new();
    for folder in [cgroup::root()?, std::env::temp_dir()] {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry.context("reading a folder")?.path();
            left.extend(
                path.to_string_lossy()
                    .contains(&name)
                    .then(|| path.display().to_string()),
            );
        }
    }
    // Children carry its folders or its descriptors in their arguments. One that ends meanwhile is none.
    for entry in fs::read_dir("/proc").context("reading /proc")?.flatten() {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(&name) || command.contains(&format!("/proc/{pid}/fd")) {
            left.push(command);
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
    left.extend(mounts.lines().filter(|line| line.contains(&name)).map(str::to_owned));
    Ok(left)
}

fn remove_unnoted(path: &Path) -> Result<()> {
    if path.join("cgroup.procs").exists() {
        return cgroup::remove(path);
    }
    fs::remove_dir_all(path).with_context(|| format!("removing {}", path.display()))
}

/// A process, told apart from a later one with the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    pid: u32,
    start: u64,
}

impl Owner {
    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Fields are counted behind the name of the program, which may hold spaces and brackets itself.
        let start = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        Some(Self { pid, start })
    }

    fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

fn unique_name() -> String {
    static ME: LazyLock<Owner> = LazyLock::new(|| Owner::of(std::process::id()).expect("/proc is mounted"));
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{}-{number}", ME.pid, ME.start)
}

fn owner_of(name: &str) -> Option<Owner> {
    let mut parts = name.strip_prefix(PREFIX)?.splitn(3, '-');
    let pid = parts.next()?.parse().ok()?;
    let start = parts.next()?.parse().ok()?;
    parts.next()?;
    Some(Owner { pid, start })
}

/// A temporary folder, gone when it is dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes one.
    pub fn new() -> Result<Self> {
        let path = make(&std::env::temp_dir())?;
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            eprintln!("lb-tests: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_owner() {
        let owner = owner_of(&unique_name()).unwrap();
        assert_eq!(owner.pid, std::process::id());
        assert!(owner.is_alive());
        assert!(
            !Owner {
                start: owner.start + 1,
                ..owner
            }
            .is_alive()
        );
        assert_eq!(owner_of("lb-tests-12"), None);
        assert_eq!(owner_of("other-1-2-3"), None);
    }

    #[test]
    fn a_folder_of_a_dead_process_is_swept_and_mine_stays() {
        let mine = Folder::new().unwrap();
        // No process has number 1 and this start time.
        let theirs = std::env::temp_dir().join(format!("{PREFIX}1-18446744073709551615-1"));
        fs::create_dir(&theirs).unwrap();
        sweep();
        assert!(mine.path().exists());
        assert!(!theirs.exists());
    }
}
