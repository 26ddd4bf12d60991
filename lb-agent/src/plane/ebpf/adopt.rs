//! Takes over what an earlier agent left in the maps, so that a restart keeps the numbers that
//! flows remember, and writes only what is different.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
};

use lb_common::{
    BackendValue, PrefixKey, Range, ServiceKey,
    backend::{DRAINING, FREE, IN_CLUSTER_SET, IN_LOCAL_SET, LOCAL, SERVING},
    prefix::INSIDE,
};
use tracing::info;

use super::{
    addresses::Addresses,
    maglev,
    networks::Networks,
    numbers::Numbers,
    port::{Backend, Programmed, freed, key},
    prefix,
    ranges::Ranges,
    services::{Later, Row, Services, in_bounds},
    table::{self, Tables},
};
use crate::desired::{Endpoint, ServicePort, State, Weight};

/// What was in the maps at the start, besides the rows of services.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Numbers that are not free.
    backends: Vec<(u32, BackendValue)>,
    /// As many slots as ranges reach.
    slots: Vec<u32>,
    /// The map `SOURCE_RANGES`.
    source_ranges: Vec<(PrefixKey, u32)>,
}

impl Services {
    /// Reads what is in the maps. Nothing is written before [`Services::replace`].
    pub(super) fn open(tables: Tables) -> io::Result<Self> {
        let mut rows = HashMap::new();
        tables.services.read(&mut |key, value| {
            let owner = value.service;
            rows.insert(key, Row { owner, value });
            true
        })?;

        let capacity = tables.slots.capacity();
        let used = ranges(&rows, capacity).map(end).max().unwrap_or(0) as usize;
        let slots = table::first(&*tables.slots, used)?;

        let mut backends = Vec::new();
        let mut generations = Vec::new();
        tables.backends.read(&mut |number, value| {
            if value.state != FREE {
                backends.push((number, value));
            }
            if value.generation != 0 {
                generations.resize(number as usize + 1, 0);
                generations[number as usize] = value.generation;
            }
            true
        })?;

        let source_ranges = table::rows(&*tables.source_ranges)?;
        let addresses = Addresses::open(&*tables.addresses)?;
        let networks = Networks::open(&*tables.cidrs)?;

        let (slot_capacity, none) = (tables.slots.capacity(), BTreeSet::new());
        Ok(Self {
            tables,
            table_size: maglev::DEFAULT_SIZE,
            rows,
            ports: HashMap::new(),
            slots: Ranges::new(slot_capacity),
            backend_numbers: Numbers::new(0, &none),
            generations,
            service_numbers: Numbers::new(0, &none),
            addresses,
            networks,
            has_lost_udp: false,
            found: Some(Found {
                backends,
                slots,
                source_ranges,
            }),
            later: Later::default(),
        })
    }

    /// Takes over what of `found` belongs to service ports of `state`. The rest is let go of once
    /// the state is written.
    pub(super) fn adopt(&mut self, found: Found, state: &State) {
        // Twice what there can be at once, for numbers that rest.
        let service_limit = self.tables.services.capacity().saturating_mul(2);
        let backend_limit = self.tables.backends.capacity().saturating_sub(1);
        let mut backends = by_service(&found.backends);
        let mut source_ranges = by_scope(&found.source_ranges);
        let mut keys: HashMap<u32, Vec<ServiceKey>> = HashMap::new();
        for (key, row) in &self.rows {
            keys.entry(row.owner).or_default().push(*key);
        }

        let mut adopted = HashSet::new();
        let mut adopted_backends = HashSet::new();
        for (name, service) in &state.services {
            let number = self
                .numbers_at(service)
                .into_iter()
                .find(|number| (1..=service_limit).contains(number) && !adopted.contains(number));
            let Some(number) = number else {
                continue;
            };
            adopted.insert(number);
            let backends = backends.remove(&number).unwrap_or_default();
            let keys = keys.remove(&number).unwrap_or_default();
            let ranges = self.adopt_ranges(&keys, &backends, &found.slots);
            adopted_backends.extend(backends.iter().map(|backend| backend.number));
            let port = Programmed {
                number,
                keys,
                backends,
                source_ranges: source_ranges.remove(&number).unwrap_or_default(),
                found: ranges,
                ..Programmed::default()
            };
            self.ports.insert(name.clone(), port);
        }

        // Everything else belongs to nobody: it goes when the new state is in place, and rests.
        let used: BTreeSet<u32> = self
            .rows
            .values()
            .map(|row| row.owner)
            .chain(found.source_ranges.iter().map(|(key, _)| key.network.scope))
            .filter(|number| (1..=service_limit).contains(number))
            .collect();
        self.service_numbers = Numbers::new(service_limit, &used);
        let nobodys = used.into_iter().filter(|number| !adopted.contains(number));
        self.later.service_numbers.extend(nobodys);
        let kept: HashSet<&PrefixKey> = self.ports.values().flat_map(|port| &port.source_ranges).collect();
        let stale = found
            .source_ranges
            .iter()
            .map(|(key, _)| key)
            .filter(|key| !kept.contains(key));
        self.later.source_ranges.extend(stale);
        for (owner, keys) in keys {
            self.later.rows.extend(keys.into_iter().map(|key| (key, owner)));
        }
        let used: BTreeSet<u32> = found.backends.iter().map(|(number, _)| *number).collect();
        self.backend_numbers = Numbers::new(backend_limit, &used);
        for (number, value) in found.backends.iter().filter(|(n, _)| !adopted_backends.contains(n)) {
            self.later.backends.push((*number, freed(*value)));
            if *number != 0 {
                self.backend_numbers.retire(*number);
            }
        }
        let in_use: Vec<_> = ranges(&self.rows, self.tables.slots.capacity()).collect();
        for range in in_use {
            self.slots.retire_free(range.base, end(range));
        }
        if !self.rows.is_empty() {
            info!(
                service_ports = self.ports.len(),
                backends = adopted_backends.len(),
                of_backends = found.backends.len(),
                "took over what was in the maps"
            );
        }
    }

