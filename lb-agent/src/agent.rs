//! The loop: objects come in, the model says what has to change, the plane changes it.
//!
//! Nothing is written before there is a complete list of each kind, so that an agent that starts
//! never takes a service for deleted that it has not heard of yet. Links are attended to from the
//! first moment, on a thread of their own ([`links`]): what the kernel holds from a former run goes on
//! serving new pods meanwhile.
//!
//! A batch of work is whatever has come while the batch before was written. There is no other
//! pause, so that a single change is written at once and a flood of them in few, large batches.

mod external_ips;
mod latency;
pub mod links;
mod local_policies;
mod retries;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::bail;
use jiff::Timestamp;
use tokio::{
    sync::{mpsc, watch},
    time::{self, MissedTickBehavior},
};

use self::{external_ips::ExternalIps, latency::Awaited, local_policies::WithoutLocalEndpoint, retries::Retries};
use crate::{
    desired::{Change, Family, ServedBy, ServicePortName},
    health::{ProxyHealth, Wanted},
    metrics::{Extent, Metrics, Totals},
    model::{Cluster, Conflict, Kind, Rules},
    objects::{Batch, kube},
    plane::{Outcome, Plane, PlaneError},
    status::{Progress, Remark},
};

/// Failures that a log line each is worth; more are one line together.
const NAMED_FAILURES: usize = 5;

/// What a change leaves unused rests before it is free: longer than that, in seconds.
const SETTLED: u32 = 8;

/// Where the agent hears of what happens.
pub struct Inputs {
    /// Objects.
    pub batches: mpsc::Receiver<Batch>,
    /// Whether all links have been attended to that were there at the start.
    pub links: watch::Receiver<bool>,
    /// The address of the API server that the objects come from, if they do: it cannot be one that they want served.
    pub api_server: Option<IpAddr>,
}

/// What the agent tells others.
pub struct Outputs {
    /// The addresses of this node, which tell its uplinks. `None` until they are known.
    pub node_addresses: watch::Sender<Option<BTreeSet<IpAddr>>>,
    /// The families that have had a service.
    pub families: watch::Sender<BTreeSet<Family>>,
    /// Whether the plane holds a complete state.
    pub is_filled: watch::Sender<bool>,
    /// How the programming goes, and whether the node is to have traffic.
    pub health: ProxyHealth,
    /// What is to be answered at healthCheckNodePorts.
    pub health_checks: watch::Sender<Wanted>,
    /// What is counted.
    pub metrics: Metrics,
    /// How far it has come: told at most once a second, whatever the rate of changes.
    pub progress: watch::Sender<Progress>,
}

/// What the first sync came to.
struct FirstSync {
    services: usize,
    service_ports: usize,
    programmed: usize,
    failed: usize,
    writes: usize,
    milliseconds: f64,
}

/// What ties the model to a plane.
pub struct Agent<P> {
    plane: P,
    cluster: Cluster,
    outputs: Outputs,
    started: Instant,
    /// What the first sync came to, once the kernel has been given a complete state.
    first_sync: Option<FirstSync>,
    /// Whether all links have been attended to that were there at the start.
    has_all_links: bool,
    conflicts: BTreeSet<Conflict>,
    /// Where they are served.
    external_ips: Option<ExternalIps>,
    failed_services: Retries<ServicePortName>,
    failed_addresses: Retries<()>,
    /// Why, by service port; `None` is for addresses and networks.
    failures: BTreeMap<Option<ServicePortName>, String>,
    last_sync: Option<Timestamp>,
    /// For how many seconds still.
    settles_for: u32,
    awaited: Awaited,
    without_local_endpoint: WithoutLocalEndpoint,
    /// What was told of the progress is not true any more.
    has_progressed: bool,
}

impl<P: Plane> Agent<P> {
    /// An agent that has heard of nothing yet, of a process that was started then.
    pub fn new(plane: P, rules: Rules, outputs: Outputs, started: Instant) -> Self {
        Self {
            plane,
            external_ips: rules.serve_external_ips.then(ExternalIps::default),
            cluster: Cluster::new(rules),
            outputs,
            started,
            first_sync: None,
            has_all_links: false,
            conflicts: BTreeSet::new(),
            failed_services: Retries::default(),
            failed_addresses: Retries::default(),
            failures: BTreeMap::new(),
            last_sync: None,
            settles_for: 0,
            awaited: Awaited::new(Timestamp::now()),
            without_local_endpoint: WithoutLocalEndpoint::default(),
            has_progressed: false,
        }
    }

