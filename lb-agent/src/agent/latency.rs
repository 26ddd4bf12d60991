//! How long it takes from what happens until the kernel has it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use jiff::Timestamp;

use crate::{
    desired::{Family, ServicePortName},
    metrics::Metrics,
    model::{EndpointSlice, Event, Kind, ObjectName, Update},
};

/// What has come in and is not in the kernel.
#[derive(Debug)]
pub(super) struct Awaited {
    /// What happened before says nothing of this agent.
    since: Timestamp,
    /// When something was heard, by what it was about.
    heard: Vec<(&'static str, Instant)>,
    /// When things happened, by the Service whose slice tells.
    happened: BTreeMap<ObjectName, Vec<(Family, Timestamp)>>,
    changes: Changes,
}

/// How many objects are new or different.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Changes {
    pub(super) services: usize,
    pub(super) slices: usize,
}

impl Awaited {
    pub(super) fn new(since: Timestamp) -> Self {
        Self {
            since,
            heard: Vec::new(),
            happened: BTreeMap::new(),
            changes: Changes::default(),
        }
    }

    /// Something was heard then.
    pub(super) fn note(&mut self, event: &Event, heard: Instant) {
        self.heard.push((source(event), heard));
        match event {
            Event::Services(Update::Replace { objects, .. }) => {
                let ours = objects.iter().filter(|service| service.ours().is_some());
                self.changes.services += ours.count();
            }
            Event::Services(Update::Apply(service)) => self.changes.services += usize::from(service.ours().is_some()),
            Event::Services(Update::Delete(_)) => self.changes.services += 1,
            Event::EndpointSlices(Update::Replace { objects, .. }) => {
                self.changes.slices += objects.len();
                objects.iter().for_each(|slice| self.note_slice(slice));
            }
            Event::EndpointSlices(Update::Apply(slice)) => {
                self.changes.slices += 1;
                self.note_slice(slice);
            }
            // When an object went nothing tells.
            Event::EndpointSlices(Update::Delete(_)) => self.changes.slices += 1,
            Event::ServiceCidrs(_)
            | Event::Pods(_)
            | Event::Node(_)
            | Event::UnreadableNode
            | Event::NodeAddresses(_) => {}
        }
    }

    fn note_slice(&mut self, slice: &EndpointSlice) {
        if let Some(time) = slice.triggered().filter(|time| *time > self.since) {
            self.happened
                .entry(slice.service())
                .or_default()
                .push((slice.family(), time));
        }
    }

    /// How many objects have changed since this was last asked.
    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// All that was noted is in the kernel, but for what concerns the service ports that `failed`.
    pub(super) fn tell<'a>(&mut self, failed: impl Iterator<Item = &'a ServicePortName>, metrics: &Metrics) {
        for (source, heard) in self.heard.drain(..) {
            metrics.programmed(source, heard.elapsed());
        }
        if self.happened.is_empty() {
            return;
        }
        let failed: BTreeSet<ObjectName> = failed
            .map(|name| ObjectName::new(&name.namespace, &name.name))
            .collect();
        let now = Timestamp::now();
        self.happened.retain(|service, times| {
            if failed.contains(service) {
                return true;
            }
            for (family, time) in times {
                // The clock of the control plane may be ahead.
                let seconds = now.duration_since(*time).as_secs_f64().max(0.0);
                metrics.network_programmed(*family, seconds);
            }
            false
        });
    }
}

const fn source(event: &Event) -> &'static str {
    match event {
        Event::Services(_) => Kind::Service.name(),
        Event::EndpointSlices(_) => Kind::EndpointSlice.name(),
        Event::ServiceCidrs(_) => Kind::ServiceCidr.name(),
        Event::Pods(_) => Kind::Pod.name(),
        Event::Node(_) | Event::UnreadableNode => Kind::Node.name(),
        Event::NodeAddresses(_) => "node_addresses",
    }
}
