//! Kubernetes objects from a few values, as manifests.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;
use serde_json::Value;

use crate::client::Protocol;
use crate::network::{self, Pod};

/// The namespace of all of them.
pub const NAMESPACE: &str = "default";

/// A port of a Service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Its name, by which an EndpointSlice refers to it.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// What clients dial at a cluster address.
    pub port: u16,
    /// What clients dial at a node.
    pub node_port: Option<u16>,
    /// Where the endpoints listen.
    pub target: u16,
}

/// A Service with IPv4 and IPv6, and its endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its cluster addresses.
    pub cluster_ips: [IpAddr; 2],
    /// Its ports.
    pub ports: Vec<Port>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint of a Service, with an address of each family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The name of the pod.
    pub name: String,
    /// Its addresses, IPv4 first.
    pub addresses: [IpAddr; 2],
    /// The name of its node.
    pub node: String,
    /// Whether new connections may go there.
    pub ready: bool,
    /// Whether it answers at all.
    pub serving: bool,
    /// Whether it is about to end.
    pub terminating: bool,
}

impl From<&Pod> for Endpoint {
    fn from(pod: &Pod) -> Self {
        Self {
            name: pod.name().to_owned(),
            addresses: pod.addresses(),
            node: pod.node().to_owned(),
            ready: true,
            serving: true,
            terminating: false,
        }
    }
}

impl Service {
    /// A Service with the port 80 of both protocols, at the cluster addresses of this number, and without endpoints.
    #[must_use]
    pub fn new(name: &str, number: u8, target: u16) -> Self {
        let [v4, v6] = network::plan::service_addresses(number);
        let port = |protocol| Port {
            name: format!("{protocol}").to_lowercase(),
            protocol,
            port: 80,
            node_port: None,
            target,
        };
        Self {
            name: name.to_owned(),
            cluster_ips: [v4, v6],
            ports: vec![port(Protocol::Tcp), port(Protocol::Udp)],
            endpoints: Vec::new(),
        }
    }

    /// The same, also at this port of each node.
    #[must_use]
    pub fn at_node_port(mut self, node_port: u16) -> Self {
        for port in &mut self.ports {
            port.node_port = Some(node_port);
        }
        self
    }

    /// The same with these pods as endpoints and no others.
    #[must_use]
    pub fn with_endpoints<'a>(mut self, pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        self.endpoints = pods.into_iter().map(Endpoint::from).collect();
        self
    }

    /// The object Service.
    #[must_use]
    pub fn service(&self) -> core::Service {
        let ports = self.ports.iter().map(|port| core::ServicePort {
            name: Some(port.name.clone()),
            protocol: Some(port.protocol.to_string()),
            port: port.port.into(),
            node_port: port.node_port.map(i32::from),
            target_port: Some(IntOrString::Int(port.target.into())),
            ..Default::default()
        });
        let has_node_port = self.ports.iter().any(|port| port.node_port.is_some());
        core::Service {
            metadata: metadata(&self.name),
            spec: Some(core::ServiceSpec {
                type_: Some(if has_node_port { "NodePort" } else { "ClusterIP" }.into()),
                cluster_ip: Some(self.cluster_ips[0].to_string()),
                cluster_ips: Some(self.cluster_ips.iter().map(IpAddr::to_string).collect()),
                ip_families: Some(vec!["IPv4".into(), "IPv6".into()]),
                ip_family_policy: Some("RequireDualStack".into()),
                ports: Some(ports.collect()),
                ..Default::default()
            }),
            status: None,
        }
    }

    /// The objects EndpointSlice, one a family.
    #[must_use]
    pub fn slices(&self) -> [discovery::EndpointSlice; 2] {
        [("IPv4", "v4", 0), ("IPv6", "v6", 1)].map(|(family, suffix, which)| {
            let label = ("kubernetes.io/service-name".to_owned(), self.name.clone());
            let ports = self.ports.iter().map(|port| discovery::EndpointPort {
                name: Some(port.name.clone()),
                protocol: Some(port.protocol.to_string()),
                port: Some(port.target.into()),
                ..Default::default()
            });
            discovery::EndpointSlice {
                metadata: ObjectMeta {
                    labels: Some(BTreeMap::from([label])),
                    ..metadata(&format!("{}-{suffix}", self.name))
                },
                address_type: family.into(),
                endpoints: self.endpoints.iter().map(|endpoint| endpoint.object(which)).collect(),
                ports: Some(ports.collect()),
            }
        })
    }

    /// All its objects.
    pub fn manifests(&self) -> Result<Vec<Manifest>> {
        let mut manifests = vec![Manifest::new(&self.service())?];
        manifests.extend(self.slice_manifests()?);
        Ok(manifests)
    }

    /// Its EndpointSlices alone: what changes when endpoints come and go.
    pub fn slice_manifests(&self) -> Result<Vec<Manifest>> {
        self.slices().iter().map(Manifest::new).collect()
    }
}

