//! Whole nodes made of network namespaces: objects in, connections and packets sent, outcome expected.
//!
//! Each test has a network of its own, so they run beside each other. They need root, `nft`, `setpriv`, the agent and
//! `lab` (`LB_AGENT`, `LB_LAB`, or those that cargo built); what is missing makes them fail and say so.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and so do its helpers")]

mod addresses;
mod bad_input;
mod bare;
mod changes;
mod cleanup;
mod clsact;
mod endpoints;
mod external;
mod fixture;
mod fragments;
mod health;
mod host_udp;
mod interrupt;
mod links;
mod matrix;
mod monitor;
mod other_proxy;
mod path_mtu;
mod plumbing;
mod reject;
mod restart;
mod services;
mod sources;
mod stale;
