//! What the operator decides about every Service.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::IpNet;

use super::Node;
use crate::desired::{Distribution, Family};

/// What holds for every Service, whatever its object says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Where NodePorts are served.
    pub node_port_addresses: NodePortAddresses,
    /// Masquerade every client of a ClusterIP.
    pub masquerade_all: bool,
    /// Serve `spec.externalIPs`.
    pub serve_external_ips: bool,
    /// Which clients count as pods.
    pub detect_local: DetectLocal,
    /// How new flows are spread over the endpoints of a Service that does not say.
    pub distribution: Distribution,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            node_port_addresses: NodePortAddresses::default(),
            masquerade_all: false,
            serve_external_ips: true,
            detect_local: DetectLocal::default(),
            distribution: Distribution::default(),
        }
    }
}

/// How a client is known to be a pod.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum DetectLocal {
    /// By the link that its packets come in by.
    #[default]
    ByLink,
    /// By its address: pods of the whole cluster are in these networks.
    ClusterCidr(BTreeSet<IpNet>),
    /// By its address: pods of this node are in the networks of its Node object.
    NodeCidr,
}

impl DetectLocal {
    /// Where pods have their addresses, as far as that decides.
    pub(super) fn pod_cidrs(&self, node: Option<&Node>) -> BTreeSet<IpNet> {
        match self {
            Self::ByLink => BTreeSet::new(),
            Self::ClusterCidr(cidrs) => cidrs.clone(),
            Self::NodeCidr => node.map(|node| node.pod_cidrs.clone()).unwrap_or_default(),
        }
    }
}

/// One word on where NodePorts are served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum NodePortAddress {
    /// The primary address of the Node object in each family.
    Primary,
    /// `127.0.0.1` and `::1`, for processes of this node.
    Localhost,
    /// Every address of this node's links, but for loopback and link-local ones.
    All,
    /// Those of this node's links that are in a network.
    Within(IpNet),
}

/// Why a word says nothing on where NodePorts are served.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is none of primary, localhost, all, and no CIDR")]
pub struct InvalidNodePortAddress(String);

impl FromStr for NodePortAddress {
    type Err = InvalidNodePortAddress;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "primary" => Ok(Self::Primary),
            "localhost" => Ok(Self::Localhost),
            "all" => Ok(Self::All),
            _ => match word.parse::<IpNet>() {
                Ok(network) => Ok(Self::Within(network.trunc())),
                Err(_) => Err(InvalidNodePortAddress(word.to_owned())),
            },
        }
    }
}

impl TryFrom<String> for NodePortAddress {
    type Error = InvalidNodePortAddress;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        word.parse()
    }
}

impl serde::Serialize for NodePortAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for NodePortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("primary"),
            Self::Localhost => f.write_str("localhost"),
            Self::All => f.write_str("all"),
            Self::Within(network) => network.fmt(f),
        }
    }
}

/// Where NodePorts are served: wherever one of the words says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodePortAddresses(BTreeSet<NodePortAddress>);

impl Default for NodePortAddresses {
    fn default() -> Self {
        Self(BTreeSet::from([NodePortAddress::Primary]))
    }
}

impl FromIterator<NodePortAddress> for NodePortAddresses {
    /// No word means the default.
    fn from_iter<I: IntoIterator<Item = NodePortAddress>>(words: I) -> Self {
        let words: BTreeSet<_> = words.into_iter().collect();
        if words.is_empty() { Self::default() } else { Self(words) }
    }
}

impl NodePortAddresses {
    /// The families of which no word says anything: networks of the other one only. There, NodePorts
    /// are served on every address, as kube-proxy has it.
    #[must_use]
    pub fn unrestricted(&self) -> BTreeSet<Family> {
        let says_nothing_of = |family: &Family| {
            self.0.iter().all(|word| match word {
                NodePortAddress::Within(network) => Family::of(network.addr()) != *family,
                NodePortAddress::Primary | NodePortAddress::Localhost | NodePortAddress::All => false,
            })
        };
        [Family::V4, Family::V6].into_iter().filter(says_nothing_of).collect()
    }

    /// The families in which NodePorts are served on every address.
    pub(super) fn whole_families(&self) -> BTreeSet<Family> {
        let mut families = self.unrestricted();
        for word in &self.0 {
            match word {
                NodePortAddress::All => families.extend([Family::V4, Family::V6]),
                NodePortAddress::Within(network) if network.prefix_len() == 0 => {
                    families.insert(Family::of(network.addr()));
                }
                NodePortAddress::Within(_) | NodePortAddress::Primary | NodePortAddress::Localhost => {}
            }
        }
        families
    }

    /// Whether the addresses of this node's links decide.
    #[must_use]
    pub fn needs_links(&self) -> bool {
        self.0
            .iter()
            .any(|word| matches!(word, NodePortAddress::All | NodePortAddress::Within(_)))
    }

    /// The addresses, of this Node and with these on its links.
    pub(super) fn choose(&self, node: Option<&Node>, on_links: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let on_links = || on_links.iter().copied();
        let of_whole = |family| on_links().filter(move |ip| Family::of(*ip) == family && is_general(*ip));
        let mut addresses = BTreeSet::new();
        for word in &self.0 {
            match word {
                // kube-proxy takes a loopback address there for none, too.
                NodePortAddress::Primary => addresses.extend(
                    node.map(Node::primary_addresses)
                        .unwrap_or_default()
                        .into_iter()
                        .filter(|ip| !ip.is_loopback()),
                ),
                NodePortAddress::Localhost => {
                    addresses.extend([IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()]);
                }
                NodePortAddress::All => addresses.extend(on_links().filter(|ip| is_general(*ip))),
                NodePortAddress::Within(network) if network.prefix_len() == 0 => {
                    addresses.extend(of_whole(Family::of(network.addr())));
                }
                NodePortAddress::Within(network) => addresses.extend(on_links().filter(|ip| network.contains(ip))),
            }
        }
        for family in self.unrestricted() {
            addresses.extend(of_whole(family));
        }
        addresses
    }
}

/// Whether "every address" means this one. A link-local address is one of many machines' and one of
/// many links'; kube-proxy serves NodePorts there all the same.
const fn is_general(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !link_local && !address.is_loopback()
}
