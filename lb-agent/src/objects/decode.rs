//! From the API's types to the model's. No other files know a field of a Kubernetes object beyond its metadata.

mod service;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU16,
};

use ipnet::IpNet;
use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::{
    desired::{Family, Protocol, Weight},
    model::{
        Conditions, Endpoint, EndpointPort, EndpointSlice, Event, Hints, Kind, Node, ObjectName, Placement, Pod,
        ServiceCidr, Update,
    },
};

/// Label: another proxy serves this Service.
const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label of a slice: its Service is headless.
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";
/// Label of a slice: the Service that it belongs to.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Annotation of a slice: when the Pod or Service changed for which its controller wrote it.
const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Taint of a Node, whatever its effect: the cluster autoscaler is about to remove the machine.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// Annotation of a Pod: `off` leaves its sockets alone where those of pods are translated.
const SOCKET_LB: &str = "lb-agent.io/socket-lb";
/// Annotation of a Service: how new flows are spread over its endpoints.
const ALGORITHM: &str = "lb-agent.io/algorithm";
/// Annotation of a slice: the weight of each of its endpoints.
const WEIGHT: &str = "lb-agent.io/weight";
/// Annotation of a Pod that the kubelet has from a file: what the kubelet knows it by, in place of its UID.
const STATIC_POD_UID: &str = "kubernetes.io/config.hash";
/// Label of a Node: the zone that it is in.
const ZONE: &str = "topology.kubernetes.io/zone";

/// What a field says that it cannot say.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct FieldError {
    path: String,
    reason: String,
}

impl FieldError {
    fn new(path: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self {
            path: path.into(),
            reason: reason.to_string(),
        }
    }
}

/// What an object is to a service proxy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decoded<T> {
    /// One to serve, but for these parts of it.
    Object {
        /// The object.
        object: T,
        /// Parts that were left out.
        skipped: Vec<FieldError>,
    },
    /// None of ours, for this reason.
    Ignored(&'static str),
}

/// A type of the model that is made from an object of the API.
pub trait Decode: Sized + Send + 'static {
    /// The API's type.
    type Wire: kube::Resource<DynamicType = ()> + Clone + fmt::Debug + serde::de::DeserializeOwned + Send + 'static;

    /// The kind.
    const KIND: Kind;

    /// Whether there are API servers that we serve and that do not have this kind.
    const MAY_BE_UNKNOWN: bool = false;

    /// Decodes an object as seen from the node `this_node`.
    fn decode(wire: Self::Wire, this_node: &str) -> Result<Decoded<Self>, FieldError>;

    /// What an update of objects of this kind is to the model.
    fn event(update: Update<Self>) -> Event;
}

/// The name of an object. One without namespace is in `default`, as kubectl has it, unless its kind is
/// in none: then the namespace is empty, whatever a manifest says.
pub fn object_name(kind: Kind, metadata: &ObjectMeta) -> ObjectName {
    let namespace = match kind {
        Kind::Service | Kind::EndpointSlice | Kind::Pod => metadata.namespace.as_deref().unwrap_or("default"),
        Kind::ServiceCidr | Kind::Node => "",
    };
    ObjectName::new(namespace, metadata.name.as_deref().unwrap_or_default())
}

impl Decode for EndpointSlice {
    type Wire = discovery::EndpointSlice;

    const KIND: Kind = Kind::EndpointSlice;

    fn decode(wire: Self::Wire, this_node: &str) -> Result<Decoded<Self>, FieldError> {
        let labels = wire.metadata.labels.as_ref();
        if has_label(labels, HEADLESS) {
            return Ok(Decoded::Ignored("of a headless Service"));
        }
        let Some(service) = labels.and_then(|labels| labels.get(SERVICE_NAME)) else {
            return Ok(Decoded::Ignored("of no Service"));
        };
        let family = match wire.address_type.as_str() {
            "IPv4" => Family::V4,
            "IPv6" => Family::V6,
            "FQDN" => return Ok(Decoded::Ignored("its addresses are names")),
            other => {
                return Err(FieldError::new(
                    "addressType",
                    format_args!("{other:?} is none of IPv4, IPv6, FQDN"),
                ));
            }
        };

        let mut skipped = Vec::new();
        let ports = wire.ports.unwrap_or_default().into_iter().enumerate();
        let ports = ports
            .filter_map(|(index, port)| keep(endpoint_port(index, port), &mut skipped))
            .collect();
        let name = required_name(Self::KIND, &wire.metadata)?;
        let mut slice = Self::new(name, service.clone(), family, ports);
        // Nobody is served worse by a time that makes no sense.
        let annotations = wire.metadata.annotations.as_ref();
        let last_change = annotations.and_then(|annotations| annotations.get(LAST_CHANGE)?.parse().ok());
        if let Some(time) = last_change {
            slice = slice.triggered_at(time);
        }
        let weight = annotations.and_then(|annotations| annotations.get(WEIGHT));
        let weight = weight.and_then(|weight| keep(self::weight(weight), &mut skipped));
        for (index, wire) in wire.endpoints.into_iter().enumerate() {
            let path = format!("endpoints[{index}].addresses[0]");
            let added = endpoint(&path, wire, weight.unwrap_or(Weight::ONE), this_node)
                .and_then(|endpoint| slice.add(endpoint).map_err(|error| FieldError::new(path, error)));
            keep(added, &mut skipped);
        }
        Ok(Decoded::Object { object: slice, skipped })
    }

