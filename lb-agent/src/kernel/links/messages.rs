//! What rtnetlink messages say, as far as it matters here.

use std::net::IpAddr;

use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage},
    route::{RouteAttribute, RouteMessage, RouteType},
};

use super::Facts;

/// Of a link. `None` for messages about it in another role: with the family of bridges the kernel
/// tells of ports, and of a port's end as if the link were deleted.
pub(in crate::kernel) fn link_facts(message: &LinkMessage) -> Option<Facts> {
    if message.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let layer = message.header.link_layer_type;
    let mut facts = Facts {
        index: message.header.index,
        is_ethernet: layer == LinkLayerType::Ether,
        is_ip_only: is_ip_only(layer),
        is_loopback: message.header.flags.contains(LinkFlags::Loopback),
        ..Facts::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => facts.name.clone_from(name),
            LinkAttribute::Address(bytes) => facts.mac = bytes.as_slice().try_into().ok(),
            LinkAttribute::Controller(index) => facts.master = Some(*index).filter(|i| *i != 0),
            LinkAttribute::Link(index) => facts.peer = Some(*index).filter(|i| *i != 0),
            LinkAttribute::LinkNetNsId(_) => facts.is_peer_elsewhere = true,
            LinkAttribute::LinkInfo(info) => {
                for info in info {
                    match info {
                        LinkInfo::Kind(kind) => facts.kind = Some(kind.to_string()),
                        LinkInfo::PortKind(kind) => facts.master_kind = Some(kind.to_string()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(facts)
}

/// Where the kernel's `dev_is_mac_header_xmit` says no: a BPF program finds the IP header first.
const fn is_ip_only(layer: LinkLayerType) -> bool {
    matches!(
        layer,
        LinkLayerType::None
            | LinkLayerType::Rawip
            | LinkLayerType::Ppp
            | LinkLayerType::Tunnel
            | LinkLayerType::Tunnel6
            | LinkLayerType::Sit
            | LinkLayerType::Ipgre
            | LinkLayerType::Ip6gre
    )
}

/// The link and the address that a message tells of.
pub(in crate::kernel) fn address(message: &AddressMessage) -> Option<(u32, IpAddr)> {
    // On a point-to-point link `Address` is the peer's and `Local` the own one; IPv6 has no `Local`
    // where they are the same.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    Some((message.header.index, local.or(address)?))
}

/// Whether a message tells of a default route, of whichever table.
pub(super) fn is_default_route(message: &RouteMessage) -> bool {
    message.header.destination_prefix_length == 0
        && message.header.source_prefix_length == 0
        && message.header.kind == RouteType::Unicast
}

/// The links that a route leads through.
pub(super) fn links_of_route(message: &RouteMessage) -> Vec<u32> {
    let mut links = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => links.push(*index),
            RouteAttribute::MultiPath(hops) => {
                links.extend(hops.iter().map(|hop| hop.interface_index));
            }
            _ => {}
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{InfoKind, InfoPortKind};

    use super::*;

    #[test]
    fn a_pods_link_in_a_bridge() {
        let mut message = LinkMessage::default();
        message.header.index = 9;
        message.header.link_layer_type = LinkLayerType::Ether;
        message.attributes = vec![
            LinkAttribute::IfName("veth9".to_owned()),
            LinkAttribute::Controller(4),
            LinkAttribute::Link(2),
            LinkAttribute::LinkNetNsId(0),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::PortKind(InfoPortKind::Bridge),
            ]),
        ];
        let facts = Facts {
            index: 9,
            name: "veth9".to_owned(),
            kind: Some("veth".to_owned()),
            is_ethernet: true,
            master: Some(4),
            master_kind: Some("bridge".to_owned()),
            peer: Some(2),
            is_peer_elsewhere: true,
            ..Facts::default()
        };
        assert_eq!(link_facts(&message), Some(facts));
        message.header.interface_family = AddressFamily::Bridge;
        assert_eq!(link_facts(&message), None);
    }

    #[test]
    fn the_own_address_of_a_point_to_point_link() {
        let mut message = AddressMessage::default();
        message.header.index = 3;
        let (own, peer): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        message.attributes = vec![AddressAttribute::Address(peer), AddressAttribute::Local(own)];
        assert_eq!(address(&message), Some((3, own)));
        message.attributes.pop();
        assert_eq!(address(&message), Some((3, peer)));
    }

    #[test]
    fn default_routes() {
        let mut message = RouteMessage::default();
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![RouteAttribute::Oif(5)];
        assert!(is_default_route(&message));
        assert_eq!(links_of_route(&message), [5]);
        message.header.kind = RouteType::Unreachable;
        assert!(!is_default_route(&message));
        message.header.kind = RouteType::Unicast;
        message.header.destination_prefix_length = 1;
        assert!(!is_default_route(&message));
    }
}
