//! How the watches of an API server go, for those who look after the node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::connection::Cause;
use crate::model::Kind;

/// What is known of them: told by the watches, asked for by others. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Watches {
    states: Arc<Mutex<BTreeMap<Kind, WatchState>>>,
    outage: watch::Sender<Option<Outage>>,
}

/// How the watch of one kind goes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WatchState {
    /// How often something was told. A list is one.
    pub events: u64,
    /// When something last was.
    pub last_event: Option<Timestamp>,
    /// How often the server agreed to a watch.
    pub starts: u64,
    /// How often it failed or broke off, by why.
    pub errors: BTreeMap<&'static str, u64>,
    /// Since when it is known not to work.
    failing_since: Option<Instant>,
}

impl WatchState {
    /// For how long what is known of the kind may have been out of date.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.failing_since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

/// That the API server cannot be watched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outage {
    /// Since when.
    pub since: Timestamp,
    /// The kinds of objects that are not followed.
    pub kinds: Vec<String>,
    /// What was last said of it.
    pub reason: String,
}

impl Watches {
    /// Of each kind that is watched, how its watch goes.
    #[must_use]
    pub fn states(&self) -> Vec<(Kind, WatchState)> {
        self.lock().iter().map(|(kind, state)| (*kind, state.clone())).collect()
    }

    /// Whether the server cannot be watched, now and whenever that changes.
    #[must_use]
    pub fn outage(&self) -> watch::Receiver<Option<Outage>> {
        self.outage.subscribe()
    }

    /// There is a watch of this kind.
    pub(super) fn begins(&self, kind: Kind) {
        let errors = Cause::ALL.map(|cause| (cause.word(), 0));
        self.lock().entry(kind).or_default().errors.extend(errors);
    }

    /// The server agreed to a watch.
    pub(super) fn started(&self, kind: Kind) {
        self.lock().entry(kind).or_default().starts += 1;
    }

    /// It told something.
    pub(super) fn heard(&self, kind: Kind) {
        let mut states = self.lock();
        let state = states.entry(kind).or_default();
        state.events += 1;
        state.last_event = Some(Timestamp::now());
    }

    /// A request failed, or a watch broke off, which need not be an outage yet.
    pub(super) fn erred(&self, kind: Kind, cause: Cause) {
        let mut states = self.lock();
        *states.entry(kind).or_default().errors.entry(cause.word()).or_default() += 1;
    }

    /// The watch of a kind does not work.
    pub(super) fn failed(&self, kind: Kind, reason: &str) {
        self.lock()
            .entry(kind)
            .or_default()
            .failing_since
            .get_or_insert_with(Instant::now);
        self.outage.send_modify(|outage| {
            let outage = outage.get_or_insert_with(|| Outage {
                since: Timestamp::now(),
                kinds: Vec::new(),
                reason: String::new(),
            });
            if !outage.kinds.iter().any(|known| known == kind.name()) {
                outage.kinds.push(kind.name().to_owned());
            }
            reason.clone_into(&mut outage.reason);
        });
    }

    /// It works.
    pub(super) fn recovered(&self, kind: Kind) {
        self.lock().entry(kind).or_default().failing_since = None;
        self.outage.send_if_modified(|known| {
            let Some(outage) = known else {
                return false;
            };
            outage.kinds.retain(|failing| failing != kind.name());
            if outage.kinds.is_empty() {
                *known = None;
            }
            true
        });
    }

    /// As if a server had been watched and had told something.
    #[cfg(test)]
    pub(crate) fn of_a_kind_that_told_something(&self, kind: Kind) {
        self.begins(kind);
        self.started(kind);
        self.heard(kind);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Kind, WatchState>> {
        // Nothing in here is left half done by a panic.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(watches: &Watches, kind: Kind) -> WatchState {
        let states = watches.states();
        states.into_iter().find(|(known, _)| *known == kind).unwrap().1
    }

    #[test]
    fn an_outage_lasts_from_the_first_kind_that_fails_to_the_last_that_works_again() {
        let watches = Watches::default();
        let outage = watches.outage();
        for kind in [Kind::Service, Kind::Node] {
            watches.begins(kind);
            watches.failed(kind, "connection refused");
        }
        let since = outage.borrow().clone().unwrap().since;
        watches.failed(Kind::Service, "timed out");
        assert_eq!(
            *outage.borrow(),
            Some(Outage {
                since,
                kinds: vec!["Service".to_owned(), "Node".to_owned()],
                reason: "timed out".to_owned(),
            })
        );
        watches.recovered(Kind::Service);
        assert_eq!(outage.borrow().as_ref().unwrap().kinds, ["Node"]);
        assert_eq!(of(&watches, Kind::Service).age(), Duration::ZERO);
        assert!(of(&watches, Kind::Node).age() > Duration::ZERO);
        watches.recovered(Kind::Node);
        assert_eq!(*outage.borrow(), None);
        assert_eq!(of(&watches, Kind::Node).age(), Duration::ZERO);
    }
}
