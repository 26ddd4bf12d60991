//! The folder of the agent's own files, `/run/lb-agent`: who runs, and how it is.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

/// The file that a running agent has locked. The kernel lets go of it when the process ends, however that comes, so
/// that nothing is told by the number of a process, which another may have by then.
const LOCK: &str = "agent.lock";
/// Longer than somebody has the lock who only looks whether an agent has it.
const LOOK: Duration = Duration::from_millis(500);

/// The folder, held by this process: no other agent or cleanup has it at the same time.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Makes the folder, for root only, and takes it.
    ///
    /// # Errors
    /// Another agent or cleanup has it, or it cannot be made.
    pub fn take(path: &Path) -> anyhow::Result<Self> {
        let context = || format!("--run-dir {}", path.display());
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(context)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join(LOCK))
            .with_context(context)?;
        let until = Instant::now() + LOOK;
        loop {
            match lock.try_lock() {
                Ok(()) => {
                    return Ok(Self {
                        path: path.to_owned(),
                        _lock: lock,
                    });
                }
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(LOOK / 10),
                Err(TryLockError::WouldBlock) => bail!(
                    "an lb-agent is running on this node, it holds {}: stop it first",
                    path.display()
                ),
                Err(TryLockError::Error(error)) => return Err(error).with_context(context),
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it with all that is in it. Says whether more was there than the lock.
    pub fn remove(self) -> io::Result<bool> {
        let entries = fs::read_dir(&self.path)?.filter(|entry| {
            let name = entry.as_ref().map(fs::DirEntry::file_name);
            !matches!(name, Ok(name) if name == LOCK)
        });
        let had_more = entries.count() > 0;
        fs::remove_dir_all(&self.path)?;
        Ok(had_more)
    }
}

/// Whether an agent runs that has its files in this folder.
pub fn is_taken(path: &Path) -> io::Result<bool> {
    let lock = match File::open(path.join(LOCK)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    // Shared, so that two who look do not take each other for an agent.
    match lock.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn it_is_made_for_root_alone_and_one_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/run");
        assert!(!is_taken(&path).unwrap());
        let run_dir = RunDir::take(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(is_taken(&path).unwrap());
        let error = RunDir::take(&path).unwrap_err().to_string();
        assert!(
            error.contains("is running") && error.contains("stop it first"),
            "{error}"
        );
        drop(run_dir);
        assert!(!is_taken(&path).unwrap());
        assert!(
            !RunDir::take(&path).unwrap().remove().unwrap(),
            "there was the lock alone"
        );
        assert!(!path.exists());
    }

    #[test]
    fn who_only_looks_keeps_no_agent_from_starting() {
        let folder = tempfile::tempdir().unwrap();
        drop(RunDir::take(folder.path()).unwrap());
        let looks = File::open(folder.path().join(LOCK)).unwrap();
        looks.lock_shared().unwrap();
        let agent = thread::scope(|scope| {
            let agent = scope.spawn(|| RunDir::take(folder.path()));
            thread::sleep(LOOK / 5);
            drop(looks);
            agent.join().unwrap()
        });
        assert!(agent.is_ok(), "{agent:?}");
    }

    #[test]
    fn what_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = format!("{:#}", RunDir::take(&file.join("run")).unwrap_err());
        assert!(error.contains("--run-dir") && error.contains("/file/run"), "{error}");
    }
}
