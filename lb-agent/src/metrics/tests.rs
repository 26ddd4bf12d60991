//! What is exposed, after something has happened.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::plane::{PlaneError, choice::Reason};

fn metrics() -> Metrics {
    metrics_of(Sources::default())
}

fn metrics_of(sources: Sources) -> Metrics {
    let choice = Choice {
        plane: PlaneName::Ipvs,
        reason: Reason::Fallback {
            missing: vec!["a long story".to_owned()],
        },
    };
    Metrics::new(&choice, sources)
}

fn value(metrics: &Metrics, series: &str) -> Option<f64> {
    let text = metrics.text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

#[track_caller]
fn is(metrics: &Metrics, series: &str, expected: f64) {
    assert_eq!(value(metrics, series), Some(expected), "{series}");
}

#[test]
fn the_plane_and_the_build_are_labels_of_series_that_are_one() {
    let metrics = metrics();
    is(&metrics, r#"lb_plane_info{plane="ipvs",reason="fallback"}"#, 1.0);
    let build = format!(
        r#"lb_build_info{{version="{}",map_layout="{LAYOUT_VERSION}"}}"#,
        env!("CARGO_PKG_VERSION")
    );
    is(&metrics, &build, 1.0);
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
fn a_batch_is_measured_for_the_families_it_is_about() {
    let metrics = metrics();
    let outcome = Outcome::default();
    let took = Duration::from_millis(3);
    metrics.synced(&outcome, [Family::V4, Family::V6], Extent::Full, took);
    metrics.synced(&outcome, [Family::V6], Extent::Partial, took);
    let count = |name: &str, family: &str| {
        let series = format!(r#"kubeproxy_sync_{name}_duration_seconds_count{{ip_family="{family}"}}"#);
        value(&metrics, &series)
    };
    assert_eq!(count("proxy_rules", "IPv4"), Some(1.0));
    assert_eq!(count("proxy_rules", "IPv6"), Some(2.0));
    assert_eq!(count("full_proxy_rules", "IPv6"), Some(1.0));
    assert_eq!(count("partial_proxy_rules", "IPv6"), Some(1.0));
    assert_eq!(count("partial_proxy_rules", "IPv4"), None);
    let bucket =
        |le: &str| format!(r#"kubeproxy_sync_proxy_rules_duration_seconds_bucket{{le="{le}",ip_family="IPv4"}}"#);
    is(&metrics, &bucket("0.002"), 0.0);
    is(&metrics, &bucket("0.004"), 1.0);
}

#[test]
fn what_fails_is_counted_by_why() {
    let metrics = metrics();
    let refusal = || PlaneError::Kernel {
        what: "a write".to_owned(),
        source: std::io::Error::from(std::io::ErrorKind::PermissionDenied).into(),
    };
    for addresses in [None, Some(refusal())] {
        let outcome = Outcome {
            writes: 5,
            addresses,
            ..Outcome::default()
        };
        metrics.synced(&outcome, [], Extent::Partial, Duration::ZERO);
    }
    for (series, expected) in [
        ("lb_syncs_total", 2.0),
        ("lb_sync_writes_total", 10.0),
        ("lb_sync_failures_total", 1.0),
        (r#"lb_sync_errors_total{kind="kernel"}"#, 1.0),
        (r#"lb_sync_errors_total{kind="map_full"}"#, 0.0),
        (r#"lb_sync_errors_total{kind="foreign"}"#, 0.0),
    ] {
        is(&metrics, series, expected);
    }
}

#[test]
fn changes_pend_until_they_are_written_and_stay_counted() {
    let metrics = metrics();
    metrics.changed(2, 5);
    metrics.changed(1, 0);
    let series = |kind: &str, what: &str| format!("kubeproxy_sync_proxy_rules_{kind}_changes_{what}");
    is(&metrics, &series("service", "pending"), 3.0);
    is(&metrics, &series("endpoint", "pending"), 5.0);
    metrics.nothing_pends();
    is(&metrics, &series("service", "pending"), 0.0);
    is(&metrics, &series("service", "total"), 3.0);
    is(&metrics, &series("endpoint", "total"), 5.0);
}

#[test]
fn what_there_is_is_told() {
    let metrics = metrics();
    metrics.set(Totals {
        services: 2,
        service_ports: 3,
        frontends: 4,
        failing: 5,
        unsupported: 6,
        ready: true,
    });
    metrics.set_fill(vec![Fill {
        map: "SLOTS",
        used: 7,
        capacity: 8,
    }]);
    metrics.set_without_local_endpoint(Family::V4, 9, 10);
    let local = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    for (series, expected) in [
        ("lb_services", 2.0),
        ("lb_service_ports", 3.0),
        ("lb_frontends", 4.0),
        ("lb_failing", 5.0),
        ("lb_unsupported", 6.0),
        ("lb_ready", 1.0),
        (r#"lb_map_entries{map="SLOTS"}"#, 7.0),
        (r#"lb_map_capacity{map="SLOTS"}"#, 8.0),
        (
            &format!(r#"{local}{{traffic_policy="internal",ip_family="IPv4"}}"#),
            9.0,
        ),
        (
            &format!(r#"{local}{{traffic_policy="external",ip_family="IPv4"}}"#),
            10.0,
        ),
    ] {
        is(&metrics, series, expected);
    }
}

/// The metrics of an exposition: their kind, and the names of their labels as far as a series shows any.
fn exposed(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut metrics = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            last = name.to_owned();
            metrics.insert(last.clone(), (kind.to_owned(), BTreeSet::new()));
        } else if let Some((_, labels)) = line.split_once('{')
            && !line.starts_with('#')
        {
            let (labels, _) = labels.rsplit_once('}').unwrap();
            let names = labels.split(',').map(|label| label.split_once('=').unwrap().0);
            let of_last: &mut (String, BTreeSet<String>) = metrics.get_mut(&last).unwrap();
            of_last.1.extend(names.filter(|name| *name != "le").map(str::to_owned));
        }
    }
    metrics
}

#[test]
fn each_that_is_exposed_is_described_as_it_is() {
    let (links, watches) = (watch::channel(Standings::default()).1, kube::Watches::default());
    watches.of_a_kind_that_told_something(crate::model::Kind::Service);
    let sources = Sources {
        watches: Some(watches),
        links: Some(links),
        ..Sources::default()
    };
    sources.probes.healthz(200);
    sources.probes.livez(503);
    let metrics = metrics_of(sources);
    metrics.changed(1, 1);
    metrics.changes_wait();
    metrics.programmed("Service", Duration::ZERO);
    metrics.network_programmed(Family::V4, 1.0);
    metrics.set_without_local_endpoint(Family::V4, 0, 0);
    metrics.set(Totals::default());
    metrics.set_fill(vec![Fill {
        map: "SLOTS",
        used: 0,
        capacity: 1,
    }]);
    for extent in [Extent::Full, Extent::Partial] {
        metrics.synced(&Outcome::default(), [Family::V4], extent, Duration::ZERO);
    }
    metrics.is_programmed(Family::V4);

    let exposed = exposed(&metrics.text());
    let described: BTreeMap<_, _> = descriptions()
        // Those that are read from BPF maps are looked at where there are such.
        .filter(|description| !data_path::METRICS.contains(description))
        .map(|description| {
            let labels = description.labels.iter().map(|&label| label.to_owned());
            let told = (description.kind.to_string(), labels.collect());
            (description.name.to_owned(), told)
        })
        .collect();
    assert_eq!(exposed, described);
}

#[test]
fn no_two_are_called_the_same() {
    let mut names = BTreeSet::new();
    for name in descriptions().flat_map(Description::series) {
        assert!(names.insert(name.clone()), "{name}");
    }
}
