//! The health check of a Service.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::IpAddr,
};

use crate::{
    desired::Family,
    model::{
        EndpointSlice, HealthCheck, Service,
        endpoint_slice::{Endpoint, Placement},
    },
};

/// The health check of a Service, if it has one.
pub(in crate::model) fn health_check<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
) -> Option<HealthCheck> {
    let port = service.health_check_node_port?;
    let families = service.cluster_ips.iter().map(Family::of);
    let local_endpoints = families
        .map(|family| {
            let of_family = slices.clone().filter(|slice| slice.family() == family);
            (family, ready_here(of_family))
        })
        .collect();
    Some(HealthCheck { port, local_endpoints })
}

/// How many addresses on this node are ready. Whatever their ports are, each counts once.
fn ready_here<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> usize {
    let mut endpoints: BTreeMap<IpAddr, &Endpoint> = BTreeMap::new();
    let with_ports = slices.filter(|slice| !slice.ports().is_empty());
    for endpoint in with_ports.flat_map(EndpointSlice::endpoints) {
        match endpoints.entry(endpoint.address) {
            Entry::Vacant(entry) => {
                entry.insert(endpoint);
            }
            Entry::Occupied(mut entry) => {
                if endpoint.outranks(entry.get()) {
                    entry.insert(endpoint);
                }
            }
        }
    }
    let counts = |endpoint: &&&Endpoint| endpoint.placement == Placement::Here && endpoint.conditions.is_ready();
    endpoints.values().filter(counts).count()
}
