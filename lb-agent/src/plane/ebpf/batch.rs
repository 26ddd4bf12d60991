//! Writes of many service ports in few calls, where each succeeds or fails by itself.

use std::io;

use lb_common::maps;

use super::table::Table;
use crate::plane::PlaneError;

/// Rows to write, each on behalf of one of the service ports that are being programmed.
pub(super) struct Batch<K, V> {
    /// Which of them.
    plans: Vec<usize>,
    keys: Vec<K>,
    values: Vec<V>,
}

/// One row that the kernel took.
pub(super) struct Written<K, V> {
    /// On whose behalf.
    pub(super) plan: usize,
    /// Its key.
    pub(super) key: K,
    /// Its value.
    pub(super) value: V,
}

impl<K, V> Default for Batch<K, V> {
    fn default() -> Self {
        Self {
            plans: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
        }
    }
}

impl<K: Copy, V: Copy> Batch<K, V> {
    /// Adds a row.
    pub(super) fn push(&mut self, plan: usize, key: K, value: V) {
        self.plans.push(plan);
        self.keys.push(key);
        self.values.push(value);
    }

    /// The keys of the rows.
    pub(super) fn keys(&self) -> &[K] {
        &self.keys
    }

    /// How many rows.
    pub(super) fn len(&self) -> usize {
        self.plans.len()
    }

    /// Writes the rows in order, without those of plans that have failed. A row that the kernel
    /// refuses fails its plan; what that plan has after it is left out, and the others go on. Tells
    /// `written` of each row that was taken. Returns how many.
    pub(super) fn write(
        mut self,
        table: &mut dyn Table<K, V>,
        failures: &mut [Option<PlaneError>],
        error: impl Fn(io::Error) -> PlaneError,
        mut written: impl FnMut(Written<K, V>),
    ) -> usize {
        let mut count = 0;
        if failures.iter().any(Option::is_some) {
            self.drop_failed(0, failures);
        }
        let mut from = 0;
        while from < self.len() {
            let result = table.set(&self.keys[from..], &self.values[from..]);
            let done = from + result.as_ref().map_or_else(|p| p.done, |()| self.len() - from);
            for i in from..done {
                written(Written {
                    plan: self.plans[i],
                    key: self.keys[i],
                    value: self.values[i],
                });
            }
            count += done - from;
            let Err(partial) = result else {
                break;
            };
            failures[self.plans[done]] = Some(error(partial.error));
            from = done + 1;
            self.drop_failed(from, failures);
        }
        count
    }

    /// Leaves out, from row `from` on, what belongs to plans that have failed.
    fn drop_failed(&mut self, from: usize, failures: &[Option<PlaneError>]) {
        let mut to = from;
        for i in from..self.len() {
            if failures[self.plans[i]].is_none() {
                self.plans[to] = self.plans[i];
                self.keys[to] = self.keys[i];
                self.values[to] = self.values[i];
                to += 1;
            }
        }
        self.plans.truncate(to);
        self.keys.truncate(to);
        self.values.truncate(to);
    }
}

/// What an operator must know when a map has no room.
pub(super) fn full(map: &'static str, capacity: u32) -> PlaneError {
    let flag = match map {
        // `ADDRESSES` is as large as `SERVICES`.
        maps::SERVICES | maps::ADDRESSES => "--max-services",
        maps::SLOTS => "--max-slots",
        maps::SOURCE_RANGES => "--max-source-ranges",
        _ => "--max-backends",
    };
    PlaneError::MapFull { map, capacity, flag }
}

/// What the kernel's refusal of a row means.
pub(super) fn refused(map: &'static str, capacity: u32, source: io::Error) -> PlaneError {
    match source.raw_os_error() {
        // There is no flag for the size of `CIDRS`.
        Some(libc::E2BIG | libc::ENOSPC) if map != maps::CIDRS => full(map, capacity),
        _ => PlaneError::kernel(format!("write to map {map}"), source),
    }
}
