//! ServiceCIDR: where ClusterIPs come from.

use ipnet::IpNet;

/// Networks that the API server takes ClusterIPs from (KEP-1880).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceCidr {
    /// Name. These objects have no namespace.
    pub name: String,
    /// One network, or one of each family.
    pub cidrs: Vec<IpNet>,
}
