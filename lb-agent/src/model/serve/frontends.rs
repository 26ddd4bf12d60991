//! What clients of a service port dial, and how each frontend treats them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;

use super::endpoints::Endpoints;
use crate::{
    desired::{AllowedSources, Family, Frontend, FrontendAddress, Masquerade, Route},
    model::{
        Node, Rules, Service, ServiceIp,
        service::{ServicePort, TrafficPolicy},
    },
};

/// The frontends of a service port in the family of its ClusterIP. `restricted`: load balancers'
/// addresses have source ranges.
pub(super) fn frontends(
    service: &Service,
    port: &ServicePort,
    cluster_ip: IpAddr,
    restricted: bool,
    endpoints: &Endpoints,
    rules: &Rules,
) -> BTreeMap<Frontend, Route> {
    let family = Family::of(cluster_ip);
    let frontend = |address, port_number| Frontend {
        address,
        port: port_number,
        protocol: port.protocol,
    };
    let at = |ip| frontend(FrontendAddress::Ip(ip), port.port);
    let internal = internal_route(service.internal_traffic_policy, endpoints);
    let external = external_route(service.external_traffic_policy, endpoints);

    // An address that a Service has twice is an external one, and a restricted one if it is that.
    let mut frontends = BTreeMap::from([(at(cluster_ip), internal)]);
    if rules.serve_external_ips {
        frontends.extend(of_family(&service.external_ips, family).map(|ip| (at(ip), external)));
    }
    let load_balancer = Route { restricted, ..external };
    frontends.extend(of_family(&service.load_balancer_ips, family).map(|ip| (at(ip), load_balancer)));
    if let Some(node_port) = port.node_port {
        frontends.insert(frontend(FrontendAddress::NodePort(family), node_port), external);
    }
    if rules.masquerade_all
        && let Some(route) = frontends.get_mut(&at(cluster_ip))
    {
        route.masquerade = Masquerade::Always;
    }
    frontends
}

/// Who may dial load balancers' addresses of a Service in a family, if that is not everybody.
pub(super) fn allowed_sources(service: &Service, family: Family, node: Option<&Node>) -> Option<AllowedSources> {
    let of_this_family = |range: &&IpNet| Family::of(range.addr()) == family;
    let mut ranges: BTreeSet<IpNet> = service.source_ranges.iter().filter(of_this_family).copied().collect();
    let addresses = || of_family(&service.load_balancer_ips, family);
    let is_everybody = |range: &IpNet| range.prefix_len() == 0;
    if ranges.is_empty() || ranges.iter().any(is_everybody) || addresses().next().is_none() {
        return None;
    }
    let mut addresses_of_node = node.into_iter().flat_map(Node::primary_addresses);
    let node = addresses_of_node.any(|ip| ranges.iter().any(|range| range.contains(&ip)));
    if node {
        // Where the address is on a link of the node, it is also the source of the node's packets to it.
        ranges.extend(addresses().map(IpNet::from));
    }
    Some(AllowedSources { ranges, node })
}

fn of_family<'a>(addresses: impl IntoIterator<Item = &'a ServiceIp>, family: Family) -> impl Iterator<Item = IpAddr> {
    let addresses = addresses.into_iter().map(|address| address.get());
    addresses.filter(move |ip| Family::of(*ip) == family)
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
    let near = endpoints.cluster_target();
    Route {
        near,
        far: match policy {
            TrafficPolicy::Cluster => near,
            TrafficPolicy::Local => endpoints.local_target(),
        },
        masquerade: Masquerade::WhereNeeded,
        restricted: false,
    }
}
