//! What Kubernetes objects mean for this node, as pure code: no I/O, no clock, no kernel, and no
//! type of a Kubernetes library.
//!
//! [`objects`](crate::objects) hands in an [`Event`] for each change it sees; [`Cluster`] holds what
//! the objects say and hands out the [`Change`](crate::desired::Change) of the desired state.
//! kube-proxy is the specification of every rule in here.

mod claims;
mod cluster;
mod endpoint_slice;
mod health_check;
mod name;
mod node;
mod serve;
mod service;
mod service_cidr;

#[cfg(test)]
mod tests;

pub use cluster::{Cluster, Conflict, Event, Kind, Update};
pub use endpoint_slice::{Conditions, Endpoint, EndpointPort, EndpointSlice, InvalidEndpoint, Placement};
pub use health_check::HealthCheck;
pub use name::ObjectName;
pub use node::Node;
pub use service::{
    ClusterIps, InvalidClusterIp, InvalidServicePorts, Service, ServicePort, ServicePorts, TrafficPolicy,
};
pub use service_cidr::ServiceCidr;
