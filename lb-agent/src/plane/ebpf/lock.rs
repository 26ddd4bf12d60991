//! One agent, or one cleanup, at a time, and one monitor: locks on folders of our pins.
//!
//! A folder and not a file under `/run`, since what must not be shared is what is pinned there:
//! two containers see one bpffs and have a `/run` each.

use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use anyhow::{Context as _, bail};

/// What there can be one of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Holder {
    /// Who changes what is pinned: an agent or a cleanup.
    Agent,
    /// Who reads the ring of events, which has the position of one reader.
    Monitor,
}

/// The lock. Ends with the value, and with the process however that ends.
#[derive(Debug)]
pub(super) struct Lock {
    folder: File,
}

impl Lock {
    /// Takes it, or fails if somebody has it. `None` if there is no such folder, or no more.
    pub(super) fn take(folder: &Path, holder: Holder) -> anyhow::Result<Option<Self>> {
        let what = || format!("cannot lock {}", folder.display());
        let file = match File::open(folder) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(what),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => match holder {
                Holder::Agent => bail!(
                    "an lb-agent is running on this node, it holds {}: stop it first",
                    folder.display()
                ),
                Holder::Monitor => bail!(
                    "another `lb-agent monitor` reads the events, it holds {}, and each event is told once: \
                     stop it first",
                    folder.display()
                ),
            },
            Err(TryLockError::Error(error)) => return Err(error).with_context(what),
        }
        // A cleanup may have removed it between the two calls. The next one to make the folder would
        // have another lock.
        let lock = Self { folder: file };
        Ok((!lock.is_removed().with_context(what)?).then_some(lock))
    }

    /// Whether the folder has been removed since, by a cleanup or by an agent that made a new one.
    pub(super) fn is_removed(&self) -> io::Result<bool> {
        Ok(self.folder.metadata()?.nlink() == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_until_it_lets_go() {
        let folder = tempfile::tempdir().unwrap();
        for (holder, said) in [
            (Holder::Agent, "is running"),
            (Holder::Monitor, "another `lb-agent monitor`"),
        ] {
            let lock = Lock::take(folder.path(), holder).unwrap().unwrap();
            let error = Lock::take(folder.path(), holder).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("stop it"), "{error}");
            drop(lock);
            assert!(Lock::take(folder.path(), holder).unwrap().is_some());
            assert!(Lock::take(&folder.path().join("absent"), holder).unwrap().is_none());
        }
    }

    #[test]
    fn it_is_seen_that_the_folder_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::take(folder.path(), Holder::Monitor).unwrap().unwrap();
        assert!(!lock.is_removed().unwrap());
        folder.close().unwrap();
        assert!(lock.is_removed().unwrap());
    }
}
