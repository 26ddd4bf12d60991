//! The folder of the agent's own files, `/run/lb-agent`: who runs, and how it is.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

/// The file that a running agent has locked. The kernel lets go of it when the process ends, however that comes, so
/// that nothing is told by the number of a process, which another may have by then.
const LOCK: &str = "agent.lock";

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
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => bail!(
                "an lb-agent is running on this node, it holds {}: stop it first",
                path.display()
            ),
            Err(TryLockError::Error(error)) => Err(error).with_context(context),
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
    // Shared, so that who only asks is in nobody's way but an agent's that starts at this very moment.
    match lock.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
