//! One agent, or one cleanup, at a time: a lock on the folder of our pins.
//!
//! The folder and not a file under `/run`, since what must not be shared is what is pinned there:
//! two containers see one bpffs and have a `/run` each.

use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use anyhow::{Context as _, bail};

/// The lock. Ends with the value, and with the process however that ends.
#[derive(Debug)]
pub(super) struct Lock {
    _folder: File,
}

impl Lock {
    /// Takes it, or fails if somebody has it. `None` if there is no such folder, or no more.
    pub(super) fn take(folder: &Path) -> anyhow::Result<Option<Self>> {
        let what = || format!("cannot lock {}", folder.display());
        let file = match File::open(folder) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(what),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "an lb-agent is running on this node, it holds {}: stop it first",
                folder.display()
            ),
            Err(TryLockError::Error(error)) => return Err(error).with_context(what),
        }
        // A cleanup may have removed it between the two calls. The next one to make the folder would
        // have another lock.
        let is_removed = file.metadata().with_context(what)?.nlink() == 0;
        Ok((!is_removed).then_some(Self { _folder: file }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_until_it_lets_go() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::take(folder.path()).unwrap().unwrap();
        let error = Lock::take(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is running") && error.contains("stop it"), "{error}");
        drop(lock);
        assert!(Lock::take(folder.path()).unwrap().is_some());
        assert!(Lock::take(&folder.path().join("absent")).unwrap().is_none());
    }
}
