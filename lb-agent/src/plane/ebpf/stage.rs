//! What programs of ours do while there are others of ours: the rows of the map `STAGE`.

use std::{
    io,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use aya::maps::MapInfo;
use lb_common::{
    maps,
    stage::{self, DRAINS, DRAINS_TO_BE_CARRIED, SIDES},
};

use super::{
    object,
    table::{BpfTable, Table as _},
};

/// The map of one agent, of whatever layout.
pub(super) struct Stage(BpfTable<u32, u32>);

impl Stage {
    /// That of the maps in a folder; `None` where an agent of before there was such a map has left them, or there are none.
    pub(super) fn open(folder: &Path) -> anyhow::Result<Option<Self>> {
        if !folder.join(maps::STAGE).try_exists()? {
            return Ok(None);
        }
        object::table(folder, maps::STAGE).map(Self).map(Some)
    }

    /// What the programs do: one of [`lb_common::stage`].
    pub(super) fn get(&self) -> io::Result<u32> {
        self.row(stage::STAGE)
    }

    /// From now on they do this.
    pub(super) fn set(&mut self, stage: u32) -> io::Result<()> {
        self.write(stage::STAGE, stage)
    }

    /// Which ports are theirs.
    pub(super) fn ports(&self) -> io::Result<u32> {
        self.row(stage::PORTS).map(|ports| ports % SIDES)
    }

    /// To be set before there are programs.
    pub(super) fn set_ports(&mut self, ports: u32) -> io::Result<()> {
        self.write(stage::PORTS, ports)
    }

    /// Which filters are theirs.
    pub(super) fn side(&self) -> io::Result<u32> {
        self.row(stage::SIDE).map(|side| side % SIDES)
    }

    /// To be set before there are programs.
    pub(super) fn set_side(&mut self, side: u32) -> io::Result<()> {
        self.write(stage::SIDE, side)
    }

    /// Whether they begin nothing.
    pub(super) fn drains(&self) -> io::Result<bool> {
        self.get().map(|stage| stage >= DRAINS)
    }

    /// They begin nothing from now on. Whether their rows are to be carried over, is known to whoever comes next.
    pub(super) fn drain(&mut self, is_carried: bool) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.write(stage::SINCE, u32::try_from(now.as_secs()).unwrap_or(u32::MAX))?;
        self.set(if is_carried { DRAINS_TO_BE_CARRIED } else { DRAINS })
    }

    /// Since when they have begun nothing.
    pub(super) fn since(&self) -> io::Result<SystemTime> {
        Ok(UNIX_EPOCH + Duration::from_secs(self.row(stage::SINCE)?.into()))
    }

    /// For how long that is.
    pub(super) fn drained_for(&self) -> io::Result<Duration> {
        // A clock that was put back makes it longer, by as much.
        Ok(SystemTime::now().duration_since(self.since()?).unwrap_or_default())
    }

    fn row(&self, row: u32) -> io::Result<u32> {
        self.0.get(&row).map(Option::unwrap_or_default)
    }

    fn write(&mut self, row: u32, value: u32) -> io::Result<()> {
        self.0.set(&[row], &[value]).map_err(|partial| partial.error)
    }
}

/// Whether both folders have the same map of that name.
pub(super) fn is_same_map(name: &str, a: &Path, b: &Path) -> anyhow::Result<bool> {
    let id = |folder: &Path| -> anyhow::Result<u32> {
        let info = MapInfo::from_pin(folder.join(name)).with_context(|| format!("map {name}"))?;
        Ok(info.id())
    };
    Ok(id(a)? == id(b)?)
}
