//! A probe: one source dials one frontend of one Service, with one protocol in one family.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use lb_tests::client::Protocol;
use lb_tests::network::plan;
use lb_tests::stage::Family;

use super::actors::{self, Net, Source};
use super::service::{Ingress, Kind, Service};

/// What is dialled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Frontend {
    /// The cluster address.
    ClusterIp,
    /// The cluster address, at a port that the Service does not have.
    ClusterIpUndefinedPort,
    /// An address of the service range that no Service has.
    Unallocated,
    /// The first address of the load balancer.
    LoadBalancer,
    /// The second one.
    SecondLoadBalancer,
    /// The first one, at a port that the Service does not have.
    LoadBalancerUndefinedPort,
    /// The first one, at the number of the NodePort.
    LoadBalancerAtNodePort,
    /// The external address.
    External,
    /// The external address, at a port that the Service does not have.
    ExternalUndefinedPort,
    /// The NodePort at the address that the Node object names.
    NodePort,
    /// The NodePort at another address of the uplink.
    NodePortOnSecondAddress,
    /// The NodePort at the node's address on the bridge of its pods.
    NodePortOnBridgeAddress,
    /// The NodePort at 127.0.0.1 or ::1, which only the node itself can dial.
    NodePortOnLocalhost,
    /// The node's address at the port of the Service.
    NodeAtServicePort,
    /// Cluster address, NodePort, load balancer and external address in turn: one client of one Service.
    EachInTurn,
}

impl Frontend {
    /// The four that a Service of type LoadBalancer with an external address has.
    pub(crate) const USUAL: &[Self] = &[Self::ClusterIp, Self::NodePort, Self::LoadBalancer, Self::External];

    /// Whether it is a NodePort at an address of the node that the Node object does not name.
    pub(crate) fn is_elsewhere_on_node(self) -> bool {
        matches!(
            self,
            Self::NodePortOnSecondAddress | Self::NodePortOnBridgeAddress | Self::NodePortOnLocalhost
        )
    }

    /// A port that no Service has, and no process either.
    const UNDEFINED: u16 = 7777;

    fn can_be_dialled_by(self, source: Source) -> bool {
        match self {
            Self::NodePortOnLocalhost => source == Source::Host,
            // Nobody outside has a way to the networks of pods.
            Self::NodePortOnBridgeAddress => source != Source::Outside,
            // The node dials its own address from that very address, and others from one of its choice: two clients.
            Self::EachInTurn => source != Source::Host,
            _ => true,
        }
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "ClusterIP",
            Self::ClusterIpUndefinedPort => "ClusterIP, undefined port",
            Self::Unallocated => "unallocated address",
            Self::LoadBalancer => "load balancer",
            Self::SecondLoadBalancer => "second load balancer",
            Self::LoadBalancerUndefinedPort => "load balancer, undefined port",
            Self::LoadBalancerAtNodePort => "load balancer, NodePort's number",
            Self::External => "external address",
            Self::ExternalUndefinedPort => "external address, undefined port",
            Self::NodePort => "NodePort",
            Self::NodePortOnSecondAddress => "NodePort, second address",
            Self::NodePortOnBridgeAddress => "NodePort, bridge's address",
            Self::NodePortOnLocalhost => "NodePort, localhost",
            Self::NodeAtServicePort => "node, Service's port",
            Self::EachInTurn => "each frontend in turn",
        })
    }
}

/// A Service of the catalogue, and what of it is dialled by whom.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) service: Service,
    pub(crate) frontends: Vec<Frontend>,
    pub(crate) sources: Vec<Source>,
}

/// A probe.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) service: Arc<Service>,
    pub(crate) source: Source,
    pub(crate) frontend: Frontend,
    /// Which of the Service's ports.
    pub(crate) port: usize,
    pub(crate) protocol: Protocol,
    pub(crate) family: Family,
    /// What is dialled, one after the other and from the start again.
    pub(crate) to: Vec<SocketAddr>,
}

