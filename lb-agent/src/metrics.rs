//! What the agent counts, for Prometheus.
//!
//! kube-proxy's names where the meaning is kube-proxy's (`kubeproxy_…`), ours beside them (`lb_…`). None carries the
//! name of a service: their number does not grow with the cluster.

mod server;

use std::sync::{Arc, atomic::AtomicU64};

use jiff::Timestamp;
use lb_common::maps::LAYOUT_VERSION;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family as Series, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};
pub use server::serve;

use crate::{
    desired::Family,
    plane::{Outcome, PlaneName, choice::Choice},
};

/// A moment in seconds since 1970.
type Seconds = Gauge<f64, AtomicU64>;

/// The metrics, told by the agent and asked for by the server. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    plane: PlaneName,
    registry: Arc<Registry>,
    last_queued: Series<IpFamily, Seconds>,
    last_synced: Series<IpFamily, Seconds>,
    syncs: Counter,
    writes: Counter,
    failures: Counter,
    services: Gauge,
    service_ports: Gauge,
    frontends: Gauge,
    failing: Gauge,
    unsupported: Gauge,
    ready: Gauge,
}

/// kube-proxy's label.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct IpFamily {
    ip_family: &'static str,
}

impl From<Family> for IpFamily {
    fn from(family: Family) -> Self {
        let ip_family = match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        Self { ip_family }
    }
}

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

