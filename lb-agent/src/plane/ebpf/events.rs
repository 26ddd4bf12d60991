//! What the data path tells and counts, read from the maps that are pinned, whether an agent runs or not.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use anyhow::{Context as _, bail};
use aya::maps::{Map, MapData, PerCpuArray, RingBuf};
use lb_common::{Counter, Event, maps};

use super::{
    lock::{Holder, Lock},
    pins,
};

/// The reader of the events, of which there is one at a time. Its descriptor is readable when there are some.
pub struct Events {
    ring: RingBuf<MapData>,
    counters: Counters,
    folder: Lock,
}

impl Events {
    /// Begins to read, with the oldest event that nobody has read. Changes nothing else in the kernel.
    ///
    /// # Errors
    /// No agent with this layout of the maps has filled any under `bpffs`, or they cannot be read, or somebody else
    /// reads the events.
    pub fn open(bpffs: &Path) -> anyhow::Result<Self> {
        let maps = pins::maps_to_read(bpffs)?;
        let Some(folder) = Lock::take(&maps, Holder::Monitor)? else {
            bail!("{} has just been removed", maps.display());
        };
        let ring = pinned(&maps, maps::EVENTS)?;
        Ok(Self {
            ring: RingBuf::try_from(ring).with_context(|| format!("map {}", maps::EVENTS))?,
            counters: Counters::open(&maps)?,
            folder,
        })
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// There is something else in the ring.
    pub fn read(&mut self) -> anyhow::Result<Option<Event>> {
        let Some(bytes) = self.ring.next() else {
            return Ok(None);
        };
        if bytes.len() != size_of::<Event>() {
            bail!("an event of {} bytes, expected {}", bytes.len(), size_of::<Event>());
        }
        // SAFETY: an `Event` is made of integers, and these are as many bytes as it has.
        Ok(Some(unsafe { bytes.as_ptr().cast::<Event>().read_unaligned() }))
    }

    /// How many events were not written so far: too many at once, or nobody read them.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn lost(&self) -> anyhow::Result<u64> {
        self.counters.total(Counter::EventsLost)
    }

    /// Whether the maps are pinned no more: no program that comes will write to this ring.
    ///
    /// # Errors
    /// The folder of the pins cannot be read.
    pub fn is_abandoned(&self) -> io::Result<bool> {
        self.folder.is_removed()
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// All counters, each the sum over all CPUs since the maps were made.
///
/// # Errors
/// No agent with this layout of the maps has filled any under `bpffs`, or they cannot be read.
pub fn counters(bpffs: &Path) -> anyhow::Result<Vec<(Counter, u64)>> {
    let counters = Counters::open(&pins::maps_to_read(bpffs)?)?;
    Counter::ALL
        .into_iter()
        .map(|counter| Ok((counter, counters.total(counter)?)))
        .collect()
}

struct Counters(PerCpuArray<MapData, u64>);

impl Counters {
    /// By the folder of the pins.
    fn open(maps: &Path) -> anyhow::Result<Self> {
        let map = pinned(maps, maps::COUNTERS)?;
        let counters = PerCpuArray::try_from(map).with_context(|| format!("map {}", maps::COUNTERS))?;
        Ok(Self(counters))
    }

    fn total(&self, counter: Counter) -> anyhow::Result<u64> {
        let each = self.0.get(&(counter as u32), 0);
        let each = each.with_context(|| format!("counter {}", counter.name()))?;
        Ok(each.iter().sum())
    }
}

fn pinned(folder: &Path, name: &str) -> anyhow::Result<Map> {
    let map = MapData::from_pin(folder.join(name)).with_context(|| format!("map {name}"))?;
    Map::from_map_data(map).with_context(|| format!("map {name}"))
}
