//! Access to the maps, so that what fills them can be tested without a kernel.

use std::{
    collections::BTreeMap,
    io,
    marker::PhantomData,
    mem::{size_of, zeroed},
    os::fd::{AsFd as _, OwnedFd},
};

use aya::{Pod, maps::MapData};
use lb_common::{Address, AddressValue, BackendValue, PrefixKey, ServiceKey, ServiceValue};

use super::sys::{self, Cursor, Partial};

/// How often in a row a write is made again that the kernel could not serve at this very moment.
const RETRIES: usize = 16;
/// Rows that one call reads. More than any bucket of a hash ever holds.
const READ_BATCH: usize = 4096;
/// What the kernel says to a batch call that it has not for this type of map. Tries have them from
/// kernel 5.13 on. (`include/linux/errno.h`; not meant for programs, so libc does not name it.)
const ENOTSUPP: i32 = 524;

/// A hash, an array or a trie in the kernel.
pub(super) trait Table<K, V> {
    /// How many rows fit.
    fn capacity(&self) -> u32;

    /// Writes `values[i]` to `keys[i]`, in this order, up to the first that fails.
    fn set(&mut self, keys: &[K], values: &[V]) -> Result<(), Partial>;

    /// Deletes rows, in this order, up to the first that fails. One that is not there is no failure.
    fn remove(&mut self, keys: &[K]) -> Result<(), Partial>;

    /// The row of exactly this key: a trie is asked with the key of a prefix that it may hold.
    fn get(&self, key: &K) -> io::Result<Option<V>>;

    /// Shows every row to `visit`, until that returns `false`. An array shows each of its indices,
    /// in order.
    fn read(&self, visit: &mut dyn FnMut(K, V) -> bool) -> io::Result<()>;
}

/// Every row.
pub(super) fn rows<K, V, R: Default + Extend<(K, V)>>(table: &dyn Table<K, V>) -> io::Result<R> {
    let mut rows = R::default();
    table.read(&mut |key, value| {
        rows.extend([(key, value)]);
        true
    })?;
    Ok(rows)
}

/// Makes a hash hold these rows and no others. Writes what differs.
pub(super) fn hold<K: Copy + Ord, V: Copy + PartialEq>(
    table: &mut dyn Table<K, V>,
    wanted: &BTreeMap<K, V>,
) -> io::Result<()> {
    let there: BTreeMap<K, V> = rows(table)?;
    let gone: Vec<K> = there.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
    table.remove(&gone).map_err(|partial| partial.error)?;
    let (keys, values): (Vec<K>, Vec<V>) = wanted
        .iter()
        .filter(|(key, value)| there.get(key) != Some(value))
        .unzip();
    table.set(&keys, &values).map_err(|partial| partial.error)
}

/// The values of an array at its first `count` indices, or at all where it has fewer.
pub(super) fn first<V>(table: &dyn Table<u32, V>, count: usize) -> io::Result<Vec<V>> {
    let mut values = Vec::new();
    table.read(&mut |_, value| {
        if values.len() < count {
            values.push(value);
        }
        values.len() < count
    })?;
    Ok(values)
}

/// The maps that the agent fills.
pub(super) struct Tables {
    /// Frontends.
    pub(super) services: Box<dyn Table<ServiceKey, ServiceValue> + Send>,
    /// Numbers of backends.
    pub(super) slots: Box<dyn Table<u32, u32> + Send>,
    /// Backends.
    pub(super) backends: Box<dyn Table<u32, BackendValue> + Send>,
    /// Addresses of the node, and ClusterIPs.
    pub(super) addresses: Box<dyn Table<Address, AddressValue> + Send>,
    /// Clients of restricted frontends.
    pub(super) source_ranges: Box<dyn Table<PrefixKey, u32> + Send>,
    /// Networks of pods and of services.
    pub(super) cidrs: Box<dyn Table<PrefixKey, u32> + Send>,
}

/// A map in the kernel. Needs the batch calls of kernel 5.6 for hashes and arrays.
pub(super) struct BpfTable<K, V> {
    map: OwnedFd,
    capacity: u32,
    row: PhantomData<fn(K, V)>,
}

impl<K: Pod, V: Pod> BpfTable<K, V> {
    /// Takes a map whose keys are `K` and whose values are `V`.
    pub(super) fn new(map: &MapData) -> io::Result<Self> {
        let info = map.info().map_err(io::Error::other)?;
        let found = (info.key_size() as usize, info.value_size() as usize);
        let expected = (size_of::<K>(), size_of::<V>());
        if found != expected {
            return Err(io::Error::other(format!(
                "keys and values of {found:?} bytes, expected {expected:?}"
            )));
        }
        Ok(Self {
            map: map.fd().as_fd().try_clone_to_owned()?,
            capacity: info.max_entries(),
            row: PhantomData,
        })
    }
}

