//! Where Kubernetes objects come from: an API server, or a folder of manifests.
//!
//! Both sources decode what they read into the types of the [`model`](crate::model) and send it as
//! batches of [`Event`]s. An object that cannot be read is skipped, counted and named in the log;
//! if there was a good version of it, that one stays, since a service that is out of date serves
//! more clients than one that is gone.

pub mod decode;
pub mod folder;
pub mod kube;
mod skipped;

pub use skipped::Skipped;

use std::{time::Instant, vec};

use tokio::sync::mpsc;

use crate::model::Event;

/// What happened at once. A batch is never split over two changes of the desired state.
#[derive(Clone, Debug)]
pub struct Batch {
    /// What happened.
    pub events: Vec<Event>,
    /// When it was heard of, from which on it is waited for.
    pub heard: Instant,
}

impl From<Vec<Event>> for Batch {
    /// Heard of now.
    fn from(events: Vec<Event>) -> Self {
        Self {
            events,
            heard: Instant::now(),
        }
    }
}

impl IntoIterator for Batch {
    type Item = Event;
    type IntoIter = vec::IntoIter<Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.events.into_iter()
    }
}

/// How many batches may wait for the agent before a source has to.
const CAPACITY: usize = 1024;

/// The way from a source to the agent.
#[must_use]
pub fn channel() -> (mpsc::Sender<Batch>, mpsc::Receiver<Batch>) {
    mpsc::channel(CAPACITY)
}
