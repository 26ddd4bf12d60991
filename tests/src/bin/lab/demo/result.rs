//! What the demo came to, as one JSON object.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::matrix::Played;
use serde::Serialize;

use super::change::Change;

/// The object.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Demo {
    /// How many probes there were: connections, questions over connections that were kept, and looks at how the
    /// connections of a row were spread.
    pub(crate) probes: u32,
    /// How many of them were not as they should.
    pub(crate) failed: u32,
    /// Where the agents had their objects from.
    pub(crate) objects: &'static str,
    /// How long it all took.
    pub(crate) seconds: f64,
    /// The matrix, a row a cell.
    pub(crate) matrix: Vec<Row>,
    /// The change of endpoints.
    pub(crate) change: Change,
}

/// A cell of the matrix.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    from: String,
    frontend: String,
    backend: String,
    protocol: String,
    family: String,
    to: SocketAddr,
    probes: u32,
    failed: u32,
    spread: BTreeMap<String, u32>,
    /// What the backends saw: the client, or the node in its place.
    seen: Vec<String>,
    wrong: Vec<String>,
}

impl From<&Played> for Row {
    fn from(played: &Played) -> Self {
        let cell = &played.cell;
        Self {
            from: cell.from.to_string(),
            frontend: cell.frontend.to_string(),
            backend: cell.backend.to_string(),
            protocol: cell.protocol.to_string(),
            family: cell.family.to_string(),
            to: played.to,
            probes: played.probes,
            failed: count(&played.wrong),
            spread: played.spread.clone(),
            seen: played.seen.iter().map(ToString::to_string).collect(),
            wrong: played.wrong.clone(),
        }
    }
}

impl Demo {
    /// Sums up.
    pub(crate) fn new(apiserver: bool, played: &[Played], change: Change, took: Duration) -> Self {
        let matrix: Vec<Row> = played.iter().map(Row::from).collect();
        let clients = &change.clients;
        Self {
            probes: matrix
                .iter()
                .map(|row| row.probes)
                .chain(clients.iter().map(|seen| seen.probes()))
                .sum(),
            failed: matrix
                .iter()
                .map(|row| row.failed)
                .chain(clients.iter().map(|seen| count(&seen.wrong)))
                .sum(),
            objects: if apiserver { "kube-apiserver" } else { "folder" },
            seconds: (took.as_secs_f64() * 10.0).round() / 10.0,
            matrix,
            change,
        }
    }
}

fn count(wrong: &[String]) -> u32 {
    u32::try_from(wrong.len()).unwrap_or(u32::MAX)
}