impl Metrics {
    /// Of an agent that has done nothing yet.
    #[must_use]
    pub fn new(choice: &Choice) -> Self {
        let mut registry = Registry::default();
        let plane = [("plane", choice.plane.word()), ("reason", choice.reason.word())];
        registry.register(
            "lb_plane",
            "What serves on this node, and why",
            Info::new(plane.to_vec()),
        );
        let build = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("map_layout", LAYOUT_VERSION.to_string()),
        ];
        registry.register("lb_build", "Which lb-agent this is", Info::new(build));
        let metrics = Self {
            plane: choice.plane,
            registry: Arc::default(),
            last_queued: Series::default(),
            last_synced: Series::default(),
            syncs: Counter::default(),
            writes: Counter::default(),
            failures: Counter::default(),
            services: Gauge::default(),
            service_ports: Gauge::default(),
            frontends: Gauge::default(),
            failing: Gauge::default(),
            unsupported: Gauge::default(),
            ready: Gauge::default(),
        };
        registry.register_with_unit(
            "kubeproxy_sync_proxy_rules_last_queued_timestamp",
            "When a change last came in that may concern the family",
            Unit::Seconds,
            metrics.last_queued.clone(),
        );
        registry.register_with_unit(
            "kubeproxy_sync_proxy_rules_last_timestamp",
            "When the kernel last had all that was asked of it in the family",
            Unit::Seconds,
            metrics.last_synced.clone(),
        );
        registry.register(
            "lb_syncs",
            "Batches of changes given to the kernel",
            metrics.syncs.clone(),
        );
        registry.register(
            "lb_sync_writes",
            "Writes to the kernel that they took",
            metrics.writes.clone(),
        );
        registry.register(
            "lb_sync_failures",
            "Service ports that kept their former state after a batch, and addresses that did",
            metrics.failures.clone(),
        );
        for (name, help, gauge) in [
            ("lb_services", "Services that there are", &metrics.services),
            (
                "lb_service_ports",
                "Ports of Services that are served, each once a protocol and family",
                &metrics.service_ports,
            ),
            (
                "lb_frontends",
                "Addresses and ports in the kernel that clients dial",
                &metrics.frontends,
            ),
            (
                "lb_failing",
                "Service ports, and addresses, that are tried again",
                &metrics.failing,
            ),
            (
                "lb_unsupported",
                "What is asked of services that the plane has no way to do",
                &metrics.unsupported,
            ),
            (
                "lb_ready",
                "1 once every service is in the kernel and every link that was there leads to it",
                &metrics.ready,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        Self {
            registry: Arc::new(registry),
            ..metrics
        }
    }

    /// Changes have come in that may concern either family.
    pub fn changes_wait(&self) {
        for family in [Family::V4, Family::V6] {
            self.last_queued.get_or_create(&family.into()).set(now());
        }
    }

    /// The kernel has all that is asked of it in this family.
    pub fn is_programmed(&self, family: Family) {
        self.last_synced.get_or_create(&family.into()).set(now());
    }

    /// A batch has been given to the kernel.
    pub fn synced(&self, outcome: &Outcome) {
        self.syncs.inc();
        self.writes.inc_by(outcome.writes as u64);
        let failures = outcome.failed.len() + usize::from(outcome.addresses.is_some());
        self.failures.inc_by(failures as u64);
    }

    /// How much there is now.
    pub fn set(&self, totals: Totals) {
        for (gauge, value) in [
            (&self.services, totals.services),
            (&self.service_ports, totals.service_ports),
            (&self.frontends, totals.frontends),
            (&self.failing, totals.failing),
            (&self.unsupported, totals.unsupported),
            (&self.ready, usize::from(totals.ready)),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    /// All of them, as OpenMetrics has it.
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string fails only where a metric does, and these have names and numbers.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn now() -> f64 {
    Timestamp::now().as_duration().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::{PlaneError, choice::Reason};

    fn metrics() -> Metrics {
        Metrics::new(&Choice {
            plane: PlaneName::Ipvs,
            reason: Reason::Fallback {
                missing: vec!["a long story".to_owned()],
            },
        })
    }

    fn value(metrics: &Metrics, series: &str) -> Option<f64> {
        let text = metrics.text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map(|value| value.parse().unwrap())
    }

    #[test]
    fn the_plane_and_the_build_are_labels_of_series_that_are_one() {
        let metrics = metrics();
        assert_eq!(
            value(&metrics, r#"lb_plane_info{plane="ipvs",reason="fallback"}"#),
            Some(1.0)
        );
        let build = format!(
            r#"lb_build_info{{version="{}",map_layout="{LAYOUT_VERSION}"}}"#,
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(value(&metrics, &build), Some(1.0));
    }

    #[test]
    fn a_family_has_kube_proxys_times_once_it_has_any() {
        let metrics = metrics();
        let queued = r#"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"}"#;
        let synced = |family| format!(r#"kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family="{family}"}}"#);
        assert_eq!(value(&metrics, queued), None);
        let before = now();
        metrics.changes_wait();
        metrics.is_programmed(Family::V4);
        let after = now();
        for series in [queued, &synced("IPv4")] {
            let time = value(&metrics, series).unwrap();
            assert!((before..=after).contains(&time), "{series} {time}");
        }
        assert_eq!(value(&metrics, &synced("IPv6")), None);
    }

    #[test]
    fn what_happens_is_counted_and_what_there_is_is_told() {
        let metrics = metrics();
        let refusal = || PlaneError::Kernel {
            what: "a write".to_owned(),
            source: std::io::Error::from(std::io::ErrorKind::PermissionDenied).into(),
        };
        for addresses in [None, Some(refusal())] {
            metrics.synced(&Outcome {
                writes: 5,
                addresses,
                ..Outcome::default()
            });
        }
        metrics.set(Totals {
            services: 2,
            service_ports: 3,
            frontends: 4,
            failing: 5,
            unsupported: 6,
            ready: true,
        });
        for (series, expected) in [
            ("lb_syncs_total", 2.0),
            ("lb_sync_writes_total", 10.0),
            ("lb_sync_failures_total", 1.0),
            ("lb_services", 2.0),
            ("lb_service_ports", 3.0),
            ("lb_frontends", 4.0),
            ("lb_failing", 5.0),
            ("lb_unsupported", 6.0),
            ("lb_ready", 1.0),
        ] {
            assert_eq!(value(&metrics, series), Some(expected), "{series}");
        }
    }
}