    fn event(update: Update<Self>) -> Event {
        Event::EndpointSlices(update)
    }
}

fn endpoint_port(index: usize, port: discovery::EndpointPort) -> Result<EndpointPort, FieldError> {
    let path = |field: &str| format!("ports[{index}].{field}");
    let number = port
        .port
        .ok_or_else(|| FieldError::new(path("port"), "missing, and a service proxy serves no \"all ports\""))?;
    Ok(EndpointPort {
        name: port.name.unwrap_or_default(),
        protocol: protocol(path("protocol"), port.protocol.as_deref())?,
        port: port_number(path("port"), number)?,
    })
}

/// An endpoint, of which only the first address counts, as the API has it.
fn endpoint(path: &str, wire: discovery::Endpoint, weight: Weight, this_node: &str) -> Result<Endpoint, FieldError> {
    let address = wire.addresses.first().ok_or_else(|| FieldError::new(path, "missing"))?;
    let conditions = wire.conditions.unwrap_or_default();
    let hints = wire.hints.unwrap_or_default();
    let nodes = hints.for_nodes.unwrap_or_default();
    let zones = hints.for_zones.unwrap_or_default();
    Ok(Endpoint {
        address: ip(path, address)?,
        conditions: Conditions::new(conditions.ready, conditions.serving, conditions.terminating),
        placement: Placement::of(wire.node_name.as_deref(), this_node),
        hints: Hints::new(
            nodes.iter().map(|node| node.name.as_str()),
            zones.into_iter().map(|zone| zone.name).collect(),
            this_node,
        ),
        weight,
    })
}

fn weight(weight: &str) -> Result<Weight, FieldError> {
    let parsed = weight.parse().ok().and_then(Weight::new);
    parsed.ok_or_else(|| {
        FieldError::new(
            annotation(WEIGHT),
            format_args!("{weight:?} is not a weight (1-{})", Weight::MAX),
        )
    })
}

impl Decode for Node {
    type Wire = core::Node;

    const KIND: Kind = Kind::Node;

    fn decode(wire: Self::Wire, _: &str) -> Result<Decoded<Self>, FieldError> {
        let addresses = wire.status.and_then(|status| status.addresses).unwrap_or_default();
        let spec = wire.spec.unwrap_or_default();
        let taints = spec.taints.as_deref().unwrap_or_default();
        let mut skipped = Vec::new();
        let mut node = Self {
            is_leaving: wire.metadata.deletion_timestamp.is_some()
                || taints.iter().any(|taint| taint.key == TO_BE_DELETED),
            zone: wire.metadata.labels.and_then(|mut labels| labels.remove(ZONE)),
            pod_cidrs: pod_cidrs(spec, &mut skipped),
            ..Self::default()
        };
        for (index, address) in addresses.into_iter().enumerate() {
            let addresses = match address.type_.as_str() {
                "InternalIP" => &mut node.internal_ips,
                "ExternalIP" => &mut node.external_ips,
                _ => continue,
            };
            let path = format!("status.addresses[{index}].address");
            addresses.extend(keep(ip(path, &address.address), &mut skipped));
        }
        Ok(Decoded::Object { object: node, skipped })
    }

    fn event(update: Update<Self>) -> Event {
        match update {
            Update::Replace { objects, unreadable } if objects.is_empty() && !unreadable.is_empty() => {
                Event::UnreadableNode
            }
            Update::Replace { mut objects, .. } => Event::Node(objects.pop()),
            Update::Apply(node) => Event::Node(Some(node)),
            Update::Delete(_) => Event::Node(None),
        }
    }
}

fn pod_cidrs(spec: core::NodeSpec, skipped: &mut Vec<FieldError>) -> BTreeSet<IpNet> {
    let (path, cidrs) = match spec.pod_cidrs {
        Some(cidrs) if !cidrs.is_empty() => ("spec.podCIDRs", cidrs),
        _ => (
            "spec.podCIDR",
            spec.pod_cidr.into_iter().filter(|cidr| !cidr.is_empty()).collect(),
        ),
    };
    cidrs
        .iter()
        .filter_map(|cidr| keep(network(path, cidr), skipped))
        .collect()
}

impl Decode for ServiceCidr {
    type Wire = networking::ServiceCIDR;

    const KIND: Kind = Kind::ServiceCidr;

    /// Since Kubernetes 1.33.
    const MAY_BE_UNKNOWN: bool = true;

    fn decode(wire: Self::Wire, _: &str) -> Result<Decoded<Self>, FieldError> {
        let mut skipped = Vec::new();
        let cidrs = wire.spec.and_then(|spec| spec.cidrs).unwrap_or_default();
        let cidrs = cidrs.iter().enumerate().filter_map(|(index, cidr)| {
            let path = format!("spec.cidrs[{index}]");
            keep(network(path, cidr), &mut skipped)
        });
        let object = Self {
            name: required_name(Self::KIND, &wire.metadata)?.name,
            cidrs: cidrs.collect(),
        };
        Ok(Decoded::Object { object, skipped })
    }

