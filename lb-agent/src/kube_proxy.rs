//! kube-proxy on this node: whether it runs.
//!
//! Both proxies on one node translate the same packets twice, and none of them knows.

pub mod active;
