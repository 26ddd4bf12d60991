//! The links that clients come by.

use std::fmt;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};
use tokio::sync::watch;

use super::description::{
    Description,
    Kind::{Counter as Counts, Gauge as Tells},
    Row,
};
use crate::{agent::links::Standings, kernel::links::Role};

const LINKS: Description = Description::new(
    Tells,
    "lb_links",
    &["role", "state"],
    "Links by what they are to the plane: `served` (on the plane ebpf with a program each way), `served_in_haste` (for \
     now by filters), `waiting` (for the first complete state), `left_alone` (another service proxy serves it), `failed`",
);
const ERRORS: Description = Description::new(
    Counts,
    "lb_link_errors",
    &[],
    "Attempts to serve a link that failed; each is made again",
);

pub(super) const METRICS: &[Description] = &[LINKS, ERRORS];

/// What is told of them.
#[derive(Debug)]
pub(super) struct Links(watch::Receiver<Standings>);

impl Links {
    pub(super) fn register(registry: &mut Registry, standings: watch::Receiver<Standings>) {
        registry.register_collector(Box::new(Self(standings)));
    }
}

impl Collector for Links {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let standings = self.0.borrow().clone();
        let row = |((role, standing), count): ((Role, _), usize)| -> Row {
            let role = match role {
                Role::Pod => "pod",
                Role::Uplink => "uplink",
                Role::Tunnel => "tunnel",
            };
            let labels = vec![("role", role.into()), ("state", word(standing).into())];
            (labels, count as f64)
        };
        let rows: Vec<Row> = standings.counts().map(row).collect();
        LINKS.encode(&mut encoder, &rows)?;
        ERRORS.encode(&mut encoder, &[(Vec::new(), standings.errors() as f64)])
    }
}

const fn word(standing: crate::agent::links::Standing) -> &'static str {
    use crate::agent::links::Standing;
    match standing {
        Standing::Served => "served",
        Standing::ServedInHaste => "served_in_haste",
        Standing::Waiting => "waiting",
        Standing::LeftAlone => "left_alone",
        Standing::Failed => "failed",
    }
}
