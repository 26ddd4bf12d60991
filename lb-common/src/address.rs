//! Map `ADDRESSES`: what an address is beyond the frontends that have it.

use crate::layout::map_type;

/// What becomes of a packet to an address and a port that are no frontend. The key is an
/// [`Address`](crate::Address).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AddressValue {
    /// `NODE_PORTS`, `HOST_NODE_PORTS`, `CLUSTER_IP`, `FOREIGN`, `EXTERNAL`.
    pub flags: u32,
}

map_type!(AddressValue: 4 { flags @ 0 });

/// An address of this node on which NodePorts are served to everybody.
pub const NODE_PORTS: u32 = 1 << 0;
/// An address of this node on which NodePorts are served to its own processes: a loopback address,
/// which no packet from a link has any business with.
pub const HOST_NODE_PORTS: u32 = 1 << 1;
/// A ClusterIP: ports that are no frontend are refused.
pub const CLUSTER_IP: u32 = 1 << 2;
/// A ClusterIP that another proxy serves: packets pass to it untouched.
pub const FOREIGN: u32 = 1 << 3;
/// The address of a load balancer or an externalIP: some of its ports are a frontend, others are whose they
/// were.
pub const EXTERNAL: u32 = 1 << 4;
