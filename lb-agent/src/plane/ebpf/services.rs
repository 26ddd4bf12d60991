//! Keeps the maps of services, slots and backends as desired.
//!
//! Order of a change: backends, slots, rows of services; then, once nothing points there any more,
//! rows that go, backends that go or drain. Ranges of slots and numbers that were in use rest for a
//! second before they mean something else. A service port that fails at any step is put back as it
//! was, and the others go on.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::IpAddr,
};

use lb_common::{Address, AddressValue, BackendValue, Range, ServiceKey, ServiceValue, address::NODE_PORTS, maps};
use tracing::error;

use super::{
    adopt::Found,
    batch::{Batch, Written, refused},
    numbers::Numbers,
    plan::Plan,
    port::{Backend, Programmed, freed},
    ranges::Ranges,
    table::Tables,
};
use crate::{
    desired::{Change, ServicePort, ServicePortName, State},
    plane::{Outcome, PlaneError},
};

/// Service ports that are planned and written together: enough for few calls, few enough that what
/// waits to be written stays small.
const AT_ONCE: usize = 1024;

/// A row of the map `SERVICES`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    /// Number of the service port that wrote it, 0 for nobody.
    pub(super) owner: u32,
    /// What it says.
    pub(super) value: ServiceValue,
}

/// What the maps hold, and what may be put there.
pub(super) struct Services {
    pub(super) tables: Tables,
    /// The map `SERVICES`.
    pub(super) rows: HashMap<ServiceKey, Row>,
    /// What is programmed.
    pub(super) ports: HashMap<ServicePortName, Programmed>,
    /// Whose slots are whose.
    pub(super) slots: Ranges,
    /// Whose index of `BACKENDS` is whose.
    pub(super) backend_numbers: Numbers,
    /// By index of `BACKENDS`: the generation last written there.
    pub(super) generations: Vec<u32>,
    /// Whose service number is whose.
    pub(super) service_numbers: Numbers,
    /// The map `ADDRESSES`.
    pub(super) node_addresses: BTreeMap<Address, AddressValue>,
    /// What an earlier agent left, until the first complete state comes.
    pub(super) found: Option<Found>,
    /// What has to wait until nothing points there.
    pub(super) later: Later,
}

/// Writes that come after the rows of a change.
#[derive(Default)]
pub(super) struct Later {
    /// Rows to delete, unless they have another owner by then.
    pub(super) rows: Vec<(ServiceKey, u32)>,
    /// Backends that drain, go, or are put back.
    pub(super) backends: Vec<(u32, BackendValue)>,
}

/// Writes that make a change.
#[derive(Default)]
pub(super) struct Writes {
    pub(super) backends: Batch<u32, BackendValue>,
    pub(super) slots: Batch<u32, u32>,
    pub(super) rows: Batch<ServiceKey, ServiceValue>,
    /// How many of `rows` are new ones.
    pub(super) new_rows: usize,
}

/// One service port to program: `None` takes it away.
type Wanted<'a> = (&'a ServicePortName, Option<&'a ServicePort>);

impl Services {
    /// Makes the maps hold `state` and nothing else.
    pub(super) fn replace(&mut self, state: &State) -> Outcome {
        if let Some(found) = self.found.take() {
            self.adopt(found, state);
        }
        let gone: Vec<ServicePortName> = self
            .ports
            .keys()
            .filter(|name| !state.services.contains_key(*name))
            .cloned()
            .collect();
        let wanted = state
            .services
            .iter()
            .map(|(name, service)| (name, Some(service)))
            .chain(gone.iter().map(|name| (name, None)));
        let mut outcome = Outcome::default();
        let (failed, _) = self.program(wanted, &mut outcome);
        if failed.iter().any(|(_, error)| is_full(error)) {
            // What is in the way may be left from before, and resting. It is better to let go of it
            // at once than not to serve.
            self.tick();
            self.tick();
            self.program_again(failed, &mut outcome);
        } else {
            outcome.failed = named(failed);
        }
        self.replace_node_addresses(&state.node_port_addresses, &mut outcome);
        outcome
    }

