//! What could not be read, said and counted.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::decode::FieldError;
use crate::model::{Kind, ObjectName};

/// Counts what a source could not read, for all its kinds.
#[derive(Clone, Debug, Default)]
pub(super) struct Skipped(Arc<AtomicU64>);

impl Skipped {
    /// A whole object.
    pub(super) fn object(&self, kind: Kind, name: &ObjectName, reason: &dyn fmt::Display) {
        let skipped_total = self.count();
        tracing::warn!(
            skipped_total,
            "{kind} {name} is skipped, its last good version stays: {reason}"
        );
    }

    /// Parts of an object, such as one endpoint of a slice.
    pub(super) fn parts(&self, kind: Kind, name: &ObjectName, parts: &[FieldError]) {
        for part in parts {
            let skipped_total = self.count();
            tracing::warn!(skipped_total, "a part of {kind} {name} is skipped: {part}");
        }
    }

    fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}
