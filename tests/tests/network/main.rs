//! Whole nodes made of network namespaces: objects in, connections and packets sent, outcome expected.
//!
//! Each test has a network of its own, so they run beside each other. They need root, `nft`, `setpriv`, the agent and
//! `lab` (`LB_AGENT`, `LB_LAB`, or those that cargo built); what is missing makes them fail and say so.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and so do its helpers")]

mod addresses;
mod adopted;
mod agreement;
mod bad_input;
mod bare;
mod bridges;
mod changes;
mod checksums;
mod choice;
mod churn;
mod cleanup;
mod clsact;
mod differences;
mod drain;
mod dummy;
mod endpoints;
mod explain;
mod external;
mod fallback;
mod fixture;
mod foreign;
mod fragments;
mod graceful;
mod health;
mod host_udp;
mod initial_netns;
mod interrupt;
mod ipvs;
mod ipvs_rules;
mod kube_proxy_leftovers;
mod limits;
mod links;
mod logs;
mod maglev;
mod matrix;
mod metrics;
mod monitor;
mod netkit;
mod offload;
mod old_kernels;
mod other_proxy;
mod path_mtu;
mod planes;
mod plumbing;
mod pod_sockets;
mod ports;
mod reject;
mod restart;
mod rights;
mod services;
mod sockets;
mod sources;
mod stacked;
mod stale;
mod sysctls;
mod taken_over;
mod trust;
mod uplinks;
mod verbs;
