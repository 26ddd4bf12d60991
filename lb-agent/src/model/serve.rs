//! From one Service and its slices to what is to be served: the rules.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::SocketAddr,
};

use super::{
    EndpointSlice, Service,
    endpoint_slice::{Endpoint, Placement},
    service::{ServicePort, TrafficPolicy},
};
use crate::desired::{self, Family, Frontend, FrontendAddress, Masquerade, Route, ServicePortName, Target};

/// The service ports of a Service, each with every frontend that it claims.
pub(super) fn service_ports<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
) -> BTreeMap<ServicePortName, desired::ServicePort> {
    let mut service_ports = BTreeMap::new();
    for cluster_ip in service.cluster_ips.iter() {
        let family = Family::of(cluster_ip);
        for port in service.ports.iter() {
            let endpoints = Endpoints::choose(endpoints_of(port, family, slices.clone()));
            let frontend = |address, port_number| Frontend {
                address,
                port: port_number,
                protocol: port.protocol,
            };

            let mut frontends = BTreeMap::from([(
                frontend(FrontendAddress::Ip(cluster_ip), port.port),
                internal_route(service.internal_traffic_policy, &endpoints),
            )]);
            if let Some(node_port) = port.node_port {
                frontends.insert(
                    frontend(FrontendAddress::NodePort(family), node_port),
                    external_route(service.external_traffic_policy, &endpoints),
                );
            }

            let name = ServicePortName {
                namespace: service.name.namespace.clone(),
                name: service.name.name.clone(),
                port: port.name.clone(),
                protocol: port.protocol,
                family,
            };
            let endpoints = endpoints.members;
            service_ports.insert(
                name,
                desired::ServicePort {
                    frontends,
                    endpoints,
                    ..Default::default()
                },
            );
        }
    }
    service_ports
}

/// The endpoints of a service port, with what each slice says of their port. The slices decide the
/// number: a Service's targetPort is for those who write slices.
fn endpoints_of<'a>(
    port: &ServicePort,
    family: Family,
    slices: impl Iterator<Item = &'a EndpointSlice>,
) -> BTreeMap<SocketAddr, Endpoint> {
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
                        entry.insert(*endpoint);
                    }
                    Entry::Occupied(mut entry) => {
                        if endpoint.outranks(entry.get()) {
                            entry.insert(*endpoint);
                        }
                    }
                }
            }
        }
    }
    endpoints
}

/// The endpoints of a service port, and which of them the traffic policies choose from.
struct Endpoints {
    members: BTreeMap<SocketAddr, desired::Endpoint>,
    has_cluster: bool,
    has_local: bool,
}

impl Endpoints {
    /// The ready ones, and where there is none, those that are serving although they terminate:
    /// decided for the whole cluster and for this node, each by itself.
    fn choose(endpoints: BTreeMap<SocketAddr, Endpoint>) -> Self {
        let any_ready = endpoints.values().any(|endpoint| endpoint.conditions.is_ready());
        let any_ready_here = endpoints
            .values()
            .any(|endpoint| is_here(endpoint) && endpoint.conditions.is_ready());
        let usable = |endpoint: &Endpoint, any_ready: bool| {
            if any_ready {
                endpoint.conditions.is_ready()
            } else {
                endpoint.conditions.is_last_resort()
            }
        };

        let members: BTreeMap<SocketAddr, desired::Endpoint> = endpoints
            .into_iter()
            .map(|(address, endpoint)| {
                let on_node = is_here(&endpoint);
                let member = desired::Endpoint {
                    on_node,
                    cluster: usable(&endpoint, any_ready),
                    local: on_node && usable(&endpoint, any_ready_here),
                };
                (address, member)
            })
            .collect();
        Self {
            has_cluster: members.values().any(|member| member.cluster),
            has_local: members.values().any(|member| member.local),
            members,
        }
    }

    /// Where clients go whose policy is `Cluster`.
    const fn cluster_target(&self) -> Target {
        if self.has_cluster {
            Target::Cluster
        } else {
            Target::Reject
        }
    }

    /// Where clients go whose policy is `Local`. A usable endpoint elsewhere is in the cluster set.
    const fn local_target(&self) -> Target {
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

fn internal_route(policy: TrafficPolicy, endpoints: &Endpoints) -> Route {
    let target = match policy {
        TrafficPolicy::Cluster => endpoints.cluster_target(),
        TrafficPolicy::Local => endpoints.local_target(),
    };
    Route {
        near: target,
        far: target,
        masquerade: Masquerade::WhereNeeded,
        restricted: false,
    }
}

/// A client on this node takes the short way: it could have dialled the ClusterIP as well, so that
/// `Local`, which is there to keep the address of clients from outside, does not bind it.
fn external_route(policy: TrafficPolicy, endpoints: &Endpoints) -> Route {
    match policy {
        TrafficPolicy::Cluster => Route {
            near: endpoints.cluster_target(),
            far: endpoints.cluster_target(),
            masquerade: Masquerade::WhereNeeded,
            restricted: false,
        },
        TrafficPolicy::Local => Route {
            near: endpoints.cluster_target(),
            far: endpoints.local_target(),
            masquerade: Masquerade::WhereNeeded,
            restricted: false,
        },
    }
}
