//! A Service of the catalogue: the fields that a service proxy reads, and the objects made of them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use lb_tests::client::Protocol;
use lb_tests::manifests::{Manifest, NAMESPACE};
use lb_tests::network::plan;
use lb_tests::stage::Family;
use serde_json::json;

use super::actors::{Backend, Net, addresses};

/// `spec.type`, and the ways to be no Service at all in the eyes of a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `ClusterIP`.
    ClusterIp,
    /// `NodePort`.
    NodePort,
    /// `LoadBalancer`.
    LoadBalancer,
    /// `clusterIP: None`.
    Headless,
    /// `ExternalName`.
    ExternalName,
}

/// A traffic policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Policy {
    /// Every endpoint.
    Cluster,
    /// Endpoints of the node.
    Local,
}

impl Policy {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Cluster, Self::Local];

    /// The word for it in a Service.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

/// An entry of `status.loadBalancer.ingress`, for each family of the pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ingress {
    /// `ipMode: VIP`.
    Vip([IpAddr; 2]),
    /// `ipMode: Proxy`.
    Proxy([IpAddr; 2]),
    /// A host name alone.
    Hostname(&'static str),
}

/// A number that a Service listens at, with every protocol of the Service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Port {
    /// `port`.
    pub(crate) port: u16,
    /// `nodePort`.
    pub(crate) node_port: u16,
    /// Where endpoints listen; none means that no EndpointSlice has a port of this name.
    pub(crate) target: Option<u16>,
}

/// An endpoint in an EndpointSlice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Endpoint {
    pub(crate) backend: Backend,
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
    /// `hints.forZones`.
    pub(crate) zones: Vec<&'static str>,
    /// `hints.forNodes`.
    pub(crate) nodes: Vec<&'static str>,
    /// Which of the Service's slices it is in.
    pub(crate) slice: u8,
    /// How far behind the Service's target ports those of its slice are.
    pub(crate) port_offset: u16,
}

