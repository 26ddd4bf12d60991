//! What is measured against each other.

use std::fmt;

use lb_tests::controlplane::{IptablesTools, Mode};
use serde::{Deserialize, Serialize};

/// A service proxy in one configuration, or none. In the order in which tables show them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Target {
    /// lb-agent as it comes: pods are translated on their links, processes of the host in their sockets.
    LbAgent,
    /// lb-agent with `--socket-lb all`: pods too are translated in their sockets.
    LbAgentSocketAll,
    /// lb-agent with `--plane ipvs`.
    LbAgentIpvs,
    /// kube-proxy's nftables mode.
    Nftables,
    /// kube-proxy's iptables mode, with the legacy tools.
    Iptables,
    /// The same with the tools that write nftables, which are what most distributions have.
    IptablesNft,
    /// kube-proxy's IPVS mode, which calls the legacy tools of iptables too.
    Ipvs,
    /// No proxy: the client dials the endpoint. What no proxy can be faster than.
    None,
}

impl Target {
    /// What is measured of lb-agent whatever it is compared with.
    pub(crate) const OURS: [Self; 2] = [Self::LbAgent, Self::LbAgentSocketAll];

    /// As it is written in rows and on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::LbAgent => "lb-agent",
            Self::LbAgentSocketAll => "lb-agent-socket-all",
            Self::LbAgentIpvs => "lb-agent-ipvs",
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::IptablesNft => "iptables-nft",
            Self::Ipvs => "ipvs",
            Self::None => "none",
        }
    }

    /// Which kube-proxy it is.
    pub(crate) const fn kube_proxy(self) -> Option<(Mode, IptablesTools)> {
        match self {
            Self::Nftables => Some((Mode::Nftables, IptablesTools::OfTheSystem)),
            Self::Iptables => Some((Mode::Iptables, IptablesTools::Legacy)),
            Self::IptablesNft => Some((Mode::Iptables, IptablesTools::Nft)),
            Self::Ipvs => Some((Mode::Ipvs, IptablesTools::Legacy)),
            Self::LbAgent | Self::LbAgentSocketAll | Self::LbAgentIpvs | Self::None => None,
        }
    }

    /// Whether it is lb-agent.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::LbAgent | Self::LbAgentSocketAll | Self::LbAgentIpvs)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What lb-agent can be measured against.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Other {
    /// kube-proxy's iptables mode, with the legacy tools
    Iptables,
    /// kube-proxy's iptables mode with the tools that write nftables. It cannot load many services
    IptablesNft,
    /// kube-proxy's nftables mode
    Nftables,
    /// kube-proxy's IPVS mode, and lb-agent's, where the kernel has IPVS
    Ipvs,
    /// Straight to the endpoint
    None,
}

impl Other {
    /// What lb-agent is measured against unless told otherwise.
    pub(crate) fn usual(has_ipvs: bool) -> Vec<Self> {
        let ipvs = has_ipvs.then_some(Self::Ipvs);
        [Self::Iptables, Self::Nftables]
            .into_iter()
            .chain(ipvs)
            .chain([Self::None])
            .collect()
    }

    /// Who is measured for that.
    pub(crate) fn targets(self) -> &'static [Target] {
        match self {
            Self::Iptables => &[Target::Iptables],
            Self::IptablesNft => &[Target::IptablesNft],
            Self::Nftables => &[Target::Nftables],
            Self::Ipvs => &[Target::LbAgentIpvs, Target::Ipvs],
            Self::None => &[Target::None],
        }
    }
}

/// Whose turn it is in this round: forwards and backwards by turns, so that what slowly changes in the machine favours
/// nobody.
pub(crate) fn order(targets: &[Target], round: u32) -> Vec<Target> {
    let mut order = targets.to_vec();
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn a_name_is_the_same_in_rows_and_on_the_command_line() {
        for other in Other::value_variants() {
            let target = *other.targets().last().unwrap();
            let value = other.to_possible_value().unwrap();
            assert_eq!(value.get_name(), target.name());
            assert_eq!(serde_json::to_value(target).unwrap(), target.name());
        }
    }

    #[test]
    fn ipvs_is_measured_on_both_sides_where_the_kernel_has_it() {
        assert_eq!(Other::usual(false), [Other::Iptables, Other::Nftables, Other::None]);
        assert!(Other::usual(true).contains(&Other::Ipvs));
        assert!(Other::Ipvs.targets().iter().any(|target| target.is_ours()));
        assert!(Other::Ipvs.targets().iter().any(|target| target.kube_proxy().is_some()));
    }

    #[test]
    fn each_target_is_first_as_often_as_last() {
        let targets = [Target::LbAgent, Target::Nftables, Target::None];
        assert_eq!(order(&targets, 0), targets);
        assert_eq!(order(&targets, 1), [Target::None, Target::Nftables, Target::LbAgent]);
        assert_eq!(order(&targets, 2), targets);
    }
}