    /// Works until `stop` is. Fails if a source ends, which it never does by itself, if the plane cannot take the place
    /// of an earlier one, which a new start may mend, or if the way to the API server leads through what it is to serve.
    ///
    /// The plane is called on the thread that runs this, and blocks it: nothing else of the agent
    /// needs it, and what comes in meanwhile is the next batch.
    pub async fn run(&mut self, mut inputs: Inputs, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let mut stop = std::pin::pin!(stop);
        let mut second = time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let retry = self.next_retry();
            tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                _ = second.tick() => {
                    self.plane.tick();
                    self.tell_fill();
                    self.tell_progress();
                }
                changed = inputs.links.changed() => {
                    if changed.is_err() {
                        bail!("the links of the node are not attended to any more");
                    }
                    self.has_all_links = *inputs.links.borrow_and_update();
                    self.tell_ready();
                }
                batch = inputs.batches.recv() => {
                    let Some(batch) = batch else {
                        bail!("the objects are not watched any more");
                    };
                    self.note(batch);
                    while let Ok(batch) = inputs.batches.try_recv() {
                        self.note(batch);
                    }
                    self.sync(inputs.api_server)?;
                }
                () = sleep_until(retry), if retry.is_some() => self.retry(),
            }
        }
    }

    fn note(&mut self, batch: Batch) {
        let heard = batch.heard;
        for event in batch {
            self.awaited.note(&event, heard);
            let external_ips = self.external_ips.as_mut();
            for service in external_ips.map(|them| them.note(&event)).unwrap_or_default() {
                tracing::warn!(%service, "has externalIPs, which Kubernetes deprecates");
            }
            self.cluster.apply(event);
        }
        let changes = self.awaited.take_changes();
        self.outputs.metrics.changed(changes.services, changes.slices);
    }

    /// Brings the kernel up to date with the objects.
    fn sync(&mut self, api_server: Option<IpAddr>) -> anyhow::Result<()> {
        self.tell_node_addresses();
        if let Some(node) = self.cluster.node() {
            self.outputs.health.set_node_eligible(!node.is_leaving);
        }
        if self.first_sync.is_some() {
            let change = self.cluster.take_change();
            self.tell_conflicts();
            self.tell_families(&change);
            if let Some(addresses) = &change.node_port_addresses {
                tell_node_port_addresses(addresses);
            }
            self.apply(&change, "synced");
            self.tell_latencies();
            self.tell_health_checks();
        } else if self.cluster.is_complete() {
            self.first_sync(api_server)?;
        } else {
            tracing::debug!(awaited = ?self.cluster.awaited(), "lists are not complete yet");
        }
        Ok(())
    }

    fn first_sync(&mut self, api_server: Option<IpAddr>) -> anyhow::Result<()> {
        let start = Instant::now();
        let change = self.cluster.take_change();
        self.tell_conflicts();
        self.tell_families(&change);
        let state = self.cluster.state();
        if let Some(ip) = api_server.filter(|ip| state.cluster_ips.get(ip) == Some(&ServedBy::Us)) {
            return Err(kube::Loop::ClusterIp(ip).into());
        }
        tell_node_port_addresses(&state.node_port_addresses);
        self.tell_changes_wait();
        let outcome = self.plane.replace(state)?;
        self.without_local_endpoint.replace(state);
        let took = start.elapsed();
        self.first_sync = Some(FirstSync {
            services: self.cluster.services(),
            service_ports: state.services.len(),
            programmed: outcome.programmed,
            failed: outcome.failed.len(),
            writes: outcome.writes,
            milliseconds: milliseconds(start),
        });
        self.outputs
            .metrics
            .synced(&outcome, [Family::V4, Family::V6], Extent::Full, took);
        self.tell_programmed(&outcome);
        self.note_failures(outcome);
        self.tell_latencies();
        self.tell_health_checks();
        self.outputs.is_filled.send_replace(true);
        self.tell_ready();
        Ok(())
    }

    /// Ready is: every service is in the kernel, and every link that was there at the start leads to
    /// it. A pod that sends a datagram from then on is served.
    fn tell_ready(&mut self) {
        self.has_progressed = true;
        self.tell_progress();
        let Some(first) = &self.first_sync else {
            return;
        };
        if self.has_all_links {
            tracing::info!(
                services = first.services,
                service_ports = first.service_ports,
                programmed = first.programmed,
                failed = first.failed,
                writes = first.writes,
                sync_ms = first.milliseconds,
                elapsed_ms = milliseconds(self.started),
                "ready"
            );
        }
    }

    fn apply(&mut self, change: &Change, what: &str) {
        if change.is_empty() {
            return;
        }
        let start = Instant::now();
        self.tell_changes_wait();
        let outcome = self.plane.apply(change);
        self.outputs
            .metrics
            .synced(&outcome, families(change), Extent::Partial, start.elapsed());
        self.without_local_endpoint.apply(change, self.cluster.state());
        for (name, service) in &change.services {
            match service {
                Some(service) => tracing::debug!(
                    service = %name,
                    frontends = service.frontends.len(),
                    endpoints = service.endpoints.len(),
                    "changed"
                ),
                None => tracing::debug!(service = %name, "removed"),
            }
        }
        tracing::info!(
            services = self.cluster.services(),
            changed = change.services.len(),
            programmed = outcome.programmed,
            failed = outcome.failed.len(),
            writes = outcome.writes,
            sync_ms = milliseconds(start),
            "{what}"
        );

        let failed: BTreeSet<&ServicePortName> = outcome.failed.iter().map(|(name, _)| name).collect();
        for name in change.services.keys().filter(|name| !failed.contains(name)) {
            self.failed_services.forget(name);
            self.failures.remove(&Some(name.clone()));
        }
        if outcome.addresses.is_none() {
            self.failed_addresses.forget(&());
            self.failures.remove(&None);
        }
        self.tell_programmed(&outcome);
        self.note_failures(outcome);
    }

    /// A family is programmed when the kernel took what it was asked for. That a map is full, which keeps
    /// some service ports as they were, is no reason to send traffic elsewhere or to start the agent anew.
    fn tell_programmed(&mut self, outcome: &Outcome) {
        self.settles_for = SETTLED;
        self.last_sync = Some(Timestamp::now());
        self.has_progressed = true;
        let is_refusal = |error: &PlaneError| matches!(error, PlaneError::Kernel { .. });
        if outcome.addresses.as_ref().is_some_and(is_refusal) {
            return;
        }
        for family in [Family::V4, Family::V6] {
            let mut failed = outcome.failed.iter().filter(|(name, _)| name.family == family);
            if !failed.any(|(_, error)| is_refusal(error)) {
                self.outputs.health.is_programmed(family);
                self.outputs.metrics.is_programmed(family);
            }
        }
    }

    /// Names what failed, to be tried again: later each time.
    fn note_failures(&mut self, outcome: Outcome) {
        let now = Instant::now();
        let count = outcome.failed.len();
        for (index, (name, error)) in outcome.failed.into_iter().enumerate() {
            if index < NAMED_FAILURES {
                tracing::warn!(service = %name, "keeps its former state: {error}");
            } else {
                tracing::debug!(service = %name, "keeps its former state: {error}");
            }
            self.failures.insert(Some(name.clone()), error.to_string());
            self.failed_services.failed(name, now);
        }
        if count > NAMED_FAILURES {
            tracing::warn!("{} more keep their former state", count - NAMED_FAILURES);
        }
        if let Some(error) = outcome.addresses {
            tracing::warn!("addresses or networks stay as they were: {error}");
            self.failures.insert(None, format!("addresses or networks: {error}"));
            self.failed_addresses.failed((), now);
        }
    }

    /// All that was heard is in the kernel, but for what failed.
    fn tell_latencies(&mut self) {
        let failed = self.failures.keys().flatten();
        self.awaited.tell(failed, &self.outputs.metrics);
        self.outputs.metrics.nothing_pends();
    }

    fn tell_changes_wait(&self) {
        self.outputs.health.changes_wait();
        self.outputs.metrics.changes_wait();
    }

    /// Tells how full the kernel's tables are, as long as they follow a change.
    fn tell_fill(&mut self) {
        if let Some(left) = self.settles_for.checked_sub(1) {
            self.settles_for = left;
            self.outputs.metrics.set_fill(self.plane.fill());
        }
    }

    /// Tells how far it has come, if that has changed.
    fn tell_progress(&mut self) {
        if !std::mem::take(&mut self.has_progressed) {
            return;
        }
        let remark = |service: Option<String>, what: String| Remark { service, what };
        let failures = self.failures.iter();
        let progress = Progress {
            ready: self.first_sync.is_some() && self.has_all_links,
            services: self.cluster.services(),
            service_ports: self.cluster.state().services.len(),
            frontends: self.plane.frontends(),
            last_sync: self.last_sync,
            failures: failures
                .map(|(name, why)| remark(name.as_ref().map(ToString::to_string), why.clone()))
                .collect(),
            unsupported: self
                .plane
                .unsupported()
                .into_iter()
                .map(|it| remark(Some(it.service.to_string()), it.what))
                .collect(),
        };
        self.without_local_endpoint.tell(&self.outputs.metrics);
        self.outputs.metrics.set(Totals {
            services: progress.services,
            service_ports: progress.service_ports,
            frontends: progress.frontends,
            failing: progress.failures.len(),
            unsupported: progress.unsupported.len(),
            ready: progress.ready,
        });
        self.outputs.progress.send_replace(progress);
    }

    fn next_retry(&self) -> Option<Instant> {
        let services = self.failed_services.next();
        let addresses = self.failed_addresses.next();
        services.into_iter().chain(addresses).min()
    }

    /// Tries again what is due, with what the model wants by now.
    fn retry(&mut self) {
        let now = Instant::now();
        let state = self.cluster.state();
        let names = self.failed_services.due(now).into_iter();
        let services = names.map(|name| {
            let wanted = state.services.get(&name).cloned();
            (name, wanted)
        });
        let addresses_due = !self.failed_addresses.due(now).is_empty();
        let change = Change {
            services: services.collect(),
            // The plane knows what else it owes.
            node_port_addresses: addresses_due.then(|| state.node_port_addresses.clone()),
            ..Change::default()
        };
        self.apply(&change, "tried again");
        self.tell_latencies();
    }

    fn tell_node_addresses(&self) {
        if self.cluster.awaited().contains(&Kind::Node) {
            return;
        }
        let node = self.cluster.node();
        let addresses = Some(node.map(|node| node.addresses().collect()).unwrap_or_default());
        self.outputs.node_addresses.send_if_modified(|before| {
            let modified = *before != addresses;
            *before = addresses;
            modified
        });
    }

    fn tell_health_checks(&mut self) {
        if !self.cluster.take_health_checks_changed() {
            return;
        }
        self.outputs.health_checks.send_if_modified(|before| {
            let wanted = Wanted {
                checks: self.cluster.health_checks().clone(),
                addresses: self.cluster.health_check_addresses(),
            };
            let modified = *before != wanted;
            *before = wanted;
            modified
        });
    }

    fn tell_families(&self, change: &Change) {
        let served = change.services.iter().filter(|(_, service)| service.is_some());
        let families: BTreeSet<Family> = served.map(|(name, _)| name.family).collect();
        self.outputs.families.send_if_modified(|before| {
            let count = before.len();
            before.extend(families);
            before.len() > count
        });
    }

    /// Names the conflicts that are new.
    fn tell_conflicts(&mut self) {
        let conflicts: BTreeSet<Conflict> = self.cluster.conflicts().collect();
        for conflict in conflicts.difference(&self.conflicts) {
            tracing::warn!("conflict: {conflict}");
        }
        self.conflicts = conflicts;
    }
}

/// The families that a change is about. Those of the node and networks may be of either.
fn families(change: &Change) -> BTreeSet<Family> {
    let is_about_both =
        change.node_port_addresses.is_some() || change.service_cidrs.is_some() || change.pod_cidrs.is_some();
    if is_about_both {
        return BTreeSet::from([Family::V4, Family::V6]);
    }
    let services = change.services.keys().map(|name| name.family);
    services
        .chain(change.cluster_ips.keys().map(|ip| Family::of(*ip)))
        .collect()
}

fn tell_node_port_addresses(addresses: &BTreeSet<IpAddr>) {
    if addresses.is_empty() {
        tracing::warn!("NodePorts are not served until this node has an address that --node-port-addresses names");
    } else {
        tracing::info!(?addresses, "NodePorts are served");
    }
}

fn milliseconds(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1e6).round() / 1e3
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
