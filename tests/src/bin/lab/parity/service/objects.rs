//! The Kubernetes objects of a Service of the catalogue.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use lb_tests::client::Protocol;
use lb_tests::manifests::NAMESPACE;
use lb_tests::stage::Family;
use serde_json::json;

use super::{Endpoint, Ingress, Kind, Policy, Service};
use crate::parity::actors::Backend;

impl Service {
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
        let mut metadata = self.metadata(self.object_name());
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
                .then(|| self.source_ranges.iter().map(ToString::to_string).collect()),
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

    /// What a load balancer's controller writes, if it has anything to do with the Service.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        if self.kind != Kind::LoadBalancer {
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
            "metadata": { "name": self.object_name(), "namespace": NAMESPACE },
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
                let label = ("kubernetes.io/service-name".to_owned(), self.object_name());
                let name = format!("{}-{slice}-{family}", self.object_name()).to_lowercase();
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
