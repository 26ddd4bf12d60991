//! Maps in memory.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use lb_common::{Address, AddressValue, BackendValue, Port, PrefixKey, ServiceKey, ServiceValue, backend::FREE};

use super::frontend;
use crate::plane::ebpf::{
    port,
    services::Services,
    sys::Partial,
    table::{Table, Tables},
};

/// Slots of a table of Maglev's: a few for each endpoint.
pub(super) const TABLE_SIZE: u32 = 61;

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
pub(super) type Observer = Arc<dyn Fn() + Send + Sync>;

/// A hash, or a trie of which nobody asks for anything but its rows.
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

    fn get(&self, key: &K) -> io::Result<Option<V>> {
        Ok(self.0.with(|memory| memory.rows.get(key).copied()))
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

    fn get(&self, key: &u32) -> io::Result<Option<V>> {
        Ok(self.0.with(|memory| {
            let value = memory.rows.get(key).copied().unwrap_or_default();
            (*key < memory.capacity).then_some(value)
        }))
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
    pub(super) source_ranges: Shared<PrefixKey, u32>,
    pub(super) cidrs: Shared<PrefixKey, u32>,
}

impl Maps {
    pub(super) fn new(services: u32, slots: u32, backends: u32) -> Self {
        Self {
            services: Shared::new(services),
            slots: Shared::new(slots),
            backends: Shared::new(backends),
            addresses: Shared::new(64 + services),
            source_ranges: Shared::new(64),
            cidrs: Shared::new(32),
        }
    }

    pub(super) fn with_source_ranges(self, capacity: u32) -> Self {
        Self {
            source_ranges: Shared::new(capacity),
            ..self
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

    /// An agent that is watched by `observer`.
    pub(super) fn start(&self, observer: Observer) -> Services {
        let mut services = Services::open(self.tables(observer)).unwrap();
        services.table_size = TABLE_SIZE;
        services
    }

    /// The maps as an agent opens them.
    pub(super) fn tables(&self, observer: Observer) -> Tables {
        Tables {
            services: Box::new(HashTable(self.services.clone(), Arc::clone(&observer))),
            slots: Box::new(ArrayTable(self.slots.clone(), Arc::clone(&observer))),
            backends: Box::new(ArrayTable(self.backends.clone(), Arc::clone(&observer))),
            addresses: Box::new(HashTable(self.addresses.clone(), Arc::clone(&observer))),
            source_ranges: Box::new(HashTable(self.source_ranges.clone(), Arc::clone(&observer))),
            cidrs: Box::new(HashTable(self.cidrs.clone(), observer)),
        }
    }

    pub(super) fn calls(&self) -> usize {
        self.services.with(|m| m.calls)
            + self.slots.with(|m| m.calls)
            + self.backends.with(|m| m.calls)
            + self.addresses.with(|m| m.calls)
            + self.source_ranges.with(|m| m.calls)
            + self.cidrs.with(|m| m.calls)
    }

    pub(super) fn row(&self, dialled: &str) -> Option<ServiceValue> {
        let key = port::key(&frontend(dialled));
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
}
