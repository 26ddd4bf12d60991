//! Carries the rows of an earlier agent's maps into maps of other sizes, so that flows go on though somebody wanted room
//! for more.
//!
//! ```text
//! maps of other sizes: new; all others: the same map, pinned again
//!   copy_state   before programs are on them: what the agent writes
//!   bring_flows  when those on the old ones begin nothing any more: what programs write
//! ```

use std::{collections::BTreeSet, os::fd::AsFd as _, path::Path};

use anyhow::{Context as _, ensure};
use aya::Pod;
use lb_common::{
    Address, AddressValue, AffinityKey, AffinityValue, BackendValue, FlowKey, FlowValue, PrefixKey, ServiceKey,
    ServiceValue, Translation, backend::FREE, config::DEFAULT_UDP_TIMEOUT, flow::CLOSING, maps, net::UDP,
};
use tracing::debug;

use super::{
    MapSizes, flows,
    object::table,
    stage::is_same_map,
    sys,
    table::{BpfTable, Table as _, rows},
};

/// Nanoseconds after which nothing comes any more of a TCP connection that has ended.
const CLOSED: u64 = 60_000_000_000;

/// Whether maps of these sizes have room for what an earlier agent's maps in `folder` hold. Those in which rows give
/// way to others always have.
///
/// # Errors
/// Which has not, or cannot be read.
pub(super) fn check_room(folder: &Path, sizes: &MapSizes) -> anyhow::Result<()> {
    let has_room = |name: &str, needed: usize, size: u32| {
        ensure!(
            needed <= size as usize,
            "{name} needs {needed} rows and is to have {size}"
        );
        Ok(())
    };
    let services = rows::<_, _, Vec<_>>(&table::<ServiceKey, ServiceValue>(folder, maps::SERVICES)?)?;
    has_room(maps::SERVICES, services.len(), sizes.services)?;
    let addresses = rows::<_, _, Vec<_>>(&table::<Address, AddressValue>(folder, maps::ADDRESSES)?)?;
    has_room(maps::ADDRESSES, addresses.len(), sizes.services)?;
    let ranges = rows::<_, _, Vec<_>>(&table::<PrefixKey, u32>(folder, maps::SOURCE_RANGES)?)?;
    has_room(maps::SOURCE_RANGES, ranges.len(), sizes.source_ranges)?;
    let slots = used(&table::<u32, u32>(folder, maps::SLOTS)?, is_used_slot)?;
    has_room(maps::SLOTS, slots.last().map_or(0, past), sizes.slots)?;
    let backends = used(&table(folder, maps::BACKENDS)?, is_used_backend)?;
    has_room(maps::BACKENDS, backends.last().map_or(0, past), sizes.backends)
}

fn past<V>((index, _): &(u32, V)) -> usize {
    *index as usize + 1
}

const fn is_used_slot(backend: &u32) -> bool {
    *backend != 0
}

/// Also of one that is free the generation counts: a flow may remember the one before.
const fn is_used_backend(backend: &BackendValue) -> bool {
    backend.state != FREE || backend.generation != 0
}

/// The rows that hold something: an array has one for each of its indices.
fn used<K: Pod, V: Pod>(table: &BpfTable<K, V>, is_used: fn(&V) -> bool) -> anyhow::Result<Vec<(K, V)>> {
    let mut found: Vec<(K, V)> = rows(table)?;
    found.retain(|(_, value)| is_used(value));
    Ok(found)
}

/// Pins the maps of `folder` in another one as well.
pub(super) fn pin_again<'a>(names: impl IntoIterator<Item = &'a str>, from: &Path, to: &Path) -> anyhow::Result<()> {
    for name in names {
        let map = sys::open_pin(&from.join(name)).with_context(|| format!("map {name}"))?;
        sys::pin(map.as_fd(), &to.join(name)).with_context(|| format!("cannot pin map {name} again"))?;
    }
    Ok(())
}

/// Copies the rows of what is `different` from one folder to the other, where it is empty, but for those that programs
/// write.
pub(super) fn copy_state(different: &BTreeSet<&str>, from: &Path, to: &Path) -> anyhow::Result<()> {
    copy_all::<ServiceKey, ServiceValue>(maps::SERVICES, different, from, to, |_| true)?;
    copy_all::<Address, AddressValue>(maps::ADDRESSES, different, from, to, |_| true)?;
    copy_all::<PrefixKey, u32>(maps::SOURCE_RANGES, different, from, to, |_| true)?;
    copy_all::<u32, u32>(maps::SLOTS, different, from, to, is_used_slot)?;
    copy_all::<u32, BackendValue>(maps::BACKENDS, different, from, to, is_used_backend)?;
    // Again with the flows: whoever comes back meanwhile is to have the same endpoint already.
    copy_all::<AffinityKey, AffinityValue>(maps::AFFINITY, different, from, to, |_| true)
}

