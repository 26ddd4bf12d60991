//! Networks as keys of the kernel's tries, and back.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use lb_common::{Address, PrefixKey};

use crate::desired::ServicePort;

/// Bits of a key in front of the address.
const SCOPE: u32 = 32;
/// Bits in front of an IPv4 address in an [`Address`].
const MAPPED: u32 = 96;

/// The key of a network.
pub(super) fn key(scope: u32, network: &IpNet) -> PrefixKey {
    // A trie that was given bits behind the prefix gives them back; a key has to be equal to itself.
    let network = network.trunc();
    PrefixKey::new(scope, Address::from(network.addr()), network.prefix_len())
}

/// The network of a key; `None` of one that [`key`] never makes.
pub(super) fn network(key: &PrefixKey) -> Option<IpNet> {
    let address = key.network.address;
    let before = SCOPE + if address.is_v4() { MAPPED } else { 0 };
    let length = u8::try_from(key.length.checked_sub(before)?).ok()?;
    let network = IpNet::new(IpAddr::from(address), length).ok()?;
    (network.trunc() == network).then_some(network)
}

/// The rows of the map `SOURCE_RANGES` for a service port with this number: none while no frontend
/// asks for them.
pub(super) fn source_ranges(number: u32, service: &ServicePort) -> BTreeSet<PrefixKey> {
    if !service.frontends.values().any(|route| route.restricted) {
        return BTreeSet::new();
    }
    let ranges = service.allowed_sources.ranges.iter();
    ranges.map(|range| key(number, range)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_comes_back_without_the_bits_behind_its_prefix() {
        for (given, back) in [
            ("10.96.0.0/12", "10.96.0.0/12"),
            ("10.0.0.5/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("192.0.2.1/32", "192.0.2.1/32"),
            ("fd00:96::a/112", "fd00:96::/112"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(network(&key(7, &net(given))), Some(net(back)), "{given}");
        }
    }

    #[test]
    fn a_key_of_no_network_is_none() {
        let v4 = key(1, &net("10.0.0.0/8"));
        let v6 = key(1, &net("fd00::/16"));
        for bad in [
            PrefixKey { length: 31, ..v6 },
            PrefixKey { length: 8, ..v6 },
            PrefixKey { length: 161, ..v6 },
            PrefixKey { length: 127, ..v4 },
            PrefixKey { length: 129, ..v4 },
        ] {
            assert_eq!(network(&bad), None, "{bad:?}");
        }
    }
}
