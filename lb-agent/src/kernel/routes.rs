//! Where this network namespace sends to.

use std::{io, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};

use super::netlink::Requests;

/// Where an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Towards {
    /// It is one of this node.
    ThisNode,
    /// Behind the link of this index.
    Link(u32),
    /// Nowhere.
    Nowhere,
}

/// Asks the kernel by which link it would send to an address, as `ip route get` does.
///
/// # Errors
/// The kernel does not tell.
pub fn towards(address: IpAddr) -> io::Result<Towards> {
    let mut message = RouteMessage::default();
    let (family, length, destination) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, 32, RouteAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(address)),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = length;
    message.attributes.push(RouteAttribute::Destination(destination));
    let answers = match Requests::open()?.get(RouteNetlinkMessage::GetRoute(message)) {
        Err(error) if is_unreachable(&error) => return Ok(Towards::Nowhere),
        answers => answers?,
    };
    let found = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    let Some(route) = found else {
        return Ok(Towards::Nowhere);
    };
    if route.header.kind == RouteType::Local {
        return Ok(Towards::ThisNode);
    }
    let link = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    });
    Ok(link.map_or(Towards::Nowhere, Towards::Link))
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL)
    )
}
