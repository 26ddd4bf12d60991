//! Carries the rows of an earlier agent's maps into maps of other sizes, so that flows go on though somebody wanted room
//! for more. Only one that begins in the moment in which programs change may be lost.
//!
//! ```text
//! maps/ (old sizes) ── programs on hooks write here until ours take their place
//!    │  copy: before that.  follow: what began meanwhile
//!    ▼
//! unfilled-maps/ ── of other sizes: new; all others: the same map, pinned again
//! ```

use std::{
    collections::BTreeSet,
    os::fd::AsFd as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use aya::Pod;
use lb_common::{
    Address, AddressValue, AffinityKey, AffinityValue, BackendValue, FlowKey, FlowValue, PrefixKey, ServiceKey,
    ServiceValue, Translation, backend::FREE, maps,
};
use tracing::{debug, warn};

use super::{
    MapSizes, flows,
    object::table,
    sys,
    table::{BpfTable, Table, rows},
};

/// How long programs of an earlier agent may still be on links. Each is replaced as soon as its link is told of.
const FOLLOWED: Duration = Duration::from_secs(10);
/// For as long as most are, they are looked after often: a packet of a flow that is not carried yet is let go as it
/// came.
const AT_FIRST: Duration = Duration::from_secs(1);
/// Between two looks then, and later.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

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

/// Flows that begin while some programs still run on the old maps.
pub(super) struct Carry {
    /// Of these, those that are not the same map.
    flows: Option<Pair<FlowKey, FlowValue>>,
    connected: Option<Pair<u64, Translation>>,
    /// When the rows were read, by the clock of programs, in nanoseconds.
    copied: u64,
    /// Sockets whose rows have been copied: one that is gone does not come back.
    sockets: BTreeSet<u64>,
}

struct Pair<K, V> {
    old: BpfTable<K, V>,
    new: BpfTable<K, V>,
}

impl<K: Pod, V: Pod> Pair<K, V> {
    /// `None` where they are one map.
    fn open(name: &str, different: &BTreeSet<&str>, from: &Path, to: &Path) -> anyhow::Result<Option<Self>> {
        if !different.contains(name) {
            return Ok(None);
        }
        Ok(Some(Self {
            old: table(from, name)?,
            new: table(to, name)?,
        }))
    }

    fn copy(&mut self, all: Vec<(K, V)>) -> anyhow::Result<()> {
        let (keys, values): (Vec<K>, Vec<V>) = all.into_iter().unzip();
        self.new.set(&keys, &values).map_err(|partial| partial.error)?;
        Ok(())
    }
}

impl Carry {
    /// Copies the rows of those maps that are `different` from one folder to the other, where they are empty.
    pub(super) fn copy(different: &BTreeSet<&str>, from: &Path, to: &Path) -> anyhow::Result<Self> {
        let copied = flows::now().context("the clock of flows")?;
        copy_all::<ServiceKey, ServiceValue>(maps::SERVICES, different, from, to, |_| true)?;
        copy_all::<Address, AddressValue>(maps::ADDRESSES, different, from, to, |_| true)?;
        copy_all::<PrefixKey, u32>(maps::SOURCE_RANGES, different, from, to, |_| true)?;
        copy_all::<u32, u32>(maps::SLOTS, different, from, to, is_used_slot)?;
        copy_all::<u32, BackendValue>(maps::BACKENDS, different, from, to, is_used_backend)?;
        copy_all::<AffinityKey, AffinityValue>(maps::AFFINITY, different, from, to, |_| true)?;
        let mut flows = Pair::open(maps::FLOWS, different, from, to)?;
        if let Some(pair) = &mut flows {
            let mut all: Vec<(FlowKey, FlowValue)> = rows(&pair.old)?;
            // Where there is less room than before, those that are silent for longest give way.
            all.sort_by_key(|(_, value)| value.last_seen);
            debug!(rows = all.len(), "flows carried into maps of another size");
            pair.copy(all)?;
        }
        let mut connected = Pair::open(maps::CONNECTED, different, from, to)?;
        let mut sockets = BTreeSet::new();
        if let Some(pair) = &mut connected {
            let all: Vec<(u64, Translation)> = rows(&pair.old)?;
            sockets.extend(all.iter().map(|(cookie, _)| *cookie));
            pair.copy(all)?;
        }
        Ok(Self {
            flows,
            connected,
            copied,
            sockets,
        })
    }

    /// Brings after what begins until our programs are everywhere. To be called once those for sockets are attached.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn follow(mut self) -> std::io::Result<()> {
        let work = move || {
            let begun = Instant::now();
            while begun.elapsed() < FOLLOWED {
                if let Err(error) = self.again() {
                    warn!("flows that began during the change of map sizes may be lost: {error:#}");
                    return;
                }
                if self.flows.is_none() {
                    // The flow table is the same map, and those of sockets are done.
                    return;
                }
                let [often, seldom] = PAUSES;
                let pause = if begun.elapsed() < AT_FIRST { often } else { seldom };
                thread::sleep(pause);
            }
        };
        thread::Builder::new().name("carry".into()).spawn(work).map(drop)
    }

    fn again(&mut self) -> anyhow::Result<()> {
        let since = self.copied;
        if let Some(pair) = &mut self.flows {
            let mut all: Vec<(FlowKey, FlowValue)> = rows(&pair.old)?;
            all.retain(|(_, value)| value.last_seen >= since);
            bring(pair, all)?;
        }
        // Once: programs for sockets have all been replaced by now.
        if let Some(mut pair) = self.connected.take() {
            let mut all: Vec<(u64, Translation)> = rows(&pair.old)?;
            all.retain(|(cookie, _)| !self.sockets.contains(cookie));
            bring(&mut pair, all)?;
        }
        Ok(())
    }
}

/// Copies those of which the new map knows nothing.
fn bring<K: Pod, V: Pod>(pair: &mut Pair<K, V>, all: Vec<(K, V)>) -> anyhow::Result<()> {
    let mut missing = Vec::new();
    for (key, value) in all {
        if pair.new.get(&key)?.is_none() {
            missing.push((key, value));
        }
    }
    pair.copy(missing)
}

fn copy_all<K: Pod, V: Pod>(
    name: &str,
    different: &BTreeSet<&str>,
    from: &Path,
    to: &Path,
    is_used: fn(&V) -> bool,
) -> anyhow::Result<()> {
    let Some(mut pair) = Pair::<K, V>::open(name, different, from, to)? else {
        return Ok(());
    };
    let all = used(&pair.old, is_used)?;
    pair.copy(all).with_context(|| format!("map {name}"))
}
