//! What kube-proxy tells too, by its names, labels and bounds, and with its meaning.
//!
//! Only what is about iptables, nftables or its reconciliation of connection tracking is not here.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family as Series,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets, linear_buckets},
    },
    registry::Registry,
};

use super::{
    Seconds,
    description::{
        Description,
        Kind::{self, Counter as Counts, Gauge as Tells, Histogram as Measures},
    },
    now,
};
use crate::desired::Family;

const IP_FAMILY: &[&str] = &["ip_family"];

const fn describe(kind: Kind, name: &'static str, labels: &'static [&'static str], help: &'static str) -> Description {
    Description::new(kind, name, labels, help)
}

const SYNC: Description = describe(
    Measures,
    "kubeproxy_sync_proxy_rules_duration_seconds",
    IP_FAMILY,
    "How long a batch of changes that concerned the family took to be in the kernel",
);
const SYNC_FULL: Description = describe(
    Measures,
    "kubeproxy_sync_full_proxy_rules_duration_seconds",
    IP_FAMILY,
    "The same of the first one, which is about everything",
);
const SYNC_PARTIAL: Description = describe(
    Measures,
    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
    IP_FAMILY,
    "The same of all others, which are about what has changed",
);
const NETWORK_PROGRAMMING: Description = describe(
    Measures,
    "kubeproxy_network_programming_duration_seconds",
    IP_FAMILY,
    "From a change of a Pod or Service, as its EndpointSlice tells the time by the control plane's clock, until it is \
     in the kernel; those from before the agent's start are left out",
);
const LAST_QUEUED: Description = describe(
    Tells,
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    IP_FAMILY,
    "When a change last came in that may concern the family",
);
const LAST_SYNCED: Description = describe(
    Tells,
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    IP_FAMILY,
    "When the kernel last had all that was asked of it in the family",
);
const ENDPOINT_PENDING: Description = describe(
    Tells,
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
    &[],
    "Changes of EndpointSlices that are not in the kernel yet",
);
const ENDPOINT_CHANGES: Description = describe(
    Counts,
    "kubeproxy_sync_proxy_rules_endpoint_changes",
    &[],
    "Changes of EndpointSlices; in a list each of them is one",
);
const SERVICE_PENDING: Description = describe(
    Tells,
    "kubeproxy_sync_proxy_rules_service_changes_pending",
    &[],
    "Changes of Services that are not in the kernel yet",
);
const SERVICE_CHANGES: Description = describe(
    Counts,
    "kubeproxy_sync_proxy_rules_service_changes",
    &[],
    "Changes of Services; in a list each of them is one. kube-proxy counts each once a family",
);
const NO_LOCAL_ENDPOINTS: Description = describe(
    Tells,
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
    &["traffic_policy", "ip_family"],
    "Service ports whose traffic policy is Local and which have endpoints, but none on this node: `internal` or \
     `external`",
);
const HEALTHZ: Description = describe(
    Counts,
    "kubeproxy_proxy_healthz",
    &["code"],
    "Answers at /healthz, by HTTP status",
);
const LIVEZ: Description = describe(
    Counts,
    "kubeproxy_proxy_livez",
    &["code"],
    "Answers at /livez, by HTTP status",
);

/// All of them.
pub(super) const METRICS: &[Description] = &[
    SYNC,
    SYNC_FULL,
    SYNC_PARTIAL,
    NETWORK_PROGRAMMING,
    LAST_QUEUED,
    LAST_SYNCED,
    ENDPOINT_PENDING,
    ENDPOINT_CHANGES,
    SERVICE_PENDING,
    SERVICE_CHANGES,
    NO_LOCAL_ENDPOINTS,
    HEALTHZ,
    LIVEZ,
];

type Durations = Series<IpFamily, Histogram, fn() -> Histogram>;

/// Their values. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct KubeProxy {
    syncs: Durations,
    full_syncs: Durations,
    partial_syncs: Durations,
    network_programming: Durations,
    last_queued: Series<IpFamily, Seconds>,
    last_synced: Series<IpFamily, Seconds>,
    endpoints: Changes,
    services: Changes,
    no_local_endpoints: Series<Policy, Gauge>,
}

/// Changes of one kind of objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    all: Counter,
    pending: Gauge,
}

