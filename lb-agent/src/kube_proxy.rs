//! kube-proxy on this node: whether it runs, and what it has left in the kernel.
//!
//! Both proxies on one node translate the same packets twice, and none of them knows. What one has left serves on like
//! the other, with endpoints that grow old.

pub mod active;
mod cleanup;
mod iptables;

pub use cleanup::{Leftovers, remove};
