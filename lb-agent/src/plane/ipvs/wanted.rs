//! What one service port needs of IPVS and of the rules beside it. Pure: no kernel, no time.
//!
//! IPVS sends all clients of a virtual service to one set of destinations. Where near and far clients of a
//! frontend go to different endpoints, the far ones have the virtual service of its address, and the rules
//! give the near ones a mark that leads to another one, of which a service port has at most one.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    sync::Arc,
};

use super::{
    limit::Limit,
    rules::{Key, Mark, Row, Verdict},
};
use crate::{
    desired::{
        Distribution, Family, Frontend, FrontendAddress, Masquerade, Protocol, Route, ServicePort, Target, Weight,
    },
    kernel::ipvs::{Scheduler, ServiceConfig, ServiceFlags, ServiceKey},
};

/// What is around a service port, and the same for all.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    /// Addresses of this node on which NodePorts are served, but for those that only its own processes dial.
    pub(super) node_port_addresses: BTreeSet<IpAddr>,
    /// Some are loopback addresses, for processes of the node.
    pub(super) has_loopback_node_ports: bool,
    /// The families in which pods are known by their addresses.
    pub(super) families_with_pod_cidrs: BTreeSet<Family>,
    /// How IPVS chooses.
    pub(super) scheduler: Scheduler,
}

/// A virtual service with where it leads. It has destinations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Server {
    /// How it chooses, and for how long.
    pub(super) config: ServiceConfig,
    /// Where new connections go.
    pub(super) destinations: BTreeSet<SocketAddr>,
    /// What it translates: datagrams have no connections to wait for.
    pub(super) protocol: Protocol,
}

/// What a service port needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Wanted {
    /// Virtual services.
    pub(super) servers: BTreeMap<ServiceKey, Server>,
    /// Rows of the rules: one for each address and port that can be dialled.
    pub(super) rows: BTreeMap<Key, Row>,
    /// Addresses that are to be the node's, so that packets for them come to IPVS.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Endpoints on this node: their addresses.
    pub(super) local_endpoints: BTreeSet<IpAddr>,
    /// What this plane does otherwise than the service port asks.
    pub(super) limits: BTreeSet<Limit>,
}

impl Wanted {
    /// Whether a mark is needed: some frontend sends near and far clients to different endpoints.
    pub(super) fn needs_mark(service: &ServicePort) -> bool {
        service
            .frontends
            .values()
            .any(|route| near_of_its_own(service, *route).is_some())
    }

    /// What `service` needs. `mark` is its mark, if it [needs](Self::needs_mark) one.
    pub(super) fn new(
        service: &ServicePort,
        protocol: Protocol,
        family: Family,
        mark: Option<Mark>,
        around: &Surroundings,
    ) -> Self {
        let mut wanted = Self {
            local_endpoints: local_endpoints(service),
            ..Self::default()
        };
        for (frontend, route) in &service.frontends {
            for key in wanted.keys(*frontend, around) {
                wanted.serve(service, key, *route, mark, around);
            }
        }
        if let Some(mark) = mark {
            wanted.serve_near(service, protocol, family, mark, around);
        }
        if service.affinity.is_some() && wanted.rows.len() > 1 {
            wanted.limits.insert(Limit::AffinityByFrontend);
        }
        let weights: BTreeSet<Weight> = service.endpoints.values().map(|endpoint| endpoint.weight).collect();
        if weights.len() > 1 {
            wanted.limits.insert(Limit::EqualWeights);
        }
        wanted
    }

    /// Where a frontend listens; notes the addresses that the node needs for that.
    fn keys(&mut self, frontend: Frontend, around: &Surroundings) -> Vec<Key> {
        let key = |ip| Key {
            protocol: frontend.protocol,
            address: SocketAddr::new(ip, frontend.port.get()),
        };
        match frontend.address {
            FrontendAddress::Ip(ip) => {
                self.addresses.insert(ip);
                vec![key(ip)]
            }
            FrontendAddress::NodePort(family) => {
                if around.has_loopback_node_ports {
                    self.limits.insert(Limit::LoopbackNodePort);
                }
                let addresses = around.node_port_addresses.iter();
                addresses
                    .filter(|ip| Family::of(**ip) == family)
                    .map(|ip| key(*ip))
                    .collect()
            }
        }
    }

