//! The plane that serves by the kernel's IPVS.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::{
    LinkPlane, LinkState, Outcome, Pace, Plane, PlaneError,
    probe::{Check, Found},
    shown::Shown,
};
use crate::{
    desired::{Change, State},
    kernel::links::{Link, LinkEvent},
};

/// How the plane is to run.
#[derive(Clone, Debug)]
pub struct IpvsOptions {
    /// The folder of the agent's own files.
    pub run_dir: PathBuf,
    /// The bit of the packet mark that asks the kernel to masquerade.
    pub masquerade_mark: u32,
}

/// The plane.
pub enum IpvsPlane {}

/// Its side on the links.
pub enum IpvsLinks {}

impl IpvsPlane {
    /// Takes the place of what an earlier agent left.
    pub fn start(_options: IpvsOptions) -> anyhow::Result<(Self, IpvsLinks)> {
        bail!("IPVS is not built in yet")
    }
}

/// What the node can do for this plane. Leaves nothing behind.
#[must_use]
pub fn probe(_options: &IpvsOptions) -> Vec<Check> {
    let found = if Path::new("/proc/net/ip_vs").exists() {
        Found::missing("not built in yet", "run another version of lb-agent")
    } else {
        Found::missing("the kernel has no IPVS", "`modprobe ip_vs` loads it where there is one")
    };
    vec![Check::of("IPVS", Ok(found))]
}

/// Removes every trace of the plane from the kernel. Says what it removed.
pub fn cleanup(_run_dir: &Path) -> anyhow::Result<Vec<String>> {
    Ok(Vec::new())
}

/// What the kernel holds of this plane; `None` if there is nothing. Changes nothing.
pub fn inspect() -> anyhow::Result<Option<Vec<Shown>>> {
    Ok(None)
}

impl Plane for IpvsPlane {
    fn replace(&mut self, _state: &State) -> anyhow::Result<Outcome> {
        match *self {}
    }

    fn apply(&mut self, _change: &Change) -> Outcome {
        match *self {}
    }

    fn tick(&mut self) {
        match *self {}
    }

    fn frontends(&self) -> usize {
        match *self {}
    }
}

impl LinkPlane for IpvsLinks {
    fn link(&mut self, _event: &LinkEvent, _pace: Pace) -> Result<LinkState, PlaneError> {
        match *self {}
    }

    fn stop_waiting(&mut self) {
        match *self {}
    }

    fn look(&mut self, _link: &Link) -> bool {
        match *self {}
    }
}
