//! The first half of a change: what is written before anything goes.

use std::collections::BTreeSet;

use lb_common::{PrefixKey, ServiceKey, maps};
use tracing::error;

use super::{
    super::{
        batch::{Written, refused},
        plan::Plan,
    },
    Row, Services, Writes,
};
use crate::plane::{Outcome, PlaneError};

impl Services {
    /// Writes, make before break. Returns each row of a service that was written, with what was
    /// there before.
    pub(super) fn write(
        &mut self,
        writes: Writes,
        failures: &mut [Option<PlaneError>],
        outcome: &mut Outcome,
    ) -> Vec<(usize, ServiceKey, Option<Row>)> {
        // What comes to life again must not be taken away by what an earlier change left.
        if !self.later.backends.is_empty() {
            let revived: BTreeSet<u32> = writes.backends.keys().iter().copied().collect();
            self.later.backends.retain(|(number, _)| !revived.contains(number));
        }
        if !self.later.source_ranges.is_empty() {
            let revived: BTreeSet<PrefixKey> = writes.source_ranges.keys().iter().copied().collect();
            self.later.source_ranges.retain(|range| !revived.contains(range));
        }
        let capacity = self.tables.backends.capacity();
        outcome.writes += writes.backends.write(
            &mut *self.tables.backends,
            failures,
            |error| refused(maps::BACKENDS, capacity, error),
            |_| {},
        );
        let capacity = self.tables.slots.capacity();
        outcome.writes += writes.slots.write(
            &mut *self.tables.slots,
            failures,
            |error| refused(maps::SLOTS, capacity, error),
            |_| {},
        );
        let capacity = self.tables.source_ranges.capacity();
        outcome.writes += writes.source_ranges.write(
            &mut *self.tables.source_ranges,
            failures,
            |error| refused(maps::SOURCE_RANGES, capacity, error),
            |_| {},
        );
        let capacity = self.tables.services.capacity();
        let rows = &mut self.rows;
        let mut before = Vec::with_capacity(writes.rows.len());
        outcome.writes += writes.rows.write(
            &mut *self.tables.services,
            failures,
            |error| refused(maps::SERVICES, capacity, error),
            |Written { plan, key, value }| {
                let owner = value.service;
                before.push((plan, key, rows.insert(key, Row { owner, value })));
            },
        );
        before
    }

    /// Undoes the rows of service ports that failed after some of theirs were written.
    pub(super) fn put_back(
        &mut self,
        before: Vec<(usize, ServiceKey, Option<Row>)>,
        plans: &[Plan],
        failures: &[Option<PlaneError>],
        outcome: &mut Outcome,
    ) {
        for (plan, key, row) in before.into_iter().rev() {
            if failures[plan].is_none() || self.rows.get(&key).map(|row| row.owner) != Some(plans[plan].number) {
                continue;
            }
            outcome.writes += 1;
            let result = match row {
                Some(row) => self.tables.services.set(&[key], &[row.value]),
                None => self.tables.services.remove(&[key]),
            };
            match (result, row) {
                (Ok(()), Some(row)) => {
                    self.rows.insert(key, row);
                }
                (Ok(()), None) => {
                    self.rows.remove(&key);
                }
                // `rows` goes on saying what is there, so the next change writes over it.
                (Err(partial), _) => {
                    error!(?key, error = %partial.error, "cannot put back a row of map SERVICES");
                }
            }
        }
    }
}
