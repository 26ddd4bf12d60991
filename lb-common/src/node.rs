//! Map `NODE_ADDRESSES`: local address → what is served on it.

use crate::layout::map_type;

/// What a local address serves. The key is an [`Address`](crate::Address).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NodeAddressValue {
    /// `NODE_PORTS`.
    pub flags: u32,
}

map_type!(NodeAddressValue: 4 { flags @ 0 });

/// NodePorts are served on this address.
pub const NODE_PORTS: u32 = 1 << 0;
