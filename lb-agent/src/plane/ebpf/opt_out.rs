//! The map `OPTED_OUT`: cgroups of pods whose sockets are left alone.
//!
//! The kubelet makes a pod's cgroup some time after the pod is assigned to the node and before it starts anything
//! in there, and names it by the pod's UID. It need not be asked: the cgroup is looked for until it is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use tracing::{info, warn};

use super::table::{self, BpfTable};

/// When cgroups that are not there yet are looked for again. Between that of a pod and its first container lie the
/// sandbox and the network of the pod.
const SOON: Duration = Duration::from_millis(100);
/// How long that may become, for pods that take their time to begin.
const LATE: Duration = Duration::from_secs(1);
/// How deep below the agent's cgroup those of pods are looked for: as deep as the programs look.
const DEPTH: usize = lb_common::maps::CGROUP_LEVELS as usize;
/// Shorter than any UID: what is in the name of a cgroup behind "pod" and is as long is that of a pod.
const UID: usize = 32;

/// The thread that looks for cgroups.
pub(super) struct OptOut {
    pods: Sender<BTreeSet<String>>,
}

impl OptOut {
    /// Starts it, with what an earlier agent left in the map.
    pub(super) fn start(map: BpfTable<u64, u32>, cgroup: PathBuf) -> anyhow::Result<Self> {
        let (pods, changes) = mpsc::channel();
        thread::Builder::new()
            .name("opt-out".to_owned())
            .spawn(move || follow(&changes, map, &cgroup))
            .context("no thread for the pods that opt out")?;
        Ok(Self { pods })
    }

    /// These pods, by their UIDs, and no others have their sockets left alone.
    pub(super) fn set(&self, pods: BTreeSet<String>) {
        // The thread ends with the sender only.
        let _ = self.pods.send(pods);
    }
}

fn follow(changes: &Receiver<BTreeSet<String>>, mut map: BpfTable<u64, u32>, root: &Path) {
    let mut wanted = BTreeSet::new();
    let mut found = BTreeMap::new();
    let mut last_error = None;
    let mut again = SOON;
    loop {
        let change = if wanted.iter().all(|uid| found.contains_key(uid)) && last_error.is_none() {
            changes.recv().map_err(RecvTimeoutError::from)
        } else {
            changes.recv_timeout(again)
        };
        match change {
            Ok(pods) => {
                wanted = pods;
                again = SOON;
            }
            Err(RecvTimeoutError::Timeout) => again = LATE.min(again * 2),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        found.retain(|uid, _| wanted.contains(uid));
        let missing = wanted.iter().filter(|uid| !found.contains_key(*uid)).cloned().collect();
        for (uid, cgroup) in cgroups(root, &missing) {
            info!(uid, cgroup, "sockets of a pod are left alone");
            found.insert(uid, cgroup);
        }
        let error = table::hold(&mut map, &found.values().map(|cgroup| (*cgroup, 1)).collect())
            .err()
            .map(|error| error.to_string());
        if let Some(error) = error.as_ref().filter(|error| last_error.as_ref() != Some(*error)) {
            warn!("sockets of pods that opt out are translated all the same: map OPTED_OUT: {error}");
        }
        last_error = error;
    }
}

/// The kernel's numbers of the cgroups of these pods, of those that are there.
fn cgroups(root: &Path, uids: &BTreeSet<String>) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    if !uids.is_empty() {
        search(root, uids, DEPTH, &mut found);
    }
    found
}

fn search(folder: &Path, uids: &BTreeSet<String>, depth: usize, found: &mut BTreeMap<String, u64>) {
    if depth == 0 {
        return;
    }
    // Whatever goes while it is looked at is no cgroup of a pod that begins.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        match entry.file_name().to_str().and_then(uid) {
            None => search(&entry.path(), uids, depth - 1, found),
            Some(uid) if uids.contains(&uid) => {
                // The kernel's number of a cgroup is the number of its folder.
                if let Ok(metadata) = entry.metadata() {
                    found.insert(uid, metadata.ino());
                }
            }
            Some(_) => {}
        }
    }
}

/// The UID of a pod, of the name of its cgroup: `pod<uid>`, or with systemd `kubepods-burstable-pod<uid>.slice` with
/// underscores in the UID.
fn uid(name: &str) -> Option<String> {
    let (_, uid) = name.strip_suffix(".slice").unwrap_or(name).rsplit_once("pod")?;
    let is_uid = |c: char| c.is_ascii_hexdigit() || matches!(c, '-' | '_');
    (uid.len() >= UID && uid.chars().all(is_uid)).then(|| uid.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";

    #[test]
    fn the_cgroup_of_a_pod_has_its_uid_whoever_made_it() {
        for name in [
            "pod0a1b2c3d-1111-2222-3333-444455556666",
            "kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice",
            "kubelet-kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice",
        ] {
            assert_eq!(uid(name).as_deref(), Some(UID), "{name}");
        }
        // That of a static pod is a hash.
        let hash = "0123456789abcdef0123456789abcdef";
        assert_eq!(
            uid(&format!("kubepods-besteffort-pod{hash}.slice")).as_deref(),
            Some(hash)
        );
        for name in [
            "kubepods.slice",
            "kubepods-burstable.slice",
            "podman.service",
            "pod",
            "user.slice",
        ] {
            assert_eq!(uid(name), None, "{name}");
        }
    }

    #[test]
    fn cgroups_are_found_at_any_depth_and_those_of_others_are_not() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(&path).unwrap();
            fs::metadata(path).unwrap().ino()
        };
        let other = "99999999-1111-2222-3333-444455556666";
        make(&format!("kubepods/burstable/pod{other}/pod{UID}"));
        let uids = BTreeSet::from([UID.to_owned()]);
        assert_eq!(cgroups(root.path(), &uids), BTreeMap::new());
        let wanted = make(&format!("docker/1/kubepods/burstable/pod{UID}"));
        assert_eq!(cgroups(root.path(), &uids), BTreeMap::from([(UID.to_owned(), wanted)]));
    }
}
