//! Control groups in each hierarchy of a machine: one of version 2, or those of version 1 beside one.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::cgroup;

/// Where processes are, since version 2 wants none in a group that hands its controllers on.
const LEAF: &str = "node";
/// What a new group of the controller cpuset has to be told before a process may join.
const CPUSET: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

/// A hierarchy.
#[derive(Debug)]
pub(super) struct Hierarchy {
    /// Where it is mounted.
    pub(super) mount: PathBuf,
    /// Its controllers or its name, such as `cpu,cpuacct` and `name=systemd`; empty for version 2.
    pub(super) controllers: String,
    /// The group of this process.
    own: PathBuf,
}

/// All that are mounted.
pub(super) fn hierarchies() -> Result<Vec<Hierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
    let own = fs::read_to_string("/proc/self/cgroup").context("reading /proc/self/cgroup")?;
    Ok(parse(&mounts, &own))
}

fn parse(mounts: &str, own: &str) -> Vec<Hierarchy> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, own) = (fields.next()?, fields.next()?);
        let mount = mounts.lines().find_map(|line| {
            let fields: Vec<_> = line.split(' ').collect();
            let [_, mount, kind, options, ..] = fields.as_slice() else {
                return None;
            };
            let has = |wanted: &str| options.split(',').any(|option| option == wanted);
            let found = match *kind {
                "cgroup2" => controllers.is_empty(),
                "cgroup" => !controllers.is_empty() && controllers.split(',').all(has),
                _ => false,
            };
            found.then(|| PathBuf::from(*mount))
        })?;
        Some(Hierarchy {
            mount,
            controllers: controllers.to_owned(),
            own: own.trim_start_matches('/').into(),
        })
    };
    own.lines().filter_map(of_line).collect()
}

/// A group in each hierarchy.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Groups {
    folders: Vec<PathBuf>,
}

impl Groups {
    pub(super) fn make() -> Result<Self> {
        let mut groups = Self { folders: Vec::new() };
        let name = format!("lb-sandbox-{}", std::process::id());
        let all = hierarchies()?;
        let alone = all.len() == 1;
        for hierarchy in &all {
            // Version 1 lets groups and processes be in one place, so what limits this process limits the sandbox.
            let below = hierarchy.mount.join(&hierarchy.own);
            let parent = if hierarchy.controllers.is_empty() || !below.is_dir() {
                &hierarchy.mount
            } else {
                &below
            };
            let top = parent.join(&name);
            groups.folders.push(top.clone());
            for folder in [top.clone(), top.join(LEAF)] {
                if let Err(error) = make(&folder, alone) {
                    // What was made before goes again; the first error is the one to tell.
                    let _ = groups.remove();
                    return Err(error);
                }
            }
        }
        Ok(groups)
    }

    #[cfg(test)]
    pub(super) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Descriptors to join the groups themselves by.
    pub(super) fn top(&self) -> Result<Vec<OwnedFd>> {
        self.folders.iter().map(|folder| procs(folder)).collect()
    }

    /// Descriptors to join where processes are.
    pub(super) fn leaf(&self) -> Result<Vec<OwnedFd>> {
        self.folders.iter().map(|folder| procs(&folder.join(LEAF))).collect()
    }

    /// Removes them, and ends what is in them.
    pub(super) fn remove(&self) -> Result<()> {
        for folder in self.folders.iter().filter(|folder| folder.is_dir()) {
            cgroup::remove(folder)?;
        }
        Ok(())
    }
}

fn make(folder: &Path, hand_on: bool) -> Result<()> {
    fs::create_dir(folder).with_context(|| format!("making {}", folder.display()))?;
    let Some(parent) = folder.parent() else { return Ok(()) };
    for file in CPUSET {
        let from = parent.join(file);
        // Version 2 takes what is above when nothing is said.
        if !hand_on && from.exists() {
            let value = fs::read_to_string(&from).with_context(|| format!("reading {}", from.display()))?;
            fs::write(folder.join(file), value.trim()).with_context(|| format!("setting {file}"))?;
        }
    }
    if hand_on && !folder.ends_with(LEAF) {
        let controllers = fs::read_to_string(folder.join("cgroup.controllers")).context("reading the controllers")?;
        let all: Vec<_> = controllers.split_whitespace().map(|name| format!("+{name}")).collect();
        fs::write(folder.join("cgroup.subtree_control"), all.join(" ")).context("handing controllers on")?;
    }
    Ok(())
}

fn procs(folder: &Path) -> Result<OwnedFd> {
    let path = folder.join("cgroup.procs");
    let file: File = OpenOptions::new()
        .write(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
            cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0\n\
            cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let own = "3:cpu,cpuacct:/user/a\n2:memory:/\n1:name=systemd:/\n0::/b\n";
        let found = parse(mounts, own);
        let said: Vec<_> = found
            .iter()
            .map(|hierarchy| {
                (
                    hierarchy.mount.to_str().unwrap(),
                    hierarchy.controllers.as_str(),
                    hierarchy.own.to_str().unwrap(),
                )
            })
            .collect();
        // Memory is mounted nowhere.
        assert_eq!(
            said,
            [
                ("/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct", "user/a"),
                ("/sys/fs/cgroup/systemd", "name=systemd", ""),
                ("/sys/fs/cgroup/unified", "", "b"),
            ]
        );
        let found = parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/user.slice\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].controllers.is_empty());
    }
}