impl Endpoint {
    fn with(backend: Backend, ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> Self {
        Self {
            backend,
            ready,
            serving,
            terminating,
            zones: Vec::new(),
            nodes: Vec::new(),
            slice: 0,
            port_offset: 0,
        }
    }

    /// Takes new connections.
    pub(crate) fn ready(backend: Backend) -> Self {
        Self::with(backend, Some(true), Some(true), Some(false))
    }

    /// Takes new connections only if nobody else does.
    pub(crate) fn terminating(backend: Backend) -> Self {
        Self::with(backend, Some(false), Some(true), Some(true))
    }

    /// About to end, and not serving any more.
    pub(crate) fn ending(backend: Backend) -> Self {
        Self::with(backend, Some(false), Some(false), Some(true))
    }

    /// Neither ready nor terminating.
    pub(crate) fn not_ready(backend: Backend) -> Self {
        Self::with(backend, Some(false), Some(false), Some(false))
    }

    /// Without conditions.
    pub(crate) fn unknown(backend: Backend) -> Self {
        Self::with(backend, None, None, None)
    }

    /// The same for these zones.
    pub(crate) fn for_zones(mut self, zones: &[&'static str]) -> Self {
        self.zones = zones.to_vec();
        self
    }

    /// The same for these nodes.
    pub(crate) fn for_nodes(mut self, nodes: &[&'static str]) -> Self {
        self.nodes = nodes.to_vec();
        self
    }

    /// The same in another slice.
    pub(crate) fn in_slice(mut self, slice: u8) -> Self {
        self.slice = slice;
        self
    }

    /// The same in another slice, whose ports have other numbers.
    pub(crate) fn behind_by(mut self, slice: u8, offset: u16) -> Self {
        (self.slice, self.port_offset) = (slice, offset);
        self
    }
}

/// A Service and its endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    /// Its addresses and NodePorts come from this.
    pub(crate) number: u8,
    pub(crate) kind: Kind,
    pub(crate) families: Vec<Family>,
    pub(crate) protocols: Vec<Protocol>,
    pub(crate) ports: Vec<Port>,
    pub(crate) external: Policy,
    pub(crate) internal: Policy,
    pub(crate) ingress: Vec<Ingress>,
    pub(crate) external_ips: Vec<[IpAddr; 2]>,
    pub(crate) source_ranges: Vec<String>,
    /// `sessionAffinity: ClientIP`.
    pub(crate) affinity: bool,
    /// `allocateLoadBalancerNodePorts`.
    pub(crate) node_ports: bool,
    /// Labelled as another proxy's.
    pub(crate) of_another_proxy: bool,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// Where the first port of every Service has its backends.
pub(crate) const TARGET: u16 = 8080;
/// Where a second port has them.
pub(crate) const SECOND_TARGET: u16 = 8090;

impl Service {
    /// One of type LoadBalancer with every kind of frontend, at the addresses of this number.
    pub(crate) fn new(name: impl Into<String>, number: u8, endpoints: Vec<Endpoint>) -> Self {
        Self {
            name: name.into(),
            number,
            kind: Kind::LoadBalancer,
            families: Family::ALL.to_vec(),
            protocols: vec![Protocol::Tcp, Protocol::Udp],
            ports: vec![Port {
                port: 80,
                node_port: 30_000 + u16::from(number),
                target: Some(TARGET),
            }],
            external: Policy::Cluster,
            internal: Policy::Cluster,
            ingress: vec![Ingress::Vip(addresses(Net::LoadBalancer, number))],
            external_ips: vec![addresses(Net::External, number)],
            source_ranges: Vec::new(),
            affinity: false,
            node_ports: true,
            of_another_proxy: false,
            endpoints,
        }
    }

    /// The same with a second port.
    pub(crate) fn with_second_port(mut self, target: Option<u16>) -> Self {
        self.ports.push(Port {
            port: 8000,
            node_port: 31_000 + u16::from(self.number),
            target,
        });
        self
    }

    /// Its cluster addresses, IPv4 first.
    pub(crate) fn cluster_ips(&self) -> [IpAddr; 2] {
        plan::service_addresses(self.number)
    }

    /// Whether it has NodePorts.
    pub(crate) fn has_node_ports(&self) -> bool {
        match self.kind {
            Kind::NodePort => true,
            Kind::LoadBalancer => self.node_ports,
            _ => false,
        }
    }

    fn port_name(&self, protocol: Protocol, port: u16) -> String {
        format!("{protocol}-{port}").to_lowercase()
    }

    fn metadata(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        }
    }

    fn service_ports(&self) -> Vec<core::ServicePort> {
        let ports = self.ports.iter().flat_map(|port| {
            self.protocols.iter().map(|protocol| core::ServicePort {
                name: Some(self.port_name(*protocol, port.port)),
                protocol: Some(protocol.to_string()),
                port: port.port.into(),
                node_port: self.has_node_ports().then(|| port.node_port.into()),
                // Proxies go by the slices, so what is written here must not matter.
                target_port: Some(IntOrString::Int(1)),
                ..core::ServicePort::default()
            })
        });
        ports.collect()
    }

    /// The object Service.
    pub(crate) fn object(&self) -> core::Service {
        let has_frontends = matches!(self.kind, Kind::ClusterIp | Kind::NodePort | Kind::LoadBalancer);
        let externally = matches!(self.kind, Kind::NodePort | Kind::LoadBalancer) || !self.external_ips.is_empty();
        let cluster_ips = self
            .families
            .iter()
            .map(|family| family.of(self.cluster_ips()).to_string());
        let cluster_ips: Vec<String> = match self.kind {
            Kind::Headless => vec!["None".into()],
            _ => cluster_ips.collect(),
        };
        let families = self.families.iter().map(|family| family.to_string()).collect();
        let balances = self.kind == Kind::LoadBalancer;
        let mut metadata = self.metadata(self.name.clone());
        if self.of_another_proxy {
            metadata.labels = Some(BTreeMap::from([(
                "service.kubernetes.io/service-proxy-name".into(),
                "another".into(),
            )]));
        }
        let mut spec = core::ServiceSpec {
            type_: Some(
                match self.kind {
                    Kind::ClusterIp | Kind::Headless => "ClusterIP",
                    Kind::NodePort => "NodePort",
                    Kind::LoadBalancer => "LoadBalancer",
                    Kind::ExternalName => "ExternalName",
                }
                .into(),
            ),
            ports: Some(self.service_ports()),
            external_ips: Some(self.external_ips.iter().flatten().map(IpAddr::to_string).collect()),
            external_traffic_policy: (has_frontends && externally).then(|| self.external.word().into()),
            internal_traffic_policy: has_frontends.then(|| self.internal.word().into()),
            load_balancer_source_ranges: (balances && !self.source_ranges.is_empty())
                .then(|| self.source_ranges.clone()),
            allocate_load_balancer_node_ports: balances.then_some(self.node_ports),
            // The API server would choose one itself, perhaps one that a later Service wants as a NodePort.
            health_check_node_port: (balances && self.external == Policy::Local)
                .then(|| 32_000 + i32::from(self.number)),
            session_affinity: self.affinity.then(|| "ClientIP".into()),
            ..core::ServiceSpec::default()
        };
        if self.kind == Kind::ExternalName {
            spec.external_name = Some("elsewhere.example".into());
        } else {
            spec.cluster_ip = cluster_ips.first().cloned();
            spec.cluster_ips = Some(cluster_ips);
            spec.ip_families = Some(families);
            let both = self.families.len() > 1;
            spec.ip_family_policy = Some(if both { "RequireDualStack" } else { "SingleStack" }.into());
        }
        core::Service {
            metadata,
            spec: Some(spec),
            status: None,
        }
    }

    /// What a load balancer's controller writes, if it writes anything.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        if self.kind != Kind::LoadBalancer || self.ingress.is_empty() {
            return None;
        }
        let ingress = self.ingress.iter().flat_map(|ingress| match ingress {
            Ingress::Vip(ips) => ips.map(|ip| json!({ "ip": ip, "ipMode": "VIP" })).to_vec(),
            Ingress::Proxy(ips) => ips.map(|ip| json!({ "ip": ip, "ipMode": "Proxy" })).to_vec(),
            Ingress::Hostname(name) => vec![json!({ "hostname": name })],
        });
        Some(json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": self.name, "namespace": NAMESPACE },
            "status": { "loadBalancer": { "ingress": ingress.collect::<Vec<_>>() } },
        }))
    }

    /// The objects EndpointSlice: one for each of its slices and families.
    pub(crate) fn slices(&self, address: impl Fn(Backend) -> [IpAddr; 2]) -> Vec<discovery::EndpointSlice> {
        let mut slices: BTreeMap<(u8, u16), Vec<&Endpoint>> = BTreeMap::new();
        for endpoint in &self.endpoints {
            slices
                .entry((endpoint.slice, endpoint.port_offset))
                .or_default()
                .push(endpoint);
        }
        let mut objects = Vec::new();
        for ((slice, offset), endpoints) in slices {
            for family in Family::ALL {
                let label = ("kubernetes.io/service-name".to_owned(), self.name.clone());
                let name = format!("{}-{slice}-{family}", self.name).to_lowercase();
                objects.push(discovery::EndpointSlice {
                    metadata: ObjectMeta {
                        labels: Some(BTreeMap::from([label])),
                        ..self.metadata(name)
                    },
                    address_type: family.to_string(),
                    endpoints: endpoints
                        .iter()
                        .map(|endpoint| endpoint.object(family.of(address(endpoint.backend))))
                        .collect(),
                    ports: Some(self.slice_ports(offset)),
                });
            }
        }
        objects
    }

    fn slice_ports(&self, offset: u16) -> Vec<discovery::EndpointPort> {
        let ports = self.ports.iter().flat_map(|port| {
            let protocols = self.protocols.iter();
            protocols.filter_map(|protocol| {
                Some(discovery::EndpointPort {
                    name: Some(self.port_name(*protocol, port.port)),
                    protocol: Some(protocol.to_string()),
                    port: Some(i32::from(port.target? + offset)),
                    ..discovery::EndpointPort::default()
                })
            })
        });
        ports.collect()
    }

    /// All its objects, as one applies them; the status is apart.
    pub(crate) fn manifests(&self, address: impl Fn(Backend) -> [IpAddr; 2]) -> Result<Vec<Manifest>> {
        let mut manifests = vec![Manifest::new(&self.object())?];
        for slice in self.slices(address) {
            manifests.push(Manifest::new(&slice).context("an EndpointSlice")?);
        }
        Ok(manifests)
    }
}

