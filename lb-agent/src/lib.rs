//! The node agent: it reads Kubernetes objects and keeps the kernel's data path as they want it.
//!
//! ```text
//! objects ──Event──▶ model ──Change──▶ plane ──▶ kernel
//! watch a server      pure rules        maps and
//! or a folder                           programs
//! ```
//!
//! * [`objects`] decodes what Kubernetes says and knows nothing of what it means.
//! * [`model`] knows what it means and does no I/O.
//! * [`desired`] is what the model says and a plane does; it belongs to neither.
//! * [`plane`] makes it true in the kernel and knows nothing of Kubernetes.
//! * [`kernel`] is what every plane shares of the kernel.
//! * [`kube_proxy`] knows of the other proxy on this node, and of what it has left there.
//! * [`health`] answers those who ask how this node's services are, [`metrics`] who counts, [`status`] who logs in.
//! * [`agent`] is the loop that ties them together, [`cli`] what a person types.

pub mod agent;
pub mod cli;
pub mod config;
pub mod desired;
pub mod health;
mod http;
pub mod kernel;
pub mod kube_proxy;
pub mod metrics;
pub mod model;
pub mod objects;
pub mod plane;
pub mod run_dir;
pub mod status;
