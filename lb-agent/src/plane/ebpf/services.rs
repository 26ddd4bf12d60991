//! Keeps the maps as desired.
//!
//! Order of a change (`write`): addresses that are less than they were, or another proxy's; backends, slots, source ranges,
//! rows of services; then, once nothing points there any more (`settle`), rows that go, source ranges
//! that go, backends that go, drain or leave a set; then addresses that are more than they were, and
//! networks. So a client never meets an address without its frontends, a row without its slots, or a
//! restriction without its ranges. Ranges of slots and numbers that were in use rest for a second before
//! they mean something else. A service port that fails at any step is put back as it was, and the others
//! go on.

mod settle;
mod write;

use std::{
    collections::{HashMap, HashSet},
    io,
    net::SocketAddr,
};

use lb_common::{BackendValue, PrefixKey, Range, ServiceKey, ServiceValue, maps};

use super::{
    addresses::{Addresses, Extent},
    adopt::Found,
    batch::Batch,
    networks::Networks,
    numbers::Numbers,
    plan::Plan,
    port::Programmed,
    ranges::Ranges,
    table::Tables,
};
use crate::{
    desired::{Change, Protocol, ServicePort, ServicePortName, State},
    plane::{Fill, Outcome, PlaneError},
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
    /// Slots of a table of Maglev's.
    pub(super) table_size: u32,
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
    pub(super) addresses: Addresses,
    /// The map `CIDRS`.
    pub(super) networks: Networks,
    /// Backends of UDP have stopped serving.
    pub(super) has_lost_udp: bool,
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
    /// Source ranges to delete.
    pub(super) source_ranges: Vec<PrefixKey>,
    /// Service ports that are gone: their numbers rest from when no row and no source range has them.
    pub(super) service_numbers: Vec<u32>,
    /// Backends that drain, leave a set, go, or are put back.
    pub(super) backends: Vec<(u32, BackendValue)>,
    /// Some of those are of UDP and stop serving.
    pub(super) ends_udp: bool,
}

/// Writes that make a change.
#[derive(Default)]
pub(super) struct Writes {
    pub(super) backends: Batch<u32, BackendValue>,
    pub(super) slots: Batch<u32, u32>,
    pub(super) source_ranges: Batch<PrefixKey, u32>,
    pub(super) rows: Batch<ServiceKey, ServiceValue>,
    /// How many of `rows` are new ones.
    pub(super) new_rows: usize,
}

/// One service port to program: `None` takes it away.
type Wanted<'a> = (&'a ServicePortName, Option<&'a ServicePort>);

impl Services {
    /// Every backend of UDP to which new flows may go.
    pub(super) fn serving_udp(&self) -> HashSet<SocketAddr> {
        let ports = self.ports.iter().filter(|(name, _)| name.protocol == Protocol::Udp);
        let backends = ports.flat_map(|(_, port)| &port.backends);
        backends
            .filter(|backend| backend.is_serving())
            .map(|backend| backend.socket)
            .collect()
    }

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
        self.addresses.replace(state);
        self.networks.replace(state);
        self.lessen_addresses(&mut outcome);
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
        self.write_addresses(&mut outcome);
        outcome
    }

    /// Makes a change.
    pub(super) fn apply(&mut self, change: &Change) -> Outcome {
        let mut outcome = Outcome::default();
        if self.found.is_some() {
            // To write before the first complete state would be to write over what is in use.
            let early = || {
                let source = io::Error::from(io::ErrorKind::NotConnected);
                PlaneError::kernel("a change before the first complete state", source)
            };
            outcome.failed = change.services.keys().map(|n| (n.clone(), early())).collect();
            outcome.addresses = change.has_addresses().then(early);
            return outcome;
        }
        self.addresses.change(change);
        self.networks.change(change);
        self.lessen_addresses(&mut outcome);
        let wanted = change.services.iter().map(|(name, s)| (name, s.as_ref()));
        let (failed, deleted) = self.program(wanted, &mut outcome);
        if failed.iter().any(|(_, error)| is_full(error)) && deleted > 0 {
            // Rows are deleted last, so what comes may not have found the room of what goes.
            self.program_again(failed, &mut outcome);
        } else {
            outcome.failed = named(failed);
        }
        self.write_addresses(&mut outcome);
        outcome
    }

    /// Takes from addresses what they have lost, before rows go: in between, a client is served still, where
    /// it would be refused by an address that has no frontend any more. One that is another proxy's is left
    /// to it at once. What fails is left to [`Self::write_addresses`].
    fn lessen_addresses(&mut self, outcome: &mut Outcome) {
        let table = &mut *self.tables.addresses;
        let _ = self.addresses.write(table, Extent::Losses, &mut outcome.writes);
    }

    /// Writes addresses and networks as they are to be; by now their frontends are there.
    fn write_addresses(&mut self, outcome: &mut Outcome) {
        let table = &mut *self.tables.addresses;
        let addresses = self.addresses.write(table, Extent::All, &mut outcome.writes);
        let networks = self.networks.write(&mut *self.tables.cidrs, &mut outcome.writes);
        outcome.addresses = addresses.and(networks).err();
    }

    /// How many rows of frontends there are.
    pub(super) fn frontends(&self) -> usize {
        self.rows.len()
    }

    /// How full the maps are.
    pub(super) fn fill(&self) -> Vec<Fill> {
        let source_ranges = self.ports.values().map(|port| port.source_ranges.len()).sum();
        let tables = &self.tables;
        let each = [
            (maps::SERVICES, self.rows.len(), tables.services.capacity()),
            (maps::SLOTS, self.slots.used(), tables.slots.capacity()),
            (maps::BACKENDS, self.backend_numbers.used(), tables.backends.capacity()),
            (maps::ADDRESSES, self.addresses.rows(), tables.addresses.capacity()),
            (maps::SOURCE_RANGES, source_ranges, tables.source_ranges.capacity()),
            (maps::CIDRS, self.networks.rows(), tables.cidrs.capacity()),
        ];
        each.map(|(map, used, capacity)| Fill { map, used, capacity }).into()
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
