//! The messages, byte for byte as `linux/netlink.h`, `linux/genetlink.h` and `linux/ip_vs.h` describe them, and what
//! becomes of broken ones. The kernel itself is asked in the network tests.
#![cfg(target_endian = "little")]

mod answers;
mod dumps;
mod lost;
mod properties;
mod requests;
mod words;

use std::num::NonZeroU32;

use super::*;
use crate::desired::{Family, Protocol};

/// The number that the kernel gave the family.
const FAMILY: u16 = 0x1c;

fn service(protocol: Protocol, address: &str) -> ServiceKey {
    let address = address.parse().unwrap();
    ServiceKey::Address { protocol, address }
}

fn marked(family: Family, mark: u32) -> ServiceKey {
    let mark = NonZeroU32::new(mark).unwrap();
    ServiceKey::Mark { family, mark }
}

fn destination(address: &str, weight: u32) -> Destination {
    let address = address.parse().unwrap();
    Destination { address, weight }
}

/// The bytes of fields, one behind the other.
fn fields(fields: &[&[u8]]) -> Vec<u8> {
    fields.concat()
}
