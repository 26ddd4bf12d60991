//! The servers at the Services' healthCheckNodePorts.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    future::ready,
    net::{IpAddr, SocketAddr},
};

use hyper::{Response, header::HeaderValue};
use serde::Serialize;
use tokio::{sync::watch, task::JoinSet, time::sleep};

use super::proxy::ProxyHealth;
use crate::{
    desired::Family,
    http::{self, LISTEN_RETRY},
    model::{HealthCheck, ObjectName},
};

/// The header that some load balancers weigh nodes by.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// What is to be answered, and where.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// The health checks, by Service.
    pub checks: BTreeMap<ObjectName, HealthCheck>,
    /// The addresses to listen at, of which an unspecified one stands for all of its family. These
    /// are the addresses that NodePorts are served at.
    pub addresses: BTreeSet<IpAddr>,
}

/// Answers whatever is wanted at the time, until nobody can want anything any more.
///
/// A port that cannot be listened at is named in a warning and tried again; all others go on. (Where
/// kube-proxy listens at several addresses, one that fails takes the Service's others along.)
pub async fn serve(mut wanted: watch::Receiver<Wanted>, health: ProxyHealth) {
    let mut servers = Servers::default();
    loop {
        let places = places(&wanted.borrow_and_update());
        servers.close_all_but(&places).await;
        servers.open(&places, &wanted, &health);
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() {
                return;
            },
            () = sleep(LISTEN_RETRY), if !servers.failing.is_empty() => {}
        }
    }
}

/// One server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    service: ObjectName,
    address: SocketAddr,
}

fn places(wanted: &Wanted) -> BTreeSet<Place> {
    let mut places = BTreeSet::new();
    for (service, check) in &wanted.checks {
        let at = |address| check.local_endpoints.contains_key(&Family::of(address));
        for address in addresses(&wanted.addresses).filter(|address| at(*address)) {
            places.insert(Place {
                service: service.clone(),
                address: (address, check.port.get()).into(),
            });
        }
    }
    places
}

/// Without those that an unspecified one covers: the kernel would not have both.
fn addresses(all: &BTreeSet<IpAddr>) -> impl Iterator<Item = IpAddr> {
    let is_covered = |address: IpAddr| {
        let covers = |other: &IpAddr| other.is_unspecified() && other.is_ipv4() == address.is_ipv4();
        !address.is_unspecified() && all.iter().any(covers)
    };
    all.iter().copied().filter(move |address| !is_covered(*address))
}

#[derive(Default)]
struct Servers {
    /// Each a set of one task, which ends with the set.
    running: BTreeMap<Place, JoinSet<Infallible>>,
    /// Where it could not be listened.
    failing: BTreeSet<Place>,
}

impl Servers {
    async fn close_all_but(&mut self, wanted: &BTreeSet<Place>) {
        self.failing.retain(|place| wanted.contains(place));
        let closed: Vec<_> = self
            .running
            .extract_if(.., |place, _| !wanted.contains(place))
            .collect();
        for (Place { service, address }, mut server) in closed {
            // Another Service may want the port next: it must be free before that one is opened.
            server.shutdown().await;
            tracing::debug!(%service, "its health check is answered no more at {address}");
        }
    }

    fn open(&mut self, wanted: &BTreeSet<Place>, checks: &watch::Receiver<Wanted>, health: &ProxyHealth) {
        for place in wanted {
            if self.running.contains_key(place) {
                continue;
            }
            let Place { service, address } = place;
            match http::listen(*address) {
                Ok(listener) => {
                    if self.failing.remove(place) {
                        tracing::info!(%service, "its health check is answered at {address} after all");
                    } else {
                        tracing::debug!(%service, "its health check is answered at {address}");
                    }
                    let answers = Answers {
                        service: service.clone(),
                        family: Family::of(address.ip()),
                        checks: checks.clone(),
                        health: health.clone(),
                    };
                    let mut server = JoinSet::new();
                    server.spawn(http::serve(listener, move |_| ready(answers.answer())));
                    self.running.insert(place.clone(), server);
                }
                Err(error) => {
                    if self.failing.insert(place.clone()) {
                        tracing::warn!(%service, "its health check is not answered at {address}: {error}");
                    }
                }
            }
        }
    }
}

/// What the server of a Service in one family knows.
#[derive(Clone)]
struct Answers {
    service: ObjectName,
    family: Family,
    checks: watch::Receiver<Wanted>,
    health: ProxyHealth,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: ServiceName<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct ServiceName<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Answers {
    fn answer(&self) -> Response<String> {
        let is_healthy = self.health.is_healthy();
        let local_endpoints = self.local_endpoints();
        let body = Body {
            service: ServiceName {
                namespace: &self.service.namespace,
                name: &self.service.name,
            },
            local_endpoints,
            service_proxy_healthy: is_healthy,
        };
        let mut response = http::json(is_healthy && local_endpoints > 0, indented(&body));
        response
            .headers_mut()
            .insert(WEIGHT, HeaderValue::from(local_endpoints));
        response
    }

    fn local_endpoints(&self) -> usize {
        let wanted = self.checks.borrow();
        let check = wanted.checks.get(&self.service);
        check
            .and_then(|check| check.local_endpoints.get(&self.family))
            .copied()
            .unwrap_or(0)
    }
}

/// JSON with tabs, as kube-proxy lays it out.
fn indented(body: &Body<'_>) -> String {
    let mut json = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    // Writing names and numbers to memory does not fail.
    let _ = body.serialize(&mut serde_json::Serializer::with_formatter(&mut json, formatter));
    String::from_utf8(json).unwrap_or_default()
}

#[cfg(test)]
mod tests;
