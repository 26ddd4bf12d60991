//! What could not be read, said and counted.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::decode::FieldError;
use crate::model::{Kind, ObjectName};

/// Counts what a source could not read, by kind. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Skipped(Arc<Mutex<BTreeMap<Kind, u64>>>);

impl Skipped {
    /// How many objects of a kind, and parts of such, were skipped so far.
    #[must_use]
    pub fn of(&self, kind: Kind) -> u64 {
        self.lock().get(&kind).copied().unwrap_or(0)
    }

    /// A whole object.
    pub(super) fn object(&self, kind: Kind, name: &ObjectName, reason: &dyn fmt::Display) {
        let skipped_total = self.count(kind);
        tracing::warn!(
            skipped_total,
            "{kind} {name} is skipped, its last good version stays: {reason}"
        );
    }

    /// Parts of an object, such as one endpoint of a slice.
    pub(super) fn parts(&self, kind: Kind, name: &ObjectName, parts: &[FieldError]) {
        for part in parts {
            let skipped_total = self.count(kind);
            tracing::warn!(skipped_total, "a part of {kind} {name} is skipped: {part}");
        }
    }

    /// One more. Returns how many of all kinds that makes.
    fn count(&self, kind: Kind) -> u64 {
        let mut counts = self.lock();
        *counts.entry(kind).or_default() += 1;
        counts.values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Kind, u64>> {
        // Nothing in here is left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
