//! From one Service and its slices to what is to be served: the rules.

mod endpoints;
mod frontends;
mod health_check;
mod topology;

use std::collections::BTreeMap;

use self::endpoints::Endpoints;
pub(super) use self::{endpoints::has_usable, health_check::health_check};
use super::{EndpointSlice, Node, Rules, Service};
use crate::desired::{self, Family, ServicePortName};

/// What the rules look at beside the objects of one Service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings<'a> {
    /// What the operator decides.
    pub(super) rules: &'a Rules,
    /// This node's object.
    pub(super) node: Option<&'a Node>,
}

/// The service ports of a Service, each with every frontend that it claims.
pub(super) fn service_ports<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    surroundings: Surroundings<'_>,
) -> BTreeMap<ServicePortName, desired::ServicePort> {
    let zone = surroundings.node.and_then(|node| node.zone.as_deref());
    let mut service_ports = BTreeMap::new();
    for cluster_ip in service.cluster_ips.iter() {
        let family = Family::of(cluster_ip);
        let allowed_sources = frontends::allowed_sources(service, family, surroundings.node);
        for port in service.ports.iter() {
            let endpoints = Endpoints::choose(&endpoints::collect(port, family, slices.clone()), zone);
            let name = ServicePortName {
                namespace: service.name.namespace.clone(),
                name: service.name.name.clone(),
                port: port.name.clone(),
                protocol: port.protocol,
                family,
            };
            let service_port = desired::ServicePort {
                frontends: frontends::frontends(
                    service,
                    port,
                    cluster_ip,
                    allowed_sources.is_some(),
                    &endpoints,
                    surroundings.rules,
                ),
                endpoints: endpoints.members,
                affinity: service.affinity,
                allowed_sources: allowed_sources.clone().unwrap_or_default(),
                distribution: service.distribution.unwrap_or(surroundings.rules.distribution),
            };
            service_ports.insert(name, service_port);
        }
    }
    service_ports
}
