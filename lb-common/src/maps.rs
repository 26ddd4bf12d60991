//! Names and sizes of the maps, and the version of their layout.

/// Names the folder of the pins; goes up with every change to a key, a value or the meaning of one.
pub const LAYOUT_VERSION: u32 = 1;

/// Hash: [`ServiceKey`](crate::ServiceKey) → [`ServiceValue`](crate::ServiceValue).
pub const SERVICES: &str = "SERVICES";
/// Array: slot → number of a backend (`u32`).
pub const SLOTS: &str = "SLOTS";
/// Array: number → [`BackendValue`](crate::BackendValue).
pub const BACKENDS: &str = "BACKENDS";
/// LRU hash: [`FlowKey`](crate::FlowKey) → [`FlowValue`](crate::FlowValue).
pub const FLOWS: &str = "FLOWS";
/// LRU hash: [`SocketKey`](crate::SocketKey) → [`SocketValue`](crate::SocketValue).
pub const SOCKETS: &str = "SOCKETS";
/// Hash: [`Address`](crate::Address) → [`NodeAddressValue`](crate::NodeAddressValue).
pub const NODE_ADDRESSES: &str = "NODE_ADDRESSES";
/// Per-CPU array: [`Counter`](crate::Counter) → `u64`.
pub const COUNTERS: &str = "COUNTERS";

/// Default number of rows of `SERVICES`: frontends of 65,536 service ports with a few each.
pub const DEFAULT_SERVICES: u32 = 262_144;
/// Default number of slots: every service holds up to two ranges of its endpoints, and for a
/// second after a change the range before.
pub const DEFAULT_SLOTS: u32 = 1_048_576;
/// Default number of backends.
pub const DEFAULT_BACKENDS: u32 = 524_288;
/// Default number of rows of `FLOWS`, two a flow.
pub const DEFAULT_FLOWS: u32 = 524_288;
/// Default number of rows of `SOCKETS`.
pub const DEFAULT_SOCKETS: u32 = 131_072;
/// Number of rows of `NODE_ADDRESSES`.
pub const NODE_ADDRESSES_MAX: u32 = 4_096;
