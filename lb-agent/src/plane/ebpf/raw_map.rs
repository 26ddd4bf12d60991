//! A map of an agent of whatever layout: nothing is known of it but its name.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use anyhow::{Context as _, ensure};
use aya::maps::MapData;

use super::sys;

/// The map.
pub(super) struct RawMap {
    map: OwnedFd,
    key_size: usize,
    value_size: usize,
    max_entries: u32,
}

impl RawMap {
    /// By its pin in a folder.
    pub(super) fn open(folder: &Path, name: &str) -> anyhow::Result<Self> {
        let map = MapData::from_pin(folder.join(name)).with_context(|| format!("map {name}"))?;
        let info = map.info().with_context(|| format!("map {name}"))?;
        Ok(Self {
            key_size: info.key_size() as usize,
            value_size: info.value_size() as usize,
            max_entries: info.max_entries(),
            map: map.fd().as_fd().try_clone_to_owned()?,
        })
    }

    /// Whether a hash has no rows.
    pub(super) fn is_empty(&self) -> io::Result<bool> {
        let mut key = vec![0_u8; self.key_size];
        // SAFETY: `key` has the size of the map's keys.
        unsafe { sys::first_key(self.map.as_fd(), &mut key) }.map(|found| !found)
    }

    /// Makes those rows of an array zero that `is_over`.
    pub(super) fn clear_array(&self, is_over: impl Fn(&[u8]) -> bool) -> anyhow::Result<()> {
        ensure!(self.key_size == size_of::<u32>(), "not an array");
        let zero = vec![0_u8; self.value_size];
        let mut value = zero.clone();
        for index in 0..self.max_entries {
            // SAFETY: values have that size, and the keys of an array are `u32`.
            unsafe { sys::look_up_bytes(self.map.as_fd(), index, &mut value) }?;
            if value != zero && is_over(&value) {
                // SAFETY: as above.
                unsafe { sys::update_bytes(self.map.as_fd(), index, &zero) }?;
            }
        }
        Ok(())
    }
}
