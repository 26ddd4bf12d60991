//! How well the API server is heard.

use std::{borrow::Cow, fmt};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

use super::description::{
    Description,
    Kind::{Counter as Counts, Gauge as Tells},
    Row,
};
use crate::{
    model::Kind,
    objects::kube::{WatchState, Watches as State},
};

const KIND: &[&str] = &["kind"];

const AGE: Description = Description::new(
    Tells,
    "lb_watch_age_seconds",
    KIND,
    "For how long what is known of a kind may have been out of date: 0 while its watch works, else since it was found \
     not to. A connection that breaks without a word is found out after two and a half minutes",
);
const EVENTS: Description = Description::new(
    Counts,
    "lb_watch_events",
    KIND,
    "What the API server told of objects of a kind; a list is one",
);
const LAST_EVENT: Description = Description::new(
    Tells,
    "lb_watch_last_event_timestamp_seconds",
    KIND,
    "When it last told something. It says nothing of objects that nobody changes",
);
const STARTS: Description = Description::new(
    Counts,
    "lb_watch_starts",
    KIND,
    "Watches that the API server agreed to: one every few minutes is how it goes",
);
const ERRORS: Description = Description::new(
    Counts,
    "lb_watch_errors",
    &["kind", "reason"],
    "Requests for a watch that failed, and watches that broke off: `connection`, `refused` (with an HTTP status), \
     `expired` (a list follows), `credentials`",
);
pub(super) const METRICS: &[Description] = &[AGE, EVENTS, LAST_EVENT, STARTS, ERRORS];

/// What is told of them.
#[derive(Debug)]
pub(super) struct Watches(State);

impl Watches {
    pub(super) fn register(registry: &mut Registry, state: State) {
        registry.register_collector(Box::new(Self(state)));
    }
}

impl Collector for Watches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let states = self.0.states();
        let rows = |value: fn(&WatchState) -> Option<f64>| -> Vec<Row> {
            let row = |(kind, state): &(Kind, WatchState)| Some((vec![("kind", name(*kind))], value(state)?));
            states.iter().filter_map(row).collect()
        };
        AGE.encode(&mut encoder, &rows(|state| Some(state.age().as_secs_f64())))?;
        EVENTS.encode(&mut encoder, &rows(|state| Some(state.events as f64)))?;
        LAST_EVENT.encode(
            &mut encoder,
            &rows(|state| Some(state.last_event?.as_duration().as_secs_f64())),
        )?;
        STARTS.encode(&mut encoder, &rows(|state| Some(state.starts as f64)))?;
        let errors = states.iter().flat_map(|(kind, state)| {
            let row = |(reason, count): (&&'static str, &u64)| -> Row {
                let labels = vec![("kind", name(*kind)), ("reason", Cow::Borrowed(*reason))];
                (labels, *count as f64)
            };
            state.errors.iter().map(row).collect::<Vec<_>>()
        });
        ERRORS.encode(&mut encoder, &errors.collect::<Vec<_>>())
    }
}

fn name(kind: Kind) -> Cow<'static, str> {
    Cow::Borrowed(kind.name())
}
