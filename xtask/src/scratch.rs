//! Folders for what is only needed while something is made.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Such a folder, gone when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    /// Makes an empty one in the tools folder, whose lock keeps others out.
    pub fn new(tools: &Path, name: &str) -> Result<Self> {
        let dir = tools.join("tmp").join(name);
        remove_dir(&dir)?;
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next run removes what could not be removed now.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Removes a folder with all that is in it, if it is there.
pub fn remove_dir(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
