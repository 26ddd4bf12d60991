//! How full the maps are that programs fill: counted by a walk over their rows, whether an agent runs or not.

use std::{borrow::Cow, collections::BTreeMap, path::Path, time::Duration};

use anyhow::Context as _;
use aya::Pod;
use lb_common::{
    AffinityKey, AffinityValue, FlowKey, FlowValue, Translation, maps,
    net::{SCTP, TCP, UDP},
};

use super::{
    flows::{self, Flow},
    object, pins,
    table::{BpfTable, Table as _},
};

/// A flow whose client has been silent for longer is one that nobody may miss.
const ACTIVE: Duration = Duration::from_secs(60);

/// How far a flow has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FlowState {
    /// It had a packet of its client in the last minute.
    Active,
    /// It had none.
    Idle,
    /// A FIN or RST of it was seen.
    Closing,
}

/// How full a map is in which the row that was used the longest time ago gives way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LruFill {
    /// Its name.
    pub map: &'static str,
    /// Rows.
    pub rows: u64,
    /// How many there may be.
    pub capacity: u32,
}

/// What the programs keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Occupancy {
    /// Flows, by protocol. TCP, UDP and SCTP are there without any as well.
    pub flows: BTreeMap<(Cow<'static, str>, FlowState), u64>,
    /// Flows that there may be: each takes two rows.
    pub flows_max: u32,
    /// The maps.
    pub maps: Vec<LruFill>,
}

/// Counts.
///
/// # Errors
/// No agent with this layout of the maps has filled any under `bpffs`, or they cannot be read.
pub fn occupancy(bpffs: &Path) -> anyhow::Result<Occupancy> {
    let folder = pins::maps_to_read(bpffs)?;
    let now = flows::now().context("cannot read the clock")?;
    let states = [FlowState::Active, FlowState::Idle, FlowState::Closing];
    let protocols = [TCP, UDP, SCTP];
    let mut by_state: BTreeMap<_, u64> = protocols
        .into_iter()
        .flat_map(|protocol| states.map(|state| ((word(protocol), state), 0)))
        .collect();
    let flow_map = count(&folder, maps::FLOWS, |key: &FlowKey, value: &FlowValue| {
        if let Some(flow) = Flow::new(key, value, now) {
            *by_state.entry((word(flow.protocol), state(&flow))).or_default() += 1;
        }
    })?;
    Ok(Occupancy {
        flows: by_state,
        flows_max: flow_map.capacity / 2,
        maps: vec![
            flow_map,
            count(&folder, maps::CONNECTED, |_: &u64, _: &Translation| {})?,
            count(&folder, maps::AFFINITY, |_: &AffinityKey, _: &AffinityValue| {})?,
        ],
    })
}

fn count<K: Pod, V: Pod>(folder: &Path, name: &'static str, mut note: impl FnMut(&K, &V)) -> anyhow::Result<LruFill> {
    let table: BpfTable<K, V> = object::table(folder, name)?;
    let mut rows = 0;
    table
        .read(&mut |key, value| {
            rows += 1;
            note(&key, &value);
            true
        })
        .with_context(|| format!("map {name}"))?;
    Ok(LruFill {
        map: name,
        rows,
        capacity: table.capacity(),
    })
}

fn state(flow: &Flow) -> FlowState {
    match flow {
        Flow { is_closing: true, .. } => FlowState::Closing,
        Flow { silent, .. } if *silent < ACTIVE => FlowState::Active,
        Flow { .. } => FlowState::Idle,
    }
}

fn word(protocol: u8) -> Cow<'static, str> {
    match protocol {
        TCP => Cow::Borrowed("TCP"),
        UDP => Cow::Borrowed("UDP"),
        SCTP => Cow::Borrowed("SCTP"),
        other => Cow::Owned(other.to_string()),
    }
}
