//! What it came to: a table, each fault, and the sum in the last line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::traffic::{Event, Fault, Kind, Timeline, faults_of, table};

/// It, as it is written as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) rate: u32,
    pub(crate) long: usize,
    pub(crate) events: Vec<Event>,
    /// How many new ones took more than a second, by way.
    pub(crate) slow_ways: BTreeMap<String, u64>,
    pub(crate) faults: Vec<Fault>,
}

impl Report {
    /// As JSON.
    pub(crate) fn json(&self) -> Result<serde_json::Value> {
        let mut value = serde_json::to_value(self).context("writing the result as JSON")?;
        for (key, kind) in [
            ("failed_connections", Kind::FailedConnection),
            ("resets", Kind::Reset),
            ("lost_datagrams", Kind::LostDatagram),
        ] {
            value[key] = faults_of(kind, &self.faults).into();
        }
        Ok(value)
    }

    /// For people.
    pub(crate) fn render(&self, timeline: &Timeline) -> String {
        let mut text = format!("{}\n\n", table(timeline.events(), &self.faults));
        for fault in &self.faults {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}", timeline.line(fault));
        }
        let seconds: f64 = self.events.iter().map(|event| event.took.as_secs_f64()).sum();
        let new: u64 = self.events.iter().map(|event| event.counts.tcp).sum();
        let _ = writeln!(
            text,
            "seed {}: {new} new TCP connections in {seconds:.0} s, {:.0} a second, beside {} long ones",
            self.seed,
            new as f64 / seconds.max(f64::EPSILON),
            self.long
        );
        let _ = writeln!(
            text,
            "{} failed connections, {} resets, {} lost datagrams of live flows",
            faults_of(Kind::FailedConnection, &self.faults),
            faults_of(Kind::Reset, &self.faults),
            faults_of(Kind::LostDatagram, &self.faults)
        );
        text
    }
}
