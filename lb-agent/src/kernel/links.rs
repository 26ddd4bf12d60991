//! The links of this network namespace, and what each is to us.
//!
//! Found over netlink as they come, change and go; names play no part unless a rule of the user's
//! says so. The first row that fits decides:
//!
//! | link | role | why |
//! |---|---|---|
//! | neither Ethernet nor bare IP (InfiniBand, CAN, ...) | none | the programs would not find the IP header |
//! | named as the link that holds services' addresses ([`dummy`](super::dummy)) | none | whatever a rule says |
//! | named by a rule of the user's | what the rule says | the user knows |
//! | loopback; `dummy`, `ifb`, `nlmon`, `vrf`, `vcan` | none | no packet of a client comes in there; addresses of the node may well live there |
//! | owns an address of the Node, or a default route leads through it | uplink | whatever it is: the `bridge` or `openvswitch` port that took over a card's address, a `bond`, a `vlan` of one, the `veth` of a node that is a container itself |
//! | `vxlan`, `geneve`, `gre*`, `ip6gre*`, `erspan*`, `ipip`, `sit`, `ip6tnl`, `vti*`, `xfrm`, `wireguard`, `bareudp`, `tun` without Ethernet | tunnel | packets of other nodes and of peers come in there |
//! | `veth`, `netkit` whose peer is in another network namespace, bridge port or not | pod | the host side of a pod's link |
//! | other `veth`, `netkit` | none | both ends are the node's own: what passes there has passed another hook |
//! | port of a `bridge`, `bond`, `team`, Open vSwitch | none | its packets come up again on the master, or on a `vlan` of that, which have their own row; between ports of one bridge, the pods' own links translate |
//! | a card, in a `vrf` or not | uplink | also without an address: clients may come to load balancer addresses there |
//! | `bond`, `team`, `vlan`, `macsec` | uplink | like cards. Where the link below is an uplink too, a packet passes two hooks, and the second finds nothing left to translate |
//! | `bridge` | none | its pods' links, and its uplink's, translate |
//! | `macvlan`, `macvtap`, `ipvlan`, `ipvtap` | none | those of pods are in their namespaces, out of reach from here: what pods send to services is translated in their sockets or not at all, which is said once for each link that such pods hang on. The node's own falls under its address or default route |
//! | anything else (`tun` with Ethernet, i.e. tap, ...) | none | unknown: a rule can say |
//!
//! Where pods' links are known by a bridge or by their names ([`PodLinks`]), a link that this table takes
//! for a pod's and that is none by that counts as an uplink.

mod classify;
mod list;
mod messages;
mod rules;
mod stacked;
mod table;
mod watch;

pub use classify::{Facts, classify};
pub use list::list;
pub(super) use messages::{address, link_facts};
pub use rules::{LinkRuleError, LinkRules, PodLinks};
pub use watch::watch;

/// What a link is to the data path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Role {
    /// The host side of a pod's link. Clients behind it are on this node.
    Pod,
    /// Leads out of the node.
    Uplink,
    /// An overlay between nodes.
    Tunnel,
}

/// A link that takes part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Role.
    pub role: Role,
    /// Its packets have no header below IP.
    pub is_ip_only: bool,
    /// A rule of the user's says so.
    pub is_by_rule: bool,
    /// The bridge that it is a port of.
    pub bridge: Option<Bridge>,
}

impl Link {
    /// Whether two say the same of a link, to somebody whom bridges do not concern.
    #[must_use]
    pub fn is_same_but_for_bridge(&self, other: &Self) -> bool {
        let without_bridge = |link: &Self| Self {
            bridge: None,
            ..link.clone()
        };
        without_bridge(self) == without_bridge(other)
    }
}

/// A bridge, to one of its ports. What is routed comes in by the bridge, and by the port only below IP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bridge {
    /// Interface index.
    pub index: u32,
    /// What comes in by the bridge is from pods: each port is a pod's link, or one that nothing comes in by. If
    /// not, a packet that comes in by the bridge may be from a pod, or by an uplink from anywhere.
    pub has_only_pods: bool,
}

/// What the watcher says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Something happened to a link.
    Link(LinkEvent),
    /// Each link that was there when the agent came has been told of. Said once.
    AllTold,
}

/// What happened to a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEvent {
    /// It takes part now, or in another role, or in another bridge.
    Is(Link),
    /// It is gone, or takes part no more. The index is free for another link.
    Gone {
        /// Interface index.
        index: u32,
    },
}

impl LinkEvent {
    /// The index of the link.
    #[must_use]
    pub const fn index(&self) -> u32 {
        match self {
            Self::Is(link) => link.index,
            Self::Gone { index } => *index,
        }
    }
}
