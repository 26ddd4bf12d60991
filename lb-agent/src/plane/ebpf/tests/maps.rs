//! Maps in memory, and what they have to say.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use lb_common::{
    Address, AddressValue, BackendValue, Port, Range, ServiceKey, ServiceValue, Verdict,
    address::NODE_PORTS,
    backend::{DRAINING, FREE, LOCAL, SERVING},
    service::MASQUERADE_ALL,
};

use super::frontend;
use crate::{
    desired::{Endpoint, Masquerade, State, Target},
    plane::ebpf::{
        port,
        services::Services,
        sys::Partial,
        table::{Table, Tables},
    },
};

/// A map in memory.
#[derive(Debug)]
pub(super) struct Memory<K, V> {
    pub(super) rows: BTreeMap<K, V>,
    capacity: u32,
    /// Calls made.
    calls: usize,
    /// The write, counted from now, that fails.
    pub(super) fails_at: Cell<Option<usize>>,
}

/// Handle of one, so that the test sees what the code under test does.
#[derive(Debug)]
pub(super) struct Shared<K, V>(Arc<Mutex<Memory<K, V>>>);

impl<K, V> Clone for Shared<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Ord + Copy, V: Copy> Shared<K, V> {
    fn new(capacity: u32) -> Self {
        Self(Arc::new(Mutex::new(Memory {
            rows: BTreeMap::new(),
            capacity,
            calls: 0,
            fails_at: Cell::new(None),
        })))
    }

    pub(super) fn with<R>(&self, look: impl FnOnce(&mut Memory<K, V>) -> R) -> R {
        look(&mut self.0.lock().unwrap())
    }
}

