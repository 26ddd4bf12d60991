//! The map of services in the kernel, read beside the agent: what is measured is when it changes there.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap, Map, MapData, MapError};
use lb_common::{Address, Port, ServiceKey, ServiceValue, maps, net};
use lb_tests::interrupt;

/// The map.
#[derive(Debug)]
pub(crate) struct ServicesMap {
    map: HashMap<MapData, ServiceKey, ServiceValue>,
}

impl ServicesMap {
    /// Opens the one that is pinned somewhere below a folder.
    pub(crate) fn open(bpffs: &Path) -> Result<Self> {
        let path = find(bpffs, maps::SERVICES)?
            .with_context(|| format!("no map {} is pinned in {}", maps::SERVICES, bpffs.display()))?;
        let data = MapData::from_pin(&path).with_context(|| format!("opening the map at {}", path.display()))?;
        let map = HashMap::try_from(Map::HashMap(data)).context("the map of services is no hash map")?;
        Ok(Self { map })
    }

    /// How many endpoints clients of this node are sent to at this address; none if it is not served.
    pub(crate) fn endpoints(&self, address: IpAddr, port: u16) -> Result<Option<u32>> {
        let key = ServiceKey::new(Address::from(address), Port::new(port), net::TCP);
        match self.map.get(&key, 0) {
            Ok(value) => Ok(Some(value.near.count)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error).context("reading the map of services"),
        }
    }

    /// Waits until this address has so many endpoints, and says when that was.
    pub(crate) fn wait(&self, address: IpAddr, port: u16, endpoints: u32, within: Duration) -> Result<Instant> {
        let begun = Instant::now();
        loop {
            let found = self.endpoints(address, port)?;
            let now = Instant::now();
            if found == Some(endpoints) {
                return Ok(now);
            }
            interrupt::check()?;
            let shown = found.map_or_else(|| "no entry".to_owned(), |count| format!("{count} endpoints"));
            ensure!(
                now - begun < within,
                "{address} has {shown} after {} s, not {endpoints}",
                within.as_secs()
            );
            // Short against what is measured, and still leaves the processor to the agent.
            thread::sleep(Duration::from_micros(100));
        }
    }
}

fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry.context("reading a folder of pins")?;
        if entry.file_name() == name {
            return Ok(Some(entry.path()));
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Some(found) = find(&entry.path(), name)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
