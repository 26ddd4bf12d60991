//! How this agent is, in a file of its folder: to be read with the agent dead as well.
//!
//! The file tells what the agent last knew. Whether it runs is not in there but follows from its lock
//! ([`run_dir::is_taken`](crate::run_dir::is_taken)).

mod text;

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{objects::kube::Outage, plane::choice::Choice, run_dir};

/// The name of the file.
const FILE: &str = "status.json";

/// What an agent knows of itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Its version.
    pub version: String,
    /// Its process, while it runs.
    pub pid: u32,
    /// The name of its node.
    pub node: String,
    /// When it started.
    pub since: Timestamp,
    /// What serves, and why; not before it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plane: Option<Choice>,
    /// How far it has come.
    #[serde(flatten)]
    pub progress: Progress,
    /// That the API server cannot be watched. Its last word stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
    /// Why it ended by itself, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// What the loop knows.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Whether every service is in the kernel, and every link that was there at the start leads to it.
    pub ready: bool,
    /// Services that there are.
    pub services: usize,
    /// Ports of those that are served here, each once a protocol and family.
    pub service_ports: usize,
    /// Addresses and ports in the kernel that clients dial.
    pub frontends: usize,
    /// When the kernel was last given something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<Timestamp>,
    /// What is not as it should be, and is tried again.
    pub failures: Vec<Remark>,
    /// What the plane has no way to do.
    pub unsupported: Vec<Remark>,
}

/// Something to be said of a service port, or of what all of them share.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remark {
    /// The service port, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// What is to be said.
    pub what: String,
}

/// How a node is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// As it should be.
    Ready,
    /// An agent runs, and has not come so far, or failed at something, or cannot watch its API server.
    Degraded,
    /// No agent runs. What was programmed serves on.
    NotRunning,
}

/// What is known of the agent of a folder.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Seen {
    /// How it is.
    pub state: State,
    /// What it knew last, if one has ever been here.
    #[serde(flatten)]
    pub status: Option<Status>,
    /// Since when programs of an earlier agent go on with connections that this one could not take over, if any do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining_since: Option<Timestamp>,
}

impl Seen {
    /// Looks at a folder.
    ///
    /// # Errors
    /// It cannot be read, or holds something else.
    pub fn at(run_dir: &Path) -> anyhow::Result<Self> {
        let path = run_dir.join(FILE);
        let context = || format!("cannot read {}", path.display());
        let is_running = run_dir::is_taken(run_dir).with_context(context)?;
        let status: Option<Status> = match fs::read(&path) {
            Ok(bytes) => Some(serde_json::from_slice(&bytes).with_context(context)?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(context),
        };
        let state = match &status {
            _ if !is_running => State::NotRunning,
            Some(Status {
                progress, outage: None, ..
            }) if progress.ready && progress.failures.is_empty() => State::Ready,
            _ => State::Degraded,
        };
        Ok(Self {
            state,
            status,
            draining_since: None,
        })
    }
}

/// The file, kept by the agent. Clones share it.
#[derive(Clone, Debug)]
pub struct StatusFile {
    path: PathBuf,
    status: Arc<Mutex<Status>>,
}

impl StatusFile {
    /// Replaces whatever an agent before has left.
    pub fn create(run_dir: &Path, node: &str) -> Self {
        let status = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            node: node.to_owned(),
            since: Timestamp::now(),
            plane: None,
            progress: Progress::default(),
            outage: None,
            failed: None,
        };
        let file = Self {
            path: run_dir.join(FILE),
            status: Arc::new(Mutex::new(status)),
        };
        file.update(|_| {});
        file
    }

    /// Changes what is known. A file that cannot be written is told in the log: services do not depend on it.
    pub fn update(&self, change: impl FnOnce(&mut Status)) {
        // Nothing in here is left half done by a panic.
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut status);
        if let Err(error) = write(&self.path, &status) {
            tracing::warn!("`lb-agent status` is out of date: {}: {error}", self.path.display());
        }
    }
}

/// Writes the file so that who reads it finds all of the old one or all of the new one.
fn write(path: &Path, status: &Status) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(status)?)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests;