    fn event(update: Update<Self>) -> Event {
        Event::ServiceCidrs(update)
    }
}

impl Decode for Pod {
    type Wire = core::Pod;

    const KIND: Kind = Kind::Pod;

    /// Its default stands where the annotation says something that it cannot say.
    fn decode(wire: Self::Wire, this_node: &str) -> Result<Decoded<Self>, FieldError> {
        let spec = wire.spec.unwrap_or_default();
        if spec.node_name.as_deref() != Some(this_node) {
            return Ok(Decoded::Ignored("of another node, or none yet"));
        }
        // Its cgroup is gone, and the object may stay for long.
        let phase = wire.status.and_then(|status| status.phase);
        if let Some("Succeeded" | "Failed") = phase.as_deref() {
            return Ok(Decoded::Ignored("it has ended"));
        }
        let annotations = wire.metadata.annotations.as_ref();
        let annotation = |name: &str| annotations.and_then(|annotations| annotations.get(name));
        let Some(socket_lb) = annotation(SOCKET_LB) else {
            return Ok(Decoded::Ignored("it says nothing of its sockets"));
        };
        let uid = annotation(STATIC_POD_UID).or(wire.metadata.uid.as_ref());
        let path = || self::annotation(SOCKET_LB);
        let result = match socket_lb.as_str() {
            "on" => Ok(false),
            "off" if spec.host_network == Some(true) => Err(FieldError::new(
                path(),
                "a pod in the host's network has no link that would serve it instead",
            )),
            "off" => Ok(true),
            other => Err(FieldError::new(path(), format_args!("{other:?} is neither on nor off"))),
        };
        let mut skipped = Vec::new();
        let object = Self {
            uid: uid.cloned().ok_or_else(|| FieldError::new("metadata.uid", "missing"))?,
            is_opted_out: keep(result, &mut skipped).unwrap_or(false),
            name: required_name(Self::KIND, &wire.metadata)?,
        };
        Ok(Decoded::Object { object, skipped })
    }

    fn event(update: Update<Self>) -> Event {
        Event::Pods(update)
    }
}

/// The path of an annotation.
fn annotation(name: &str) -> String {
    format!("metadata.annotations[{name}]")
}

fn keep<T>(result: Result<T, FieldError>, skipped: &mut Vec<FieldError>) -> Option<T> {
    result.map_err(|error| skipped.push(error)).ok()
}

fn has_label(labels: Option<&BTreeMap<String, String>>, key: &str) -> bool {
    labels.is_some_and(|labels| labels.contains_key(key))
}

fn required_name(kind: Kind, metadata: &ObjectMeta) -> Result<ObjectName, FieldError> {
    let name = object_name(kind, metadata);
    if name.name.is_empty() {
        return Err(FieldError::new("metadata.name", "missing"));
    }
    Ok(name)
}

fn protocol(path: String, protocol: Option<&str>) -> Result<Protocol, FieldError> {
    match protocol {
        None | Some("" | "TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => Ok(Protocol::Sctp),
        Some(other) => Err(FieldError::new(
            path,
            format_args!("{other:?} is none of TCP, UDP, SCTP"),
        )),
    }
}

fn port_number(path: String, number: i32) -> Result<NonZeroU16, FieldError> {
    let port = u16::try_from(number).ok().and_then(NonZeroU16::new);
    port.ok_or_else(|| FieldError::new(path, format_args!("{number} is not a port (1-65535)")))
}

/// An address as the API takes them: old objects may hold IPv4 addresses with leading zeros, which
/// count as decimal, and IPv4-mapped IPv6 addresses, which are IPv4.
fn ip(path: impl Into<String>, address: &str) -> Result<IpAddr, FieldError> {
    let parsed = address
        .parse()
        .ok()
        .or_else(|| with_leading_zeros(address).map(IpAddr::V4));
    parsed
        .map(|ip: IpAddr| ip.to_canonical())
        .ok_or_else(|| FieldError::new(path, format_args!("{address:?} is not an IP address")))
}

/// A network as the API takes them: its address may have bits beyond the prefix.
fn network(path: impl Into<String>, network: &str) -> Result<IpNet, FieldError> {
    let parse = || {
        let (address, prefix) = network.split_once('/')?;
        let digits = (1..=3).contains(&prefix.len()) && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = digits.then(|| prefix.parse().ok()).flatten()?;
        let address = address
            .parse()
            .ok()
            .or_else(|| with_leading_zeros(address).map(IpAddr::V4))?;
        Some(IpNet::new(address, prefix).ok()?.trunc())
    };
    parse().ok_or_else(|| FieldError::new(path, format_args!("{network:?} is not a CIDR")))
}

fn with_leading_zeros(address: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = address.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let plain = part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_digit());
        *octet = plain.then(|| part.parse().ok()).flatten()?;
    }
    parts.next().is_none().then(|| octets.into())
}