impl Changes {
    fn note(&self, count: usize) {
        let count = count as u64;
        self.all.inc_by(count);
        self.pending.inc_by(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct IpFamily {
    ip_family: &'static str,
}

impl From<Family> for IpFamily {
    fn from(family: Family) -> Self {
        Self {
            ip_family: word(family),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Policy {
    traffic_policy: &'static str,
    ip_family: &'static str,
}

const fn word(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// Whether a batch is about everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// It is.
    Full,
    /// It is about what has changed.
    Partial,
}

/// kube-proxy's bounds, below which most of ours would be in the first bucket, and some more.
fn sync_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.000_031_25, 2.0, 5).chain(exponential_buckets(0.001, 2.0, 15)))
}

/// The same of its other bounds, of which 0 is one: what a clock that is ahead wrote.
fn programming_buckets() -> Histogram {
    let theirs = linear_buckets(0.25, 0.25, 2)
        .chain(linear_buckets(1.0, 1.0, 59))
        .chain(linear_buckets(60.0, 5.0, 12))
        .chain(linear_buckets(120.0, 30.0, 7));
    Histogram::new([0.0, 0.005, 0.01, 0.025, 0.05, 0.1].into_iter().chain(theirs))
}

impl KubeProxy {
    pub(super) fn register(registry: &mut Registry, probes: &Probes) -> Self {
        let durations = || Durations::new_with_constructor(sync_buckets);
        let metrics = Self {
            syncs: durations(),
            full_syncs: durations(),
            partial_syncs: durations(),
            network_programming: Durations::new_with_constructor(programming_buckets),
            last_queued: Series::default(),
            last_synced: Series::default(),
            endpoints: Changes::default(),
            services: Changes::default(),
            no_local_endpoints: Series::default(),
        };
        SYNC.register(registry, metrics.syncs.clone());
        SYNC_FULL.register(registry, metrics.full_syncs.clone());
        SYNC_PARTIAL.register(registry, metrics.partial_syncs.clone());
        NETWORK_PROGRAMMING.register(registry, metrics.network_programming.clone());
        LAST_QUEUED.register(registry, metrics.last_queued.clone());
        LAST_SYNCED.register(registry, metrics.last_synced.clone());
        ENDPOINT_PENDING.register(registry, metrics.endpoints.pending.clone());
        ENDPOINT_CHANGES.register(registry, metrics.endpoints.all.clone());
        SERVICE_PENDING.register(registry, metrics.services.pending.clone());
        SERVICE_CHANGES.register(registry, metrics.services.all.clone());
        NO_LOCAL_ENDPOINTS.register(registry, metrics.no_local_endpoints.clone());
        HEALTHZ.register(registry, probes.healthz.clone());
        LIVEZ.register(registry, probes.livez.clone());
        metrics
    }

    /// Something waits for the kernel that may concern the family.
    pub(super) fn queued(&self, family: Family) {
        self.last_queued.get_or_create(&family.into()).set(now());
    }

    /// The kernel has all that is asked of it in this family.
    pub(super) fn is_programmed(&self, family: Family) {
        self.last_synced.get_or_create(&family.into()).set(now());
    }

    /// A batch that concerned the family took so many seconds.
    pub(super) fn synced(&self, family: Family, extent: Extent, seconds: f64) {
        let other = match extent {
            Extent::Full => &self.full_syncs,
            Extent::Partial => &self.partial_syncs,
        };
        for durations in [&self.syncs, other] {
            durations.get_or_create(&family.into()).observe(seconds);
        }
    }

    /// What a slice of the family told is in the kernel, so many seconds after it happened.
    pub(super) fn network_programmed(&self, family: Family, seconds: f64) {
        self.network_programming.get_or_create(&family.into()).observe(seconds);
    }

    /// So many Services, and slices, are new or different.
    pub(super) fn changed(&self, services: usize, slices: usize) {
        self.services.note(services);
        self.endpoints.note(slices);
    }

    /// None of them waits any more.
    pub(super) fn nothing_pends(&self) {
        self.services.pending.set(0);
        self.endpoints.pending.set(0);
    }

    /// So many service ports have no local endpoint where their internal, or external, policy wants one.
    pub(super) fn set_without_local_endpoint(&self, family: Family, internal: usize, external: usize) {
        for (traffic_policy, count) in [("internal", internal), ("external", external)] {
            let labels = Policy {
                traffic_policy,
                ip_family: word(family),
            };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.no_local_endpoints.get_or_create(&labels).set(count);
        }
    }
}

/// What was answered to those who ask for the proxy's health. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    healthz: Series<Code, Counter>,
    livez: Series<Code, Counter>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Code {
    code: u16,
}

impl Probes {
    /// `/healthz` was answered with this HTTP status.
    pub fn healthz(&self, code: u16) {
        self.healthz.get_or_create(&Code { code }).inc();
    }

    /// `/livez` was.
    pub fn livez(&self, code: u16) {
        self.livez.get_or_create(&Code { code }).inc();
    }
}
