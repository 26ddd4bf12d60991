//! How much there is.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family as Series, gauge::Gauge},
    registry::Registry,
};

use super::description::{Description, Kind::Gauge as Tells};
use crate::plane::{Fill, PlaneName};

const SERVICES: Description = Description::new(Tells, "lb_services", &[], "Services that there are");
const SERVICE_PORTS: Description = Description::new(
    Tells,
    "lb_service_ports",
    &[],
    "Ports of Services that are served, each once a protocol and family",
);
const FRONTENDS: Description = Description::new(
    Tells,
    "lb_frontends",
    &[],
    "Addresses and ports in the kernel that clients dial",
);
const FAILING: Description = Description::new(
    Tells,
    "lb_failing",
    &[],
    "Service ports, and addresses, that are tried again",
);
const UNSUPPORTED: Description = Description::new(
    Tells,
    "lb_unsupported",
    &[],
    "What is asked of services that the plane has no way to do",
);
const READY: Description = Description::new(
    Tells,
    "lb_ready",
    &[],
    "1 once every service is in the kernel and every link that was there leads to it",
);
const ENTRIES: Description = Description::new(
    Tells,
    "lb_map_entries",
    &["map"],
    "Rows in a BPF map that the agent fills: one that is full keeps a change out",
)
.only(PlaneName::Ebpf);
const CAPACITY: Description = Description::new(
    Tells,
    "lb_map_capacity",
    &["map"],
    "Rows that such a map can hold: a flag of `lb-agent run` says how many",
)
.only(PlaneName::Ebpf);

pub(super) const METRICS: &[Description] = &[
    SERVICES,
    SERVICE_PORTS,
    FRONTENDS,
    FAILING,
    UNSUPPORTED,
    READY,
    ENTRIES,
    CAPACITY,
];

/// How much there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Services.
    pub services: usize,
    /// Their ports that are served here.
    pub service_ports: usize,
    /// Frontends in the kernel.
    pub frontends: usize,
    /// What is tried again.
    pub failing: usize,
    /// What the plane has no way to do.
    pub unsupported: usize,
    /// Whether a complete state is in the kernel.
    pub ready: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Map {
    map: &'static str,
}

/// Their values. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Inventory {
    services: Gauge,
    service_ports: Gauge,
    frontends: Gauge,
    failing: Gauge,
    unsupported: Gauge,
    ready: Gauge,
    entries: Series<Map, Gauge>,
    capacity: Series<Map, Gauge>,
}

impl Inventory {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for (description, gauge) in [
            (SERVICES, &metrics.services),
            (SERVICE_PORTS, &metrics.service_ports),
            (FRONTENDS, &metrics.frontends),
            (FAILING, &metrics.failing),
            (UNSUPPORTED, &metrics.unsupported),
            (READY, &metrics.ready),
        ] {
            description.register(registry, gauge.clone());
        }
        ENTRIES.register(registry, metrics.entries.clone());
        CAPACITY.register(registry, metrics.capacity.clone());
        metrics
    }

    pub(super) fn set(&self, totals: Totals) {
        set(&self.services, totals.services);
        set(&self.service_ports, totals.service_ports);
        set(&self.frontends, totals.frontends);
        set(&self.failing, totals.failing);
        set(&self.unsupported, totals.unsupported);
        set(&self.ready, usize::from(totals.ready));
    }

    pub(super) fn set_fill(&self, fill: Vec<Fill>) {
        for Fill { map, used, capacity } in fill {
            set(&self.entries.get_or_create(&Map { map }), used);
            set(&self.capacity.get_or_create(&Map { map }), capacity as usize);
        }
    }
}

fn set(gauge: &Gauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}
