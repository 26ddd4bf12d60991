//! Which endpoints a service port has, and which of them clients are sent to.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::SocketAddr,
};

use super::topology::Topology;
use crate::{
    desired::{self, Family, Target},
    model::{
        EndpointSlice,
        endpoint_slice::{Endpoint, Placement},
        service::ServicePort,
    },
};

/// The endpoints of a service port, with what each slice says of their port. The slices decide the
/// number: a Service's targetPort is for those who write slices.
pub(super) fn collect<'a>(
    port: &ServicePort,
    family: Family,
    slices: impl Iterator<Item = &'a EndpointSlice>,
) -> BTreeMap<SocketAddr, &'a Endpoint> {
    let mut endpoints = BTreeMap::new();
    for slice in slices.filter(|slice| slice.family() == family) {
        let ports = slice.ports().iter();
        for number in ports
            .filter(|candidate| candidate.name == port.name && candidate.protocol == port.protocol)
            .map(|candidate| candidate.port.get())
        {
            for endpoint in slice.endpoints() {
                match endpoints.entry(SocketAddr::new(endpoint.address, number)) {
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
        }
    }
    endpoints
}

/// Whether any of these slices has an endpoint that clients could be sent to.
pub(in crate::model) fn has_usable<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> bool {
    let with_ports = slices.into_iter().filter(|slice| !slice.ports().is_empty());
    with_ports
        .flat_map(EndpointSlice::endpoints)
        .any(|endpoint| endpoint.conditions.is_ready() || endpoint.conditions.is_last_resort())
}

/// The endpoints of a service port, and which of them the traffic policies choose from.
pub(super) struct Endpoints {
    pub(super) members: BTreeMap<SocketAddr, desired::Endpoint>,
    has_cluster: bool,
    has_local: bool,
}

impl Endpoints {
    /// The ready ones, and where there is none, those that are serving although they terminate:
    /// decided for the whole cluster and for this node, each by itself. Of the cluster's ready ones,
    /// those that the topology admits.
    pub(super) fn choose(endpoints: &BTreeMap<SocketAddr, &Endpoint>, zone: Option<&str>) -> Self {
        let ready = || endpoints.values().filter(|endpoint| endpoint.conditions.is_ready());
        let any_ready = ready().next().is_some();
        let any_ready_here = ready().any(|endpoint| is_here(endpoint));
        let topology = Topology::of(ready().map(|endpoint| &endpoint.hints), zone);
        let usable = |endpoint: &Endpoint, any_ready: bool| {
            if any_ready {
                endpoint.conditions.is_ready()
            } else {
                endpoint.conditions.is_last_resort()
            }
        };

        let members: BTreeMap<SocketAddr, desired::Endpoint> = endpoints
            .iter()
            .map(|(address, endpoint)| {
                let on_node = is_here(endpoint);
                let member = desired::Endpoint {
                    on_node,
                    cluster: usable(endpoint, any_ready) && topology.admits(&endpoint.hints),
                    local: on_node && usable(endpoint, any_ready_here),
                    weight: endpoint.weight,
                };
                (*address, member)
            })
            .collect();
        Self {
            has_cluster: members.values().any(|member| member.cluster),
            has_local: members.values().any(|member| member.local),
            members,
        }
    }

    /// Where clients go whose policy is `Cluster`.
    pub(super) const fn cluster_target(&self) -> Target {
        if self.has_cluster {
            Target::Cluster
        } else {
            Target::Reject
        }
    }

    /// Where clients go whose policy is `Local`. A usable endpoint elsewhere is in the cluster set.
    pub(super) const fn local_target(&self) -> Target {
        if self.has_local {
            Target::Local
        } else if self.has_cluster {
            Target::Drop
        } else {
            Target::Reject
        }
    }
}

fn is_here(endpoint: &Endpoint) -> bool {
    endpoint.placement == Placement::Here
}