    /// The numbers that stand in the rows of a service port's frontends.
    fn numbers_at(&self, service: &ServicePort) -> Vec<u32> {
        service
            .frontends
            .keys()
            .filter_map(|frontend| self.rows.get(&key(frontend)))
            .map(|row| row.owner)
            .collect()
    }

    /// The ranges of a service port's rows whose slots hold nothing but its own backends.
    fn adopt_ranges(&mut self, keys: &[ServiceKey], backends: &[Backend], slots: &[u32]) -> Vec<(Range, Vec<u32>)> {
        let own: HashSet<u32> = backends.iter().map(|backend| backend.number).collect();
        let mut ranges = BTreeMap::new();
        for value in keys.iter().filter_map(|key| self.rows.get(key)).map(|row| row.value) {
            for range in [value.near, value.far] {
                ranges.insert((range.base, range.count), range);
            }
        }
        let capacity = self.tables.slots.capacity();
        ranges
            .into_values()
            .filter(|range| in_bounds(*range, capacity))
            .filter_map(|range| {
                let numbers = slots.get(range.base as usize..end(range) as usize)?.to_vec();
                let is_own = numbers.iter().all(|number| own.contains(number));
                (is_own && self.slots.claim(range)).then_some((range, numbers))
            })
            .collect()
    }
}

/// The backends that are as an agent writes them, by the service port that they say they belong to,
/// in order of their addresses, each address once.
fn by_service(found: &[(u32, BackendValue)]) -> HashMap<u32, Vec<Backend>> {
    let mut services: HashMap<u32, Vec<Backend>> = HashMap::new();
    for (number, value) in found {
        let is_in = |set| value.flags & set != 0;
        let serves = is_in(IN_CLUSTER_SET | IN_LOCAL_SET);
        let known = value.flags & !(LOCAL | IN_CLUSTER_SET | IN_LOCAL_SET) == 0
            && value.state == if serves { SERVING } else { DRAINING };
        if *number == 0 || !known {
            continue;
        }
        services.entry(value.service).or_default().push(Backend {
            socket: SocketAddr::new(IpAddr::from(value.address), value.port.get()),
            number: *number,
            endpoint: Endpoint {
                on_node: is_in(LOCAL),
                cluster: is_in(IN_CLUSTER_SET),
                local: is_in(IN_LOCAL_SET),
                // Only the slots know, and those are compared as they are.
                weight: Weight::ONE,
            },
        });
    }
    for backends in services.values_mut() {
        backends.sort_by_key(|backend| (backend.socket, backend.number));
        backends.dedup_by_key(|backend| backend.socket);
    }
    services
}

/// The source ranges that are as an agent writes them, by the number of the service port.
fn by_scope(found: &[(PrefixKey, u32)]) -> HashMap<u32, BTreeSet<PrefixKey>> {
    let mut scopes: HashMap<u32, BTreeSet<PrefixKey>> = HashMap::new();
    for (key, _) in found
        .iter()
        .filter(|(key, value)| *value == INSIDE && prefix::network(key).is_some())
    {
        scopes.entry(key.network.scope).or_default().insert(*key);
    }
    scopes
}

/// The ranges that rows name, as far as the map can hold them.
fn ranges(rows: &HashMap<ServiceKey, Row>, capacity: u32) -> impl Iterator<Item = Range> + use<'_> {
    rows.values()
        .flat_map(|row| [row.value.near, row.value.far])
        .filter(move |range| in_bounds(*range, capacity))
}

/// One past the last slot of a range that is in bounds.
const fn end(range: Range) -> u32 {
    range.base + range.count
}
