//! Which addresses are whose. The same in each network, since no two of them meet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::Cidr;

/// What the links between nodes carry.
pub const MTU: u32 = 1500;
/// What pods may send, so that it fits the tunnel: 50 bytes less.
pub const POD_MTU: u32 = 1450;
/// The link of a node or the outside client to the switch, and of a pod to its node.
pub const UPLINK: &str = "eth0";
/// The bridge of a node's pods.
pub const BRIDGE: &str = "cni0";
/// The tunnel to the other node's pods.
pub const TUNNEL: &str = "vx0";

/// The switch.
pub const SWITCH_V4: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 1);
/// The switch.
pub const SWITCH_V6: Ipv6Addr = v6([0xfd00, 0x172, 0x18, 0, 0, 0, 0, 1]);
/// The client outside.
pub const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 100);
/// The client outside.
pub const OUTSIDE_V6: Ipv6Addr = v6([0xfd00, 0x172, 0x18, 0, 0, 0, 0, 0x100]);
/// Cluster addresses of Services: what the control plane of the tests is started with.
pub const SERVICE_CIDRS: [Cidr; 2] = [
    Cidr {
        address: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 0)),
        length: 16,
    },
    Cidr {
        address: IpAddr::V6(v6([0xfd00, 0x96, 0, 0, 0, 0, 0, 0])),
        length: 112,
    },
];

const fn v6(s: [u16; 8]) -> Ipv6Addr {
    Ipv6Addr::new(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7])
}

/// The addresses of a node on its uplink, IPv4 first. Nodes count from 1.
#[must_use]
pub const fn node_addresses(node: u8) -> [IpAddr; 2] {
    [
        IpAddr::V4(Ipv4Addr::new(172, 18, 0, 10 + node)),
        IpAddr::V6(v6([0xfd00, 0x172, 0x18, 0, 0, 0, 0, 0x10 + node as u16])),
    ]
}

/// The addresses of a node on its tunnel.
#[must_use]
pub const fn tunnel_addresses(node: u8) -> [IpAddr; 2] {
    [
        IpAddr::V4(Ipv4Addr::new(10, 245, 0, node)),
        IpAddr::V6(v6([0xfd00, 0x245, 0, 0, 0, 0, 0, node as u16])),
    ]
}

/// The addresses of all pods of a node.
#[must_use]
pub const fn pod_cidrs(node: u8) -> [Cidr; 2] {
    [
        Cidr {
            address: IpAddr::V4(Ipv4Addr::new(10, 244, node, 0)),
            length: 24,
        },
        Cidr {
            address: IpAddr::V6(v6([0xfd00, 0x244, node as u16, 0, 0, 0, 0, 0])),
            length: 48,
        },
    ]
}

/// The addresses of a node on its bridge, with the subnet: half of the node's IPv4 addresses, and one IPv6 network.
#[must_use]
pub const fn bridge_cidrs(node: u8) -> [Cidr; 2] {
    [
        Cidr {
            address: IpAddr::V4(Ipv4Addr::new(10, 244, node, 1)),
            length: 25,
        },
        Cidr {
            address: IpAddr::V6(v6([0xfd00, 0x244, node as u16, 0, 0, 0, 0, 1])),
            length: 64,
        },
    ]
}

/// The addresses of a pod on the bridge.
#[must_use]
pub const fn bridge_pod(node: u8, pod: u8) -> [IpAddr; 2] {
    [
        IpAddr::V4(Ipv4Addr::new(10, 244, node, 1 + pod)),
        IpAddr::V6(v6([0xfd00, 0x244, node as u16, 0, 0, 0, 0, 1 + pod as u16])),
    ]
}

/// The addresses of a pod on a link of its own.
#[must_use]
pub const fn veth_pod(node: u8, pod: u8) -> [IpAddr; 2] {
    [
        IpAddr::V4(Ipv4Addr::new(10, 244, node, 128 + pod)),
        IpAddr::V6(v6([0xfd00, 0x244, node as u16, 1, 0, 0, 0, pod as u16])),
    ]
}

/// The next hops of a pod on a link of its own: the same for each, and nobody's address.
pub const VETH_GATEWAYS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1)),
    IpAddr::V6(v6([0xfe80, 0, 0, 0, 0, 0, 0, 1])),
];

/// The cluster addresses of a Service. The first ones of the range are the API server's to give.
#[must_use]
pub const fn service_addresses(service: u8) -> [IpAddr; 2] {
    [
        IpAddr::V4(Ipv4Addr::new(10, 96, 100, service)),
        IpAddr::V6(v6([0xfd00, 0x96, 0, 0, 0, 0, 0, 0x6400 + service as u16])),
    ]
}
