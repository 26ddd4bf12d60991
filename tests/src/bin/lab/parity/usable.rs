//! Which endpoints of a Service port are usable, as kube-proxy has it.

use super::actors::Backend;
use super::catalogue::ZONE_HERE;
use super::probe::Probe;
use super::service::{Endpoint, Port};

/// A Service port's endpoints, as policies choose among them.
pub(crate) struct Endpoints {
    /// Those of the policy Cluster, and the ports they listen at.
    pub(crate) cluster: Vec<(Backend, u16)>,
    /// Those of the policy Local.
    pub(crate) local: Vec<(Backend, u16)>,
    /// Whether there is a usable one, wherever it is.
    pub(crate) any: bool,
}

impl Endpoints {
    /// Those of the port that is dialled.
    pub(crate) fn of(probe: &Probe) -> Self {
        let service = &probe.service;
        let port: Option<&Port> = service.ports.get(probe.port);
        let Some(target) = port.and_then(|port| port.target) else {
            return Self {
                cluster: Vec::new(),
                local: Vec::new(),
                any: false,
            };
        };
        // An address that is there twice is whoever is not about to end.
        let mut all: Vec<&Endpoint> = Vec::new();
        for endpoint in &service.endpoints {
            let same =
                |other: &&Endpoint| (other.backend, other.port_offset) == (endpoint.backend, endpoint.port_offset);
            match all.iter().position(same) {
                None => all.push(endpoint),
                Some(at) if endpoint.terminating != Some(true) => all[at] = endpoint,
                Some(_) => {}
            }
        }
        let ready = |endpoint: &&&Endpoint| endpoint.ready.unwrap_or(true);
        let last_resort =
            |endpoint: &&&Endpoint| endpoint.serving.unwrap_or(true) && endpoint.terminating == Some(true);
        let choose = |from: Vec<&Endpoint>, hinted: bool| -> Vec<(Backend, u16)> {
            let mut chosen: Vec<_> = from.iter().filter(ready).copied().collect();
            if hinted {
                chosen = by_hints(chosen);
            }
            if chosen.is_empty() {
                chosen = from.iter().filter(last_resort).copied().collect();
            }
            chosen
                .iter()
                .map(|endpoint| (endpoint.backend, target + endpoint.port_offset))
                .collect()
        };
        let here = all
            .iter()
            .filter(|endpoint| endpoint.backend.is_here())
            .copied()
            .collect();
        let (cluster, local) = (choose(all, true), choose(here, false));
        let any = !cluster.is_empty() || !local.is_empty();
        Self { cluster, local, any }
    }
}

/// Those of the ready endpoints that their hints leave: by node, else by zone, else all of them.
fn by_hints(ready: Vec<&Endpoint>) -> Vec<&Endpoint> {
    let by = |hints: fn(&Endpoint) -> &Vec<&'static str>, own: &str| -> Option<Vec<&Endpoint>> {
        if ready.iter().any(|endpoint| hints(endpoint).is_empty()) {
            return None;
        }
        let own: Vec<_> = ready
            .iter()
            .filter(|endpoint| hints(endpoint).contains(&own))
            .copied()
            .collect();
        (!own.is_empty()).then_some(own)
    };
    by(|endpoint| &endpoint.nodes, "node1")
        .or_else(|| by(|endpoint| &endpoint.zones, ZONE_HERE))
        .unwrap_or(ready)
}