    /// Makes a change.
    pub(super) fn apply(&mut self, change: &Change) -> Outcome {
        let mut outcome = Outcome::default();
        if self.found.is_some() {
            // To write before the first complete state would be to write over what is in use.
            let early = || PlaneError::Kernel {
                what: "a change before the first complete state".to_owned(),
                source: io::ErrorKind::NotConnected.into(),
            };
            outcome.failed = change.services.keys().map(|n| (n.clone(), early())).collect();
            outcome.node_addresses = change.node_port_addresses.is_some().then(early);
            return outcome;
        }
        let wanted = change.services.iter().map(|(name, s)| (name, s.as_ref()));
        let (failed, deleted) = self.program(wanted, &mut outcome);
        if failed.iter().any(|(_, error)| is_full(error)) && deleted > 0 {
            // Rows are deleted last, so what comes may not have found the room of what goes.
            self.program_again(failed, &mut outcome);
        } else {
            outcome.failed = named(failed);
        }
        if let Some(addresses) = &change.node_port_addresses {
            self.replace_node_addresses(addresses, &mut outcome);
        }
        outcome
    }

    /// A second has gone by.
    pub(super) fn tick(&mut self) {
        self.slots.tick();
        self.backend_numbers.tick();
        self.service_numbers.tick();
        let mut outcome = Outcome::default();
        self.finish(&mut outcome);
    }

