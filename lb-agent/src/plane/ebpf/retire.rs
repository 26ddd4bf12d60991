//! Makes programs that another plane replaces take no new client, and go on with the flows that they have.

use std::path::Path;

use super::{
    object,
    pins::{self, Pins},
    table::{Table, rows},
};

/// Empties the maps that an agent left under `bpffs` of all that begins a flow. From then on who connects passes the
/// programs as it came, while the flow table still translates whoever had connected before. Where no such maps are there
/// is nothing to do, nor with those of another layout, of which only their own agent knows what is in them. Says whether
/// there were any.
///
/// # Errors
/// An agent holds them, or they cannot be read or emptied.
pub fn retire(bpffs: &Path) -> anyhow::Result<bool> {
    if !pins::has_maps(bpffs) {
        return Ok(false);
    }
    let pins = Pins::new(bpffs)?;
    let _lock = pins.lock()?;
    let mut tables = object::tables(&pins.maps())?;
    // First what refuses or drops a client whose service is not found, which then is every one.
    empty(&mut *tables.cidrs)?;
    empty(&mut *tables.addresses)?;
    empty(&mut *tables.services)?;
    Ok(true)
}

fn empty<K, V>(table: &mut dyn Table<K, V>) -> anyhow::Result<()> {
    let all: Vec<(K, V)> = rows(table)?;
    let keys: Vec<K> = all.into_iter().map(|(key, _)| key).collect();
    table.remove(&keys).map_err(|partial| partial.error)?;
    Ok(())
}
