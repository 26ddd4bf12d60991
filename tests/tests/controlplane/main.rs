//! What runs against the real control plane.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and so do its helpers")]

mod agent;
mod bench;
mod chaos;
mod kube_proxy;
mod metrics;
mod selftest;
mod takeover;
mod watch;