impl Probe {
    /// All of an entry. Both protocols are dialled whether or not the Service has them.
    pub(crate) fn of(entry: &Entry) -> Vec<Self> {
        let service = Arc::new(entry.service.clone());
        let mut probes = Vec::new();
        for frontend in &entry.frontends {
            for source in entry
                .sources
                .iter()
                .filter(|source| frontend.can_be_dialled_by(**source))
            {
                for port in 0..service.ports.len() {
                    for protocol in [Protocol::Tcp, Protocol::Udp] {
                        probes.extend(Family::ALL.into_iter().filter_map(|family| {
                            Some(Self {
                                to: dialled(&service, *frontend, port, family)?,
                                service: Arc::clone(&service),
                                source: *source,
                                frontend: *frontend,
                                port,
                                protocol,
                                family,
                            })
                        }));
                    }
                }
            }
        }
        probes
    }
}

impl Probe {
    /// Whether it is asked again after all Services have changed: each frontend by each source, but not with each
    /// protocol in each family.
    pub(crate) fn is_asked_again(&self) -> bool {
        matches!(
            (self.protocol, self.family),
            (Protocol::Tcp, Family::V4) | (Protocol::Udp, Family::V6)
        )
    }
}

/// Where a frontend is dialled; none if there is no such frontend in this family.
fn dialled(service: &Service, frontend: Frontend, port: usize, family: Family) -> Option<Vec<SocketAddr>> {
    let at = service.ports.get(port)?;
    let address = match frontend {
        Frontend::ClusterIp | Frontend::ClusterIpUndefinedPort => {
            let has_one =
                service.families.contains(&family) && !matches!(service.kind, Kind::Headless | Kind::ExternalName);
            has_one.then(|| family.of(service.cluster_ips()))?
        }
        Frontend::Unallocated => family.of(actors::unallocated()),
        Frontend::LoadBalancer | Frontend::LoadBalancerUndefinedPort | Frontend::LoadBalancerAtNodePort => {
            family.of(ingress(service, 0))
        }
        Frontend::SecondLoadBalancer => family.of(ingress(service, 1)),
        Frontend::External | Frontend::ExternalUndefinedPort => family.of(service
            .external_ips
            .first()
            .copied()
            .unwrap_or_else(|| actors::addresses(Net::External, service.number))),
        Frontend::NodePort | Frontend::NodeAtServicePort => family.of(plan::node_addresses(1)),
        Frontend::NodePortOnSecondAddress => family.of(actors::second_node_addresses()),
        Frontend::NodePortOnBridgeAddress => family.of(actors::bridge_addresses()),
        Frontend::NodePortOnLocalhost => family.of([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
        Frontend::EachInTurn => {
            let each = Frontend::USUAL.iter();
            return each
                .map(|frontend| dialled(service, *frontend, port, family))
                .collect::<Option<Vec<_>>>()
                .map(|each| each.concat());
        }
    };
    let port = match frontend {
        Frontend::ClusterIpUndefinedPort | Frontend::LoadBalancerUndefinedPort | Frontend::ExternalUndefinedPort => {
            Frontend::UNDEFINED
        }
        Frontend::NodePort
        | Frontend::NodePortOnSecondAddress
        | Frontend::NodePortOnBridgeAddress
        | Frontend::NodePortOnLocalhost
        | Frontend::LoadBalancerAtNodePort => at.node_port,
        _ => at.port,
    };
    Some(vec![SocketAddr::new(address, port)])
}

/// The address of an ingress. One without an address has the one that would be its.
fn ingress(service: &Service, which: usize) -> [IpAddr; 2] {
    match service.ingress.get(which) {
        Some(Ingress::Vip(addresses) | Ingress::Proxy(addresses)) => *addresses,
        _ if which == 0 => actors::addresses(Net::LoadBalancer, service.number),
        _ => actors::addresses(Net::SecondLoadBalancer, service.number),
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            service,
            source,
            frontend,
            protocol,
            family,
            ..
        } = self;
        write!(f, "{}: {source} dials {frontend}, {protocol} {family}", service.name)?;
        if let [only] = self.to[..] {
            write!(f, " {only}")?;
        }
        Ok(())
    }
}
