//! The second half of a change: what stands, and what goes once nothing leads there.

use std::collections::BTreeSet;

use lb_common::{BackendValue, PrefixKey, ServiceKey, backend::SERVING, net::UDP};
use tracing::error;

use super::{
    super::{
        plan::{Plan, Taken},
        port::{Backend, Programmed, freed},
    },
    Services,
};
use crate::plane::Outcome;

impl Services {
    /// The new state stands: lets go of what the old one had and the new one has not.
    pub(super) fn commit(&mut self, plan: Plan) -> Option<Programmed> {
        let Some(old) = plan.old else {
            return plan.new;
        };
        let is_udp = old.keys.iter().any(|key| key.protocol == UDP);
        let is_over = |(_, value): &(u32, BackendValue)| value.state != SERVING;
        self.later.ends_udp |= is_udp && (plan.loses_frontend || plan.lowered.iter().any(is_over));
        for (number, value) in plan.lowered {
            self.generations[number as usize] = value.generation;
            self.later.backends.push((number, value));
        }
        let kept_ranges: BTreeSet<u32> = plan
            .new
            .iter()
            .flat_map(|new| [new.cluster, new.local])
            .flatten()
            .map(|range| range.base)
            .collect();
        for (range, _) in old.ranges() {
            if !kept_ranges.contains(&range.base) {
                self.slots.retire(range);
            }
        }
        let kept_keys: BTreeSet<&ServiceKey> = plan.new.iter().flat_map(|new| &new.keys).collect();
        for key in old.keys.iter().filter(|key| !kept_keys.contains(key)) {
            self.later.rows.push((*key, old.number));
        }
        for backend in &old.backends {
            let kept = plan.new.as_ref().and_then(|new| new.backend(&backend.socket));
            if kept.is_none_or(|kept| kept.number != backend.number) {
                self.free_backend(old.number, backend);
                self.later.ends_udp |= is_udp;
            }
        }
        let is_kept = |range: &PrefixKey| plan.new.as_ref().is_some_and(|new| new.source_ranges.contains(range));
        let ranges = old.source_ranges.iter().filter(|range| !is_kept(range));
        self.later.source_ranges.extend(ranges);
        if plan.new.is_none() {
            self.later.service_numbers.push(old.number);
        }
        plan.new
    }

    /// The old state stands: lets go of what the new one would have had.
    pub(super) fn roll_back(&mut self, plan: Plan) -> Option<Programmed> {
        self.later.backends.extend(plan.raised);
        self.later.source_ranges.extend(plan.added_ranges);
        for (range, _) in plan.taken.ranges {
            self.slots.retire(range);
        }
        let taken: BTreeSet<u32> = plan.taken.backends.into_iter().collect();
        if let Some(new) = &plan.new {
            for backend in new.backends.iter().filter(|b| taken.contains(&b.number)) {
                self.free_backend(new.number, backend);
            }
        }
        self.later.service_numbers.extend(plan.taken.service);
        plan.old
    }

    /// Marks a backend of a service port as gone, and lets its number rest.
    fn free_backend(&mut self, service: u32, backend: &Backend) {
        let value = backend.value(service, self.generation(backend.number));
        self.later.backends.push((backend.number, freed(value)));
        self.backend_numbers.retire(backend.number);
    }

    /// Does what had to wait. What fails now is tried again with the next change or tick.
    /// Returns how many rows of services and source ranges were deleted.
    pub(super) fn finish(&mut self, outcome: &mut Outcome) -> usize {
        let (mut deleted, complete) = self.delete_rows(outcome);
        if !complete {
            // What those rows lead to has to stay.
            return deleted;
        }
        let (ranges, complete) = self.delete_source_ranges(outcome);
        deleted += ranges;
        if complete {
            // Nothing in the maps speaks of them any more.
            for number in std::mem::take(&mut self.later.service_numbers) {
                self.service_numbers.retire(number);
            }
        }

        let (numbers, values): (Vec<_>, Vec<_>) = std::mem::take(&mut self.later.backends).into_iter().unzip();
        let result = self.tables.backends.set(&numbers, &values);
        let done = result.as_ref().map_or_else(|partial| partial.done, |()| numbers.len());
        outcome.writes += done;
        if let Err(partial) = result {
            error!(error = %partial.error, "cannot write to map BACKENDS");
            let left = numbers.into_iter().zip(values).skip(done);
            self.later.backends.extend(left);
            return deleted;
        }
        self.has_lost_udp |= std::mem::take(&mut self.later.ends_udp);
        deleted
    }

    /// Deletes rows of services that are nobody's. Returns how many, and whether all are gone.
    fn delete_rows(&mut self, outcome: &mut Outcome) -> (usize, bool) {
        let rows = std::mem::take(&mut self.later.rows);
        let keys: Vec<ServiceKey> = rows
            .into_iter()
            .filter(|(key, owner)| self.rows.get(key).is_some_and(|row| row.owner == *owner))
            .map(|(key, _)| key)
            .collect();
        let result = self.tables.services.remove(&keys);
        let deleted = result.as_ref().map_or_else(|partial| partial.done, |()| keys.len());
        outcome.writes += deleted;
        for key in &keys[..deleted] {
            self.rows.remove(key);
        }
        if let Err(partial) = &result {
            error!(error = %partial.error, "cannot delete a row of map SERVICES");
            for key in &keys[deleted..] {
                // Whoever had it, it is nobody's.
                if let Some(row) = self.rows.get_mut(key) {
                    row.owner = 0;
                }
                self.later.rows.push((*key, 0));
            }
        }
        (deleted, result.is_ok())
    }

    /// Deletes source ranges that no row asks for any more. Returns how many, and whether all are gone.
    fn delete_source_ranges(&mut self, outcome: &mut Outcome) -> (usize, bool) {
        let ranges = std::mem::take(&mut self.later.source_ranges);
        let result = self.tables.source_ranges.remove(&ranges);
        let deleted = result.as_ref().map_or_else(|partial| partial.done, |()| ranges.len());
        outcome.writes += deleted;
        if let Err(partial) = &result {
            error!(error = %partial.error, "cannot delete a row of map SOURCE_RANGES");
            self.later.source_ranges.extend(&ranges[deleted..]);
        }
        (deleted, result.is_ok())
    }

    /// The generation last written for a number.
    pub(in super::super) fn generation(&self, number: u32) -> u32 {
        self.generations.get(number as usize).copied().unwrap_or(0)
    }

    /// Takes the next free number for a backend, and makes it another generation.
    pub(in super::super) fn allocate_backend(&mut self) -> Option<u32> {
        let number = self.backend_numbers.allocate()?;
        let at = number as usize;
        if self.generations.len() <= at {
            self.generations.resize(at + 1, 0);
        }
        self.generations[at] = self.generations[at].wrapping_add(1);
        Some(number)
    }

    /// Gives back at once what a plan took that was never written.
    pub(in super::super) fn give_back(&mut self, taken: Taken) {
        let Taken {
            service,
            backends,
            ranges,
        } = taken;
        if let Some(number) = service {
            self.service_numbers.free(number);
        }
        for number in backends {
            self.backend_numbers.free(number);
        }
        for (range, _) in ranges {
            self.slots.free(range);
        }
    }
}