    fn serve(&mut self, service: &ServicePort, key: Key, route: Route, mark: Option<Mark>, around: &Surroundings) {
        let far = endpoints(service, route.far);
        let near = endpoints(service, route.near);
        let verdict = |target, has_endpoints| match target {
            Target::Cluster | Target::Local if has_endpoints => Verdict::Serve,
            Target::Drop => Verdict::Drop,
            Target::Cluster | Target::Local | Target::Reject => Verdict::Reject,
        };
        let row = Row {
            near: match mark.filter(|_| near_of_its_own(service, route).is_some()) {
                Some(mark) => Verdict::Select(mark),
                None => verdict(route.near, near.is_some()),
            },
            far: verdict(route.far, far.is_some()),
            masquerade: route.masquerade,
            allowed: route.restricted.then(|| Arc::new(service.allowed_sources.clone())),
        };
        self.rows.insert(key, row);
        if let Some(destinations) = far.or(near) {
            let server = Server {
                config: config(scheduler(service, around), service.affinity),
                destinations,
                protocol: key.protocol,
            };
            let key = ServiceKey::Address {
                protocol: key.protocol,
                address: key.address,
            };
            self.servers.insert(key, server);
        }
    }

    /// The virtual services of the mark.
    fn serve_near(
        &mut self,
        service: &ServicePort,
        protocol: Protocol,
        family: Family,
        mark: Mark,
        around: &Surroundings,
    ) {
        let routes = service.frontends.values();
        let Some(destinations) = routes.copied().find_map(|route| near_of_its_own(service, route)) else {
            return;
        };
        // By a mark, IPVS remembers clients with the port that they dialled and sends them on to that one,
        // not to the endpoint's. A hash of the client's address keeps it to its endpoint as well, as long as
        // the endpoints stay the same.
        let scheduler = match service.affinity {
            Some(_) => {
                self.limits.insert(Limit::AffinityByHash);
                Scheduler::SourceHash
            }
            None => scheduler(service, around),
        };
        let server = Server {
            config: config(scheduler, None),
            destinations,
            protocol,
        };
        let by_cidr = around.families_with_pod_cidrs.contains(&family);
        let is_always =
            |route: &Route| route.masquerade == Masquerade::Always && near_of_its_own(service, *route).is_some();
        let marks = [
            Some(mark.plain()),
            by_cidr.then(|| mark.masquerade()),
            service
                .frontends
                .values()
                .any(is_always)
                .then(|| mark.masquerade_always()),
        ];
        for mark in marks.into_iter().flatten().filter_map(NonZeroU32::new) {
            self.servers.insert(ServiceKey::Mark { family, mark }, server.clone());
        }
    }
}

fn scheduler(service: &ServicePort, around: &Surroundings) -> Scheduler {
    match service.distribution {
        Distribution::Random => around.scheduler,
        Distribution::Maglev => Scheduler::Maglev,
    }
}

fn config(scheduler: Scheduler, persistence: Option<NonZeroU32>) -> ServiceConfig {
    ServiceConfig {
        persistence,
        flags: ServiceFlags {
            // One client of many connections would have one endpoint otherwise.
            port: scheduler == Scheduler::Maglev,
            ..ServiceFlags::default()
        },
        ..ServiceConfig::new(scheduler)
    }
}

/// The endpoints that a target means; `None` where it means none.
fn endpoints(service: &ServicePort, target: Target) -> Option<BTreeSet<SocketAddr>> {
    let endpoints: BTreeSet<SocketAddr> = service
        .endpoints
        .iter()
        .filter(|(_, endpoint)| match target {
            Target::Cluster => endpoint.cluster,
            Target::Local => endpoint.local,
            Target::Reject | Target::Drop => false,
        })
        .map(|(address, _)| *address)
        .collect();
    Some(endpoints).filter(|endpoints| !endpoints.is_empty())
}

/// The endpoints of near clients, where far ones have others.
fn near_of_its_own(service: &ServicePort, route: Route) -> Option<BTreeSet<SocketAddr>> {
    if route.near == route.far {
        return None;
    }
    let far = endpoints(service, route.far)?;
    endpoints(service, route.near).filter(|near| *near != far)
}

fn local_endpoints(service: &ServicePort) -> BTreeSet<IpAddr> {
    let on_node = service.endpoints.iter().filter(|(_, endpoint)| endpoint.on_node);
    on_node.map(|(address, _)| address.ip()).collect()
}
