//! Maps `SOURCE_RANGES` and `CIDRS`: what the addresses of a network are, the longest prefix counts.

use crate::{layout::map_type, net::Address};

/// An address or a network, within what is spoken of.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Scoped {
    /// `SOURCE_RANGES`: the number of a service port. `CIDRS`: `PODS`, `SERVICES`.
    pub scope: u32,
    /// The address or network.
    pub address: Address,
}

map_type!(Scoped: 20 { scope @ 0, address @ 4 });

/// A prefix. As the kernel's tries want it, the length comes first and counts all bits behind it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PrefixKey {
    /// How many bits count: the 32 of the scope and those of the prefix.
    pub length: u32,
    /// The network.
    pub network: Scoped,
}

map_type!(PrefixKey: 24 { length @ 0, network @ 4 });

/// Bits of a key that is one address within one scope: what is looked up.
pub const WHOLE: u32 = 32 + 128;
/// Bits in front of an IPv4 address in an [`Address`].
const MAPPED: u32 = 96;

impl PrefixKey {
    /// The key of a prefix; `length` is that of the prefix in its own family.
    pub const fn new(scope: u32, address: Address, length: u8) -> Self {
        let mapped = if address.is_v4() { MAPPED } else { 0 };
        Self {
            length: 32 + mapped + length as u32,
            network: Scoped { scope, address },
        }
    }

    /// Length of the prefix in its own family.
    pub const fn prefix_length(&self) -> u32 {
        self.length - 32 - if self.network.address.is_v4() { MAPPED } else { 0 }
    }
}

/// Scope in `CIDRS`: clients. Without a row, the link that a client comes from tells where it is. A family
/// with a network of pods has a row of length 0 too, which is `OUTSIDE`; that of IPv6 would speak for IPv4
/// as well, so that IPv4 has one then that is `BY_LINK`, if nothing else.
pub const PODS: u32 = 1;
/// Scope in `CIDRS`: destinations. An address with the value `INSIDE` that is nobody's gets no answer.
pub const SERVICES: u32 = 2;

/// The link tells.
pub const BY_LINK: u32 = 0;
/// The address is in a network of this scope. `SOURCE_RANGES` and the scope `SERVICES` have no other value.
pub const INSIDE: u32 = 1;
/// The address is of a family with a network of this scope, and not in it.
pub const OUTSIDE: u32 = 2;

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    #[test]
    fn the_length_of_a_prefix_counts_the_scope_and_what_stands_before_an_ipv4_address() {
        let network = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        let v4 = PrefixKey::new(SERVICES, network("10.96.0.0"), 12);
        assert_eq!((v4.length, v4.prefix_length()), (32 + 96 + 12, 12));
        let v6 = PrefixKey::new(SERVICES, network("fd00:96::"), 112);
        assert_eq!((v6.length, v6.prefix_length()), (32 + 112, 112));
        assert_eq!(PrefixKey::new(SERVICES, network("10.96.0.1"), 32).length, WHOLE);
    }
}
