//! What the BPF programs count, and how full their tables are: read from the kernel whenever somebody asks.

use std::{
    borrow::Cow,
    fmt,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use lb_common::Counter;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

use super::description::{
    Description,
    Kind::{Counter as Counts, Gauge as Tells},
    Row,
};
use crate::plane::{
    PlaneName,
    ebpf::{self, FlowState, Occupancy},
};

const fn describe(
    kind: super::description::Kind,
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Description {
    Description::new(kind, name, labels, help).only(PlaneName::Ebpf)
}

const FLOWS: Description = describe(
    Tells,
    "lb_flows",
    &["protocol", "state"],
    "Flows in the table: `active` had a packet of their client in the last minute, `idle` had none, of `closing` ones a \
     FIN or RST was seen. The last two give way when the table is full",
);
const FLOWS_MAX: Description = describe(
    Tells,
    "lb_flows_max",
    &[],
    "Flows that the table can hold: half of --max-flows",
);
const LRU_ENTRIES: Description = describe(
    Tells,
    "lb_lru_map_entries",
    &["map"],
    "Rows in a BPF map that programs fill: in one that is full the row that was used the longest time ago gives way, so \
     that it fills up sooner or later",
);
const LRU_CAPACITY: Description = describe(Tells, "lb_lru_map_capacity", &["map"], "Rows that such a map can hold");
const FLOWS_CREATED: Description = describe(Counts, "lb_flows_created", &[], "Flows that began");
const SOCKETS: Description = describe(
    Counts,
    "lb_socket_translations",
    &[],
    "Calls of processes that were sent to a backend in their socket",
);
const REJECTS: Description = describe(
    Counts,
    "lb_rejects",
    &[],
    "Packets answered with port unreachable and calls that failed with ECONNREFUSED: no endpoint, or no such port",
);
const DROPS: Description = describe(
    Counts,
    "lb_drops",
    &["reason"],
    "Packets and calls that went nowhere and were not answered; `lb-agent monitor` shows them",
);
const WITHOUT_FLOW: Description = describe(
    Counts,
    "lb_passed_without_flow",
    &[],
    "TCP and SCTP packets to a service that neither belonged to a flow nor opened one, and passed as they were",
);
const EVENTS_LOST: Description = describe(
    Counts,
    "lb_events_lost",
    &[],
    "Drops and rejects that `lb-agent monitor` could not show: too many at once, or nobody read",
);

const DRAINING: Description = describe(
    Tells,
    "lb_draining_seconds",
    &[],
    "For how long programs of an earlier agent, whose flow table this one could not take over, go on with its \
     connections; 0 where there are none. After --drain they end",
);

pub(super) const METRICS: &[Description] = &[
    DRAINING,
    FLOWS,
    FLOWS_MAX,
    LRU_ENTRIES,
    LRU_CAPACITY,
    FLOWS_CREATED,
    SOCKETS,
    REJECTS,
    DROPS,
    WITHOUT_FLOW,
    EVENTS_LOST,
];

/// How long a count of rows is good for: it is a walk over all of them.
const RECOUNT: Duration = Duration::from_secs(10);

/// Where to read.
#[derive(Debug)]
pub(super) struct DataPath {
    bpffs: PathBuf,
    counted: Mutex<Option<(Instant, Occupancy)>>,
}

impl DataPath {
    /// Of the maps that are pinned there, once they are filled.
    pub(super) fn register(registry: &mut Registry, bpffs: PathBuf) {
        registry.register_collector(Box::new(Self {
            bpffs,
            counted: Mutex::new(None),
        }));
    }

    fn occupancy(&self) -> anyhow::Result<Occupancy> {
        // Nothing in here is left half done by a panic.
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, occupancy)) = &*counted
            && when.elapsed() < RECOUNT
        {
            return Ok(occupancy.clone());
        }
        let occupancy = ebpf::occupancy(&self.bpffs)?;
        *counted = Some((Instant::now(), occupancy.clone()));
        Ok(occupancy)
    }
}

impl Collector for DataPath {
    /// What cannot be read is absent: before the maps are filled, that is everything.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Ok(since) = ebpf::draining_since(&self.bpffs) {
            let time = since.and_then(|since| since.elapsed().ok()).unwrap_or_default();
            DRAINING.encode(&mut encoder, &[(Vec::new(), time.as_secs_f64())])?;
        }
        match self.occupancy() {
            Ok(occupancy) => encode_occupancy(&occupancy, &mut encoder)?,
            Err(error) => tracing::debug!("the tables of the data path cannot be counted: {error:#}"),
        }
        match ebpf::counters(&self.bpffs) {
            Ok(counters) => encode_counters(&counters, &mut encoder),
            Err(error) => {
                tracing::debug!("the counters of the data path cannot be read: {error:#}");
                Ok(())
            }
        }
    }
}

fn encode_occupancy(occupancy: &Occupancy, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut flows: Vec<Row> = Vec::new();
    for ((protocol, state), count) in &occupancy.flows {
        let state = match state {
            FlowState::Active => "active",
            FlowState::Idle => "idle",
            FlowState::Closing => "closing",
        };
        flows.push((
            vec![("protocol", protocol.clone()), ("state", state.into())],
            *count as f64,
        ));
    }
    FLOWS.encode(encoder, &flows)?;
    FLOWS_MAX.encode(encoder, &[(Vec::new(), f64::from(occupancy.flows_max))])?;
    let rows = |value: fn(&ebpf::LruFill) -> f64| -> Vec<Row> {
        let of_map = |fill: &ebpf::LruFill| (vec![("map", Cow::Borrowed(fill.map))], value(fill));
        occupancy.maps.iter().map(of_map).collect()
    };
    LRU_ENTRIES.encode(encoder, &rows(|fill| fill.rows as f64))?;
    LRU_CAPACITY.encode(encoder, &rows(|fill| f64::from(fill.capacity)))
}

fn encode_counters(counters: &[(Counter, u64)], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut drops: Vec<Row> = Vec::new();
    for (counter, count) in counters {
        let value = *count as f64;
        let single = match counter {
            Counter::FlowNew => FLOWS_CREATED,
            Counter::SocketTranslated => SOCKETS,
            Counter::Rejected => REJECTS,
            Counter::PassedWithoutFlow => WITHOUT_FLOW,
            Counter::EventsLost => EVENTS_LOST,
            Counter::DroppedNoLocalEndpoint
            | Counter::DroppedFlowCollision
            | Counter::DroppedFlowTable
            | Counter::DroppedRewrite
            | Counter::DroppedRejectFailed
            | Counter::DroppedNoBackend
            | Counter::DroppedSourceRange
            | Counter::DroppedUnallocated
            | Counter::DroppedFragment
            | Counter::DroppedSpoofedSource
            | Counter::DroppedNoSource
            | Counter::DroppedNoSourcePort => {
                let reason = counter.name();
                let reason = reason.strip_prefix("dropped_").unwrap_or(reason);
                drops.push((vec![("reason", reason.into())], value));
                continue;
            }
        };
        single.encode(encoder, &[(Vec::new(), value)])?;
    }
    DROPS.encode(encoder, &drops)
}
