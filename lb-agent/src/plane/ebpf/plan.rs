//! What one service port's change takes: numbers, ranges, rows.

use std::collections::BTreeSet;

use lb_common::{BackendValue, PrefixKey, Range, ServiceKey, maps, prefix::INSIDE};

use super::{
    batch::full,
    port::{Backend, Programmed, Spread, between, key, uses},
    prefix,
    services::{Row, Services, Writes},
};
use crate::{
    desired::{Endpoint, ServicePort, Target},
    plane::PlaneError,
};

/// The way of one service port from its old state to its new one.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Its number, before and after; 0 while it has none.
    pub(super) number: u32,
    /// What is programmed now.
    pub(super) old: Option<Programmed>,
    /// What is to be; `None` where the service port goes.
    pub(super) new: Option<Programmed>,
    /// What was taken for it.
    pub(super) taken: Taken,
    /// Backends that are written before the rows, with the value to put back if it fails.
    pub(super) raised: Vec<(u32, BackendValue)>,
    /// A frontend of the old state is not one of the new state.
    pub(super) loses_frontend: bool,
    /// Backends to be written after the rows: they drain, leave a set, or become another generation.
    pub(super) lowered: Vec<(u32, BackendValue)>,
    /// Rows of the map `SOURCE_RANGES` that are written before the rows.
    pub(super) added_ranges: Vec<PrefixKey>,
}

/// What was allocated.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Service number.
    pub(super) service: Option<u32>,
    /// Backend numbers.
    pub(super) backends: Vec<u32>,
    /// Slots, and what is to be in them.
    pub(super) ranges: Vec<(Range, Vec<u32>)>,
}

impl Plan {
    /// A plan that takes away what is there.
    pub(super) fn new(old: Option<Programmed>) -> Self {
        Self {
            number: old.as_ref().map_or(0, |old| old.number),
            old,
            ..Self::default()
        }
    }
}

impl Services {
    /// Plans for `service`, and adds to `writes` what has to be written under the plan's `index`.
    /// On failure nothing is taken, and nothing added.
    pub(super) fn plan(
        &mut self,
        plan: &mut Plan,
        service: &ServicePort,
        index: usize,
        writes: &mut Writes,
    ) -> Result<(), PlaneError> {
        let keys: Vec<_> = service.frontends.keys().map(key).collect();
        let mut taken = Taken::default();
        let old = plan.old.as_ref();
        plan.loses_frontend = old.is_some_and(|old| loses_key(old, &keys));
        let new = self.take(old, service, keys, writes, &mut taken);
        match new {
            Ok(new) => {
                plan.number = new.number;
                plan.taken = taken;
                self.collect(plan, &new, service, index, writes);
                plan.new = Some(new);
                Ok(())
            }
            Err(error) => {
                self.give_back(taken);
                Err(error)
            }
        }
    }

    /// Takes all that the new state needs and the old one has not.
    fn take(
        &mut self,
        old: Option<&Programmed>,
        service: &ServicePort,
        keys: Vec<ServiceKey>,
        writes: &Writes,
        taken: &mut Taken,
    ) -> Result<Programmed, PlaneError> {
        let capacity = self.tables.services.capacity();
        let new_rows = keys.iter().filter(|key| !self.rows.contains_key(key)).count();
        if self.rows.len() + writes.new_rows + new_rows > capacity as usize {
            return Err(full(maps::SERVICES, capacity));
        }
        let number = match old {
            Some(old) => old.number,
            None => {
                let number = self
                    .service_numbers
                    .allocate()
                    .ok_or_else(|| full(maps::SERVICES, capacity))?;
                taken.service = Some(number);
                number
            }
        };
        let (uses_cluster, uses_local) = (uses(service, Target::Cluster), uses(service, Target::Local));
        let mut backends = Vec::with_capacity(service.endpoints.len());
        for (socket, endpoint) in &service.endpoints {
            let number = match old.and_then(|old| old.backend(socket)) {
                Some(old) => old.number,
                None => self.new_number(taken)?,
            };
            backends.push(Backend {
                socket: *socket,
                number,
                // In a set that no frontend uses, an endpoint serves nobody: flows must not stay.
                endpoint: Endpoint {
                    on_node: endpoint.on_node,
                    cluster: endpoint.cluster && uses_cluster,
                    local: endpoint.local && uses_local,
                    weight: endpoint.weight,
                },
            });
        }
        let spread = Spread::of(service, self.table_size);
        let mut ranges = old.map(Programmed::ranges).unwrap_or_default();
        let cluster = if uses_cluster {
            self.range_of(spread.slots(&backends, |e| e.cluster), &mut ranges, taken)?
        } else {
            None
        };
        let local = if uses_local {
            self.range_of(spread.slots(&backends, |e| e.local), &mut ranges, taken)?
        } else {
            None
        };
        Ok(Programmed {
            number,
            keys,
            backends,
            cluster,
            local,
            source_ranges: prefix::source_ranges(number, service),
            spread,
            found: Vec::new(),
        })
    }