    /// Programs those again that a full map refused.
    fn program_again(&mut self, failed: Vec<(Wanted<'_>, PlaneError)>, outcome: &mut Outcome) {
        let (again, failed): (Vec<_>, Vec<_>) = failed.into_iter().partition(|(_, error)| is_full(error));
        outcome.failed = named(failed);
        let (again, _) = self.program(again.into_iter().map(|(wanted, _)| wanted), outcome);
        outcome.failed.extend(named(again));
    }

    /// Programs service ports. Returns those that failed, and how many rows of services went.
    fn program<'a>(
        &mut self,
        wanted: impl Iterator<Item = Wanted<'a>>,
        outcome: &mut Outcome,
    ) -> (Vec<(Wanted<'a>, PlaneError)>, usize) {
        let mut failed = Vec::new();
        let mut wanted = wanted.peekable();
        while wanted.peek().is_some() {
            let some: Vec<_> = wanted.by_ref().take(AT_ONCE).collect();
            self.program_some(some, outcome, &mut failed);
        }
        // Only now: a row that one service port lost may be another's, further on in the change.
        let deleted = self.finish(outcome);
        (failed, deleted)
    }

    fn program_some<'a>(
        &mut self,
        wanted: Vec<Wanted<'a>>,
        outcome: &mut Outcome,
        failed: &mut Vec<(Wanted<'a>, PlaneError)>,
    ) {
        let mut writes = Writes::default();
        let mut plans = Vec::with_capacity(wanted.len());
        let mut failures = Vec::with_capacity(wanted.len());
        for (index, (name, service)) in wanted.iter().enumerate() {
            let mut plan = Plan::new(self.ports.remove(*name));
            // Without a frontend nobody can ask for it, and nothing would be known of it by a restart.
            let service = service.filter(|service| !service.frontends.is_empty());
            let result = match service {
                Some(service) => self.plan(&mut plan, service, index, &mut writes),
                None => Ok(()),
            };
            plans.push(plan);
            failures.push(result.err());
        }
        let before = self.write(writes, &mut failures, outcome);
        self.put_back(before, &plans, &failures, outcome);
        for ((wanted, plan), failure) in wanted.into_iter().zip(plans).zip(failures) {
            let (name, _) = wanted;
            let (stands, failure) = match failure {
                None => (self.commit(plan), None),
                Some(error) => (self.roll_back(plan), Some(error)),
            };
            if let Some(port) = stands {
                self.ports.insert(name.clone(), port);
            }
            match failure {
                None => outcome.programmed += 1,
                Some(error) => failed.push((wanted, error)),
            }
        }
    }

    /// Writes, make before break. Returns each row of a service that was written, with what was
    /// there before.
    fn write(
        &mut self,
        writes: Writes,
        failures: &mut [Option<PlaneError>],
        outcome: &mut Outcome,
    ) -> Vec<(usize, ServiceKey, Option<Row>)> {
        if !self.later.backends.is_empty() {
            // A number that comes to life again must not be freed by what an earlier change left.
            let revived: BTreeSet<u32> = writes.backends.keys().iter().copied().collect();
            self.later.backends.retain(|(n, _)| !revived.contains(n));
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
    fn put_back(
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

    /// The new state stands: lets go of what the old one had and the new one has not.
    fn commit(&mut self, plan: Plan) -> Option<Programmed> {
        self.later.backends.extend(plan.lowered);
        let Some(old) = plan.old else {
            return plan.new;
        };
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
            }
        }
        if plan.new.is_none() {
            self.service_numbers.retire(old.number);
        }
        plan.new
    }

    /// The old state stands: lets go of what the new one would have had.
    fn roll_back(&mut self, plan: Plan) -> Option<Programmed> {
        self.later.backends.extend(plan.raised);
        for range in plan.taken.ranges {
            self.slots.retire(range);
        }
        let taken: BTreeSet<u32> = plan.taken.backends.into_iter().collect();
        if let Some(new) = &plan.new {
            for backend in new.backends.iter().filter(|b| taken.contains(&b.number)) {
                self.free_backend(new.number, backend);
            }
        }
        if let Some(number) = plan.taken.service {
            self.service_numbers.retire(number);
        }
        plan.old
    }

    /// Marks a backend of a service port as gone, and lets its number rest.
    fn free_backend(&mut self, service: u32, backend: &Backend) {
        let value = backend.value(service, self.generation(backend.number));
        self.later.backends.push((backend.number, freed(value)));
        self.backend_numbers.retire(backend.number);
    }

    /// The generation last written for a number.
    pub(super) fn generation(&self, number: u32) -> u32 {
        self.generations.get(number as usize).copied().unwrap_or(0)
    }

    /// Does what had to wait. What fails now is tried again with the next change or tick.
    /// Returns how many rows of services were deleted.
    fn finish(&mut self, outcome: &mut Outcome) -> usize {
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
        if let Err(partial) = result {
            error!(error = %partial.error, "cannot delete a row of map SERVICES");
            for key in &keys[deleted..] {
                // The number of its owner may be given to another meanwhile.
                if let Some(row) = self.rows.get_mut(key) {
                    row.owner = 0;
                }
                self.later.rows.push((*key, 0));
            }
            // What those rows lead to has to stay.
            return deleted;
        }

        let (numbers, values): (Vec<_>, Vec<_>) = std::mem::take(&mut self.later.backends).into_iter().unzip();
        let result = self.tables.backends.set(&numbers, &values);
        let done = result.as_ref().map_or_else(|partial| partial.done, |()| numbers.len());
        outcome.writes += done;
        if let Err(partial) = result {
            error!(error = %partial.error, "cannot write to map BACKENDS");
            let left = numbers.into_iter().zip(values).skip(done);
            self.later.backends.extend(left);
        }
        deleted
    }

    /// Makes `addresses` those on which NodePorts are served.
    fn replace_node_addresses(&mut self, addresses: &BTreeSet<IpAddr>, outcome: &mut Outcome) {
        let value = AddressValue { flags: NODE_PORTS };
        let wanted: BTreeSet<Address> = addresses.iter().copied().map(Address::from).collect();
        let new: Vec<Address> = wanted
            .iter()
            .filter(|address| self.node_addresses.get(address) != Some(&value))
            .copied()
            .collect();
        let gone: Vec<Address> = self
            .node_addresses
            .keys()
            .filter(|address| !wanted.contains(address))
            .copied()
            .collect();

        let result = self.tables.addresses.set(&new, &vec![value; new.len()]);
        let done = result.as_ref().map_or_else(|partial| partial.done, |()| new.len());
        self.node_addresses
            .extend(new[..done].iter().map(|address| (*address, value)));
        outcome.writes += done;
        let removed = self.tables.addresses.remove(&gone);
        let done = removed.as_ref().map_or_else(|partial| partial.done, |()| gone.len());
        for address in &gone[..done] {
            self.node_addresses.remove(address);
        }
        outcome.writes += done;
        outcome.node_addresses = result.and(removed).err().map(|partial| PlaneError::Kernel {
            what: format!("map {} ({} entries)", maps::ADDRESSES, self.tables.addresses.capacity()),
            source: partial.error,
        });
    }

    /// Takes the next free number for a backend, and makes it another generation.
    pub(super) fn allocate_backend(&mut self) -> Option<u32> {
        let number = self.backend_numbers.allocate()?;
        let at = number as usize;
        if self.generations.len() <= at {
            self.generations.resize(at + 1, 0);
        }
        self.generations[at] = self.generations[at].wrapping_add(1);
        Some(number)
    }

    /// Gives back at once what a plan took that was never written.
    pub(super) fn give_back(&mut self, taken: super::plan::Taken) {
        let super::plan::Taken {
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
        for range in ranges {
            self.slots.free(range);
        }
    }
}

/// Whether a slot range is one that the map can hold.
pub(super) fn in_bounds(range: Range, capacity: u32) -> bool {
    range.count > 0 && range.base.checked_add(range.count).is_some_and(|end| end <= capacity)
}

pub(super) fn is_full(error: &PlaneError) -> bool {
    matches!(error, PlaneError::MapFull { .. })
}

fn named(failed: Vec<(Wanted<'_>, PlaneError)>) -> Vec<(ServicePortName, PlaneError)> {
    failed
        .into_iter()
        .map(|((name, _), error)| (name.clone(), error))
        .collect()
}