/// Brings what programs have written that begin nothing any more. Whatever those behind them have written since is newer
/// and stays.
pub(super) fn bring_flows(from: &Path, to: &Path) -> anyhow::Result<()> {
    let now = flows::now().context("the clock of flows")?;
    let flows = bring::<FlowKey, FlowValue>(maps::FLOWS, from, to, |key, value| worth(key, value, now))?;
    let sockets = bring::<u64, Translation>(maps::CONNECTED, from, to, |_, _| Some((true, 0)))?;
    bring::<AffinityKey, AffinityValue>(maps::AFFINITY, from, to, |_, value| Some((true, value.last_used)))?;
    debug!(flows, sockets, "rows carried into maps of another size");
    Ok(())
}

/// How much a row is worth: that of a connection that has ended less than others, and the longer it is silent, the less.
/// Nothing, when no packet comes for it any more.
fn worth(key: &FlowKey, value: &FlowValue, now: u64) -> Option<(bool, u64)> {
    let silent = now.saturating_sub(value.last_seen);
    let has_ended = value.flags & CLOSING != 0;
    let is_over = (has_ended && silent > CLOSED) || (key.protocol == UDP && silent > DEFAULT_UDP_TIMEOUT);
    (!is_over).then_some((!has_ended, value.last_seen))
}

/// Adds rows, the ones worth most where there is no room for all. Says how many.
fn bring<K: Pod, V: Pod>(
    name: &str,
    from: &Path,
    to: &Path,
    worth: impl Fn(&K, &V) -> Option<(bool, u64)>,
) -> anyhow::Result<usize> {
    if is_same_map(name, from, to)? {
        return Ok(0);
    }
    let all: Vec<(K, V)> = rows(&table(from, name)?)?;
    let mut all: Vec<_> = all
        .into_iter()
        .filter_map(|(key, value)| Some((worth(&key, &value)?, key, value)))
        .collect();
    all.sort_by_key(|(worth, ..)| *worth);
    let mut new: BpfTable<K, V> = table(to, name)?;
    // The rest is for what has begun meanwhile: a map that is full forgets some of what is new.
    let room = new.capacity() / 4 * 3;
    let first = all.len().saturating_sub(room as usize);
    for (_, key, value) in &all[first..] {
        new.add(key, value).with_context(|| format!("map {name}"))?;
    }
    Ok(all.len() - first)
}

fn copy_all<K: Pod, V: Pod>(
    name: &str,
    different: &BTreeSet<&str>,
    from: &Path,
    to: &Path,
    is_used: fn(&V) -> bool,
) -> anyhow::Result<()> {
    if !different.contains(name) {
        return Ok(());
    }
    let (keys, values): (Vec<K>, Vec<V>) = used(&table::<K, V>(from, name)?, is_used)?.into_iter().unzip();
    let mut new: BpfTable<K, V> = table(to, name)?;
    new.set(&keys, &values)
        .map_err(|partial| partial.error)
        .with_context(|| format!("map {name}"))
}

#[cfg(test)]
mod tests {
    use lb_common::{Port, flow::FORWARD, net::TCP};

    use super::*;

    const NOW: u64 = 1_000_000_000_000;

    fn row(protocol: u8, flags: u8, silent: u64) -> Option<(bool, u64)> {
        let end = (Address::ANY_V6, Port::NONE);
        let value = FlowValue {
            last_seen: NOW - silent,
            flags,
            ..FlowValue::EMPTY
        };
        worth(&FlowKey::new(FORWARD, protocol, end, end), &value, NOW)
    }

    #[test]
    fn what_is_open_is_worth_more_than_what_has_just_ended_and_what_is_over_nothing() {
        let quiet = row(TCP, 0, NOW / 2);
        assert!(row(TCP, 0, 0) > quiet);
        assert!(quiet > row(TCP, CLOSING, 0));
        assert!(row(TCP, CLOSING, CLOSED).is_some());
        assert_eq!(row(TCP, CLOSING, CLOSED + 1), None);
        assert!(row(UDP, 0, DEFAULT_UDP_TIMEOUT).is_some());
        assert_eq!(row(UDP, 0, DEFAULT_UDP_TIMEOUT + 1), None);
    }
}
