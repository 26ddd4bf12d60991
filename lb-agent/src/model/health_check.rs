//! What load balancers in front of the node ask about a Service.

use std::{collections::BTreeMap, num::NonZeroU16};

use crate::desired::Family;

/// The health check of a Service of type LoadBalancer with external traffic policy Local: load
/// balancers send its clients to the nodes that say they have an endpoint of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HealthCheck {
    /// The Service's healthCheckNodePort.
    pub port: NonZeroU16,
    /// For each family of the Service's cluster addresses, how many addresses of ready endpoints are
    /// on this node; none is 0. Who asks at an address of a family is told of endpoints of that family,
    /// and in a family that is not in here nobody listens.
    pub local_endpoints: BTreeMap<Family, usize>,
}
