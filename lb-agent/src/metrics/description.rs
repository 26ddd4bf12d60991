//! What a metric is called and what it means, said once: for those who scrape, and for `docs/metrics.md`.

use std::{borrow::Cow, fmt};

use prometheus_client::{
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::{MetricType, TypedMetric},
    registry::{Metric, Registry, Unit},
};

use crate::plane::PlaneName;

/// How times are counted. The last word of a name says so.
const SECONDS: &str = "_seconds";

/// A metric: one or more series that differ in the values of their labels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Description {
    /// Its name, without what its kind adds.
    pub name: &'static str,
    /// What a series holds.
    pub kind: Kind,
    /// Names of labels.
    pub labels: &'static [&'static str],
    /// What it means, in a sentence without a dot.
    pub help: &'static str,
    /// The only plane that has it, if one has not.
    pub plane: Option<PlaneName>,
}

/// What a series holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A number.
    Gauge,
    /// How many there were up to each of some bounds.
    Histogram,
    /// 1, with something to say in its labels.
    Info,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        })
    }
}

/// The labels of a series, and its value.
pub(super) type Row = (Vec<(&'static str, Cow<'static, str>)>, f64);

impl Description {
    /// One that both planes have.
    pub(super) const fn new(
        kind: Kind,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            labels,
            help,
            plane: None,
        }
    }

    /// One that only this plane has.
    pub(super) const fn only(self, plane: PlaneName) -> Self {
        Self {
            plane: Some(plane),
            ..self
        }
    }

    /// The names by which its series are asked for.
    #[must_use]
    pub fn series(&self) -> Vec<String> {
        let suffixes: &[&str] = match self.kind {
            Kind::Counter => &["_total"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["_bucket", "_sum", "_count"],
            Kind::Info => &["_info"],
        };
        suffixes.iter().map(|suffix| format!("{}{suffix}", self.name)).collect()
    }

    /// Registers what counts it.
    pub(super) fn register<M: Metric + TypedMetric>(&self, registry: &mut Registry, metric: M) {
        match self.name.strip_suffix(SECONDS) {
            Some(name) => registry.register_with_unit(name, self.help, Unit::Seconds, metric),
            None => registry.register(self.name, self.help, metric),
        }
    }

    /// Writes what was counted elsewhere: a counter or a gauge. Without any series it is absent.
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>, rows: &[Row]) -> fmt::Result {
        if rows.is_empty() {
            return Ok(());
        }
        let (name, unit) = match self.name.strip_suffix(SECONDS) {
            Some(name) => (name, Some(Unit::Seconds)),
            None => (self.name, None),
        };
        let metric_type = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge | Kind::Histogram | Kind::Info => MetricType::Gauge,
        };
        // The registry ends a sentence by itself, and this does not.
        let help = format!("{}.", self.help);
        let mut metric = encoder.encode_descriptor(name, &help, unit.as_ref(), metric_type)?;
        for (labels, value) in rows {
            let mut series = metric.encode_family(labels)?;
            match self.kind {
                Kind::Counter => series.encode_counter::<NoLabelSet, _, f64>(value, None)?,
                Kind::Gauge | Kind::Histogram | Kind::Info => series.encode_gauge(value)?,
            }
        }
        Ok(())
    }
}