impl<K: Pod, V: Pod> Table<K, V> for BpfTable<K, V> {
    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn set(&mut self, keys: &[K], values: &[V]) -> Result<(), Partial> {
        let map = self.map.as_fd();
        persist(keys.len(), |from| {
            let (keys, values) = (&keys[from..], &values[from..]);
            // SAFETY: `new` has compared the sizes.
            or_each(unsafe { sys::update_batch(map, keys, values) }, keys.len(), |i| {
                // SAFETY: as above.
                unsafe { sys::update(map, &keys[i], &values[i]) }
            })
        })
    }

    fn remove(&mut self, keys: &[K]) -> Result<(), Partial> {
        let map = self.map.as_fd();
        let mut from = 0;
        loop {
            let result = persist(keys.len() - from, |done| {
                let keys = &keys[from + done..];
                // SAFETY: `new` has compared the sizes.
                or_each(unsafe { sys::delete_batch(map, keys) }, keys.len(), |i| {
                    // SAFETY: as above.
                    unsafe { sys::delete(map, &keys[i]) }
                })
            });
            match result {
                Ok(()) => return Ok(()),
                Err(partial) if partial.error.raw_os_error() == Some(libc::ENOENT) => {
                    from += partial.done + 1;
                }
                Err(partial) => {
                    return Err(Partial {
                        done: from + partial.done,
                        error: partial.error,
                    });
                }
            }
        }
    }

    fn get(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = zero::<V>();
        // SAFETY: `new` has compared the sizes.
        let found = unsafe { sys::look_up(self.map.as_fd(), key, &mut value) }?;
        Ok(found.then_some(value))
    }

    fn read(&self, visit: &mut dyn FnMut(K, V) -> bool) -> io::Result<()> {
        let mut keys = vec![zero::<K>(); READ_BATCH];
        let mut values = vec![zero::<V>(); READ_BATCH];
        let mut cursor = Cursor::default();
        loop {
            // SAFETY: `new` has compared the sizes.
            let read = unsafe { sys::read_batch(self.map.as_fd(), &mut cursor, &mut keys, &mut values) };
            let (count, more) = match read {
                Err(error) if error.raw_os_error() == Some(ENOTSUPP) => return self.read_each(visit),
                read => read?,
            };
            for (key, value) in keys.iter().zip(&values).take(count) {
                if !visit(*key, *value) {
                    return Ok(());
                }
            }
            if !more {
                return Ok(());
            }
        }
    }
}

impl<K: Pod, V: Pod> BpfTable<K, V> {
    /// Writes a row where there is none.
    pub(super) fn add(&mut self, key: &K, value: &V) -> io::Result<()> {
        let map = self.map.as_fd();
        persist(1, |_| {
            // SAFETY: `new` has compared the sizes.
            unsafe { sys::add(map, key, value) }
                .map(drop)
                .map_err(|error| Partial { done: 0, error })
        })
        .map_err(|partial| partial.error)
    }

    /// Shows one row after the other.
    fn read_each(&self, visit: &mut dyn FnMut(K, V) -> bool) -> io::Result<()> {
        let mut last = None;
        let mut key = zero::<K>();
        // SAFETY: `new` has compared the sizes.
        while unsafe { sys::next_key(self.map.as_fd(), last.as_ref(), &mut key) }? {
            if let Some(value) = self.get(&key)?
                && !visit(key, value)
            {
                break;
            }
            last = Some(key);
        }
        Ok(())
    }
}

/// What came of a batch; where the kernel has none for this map, of a call for each row instead.
fn or_each(
    batch: Result<(), Partial>,
    rows: usize,
    mut call: impl FnMut(usize) -> io::Result<()>,
) -> Result<(), Partial> {
    match batch {
        Err(partial) if partial.error.raw_os_error() == Some(ENOTSUPP) => {
            (0..rows).try_for_each(|done| call(done).map_err(|error| Partial { done, error }))
        }
        batch => batch,
    }
}

/// Something for the kernel to write over.
fn zero<T: Pod>() -> T {
    // SAFETY: `Pod` makes any bytes a value.
    unsafe { zeroed() }
}

/// Makes `call` on the rows from the given one on, again where the kernel was only busy: a bucket
/// that is locked under an interrupt, a signal.
fn persist(rows: usize, mut call: impl FnMut(usize) -> Result<(), Partial>) -> Result<(), Partial> {
    let mut done = 0;
    let mut retries = RETRIES;
    while done < rows {
        let Err(partial) = call(done) else {
            return Ok(());
        };
        if partial.done > 0 {
            retries = RETRIES;
        }
        done += partial.done;
        let momentary = matches!(
            partial.error.raw_os_error(),
            Some(libc::EBUSY | libc::EINTR | libc::EAGAIN)
        );
        if !momentary || retries == 0 {
            return Err(Partial {
                done,
                error: partial.error,
            });
        }
        retries -= 1;
    }
    Ok(())
}
