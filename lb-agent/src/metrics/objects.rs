//! What objects could not be read, wherever they come from.

use std::fmt;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

use super::description::{Description, Kind::Counter as Counts, Row};
use crate::{model::Kind, objects::Skipped};

const UNREADABLE: Description = Description::new(
    Counts,
    "lb_objects_unreadable",
    &["kind"],
    "Objects, and parts of objects, that were skipped since they make no sense: the log names them",
);

pub(super) const METRICS: &[Description] = &[UNREADABLE];

/// What is told of them.
#[derive(Debug)]
pub(super) struct Objects(Skipped);

impl Objects {
    pub(super) fn register(registry: &mut Registry, skipped: Skipped) {
        registry.register_collector(Box::new(Self(skipped)));
    }
}

impl Collector for Objects {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let row = |kind: Kind| -> Row { (vec![("kind", kind.name().into())], self.0.of(kind) as f64) };
        UNREADABLE.encode(&mut encoder, &Kind::ALL.map(row))
    }
}