impl<K, V> Memory<K, V> {
    fn fail(&self) -> Result<(), io::Error> {
        match self.fails_at.get() {
            Some(0) => {
                self.fails_at.set(None);
                Err(io::Error::from_raw_os_error(libc::ENOMEM))
            }
            Some(left) => {
                self.fails_at.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// What is looked at after each single write, as a program on another processor might.
type Observer = Arc<dyn Fn() + Send + Sync>;

/// A hash.
struct HashTable<K, V>(Shared<K, V>, Observer);
/// An array: all its indices exist.
struct ArrayTable<V>(Shared<u32, V>, Observer);

/// Does to one row after the other what `write` does, up to the first that fails.
fn each<K: Ord + Copy, V: Copy>(
    map: &Shared<K, V>,
    observer: &Observer,
    rows: usize,
    mut write: impl FnMut(&mut Memory<K, V>, usize) -> io::Result<()>,
) -> Result<(), Partial> {
    map.with(|memory| memory.calls += usize::from(rows > 0));
    for done in 0..rows {
        map.with(|memory| memory.fail().and_then(|()| write(memory, done)))
            .map_err(|error| Partial { done, error })?;
        observer();
    }
    Ok(())
}

impl<K: Ord + Copy, V: Copy> Table<K, V> for HashTable<K, V> {
    fn capacity(&self) -> u32 {
        self.0.with(|memory| memory.capacity)
    }

    fn set(&mut self, keys: &[K], values: &[V]) -> Result<(), Partial> {
        each(&self.0, &self.1, keys.len(), |memory, i| {
            if memory.rows.len() >= memory.capacity as usize && !memory.rows.contains_key(&keys[i]) {
                return Err(io::Error::from_raw_os_error(libc::E2BIG));
            }
            memory.rows.insert(keys[i], values[i]);
            Ok(())
        })
    }

    fn remove(&mut self, keys: &[K]) -> Result<(), Partial> {
        each(&self.0, &self.1, keys.len(), |memory, i| {
            memory.rows.remove(&keys[i]);
            Ok(())
        })
    }

    fn read(&self, visit: &mut dyn FnMut(K, V) -> bool) -> io::Result<()> {
        self.0.with(|memory| {
            for (key, value) in &memory.rows {
                if !visit(*key, *value) {
                    break;
                }
            }
        });
        Ok(())
    }
}

impl<V: Copy + Default> Table<u32, V> for ArrayTable<V> {
    fn capacity(&self) -> u32 {
        self.0.with(|memory| memory.capacity)
    }

    fn set(&mut self, keys: &[u32], values: &[V]) -> Result<(), Partial> {
        each(&self.0, &self.1, keys.len(), |memory, i| {
            assert!(keys[i] < memory.capacity, "index {} is out of bounds", keys[i]);
            memory.rows.insert(keys[i], values[i]);
            Ok(())
        })
    }

    fn remove(&mut self, _: &[u32]) -> Result<(), Partial> {
        panic!("an array has no deletions");
    }

    fn read(&self, visit: &mut dyn FnMut(u32, V) -> bool) -> io::Result<()> {
        self.0.with(|memory| {
            for index in 0..memory.capacity {
                let value = memory.rows.get(&index).copied().unwrap_or_default();
                if !visit(index, value) {
                    break;
                }
            }
        });
        Ok(())
    }
}

/// All maps.
#[derive(Clone)]
pub(super) struct Maps {
    pub(super) services: Shared<ServiceKey, ServiceValue>,
    pub(super) slots: Shared<u32, u32>,
    pub(super) backends: Shared<u32, BackendValue>,
    pub(super) addresses: Shared<Address, AddressValue>,
}

impl Maps {
    pub(super) fn new(services: u32, slots: u32, backends: u32) -> Self {
        Self {
            services: Shared::new(services),
            slots: Shared::new(slots),
            backends: Shared::new(backends),
            addresses: Shared::new(16),
        }
    }

    pub(super) fn roomy() -> Self {
        Self::new(1000, 10_000, 5000)
    }

    /// An agent that starts on them.
    pub(super) fn agent(&self) -> Services {
        self.start(Arc::new(|| {}))
    }

    /// An agent that is watched: after each single write, no row leads to a slot without a serving
    /// backend of its own service.
    pub(super) fn watched_agent(&self) -> Services {
        let maps = self.clone();
        self.start(Arc::new(move || maps.assert_serve()))
    }

    fn start(&self, observer: Observer) -> Services {
        Services::open(Tables {
            services: Box::new(HashTable(self.services.clone(), Arc::clone(&observer))),
            slots: Box::new(ArrayTable(self.slots.clone(), Arc::clone(&observer))),
            backends: Box::new(ArrayTable(self.backends.clone(), Arc::clone(&observer))),
            addresses: Box::new(HashTable(self.addresses.clone(), observer)),
        })
        .unwrap()
    }

    fn assert_serve(&self) {
        let rows = self.services.with(|memory| memory.rows.clone());
        for value in rows.values() {
            for range in [value.near, value.far] {
                self.endpoints(value.service, range);
            }
        }
    }

    pub(super) fn calls(&self) -> usize {
        self.services.with(|m| m.calls) + self.slots.with(|m| m.calls) + self.backends.with(|m| m.calls)
    }

    pub(super) fn row(&self, dialled: &str) -> Option<ServiceValue> {
        let key = port::key(&frontend(dialled)).unwrap();
        self.services.with(|memory| memory.rows.get(&key).copied())
    }

    pub(super) fn backend(&self, socket: &str) -> Option<(u32, BackendValue)> {
        let socket: SocketAddr = socket.parse().unwrap();
        self.backends.with(|memory| {
            memory
                .rows
                .iter()
                .find(|(_, value)| {
                    value.state != FREE
                        && value.address == Address::from(socket.ip())
                        && value.port == Port::new(socket.port())
                })
                .map(|(number, value)| (*number, *value))
        })
    }

    /// The endpoints that a client of `range` may be sent to.
    fn endpoints(&self, service: u32, range: Range) -> BTreeSet<SocketAddr> {
        let numbers: Vec<u32> = self.slots.with(|memory| {
            (range.base..range.base + range.count)
                .map(|slot| memory.rows.get(&slot).copied().unwrap_or(0))
                .collect()
        });
        self.backends.with(|memory| {
            numbers
                .iter()
                .map(|number| {
                    assert_ne!(*number, 0, "a slot in use holds nobody's number");
                    let value = memory.rows[number];
                    assert_eq!(value.state, SERVING, "backend {number}: {value:?}");
                    assert_eq!(value.service, service, "backend {number}: {value:?}");
                    SocketAddr::new(IpAddr::from(value.address), value.port.get())
                })
                .collect()
        })
    }

    /// Whether the maps say what `state` says, and nothing else.
    pub(super) fn assert_hold(&self, state: &State) {
        let rows = self.services.with(|memory| memory.rows.clone());
        let mut expected_rows = 0;
        let mut numbers = BTreeMap::new();
        let mut used_slots: HashMap<u32, u32> = HashMap::new();
        for (name, service) in &state.services {
            for (frontend, route) in &service.frontends {
                expected_rows += 1;
                let value = rows
                    .get(&port::key(frontend).unwrap())
                    .unwrap_or_else(|| panic!("{name}: no row for {frontend}"));
                assert_ne!(value.service, 0);
                let other = numbers.insert(value.service, name);
                assert!(other.is_none_or(|other| other == name), "{name} and {other:?}");
                assert_eq!(
                    value.flags,
                    match route.masquerade {
                        Masquerade::WhereNeeded => 0,
                        Masquerade::Always => MASQUERADE_ALL,
                    }
                );
                for (target, range) in [(route.near, value.near), (route.far, value.far)] {
                    for slot in range.base..range.base + range.count {
                        let owner = *used_slots.entry(slot).or_insert(value.service);
                        assert_eq!(owner, value.service, "slot {slot} has two owners");
                    }
                    let set = |is_in: &dyn Fn(&Endpoint) -> bool| -> BTreeSet<SocketAddr> {
                        let members = service.endpoints.iter().filter(|(_, e)| is_in(e));
                        members.map(|(socket, _)| *socket).collect()
                    };
                    let expected = match target {
                        Target::Cluster => set(&|e| e.cluster),
                        Target::Local => set(&|e| e.local),
                        Target::Reject | Target::Drop => BTreeSet::new(),
                    };
                    assert_eq!(range.count as usize, expected.len(), "{name} {frontend}");
                    assert_eq!(self.endpoints(value.service, range), expected);
                    if range.count == 0 {
                        let verdict = match target {
                            Target::Drop => Verdict::Drop,
                            _ => Verdict::Reject,
                        };
                        assert_eq!(range.verdict(), verdict, "{name} {frontend}");
                    }
                }
            }
        }
        assert_eq!(rows.len(), expected_rows, "rows of nobody");

        let mut backends: Vec<(SocketAddr, u8, u8)> = self.backends.with(|memory| {
            let taken = memory.rows.values().filter(|value| value.state != FREE);
            taken
                .map(|value| {
                    let socket = SocketAddr::new(IpAddr::from(value.address), value.port.get());
                    (socket, value.state, value.flags)
                })
                .collect()
        });
        let mut expected: Vec<(SocketAddr, u8, u8)> = state
            .services
            .values()
            .filter(|service| !service.frontends.is_empty())
            .flat_map(|service| service.endpoints.iter().map(move |endpoint| (service, endpoint)))
            .map(|(service, (socket, endpoint))| {
                let uses = |target| service.frontends.values().any(|r| r.near == target || r.far == target);
                let serving = endpoint.cluster && uses(Target::Cluster) || endpoint.local && uses(Target::Local);
                let state = if serving { SERVING } else { DRAINING };
                (*socket, state, if endpoint.on_node { LOCAL } else { 0 })
            })
            .collect();
        backends.sort_unstable();
        expected.sort_unstable();
        assert_eq!(backends, expected);

        let addresses = self.addresses.with(|memory| memory.rows.clone());
        let expected = state.node_port_addresses.iter().map(|address| {
            let value = AddressValue { flags: NODE_PORTS };
            (Address::from(*address), value)
        });
        assert_eq!(addresses, expected.collect());
    }
}
