//! The sets and maps of the table, and what they are for.

use crate::desired::{Family, Protocol};

/// A set or map. Those of the two families differ in the type of addresses alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Set {
    /// Of one family.
    Of(Kind, Family),
    /// Indexes of links of this node's pods.
    PodLinks,
}

/// What a set is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    Frontends,
    FarFrontends,
    NearMarks,
    FarMarks,
    Restricted,
    /// One a protocol: `nft` 1.0.6 turns a protocol in a key of intervals about as if it had bytes to turn, which kernels from 6.12
    /// on refuse.
    AllowedSources(Protocol),
    NodeRefused,
    ClusterIps,
    OwnAddresses,
    OfAnotherProxy,
    ServiceNetworks,
    PodNetworks,
    LocalEndpoints,
    Hairpins,
}

impl Kind {
    pub(super) const ALL: [Self; 16] = [
        Self::Frontends,
        Self::FarFrontends,
        Self::NearMarks,
        Self::FarMarks,
        Self::Restricted,
        Self::AllowedSources(Protocol::Tcp),
        Self::AllowedSources(Protocol::Udp),
        Self::AllowedSources(Protocol::Sctp),
        Self::NodeRefused,
        Self::ClusterIps,
        Self::OwnAddresses,
        Self::OfAnotherProxy,
        Self::ServiceNetworks,
        Self::PodNetworks,
        Self::LocalEndpoints,
        Self::Hairpins,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Frontends => "frontends",
            Self::FarFrontends => "far_frontends",
            Self::NearMarks => "near_marks",
            Self::FarMarks => "far_marks",
            Self::Restricted => "restricted",
            Self::AllowedSources(Protocol::Tcp) => "allowed_tcp_sources",
            Self::AllowedSources(Protocol::Udp) => "allowed_udp_sources",
            Self::AllowedSources(Protocol::Sctp) => "allowed_sctp_sources",
            Self::NodeRefused => "node_refused",
            Self::ClusterIps => "cluster_ips",
            Self::OwnAddresses => "own_addresses",
            Self::OfAnotherProxy => "of_another_proxy",
            Self::ServiceNetworks => "service_networks",
            Self::PodNetworks => "pod_networks",
            Self::LocalEndpoints => "local_endpoints",
            Self::Hairpins => "hairpins",
        }
    }

    /// For whoever lists the table.
    const fn comment(self) -> &'static str {
        match self {
            Self::Frontends => "what becomes of clients of a service",
            Self::FarFrontends => "of clients from outside, where that differs",
            Self::NearMarks => "IPVS services by mark: of pods and the node",
            Self::FarMarks => "IPVS services by mark: of clients from outside",
            Self::Restricted => "frontends with loadBalancerSourceRanges",
            Self::AllowedSources(_) => "clients that these frontends are for",
            Self::NodeRefused => "those of them that are not for the node itself",
            Self::ClusterIps => "their undefined ports are refused",
            Self::OwnAddresses => "load balancers' and external addresses on lb-ipvs0: undefined ports are refused",
            Self::OfAnotherProxy => "ClusterIPs that another proxy serves",
            Self::ServiceNetworks => "ServiceCIDRs: who dials what is nobody's gets no answer",
            Self::PodNetworks => "where pods of the cluster have their addresses",
            Self::LocalEndpoints => "endpoints on this node: their answers come by here",
            Self::Hairpins => "endpoints on this node, each twice: a pod that reaches itself",
        }
    }

    /// Types of key and, for maps, value.
    fn types(self, address: &str) -> String {
        let frontend = format!("{address} . inet_proto . inet_service");
        match self {
            Self::Frontends | Self::FarFrontends => format!("{frontend} : verdict"),
            Self::NearMarks | Self::FarMarks => format!("{frontend} : mark"),
            Self::Restricted | Self::NodeRefused => frontend,
            Self::AllowedSources(_) => format!("{address} . inet_service . {address}"),
            Self::Hairpins => format!("{address} . {address}"),
            _ => address.to_owned(),
        }
    }

    const fn is_map(self) -> bool {
        matches!(
            self,
            Self::Frontends | Self::FarFrontends | Self::NearMarks | Self::FarMarks
        )
    }

    /// Whether elements are networks.
    pub(super) const fn has_networks(self) -> bool {
        matches!(
            self,
            Self::AllowedSources(_) | Self::ServiceNetworks | Self::PodNetworks
        )
    }
}

/// What names of one family end with.
pub(super) const fn suffix(family: Family) -> &'static str {
    match family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    }
}

impl Set {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let of_families = |kind| [Self::Of(kind, Family::V4), Self::Of(kind, Family::V6)];
        Kind::ALL.into_iter().flat_map(of_families).chain([Self::PodLinks])
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Of(kind, family) => format!("{}_{}", kind.name(), suffix(family)),
            Self::PodLinks => "pod_links".to_owned(),
        }
    }

    /// The one with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::all().find(|set| set.name() == name)
    }

    /// The declaration in the table.
    pub(super) fn declaration(self) -> String {
        let name = self.name();
        let Self::Of(kind, family) = self else {
            return format!(
                "    set {name} {{\n        type iface_index\n        \
                 comment \"links of pods of this node\"\n    }}\n"
            );
        };
        let address = match family {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        };
        format!(
            "    {} {name} {{\n        type {}\n{}        comment \"{}\"\n    }}\n",
            if kind.is_map() { "map" } else { "set" },
            kind.types(address),
            if kind.has_networks() {
                "        flags interval\n"
            } else {
                ""
            },
            kind.comment(),
        )
    }
}
