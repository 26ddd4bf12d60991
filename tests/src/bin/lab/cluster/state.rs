//! What is remembered of a cluster, and where its files are.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use lb_tests::controlplane::Administrator;
use lb_tests::sandbox::Sandbox;

/// The folder of the control plane in that of a cluster.
pub(super) const CONTROL_PLANE: &str = "control";

/// Where the cluster of this checkout is: in cargo's target folder. While this is there no other command changes it.
#[derive(Debug)]
pub(super) struct Place {
    target: PathBuf,
    folder: PathBuf,
    _lock: File,
}

impl Place {
    pub(super) fn open() -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let target = program
            .parent()
            .and_then(Path::parent)
            .context("this program is in no folder")?;
        let path = target.join("cluster.lock");
        let lock = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        lock.try_lock()
            .context("another `cargo xtask cluster` of this checkout is at work")?;
        Ok(Self {
            folder: target.join("cluster"),
            target: target.to_owned(),
            _lock: lock,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn administrator(&self) -> Result<Administrator> {
        Administrator::of(&self.folder.join(CONTROL_PLANE))
    }

    /// Makes the folder, which is empty.
    pub(super) fn make(&self) -> Result<()> {
        self.remove()?;
        fs::create_dir_all(&self.folder).with_context(|| format!("making {}", self.folder.display()))
    }

    fn file(&self) -> PathBuf {
        self.folder.join("sandbox.json")
    }

    /// What was written down, if a cluster is or was there.
    pub(super) fn sandbox(&self) -> Result<Option<Sandbox>> {
        let file = self.file();
        match fs::read_to_string(&file) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .with_context(|| format!("{} is not what `cluster up` wrote", file.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", file.display())),
        }
    }

    pub(super) fn write(&self, sandbox: &Sandbox) -> Result<()> {
        let (new, file) = (self.folder.join("sandbox.json.new"), self.file());
        fs::write(&new, serde_json::to_string(sandbox)?)
            .and_then(|()| fs::rename(&new, &file))
            .with_context(|| format!("writing {}", file.display()))
    }

    /// Copies the logs to where they stay until a cluster fails again, and says where.
    pub(super) fn keep_logs(&self) -> Result<PathBuf> {
        let kept = self.target.join("cluster-logs");
        remove(&kept)?;
        fs::create_dir_all(&kept).with_context(|| format!("making {}", kept.display()))?;
        for folder in [self.folder.clone(), self.folder.join(CONTROL_PLANE)] {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.extension().is_some_and(|ending| ending == "log") {
                    fs::copy(&path, kept.join(entry.file_name()))
                        .with_context(|| format!("copying {}", path.display()))?;
                }
            }
        }
        Ok(kept)
    }

    pub(super) fn remove(&self) -> Result<()> {
        remove(&self.folder)
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        _ => Ok(()),
    }
}