    fn new_number(&mut self, taken: &mut Taken) -> Result<u32, PlaneError> {
        let number = self
            .allocate_backend()
            .ok_or_else(|| full(maps::BACKENDS, self.tables.backends.capacity() - 1))?;
        taken.backends.push(number);
        Ok(number)
    }

    /// A range for a set: one of those that hold it, or a fresh one, which joins them.
    fn range_of(
        &mut self,
        set: Vec<u32>,
        ranges: &mut Vec<(Range, Vec<u32>)>,
        taken: &mut Taken,
    ) -> Result<Option<Range>, PlaneError> {
        if let Some((range, _)) = ranges.iter().find(|(_, numbers)| *numbers == set) {
            return Ok(Some(*range));
        }
        let capacity = self.tables.slots.capacity();
        let count = u32::try_from(set.len()).map_err(|_| full(maps::SLOTS, capacity))?;
        if count == 0 {
            return Ok(None);
        }
        let range = self.slots.allocate(count).ok_or_else(|| full(maps::SLOTS, capacity))?;
        taken.ranges.push((range, set.clone()));
        ranges.push((range, set));
        Ok(Some(range))
    }

    /// Adds what has to be written.
    ///
    /// Where the service port loses a frontend, each backend becomes another generation of its number once
    /// the rows are gone. Flows to the lost frontend would hold on to it otherwise, for nobody looks at the
    /// frontend again: datagrams would go to a service that has given the port away, as would the first
    /// segment of a new connection with the ports of an old one. As it is, each of them draws again, by what
    /// the frontend is then. An established TCP connection never asks for its backend and goes on. Flows to
    /// the frontends that stay draw again too, which is rare, and cheaper than numbers for each frontend.
    fn collect(&self, plan: &mut Plan, new: &Programmed, service: &ServicePort, index: usize, writes: &mut Writes) {
        for backend in &new.backends {
            let value = backend.value(new.number, self.generation(backend.number));
            let old = plan.old.as_ref().and_then(|old| old.backend(&backend.socket));
            let Some(old) = old.filter(|old| old.number == backend.number) else {
                writes.backends.push(index, backend.number, value);
                continue;
            };
            let old_value = old.value(new.number, self.generation(backend.number));
            let meanwhile = between(old_value, value);
            if meanwhile != old_value {
                plan.raised.push((backend.number, old_value));
                writes.backends.push(index, backend.number, meanwhile);
            }
            let last = BackendValue {
                generation: value.generation.wrapping_add(plan.loses_frontend.into()),
                ..value
            };
            if meanwhile != last {
                plan.lowered.push((backend.number, last));
            }
        }
        for (range, set) in &plan.taken.ranges {
            for (slot, number) in (range.base..).zip(set) {
                writes.slots.push(index, slot, *number);
            }
        }
        let old_ranges = plan.old.as_ref().map(|old| &old.source_ranges);
        for range in &new.source_ranges {
            if old_ranges.is_none_or(|old| !old.contains(range)) {
                plan.added_ranges.push(*range);
                writes.source_ranges.push(index, *range, INSIDE);
            }
        }
        for (key, route) in new.keys.iter().zip(service.frontends.values()) {
            let value = new.row(route, service);
            let row = Row {
                owner: new.number,
                value,
            };
            match self.rows.get(key) {
                Some(there) if *there == row => {}
                there => {
                    writes.new_rows += usize::from(there.is_none());
                    writes.rows.push(index, *key, value);
                }
            }
        }
    }
}

/// Whether a frontend of `old` is not among `keys`.
fn loses_key(old: &Programmed, keys: &[ServiceKey]) -> bool {
    let keys: BTreeSet<&ServiceKey> = keys.iter().collect();
    old.keys.iter().any(|key| !keys.contains(key))
}
