//! What of the node and its pods comes from Debian: unpacked into the tools folder, since installing a container runtime or a
//! web server would start it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::apt::{self, Os, PrivateApt};
use crate::image::layer::Digest;
use crate::scratch::{Scratch, remove_dir};
use crate::workspace::Lock;

const PACKAGES: [&str; 5] = ["containerd", "runc", "containernetworking-plugins", "nginx", "busybox"];
/// They and their libraries, by beginnings of names.
const WITH: [&str; 9] = [
    "containerd",
    "runc",
    "containernetworking-plugins",
    "nginx",
    "busybox",
    "libseccomp2",
    "libpcre2-8-0",
    "libssl3",
    "libcrypt1",
];

/// The folder that they are unpacked in, made unless it is there.
pub fn ensure(tools: &Path) -> Result<PathBuf> {
    let os = Os::detect();
    // Another list is another folder.
    let list = Digest::of(WITH.join(" ").as_bytes());
    let place = tools.join(format!("cluster-node-{}-{}", os.codename, &list.hex()[..8]));
    if place.is_dir() {
        return Ok(place);
    }
    if !os.is_debian() {
        bail!(
            "a cluster's node is made of Debian's packages {}: this is no Debian",
            PACKAGES.join(", ")
        );
    }
    let _lock = Lock::take(tools)?;
    if place.is_dir() {
        return Ok(place);
    }
    let scratch = Scratch::new(tools, "cluster-node")?;
    let apt = PrivateApt::with_machine_sources(scratch.dir())?;
    apt.update("this machine's sources")?;
    let unpacked = scratch.dir().join("unpacked");
    for deb in apt.download(&apt.with_dependencies(&PACKAGES, &WITH)?)? {
        apt::unpack(&deb, &unpacked, &[])?;
    }
    remove_dir(&place)?;
    fs::rename(&unpacked, &place).with_context(|| format!("cannot move what is unpacked to {}", place.display()))?;
    Ok(place)
}
