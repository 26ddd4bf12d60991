//! What a load balancer is told that asks whether this node has an endpoint.

use std::num::NonZeroU16;

/// The health check of one Service on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HealthCheck {
    /// Where load balancers ask.
    pub port: NonZeroU16,
    /// How many ready endpoints there are here.
    pub local_endpoints: usize,
}
