//! What is written to the kernel: how much, how fast, and what it refused.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family as Series,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::description::{
    Description,
    Kind::{Counter as Counts, Histogram as Measures},
};
use crate::plane::{Outcome, PlaneError};

const SYNCS: Description = Description::new(Counts, "lb_syncs", &[], "Batches of changes given to the kernel");
const WRITES: Description = Description::new(Counts, "lb_sync_writes", &[], "Writes to the kernel that they took");
const FAILURES: Description = Description::new(
    Counts,
    "lb_sync_failures",
    &[],
    "Service ports that kept their former state after a batch, and addresses that did",
);
const ERRORS: Description = Description::new(
    Counts,
    "lb_sync_errors",
    &["kind"],
    "The same by why: `map_full`, `kernel` (a call was refused), `foreign` (somebody else has it)",
);
const LATENCY: Description = Description::new(
    Measures,
    "lb_programming_duration_seconds",
    &["source"],
    "From the moment that the agent heard of a change until it was in the kernel, by what changed",
);

pub(super) const METRICS: &[Description] = &[SYNCS, WRITES, FAILURES, ERRORS, LATENCY];

/// Their values. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Programming {
    syncs: Counter,
    writes: Counter,
    failures: Counter,
    errors: Series<ErrorKind, Counter>,
    latency: Series<Source, Histogram, fn() -> Histogram>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ErrorKind {
    kind: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Source {
    source: &'static str,
}

fn latency_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.0, 20))
}

impl Programming {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            syncs: Counter::default(),
            writes: Counter::default(),
            failures: Counter::default(),
            errors: Series::default(),
            latency: Series::new_with_constructor(latency_buckets),
        };
        // Those that never happened are to be seen as such.
        for kind in PlaneError::KINDS {
            drop(metrics.errors.get_or_create(&ErrorKind { kind }));
        }
        SYNCS.register(registry, metrics.syncs.clone());
        WRITES.register(registry, metrics.writes.clone());
        FAILURES.register(registry, metrics.failures.clone());
        ERRORS.register(registry, metrics.errors.clone());
        LATENCY.register(registry, metrics.latency.clone());
        metrics
    }

    /// A batch has been given to the kernel.
    pub(super) fn synced(&self, outcome: &Outcome) {
        self.syncs.inc();
        self.writes.inc_by(outcome.writes as u64);
        let errors = outcome.failed.iter().map(|(_, error)| error);
        for error in errors.chain(&outcome.addresses) {
            self.failures.inc();
            self.errors.get_or_create(&ErrorKind { kind: error.kind() }).inc();
        }
    }

    /// What this source told is in the kernel.
    pub(super) fn programmed(&self, source: &'static str, after: Duration) {
        self.latency
            .get_or_create(&Source { source })
            .observe(after.as_secs_f64());
    }
}