impl Endpoint {
    fn object(&self, family: usize) -> discovery::Endpoint {
        discovery::Endpoint {
            addresses: vec![self.addresses[family].to_string()],
            conditions: Some(discovery::EndpointConditions {
                ready: Some(self.ready),
                serving: Some(self.serving),
                terminating: Some(self.terminating),
            }),
            node_name: Some(self.node.clone()),
            target_ref: Some(core::ObjectReference {
                kind: Some("Pod".into()),
                namespace: Some(NAMESPACE.into()),
                name: Some(self.name.clone()),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

/// The object Node of a node.
#[must_use]
pub fn node(node: &network::Node) -> core::Node {
    let cidrs = network::plan::pod_cidrs(node.number()).map(|cidr| cidr.to_string());
    let addresses = node.addresses().map(|address| core::NodeAddress {
        type_: "InternalIP".into(),
        address: address.to_string(),
    });
    core::Node {
        metadata: ObjectMeta {
            namespace: None,
            ..metadata(node.name())
        },
        spec: Some(core::NodeSpec {
            pod_cidr: cidrs.first().cloned(),
            pod_cidrs: Some(cidrs.into()),
            ..Default::default()
        }),
        status: Some(core::NodeStatus {
            addresses: Some(addresses.into()),
            ..Default::default()
        }),
    }
}

/// The object Pod of a pod, with the UID and these annotations.
#[must_use]
pub fn pod(pod: &Pod, uid: &str, annotations: &[(&str, &str)]) -> core::Pod {
    let annotations = annotations
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    core::Pod {
        metadata: ObjectMeta {
            uid: Some(uid.to_owned()),
            annotations: Some(annotations.collect()),
            ..metadata(pod.name())
        },
        spec: Some(core::PodSpec {
            node_name: Some(pod.node().to_owned()),
            ..Default::default()
        }),
        status: None,
    }
}

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        ..Default::default()
    }
}

/// An object ready to be written.
#[derive(Clone, PartialEq, Debug)]
pub struct Manifest {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    value: Value,
}

impl Manifest {
    /// The manifest of an object.
    pub fn new<T>(object: &T) -> Result<Self>
    where
        T: k8s_openapi::Resource + k8s_openapi::Metadata<Ty = ObjectMeta> + Serialize,
    {
        Ok(Self {
            kind: T::KIND.to_owned(),
            name: object.metadata().name.clone().context("an object has a name")?,
            value: serde_json::to_value(object).context("an object has a JSON form")?,
        })
    }

    /// As YAML.
    pub fn yaml(&self) -> Result<String> {
        serde_saphyr::to_string(&self.value).with_context(|| format!("writing {} {} as YAML", self.kind, self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_comes_back_as_the_same_object() {
        let mut web = Service::new("web", 5, 8080).at_node_port(30080);
        web.endpoints.push(Endpoint {
            name: "a".into(),
            addresses: ["10.244.1.2".parse().unwrap(), "fd00:244:1::2".parse().unwrap()],
            node: "node1".into(),
            ready: true,
            serving: true,
            terminating: false,
        });
        let manifests = web.manifests().unwrap();
        let service: core::Service = serde_saphyr::from_str(&manifests[0].yaml().unwrap()).unwrap();
        assert_eq!(service, web.service());
        let slice: discovery::EndpointSlice = serde_saphyr::from_str(&manifests[2].yaml().unwrap()).unwrap();
        assert_eq!(slice, web.slices()[1]);
        assert_eq!(slice.endpoints[0].addresses, ["fd00:244:1::2"]);
    }
}