impl Endpoint {
    fn object(&self, address: IpAddr) -> discovery::Endpoint {
        let conditions = [self.ready, self.serving, self.terminating];
        let hinted = !self.zones.is_empty() || !self.nodes.is_empty();
        discovery::Endpoint {
            addresses: vec![address.to_string()],
            conditions: conditions
                .iter()
                .any(Option::is_some)
                .then_some(discovery::EndpointConditions {
                    ready: self.ready,
                    serving: self.serving,
                    terminating: self.terminating,
                }),
            hints: hinted.then(|| {
                let zones = self
                    .zones
                    .iter()
                    .map(|zone| discovery::ForZone { name: (*zone).into() });
                let nodes = self
                    .nodes
                    .iter()
                    .map(|node| discovery::ForNode { name: (*node).into() });
                discovery::EndpointHints {
                    for_zones: (!self.zones.is_empty()).then(|| zones.collect()),
                    for_nodes: (!self.nodes.is_empty()).then(|| nodes.collect()),
                }
            }),
            node_name: Some(self.backend.node().into()),
            target_ref: Some(core::ObjectReference {
                kind: Some("Pod".into()),
                namespace: Some(NAMESPACE.into()),
                name: Some(self.backend.name().into()),
                ..core::ObjectReference::default()
            }),
            ..discovery::Endpoint::default()
        }
    }
}
