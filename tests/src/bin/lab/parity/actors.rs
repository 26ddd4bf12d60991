//! Who asks and who answers. Everything is seen from the first node, the one whose proxy is looked at.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_tests::netlink::Cidr;
use lb_tests::network::plan;
use serde::Serialize;

/// Who dials.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub(crate) enum Source {
    /// A pod on the bridge of the node.
    BridgePod,
    /// A pod on a link of its own, of the node.
    VethPod,
    /// A process of the node itself.
    Host,
    /// A pod of the other node, whose packets to Services are routed to the node.
    PodElsewhere,
    /// A machine that is no node, whose packets to Services are routed to the node.
    Outside,
}

impl Source {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [
        Self::BridgePod,
        Self::VethPod,
        Self::Host,
        Self::PodElsewhere,
        Self::Outside,
    ];

    /// Whether it is a pod of the node.
    pub(crate) fn is_pod_here(self) -> bool {
        matches!(self, Self::BridgePod | Self::VethPod)
    }

    /// The backend that is the same pod, if it is a pod that answers too.
    pub(crate) fn itself(self) -> Option<Backend> {
        match self {
            Self::BridgePod => Some(Backend::BridgeClient),
            Self::VethPod => Some(Backend::VethClient),
            _ => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BridgePod => "pod on a bridge",
            Self::VethPod => "pod on a veth",
            Self::Host => "host process",
            Self::PodElsewhere => "pod elsewhere",
            Self::Outside => "outside client",
        })
    }
}

/// Who answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Backend {
    /// A pod of the node, on its bridge.
    HereBridge,
    /// A pod of the node, on a link of its own.
    HereVeth,
    /// A pod of the other node, on its bridge.
    ThereBridge,
    /// A pod of the other node, on a link of its own.
    ThereVeth,
    /// A process of the node itself, as of a pod with `hostNetwork`.
    NodeHere,
    /// A process of the other node.
    NodeThere,
    /// The pod that asks as [`Source::BridgePod`].
    BridgeClient,
    /// The pod that asks as [`Source::VethPod`].
    VethClient,
}

impl Backend {
    /// All of them.
    pub(crate) const ALL: [Self; 8] = [
        Self::HereBridge,
        Self::HereVeth,
        Self::ThereBridge,
        Self::ThereVeth,
        Self::NodeHere,
        Self::NodeThere,
        Self::BridgeClient,
        Self::VethClient,
    ];

    /// What it calls itself.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HereBridge => "here-bridge",
            Self::HereVeth => "here-veth",
            Self::ThereBridge => "there-bridge",
            Self::ThereVeth => "there-veth",
            Self::NodeHere => "node-here",
            Self::NodeThere => "node-there",
            Self::BridgeClient => "bridge-client",
            Self::VethClient => "veth-client",
        }
    }

    /// The backend that calls itself so, whichever of its ports it answers at.
    pub(crate) fn of_server(server: &str) -> Option<Self> {
        let name = server.split('/').next()?;
        Self::ALL.into_iter().find(|backend| backend.name() == name)
    }

    /// Whether it is on the node.
    pub(crate) fn is_here(self) -> bool {
        !matches!(self, Self::ThereBridge | Self::ThereVeth | Self::NodeThere)
    }

    /// The name of its node.
    pub(crate) fn node(self) -> &'static str {
        if self.is_here() { "node1" } else { "node2" }
    }
}

/// Addresses that the topology routes to the node, beyond the cluster addresses of Services.
pub(crate) const SERVICE_NETS: [[Cidr; 2]; 3] = [
    net(Net::LoadBalancer, 0),
    net(Net::SecondLoadBalancer, 0),
    net(Net::External, 0),
];

/// What such addresses are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Net {
    /// The first address of a load balancer.
    LoadBalancer,
    /// Its second.
    SecondLoadBalancer,
    /// External addresses.
    External,
}

/// The address of this number for each family; with number 0, the networks themselves.
const fn net(net: Net, number: u8) -> [Cidr; 2] {
    let (v4, v6) = match net {
        Net::LoadBalancer => ([192, 0, 2, number], 0x2),
        Net::SecondLoadBalancer => ([203, 0, 113, number], 0x113),
        Net::External => ([198, 51, 100, number], 0x51),
    };
    [
        Cidr {
            address: IpAddr::V4(Ipv4Addr::new(v4[0], v4[1], v4[2], v4[3])),
            length: 24,
        },
        Cidr {
            address: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, v6, 0, 0, 0, 0, number as u16)),
            length: 64,
        },
    ]
}

/// The addresses of this number, IPv4 first.
pub(crate) fn addresses(of: Net, number: u8) -> [IpAddr; 2] {
    net(of, number).map(|cidr| cidr.address)
}

/// Another address of the node on its uplink, which its Node object does not name.
pub(crate) fn second_node_addresses() -> [IpAddr; 2] {
    // In the range that source ranges know nodes by: which of its addresses the node dials from is the kernel's choice.
    plan::node_addresses(40)
}

/// A source range with every address of a node on its uplink, and none of the client outside.
pub(crate) const NODE_RANGES: [Cidr; 2] = [
    Cidr {
        address: IpAddr::V4(Ipv4Addr::new(172, 18, 0, 0)),
        length: 26,
    },
    Cidr {
        address: IpAddr::V6(Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, 0)),
        length: 122,
    },
];

/// The addresses of the node on the bridge of its pods.
pub(crate) fn bridge_addresses() -> [IpAddr; 2] {
    plan::bridge_cidrs(1).map(|cidr| cidr.address)
}

/// An address of each service range that no Service has.
pub(crate) fn unallocated() -> [IpAddr; 2] {
    plan::service_addresses(u8::MAX)
}
