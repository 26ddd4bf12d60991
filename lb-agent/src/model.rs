//! What Kubernetes objects mean for this node, as pure code: no I/O, no clock, no kernel, and no
//! type of a Kubernetes library.
//!
//! [`objects`](crate::objects) hands in an [`Event`] for each change it sees; [`Cluster`] holds what
//! the objects say and hands out the [`Change`](crate::desired::Change) of the desired state.
//! kube-proxy is the specification of every rule in here.

mod api_server;
mod claims;
mod cluster;
mod cluster_ips;
mod endpoint_slice;
mod event;
mod health_check;
mod inventory;
mod name;
mod node;
mod pod;
mod rules;
mod serve;
mod service;
mod service_cidr;

#[cfg(test)]
mod tests;

pub use claims::Conflict;
pub use cluster::Cluster;
pub use endpoint_slice::{Conditions, Endpoint, EndpointPort, EndpointSlice, Hints, InvalidEndpoint, Placement};
pub use event::{Event, Kind, Update};
pub use health_check::HealthCheck;
pub use name::ObjectName;
pub use node::Node;
pub use pod::Pod;
pub use rules::{DetectLocal, InvalidNodePortAddress, NodePortAddress, NodePortAddresses, Rules};
pub use service::{
    AnyService, ClusterIps, InvalidClusterIp, InvalidServicePorts, Service, ServiceIp, ServicePort, ServicePorts,
    TrafficPolicy, UnusableServiceIp,
};
pub use service_cidr::ServiceCidr;
