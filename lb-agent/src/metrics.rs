//! What the agent counts, for Prometheus.
//!
//! kube-proxy's names where the meaning is kube-proxy's (`kubeproxy_…`), ours beside them (`lb_…`). None carries the
//! name of a service, a pod or a link: their number does not grow with the cluster. What a plane has not is absent there.
//!
//! What only the agent's loop knows it tells here. What others know anyway, the kernel among them, is asked for when
//! somebody scrapes.

mod data_path;
#[cfg(test)]
mod deployed;
mod description;
mod inventory;
mod kube_proxy;
mod links;
mod objects;
mod programming;
#[cfg(test)]
mod reference;
mod server;
#[cfg(test)]
mod tests;
mod watches;

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use jiff::Timestamp;
use lb_common::maps::LAYOUT_VERSION;
use prometheus_client::{
    encoding::text::encode,
    metrics::{gauge::Gauge, info::Info},
    registry::Registry,
};
use tokio::sync::watch;

pub use self::{
    description::{Description, Kind},
    inventory::Totals,
    kube_proxy::{Extent, Probes},
    server::serve,
};
use self::{inventory::Inventory, kube_proxy::KubeProxy, programming::Programming};
use crate::{
    agent::links::Standings,
    desired::Family,
    objects::{Skipped, kube},
    plane::{Fill, Outcome, PlaneName, choice::Choice},
};

/// A moment in seconds since 1970.
type Seconds = Gauge<f64, AtomicU64>;

const PLANE: Description = Description::new(
    Kind::Info,
    "lb_plane",
    &["plane", "reason"],
    "What serves on this node, and why: `configured`, `preferred` or `fallback`",
);
const BUILD: Description = Description::new(
    Kind::Info,
    "lb_build",
    &["version", "map_layout"],
    "Which lb-agent this is",
);

/// Every metric that an agent may expose.
pub fn descriptions() -> impl Iterator<Item = &'static Description> {
    let each: [&[Description]; 8] = [
        const { &[BUILD, PLANE] },
        inventory::METRICS,
        programming::METRICS,
        data_path::METRICS,
        links::METRICS,
        watches::METRICS,
        objects::METRICS,
        kube_proxy::METRICS,
    ];
    each.into_iter().flatten()
}

/// Who knows what the agent's loop does not.
#[derive(Debug, Default)]
pub struct Sources {
    /// What is answered to those who ask for the proxy's health.
    pub probes: Probes,
    /// The watches of the API server, if there is one.
    pub watches: Option<kube::Watches>,
    /// What objects could not be read.
    pub skipped: Skipped,
    /// The links.
    pub links: Option<watch::Receiver<Standings>>,
    /// The BPF file system with the maps of the plane ebpf, if that serves.
    pub bpffs: Option<PathBuf>,
}

/// The metrics, told by the agent and asked for by the server. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    plane: PlaneName,
    registry: Arc<Registry>,
    kube_proxy: KubeProxy,
    programming: Programming,
    inventory: Inventory,
}

impl Metrics {
    /// Of an agent that has done nothing yet.
    #[must_use]
    pub fn new(choice: &Choice, sources: Sources) -> Self {
        let mut registry = Registry::default();
        let plane = [("plane", choice.plane.word()), ("reason", choice.reason.word())];
        PLANE.register(&mut registry, Info::new(plane.to_vec()));
        let build = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("map_layout", LAYOUT_VERSION.to_string()),
        ];
        BUILD.register(&mut registry, Info::new(build));
        let kube_proxy = KubeProxy::register(&mut registry, &sources.probes);
        let programming = Programming::register(&mut registry);
        let inventory = Inventory::register(&mut registry);
        objects::Objects::register(&mut registry, sources.skipped);
        if let Some(watches) = sources.watches {
            watches::Watches::register(&mut registry, watches);
        }
        if let Some(links) = sources.links {
            links::Links::register(&mut registry, links);
        }
        if let Some(bpffs) = sources.bpffs {
            data_path::DataPath::register(&mut registry, bpffs);
        }
        Self {
            plane: choice.plane,
            registry: Arc::new(registry),
            kube_proxy,
            programming,
            inventory,
        }
    }

    /// So many Services and EndpointSlices are new or different.
    pub fn changed(&self, services: usize, slices: usize) {
        self.kube_proxy.changed(services, slices);
    }

    /// Changes have come in that may concern either family.
    pub fn changes_wait(&self) {
        for family in [Family::V4, Family::V6] {
            self.kube_proxy.queued(family);
        }
    }

    /// None of the changes waits any more.
    pub fn nothing_pends(&self) {
        self.kube_proxy.nothing_pends();
    }

    /// The kernel has all that is asked of it in this family.
    pub fn is_programmed(&self, family: Family) {
        self.kube_proxy.is_programmed(family);
    }

    /// A batch has been given to the kernel, which concerned these families.
    pub fn synced(
        &self,
        outcome: &Outcome,
        families: impl IntoIterator<Item = Family>,
        extent: Extent,
        took: Duration,
    ) {
        self.programming.synced(outcome);
        for family in families {
            self.kube_proxy.synced(family, extent, took.as_secs_f64());
        }
    }

    /// What was heard from this source is in the kernel.
    pub fn programmed(&self, source: &'static str, after: Duration) {
        self.programming.programmed(source, after);
    }

    /// What a slice of the family told is in the kernel, so many seconds after it happened.
    pub fn network_programmed(&self, family: Family, seconds: f64) {
        self.kube_proxy.network_programmed(family, seconds);
    }

    /// So many service ports have no local endpoint where their internal, or external, policy wants one.
    pub fn set_without_local_endpoint(&self, family: Family, internal: usize, external: usize) {
        self.kube_proxy.set_without_local_endpoint(family, internal, external);
    }

    /// How much there is now.
    pub fn set(&self, totals: Totals) {
        self.inventory.set(totals);
    }

    /// How full the kernel's tables are now.
    pub fn set_fill(&self, fill: Vec<Fill>) {
        self.inventory.set_fill(fill);
    }

    /// All of them, as OpenMetrics has it. May read the kernel's tables, which takes a while.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string fails only where a metric does, and these have names and numbers.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn now() -> f64 {
    Timestamp::now().as_duration().as_secs_f64()
}
