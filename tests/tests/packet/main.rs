//! Packet in, verdict and packet out: the loaded programs, run by the kernel on bytes that a test
//! wrote (BPF_PROG_TEST_RUN). No network, no clock to wait for.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and so do its helpers")]

mod abi;
mod affinity;
mod bystander;
mod datapath;
mod events;
mod flows;
mod fragments;
mod frame;
mod fuzz;
mod guard;
mod half_seen;
mod hashed;
mod icmp;
mod masquerade;
mod matrix;
mod networks;
mod options;
mod reject;
mod sctp;
mod speaks_for;
mod translation;
mod vlan;

use std::net::{IpAddr, SocketAddr};

/// A client, as this family has it.
fn client(family: Family) -> SocketAddr {
    family.pick("10.244.1.2:40000", "[fd00:244:1::2]:40000")
}

/// A frontend.
fn frontend(family: Family) -> SocketAddr {
    family.pick("10.96.0.10:80", "[fd00:96::10]:80")
}

/// The `n`th backend, on port 8080.
fn backend(family: Family, n: u8) -> SocketAddr {
    let (v4, v6) = (format!("10.244.2.{n}:8080"), format!("[fd00:244:2::{n:x}]:8080"));
    family.pick(&v4, &v6)
}

/// An address of the node.
fn node(family: Family) -> IpAddr {
    family.pick::<SocketAddr>("192.0.2.1:1", "[2001:db8::1]:1").ip()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    V4,
    V6,
}

impl Family {
    const BOTH: [Self; 2] = [Self::V4, Self::V6];

    fn pick<T: std::str::FromStr<Err: std::fmt::Debug>>(self, v4: &str, v6: &str) -> T {
        match self {
            Self::V4 => v4.parse().unwrap(),
            Self::V6 => v6.parse().unwrap(),
        }
    }
}
