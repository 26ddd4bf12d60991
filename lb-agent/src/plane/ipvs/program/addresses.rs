//! The addresses of the node's links.

use std::{collections::BTreeSet, net::IpAddr};

use nix::sys::socket::SockaddrStorage;
use tracing::warn;

use crate::kernel::dummy;

/// The addresses of the node's links, but for ours.
pub(super) fn addresses_of_other_links() -> BTreeSet<IpAddr> {
    addresses_where(|name| name != dummy::NAME)
}

/// The addresses of one link, none where it is not there.
pub fn addresses_of(link: &str) -> BTreeSet<IpAddr> {
    addresses_where(|name| name == link)
}

/// The addresses of links by their names.
pub(in crate::plane::ipvs) fn addresses_where(is_wanted: impl Fn(&str) -> bool) -> BTreeSet<IpAddr> {
    match nix::ifaddrs::getifaddrs() {
        Ok(all) => all
            .filter(|found| is_wanted(&found.interface_name))
            .filter_map(|found| ip(&found.address?))
            .collect(),
        Err(error) => {
            warn!("the addresses of the node are not known: {error}");
            BTreeSet::new()
        }
    }
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}
