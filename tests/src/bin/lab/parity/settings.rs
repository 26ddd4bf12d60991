//! How both proxies are configured.

use lb_tests::controlplane::{IptablesTools, KubeProxyOptions, Mode};
use lb_tests::network::plan;

use super::actors::Source;

/// `detectLocalMode`: how a proxy tells pods from what is not in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum DetectLocal {
    /// By the pod networks of the node
    #[value(name = "NodeCIDR")]
    NodeCidr,
    /// By the pod network of the cluster
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    /// By the bridge that packets come from
    #[value(name = "BridgeInterface")]
    BridgeInterface,
    /// By the beginning of the name of the link that packets come from
    #[value(name = "InterfaceNamePrefix")]
    InterfaceNamePrefix,
}

impl DetectLocal {
    /// The word for it in kube-proxy's configuration.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::NodeCidr => "NodeCIDR",
            Self::ClusterCidr => "ClusterCIDR",
            Self::BridgeInterface => "BridgeInterface",
            Self::InterfaceNamePrefix => "InterfaceNamePrefix",
        }
    }

    /// Whether it takes a source for a pod.
    pub(crate) fn is_local(self, source: Source) -> bool {
        match self {
            Self::NodeCidr => source.is_pod_here(),
            Self::ClusterCidr => source.is_pod_here() || source == Source::PodElsewhere,
            Self::BridgeInterface => source == Source::BridgePod,
            Self::InterfaceNamePrefix => source == Source::VethPod,
        }
    }
}

/// `nodePortAddresses`: which of the node's addresses have NodePorts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum NodePorts {
    /// Those that the Node object names
    Primary,
    /// All
    All,
}

/// The network of the cluster's pods, in both families.
const CLUSTER_CIDRS: &str = "10.244.0.0/16,fd00:244::/32";
/// How the names of links of pods begin on a node, if these hang on no bridge.
const LINK_PREFIX: &str = "pod";

/// What both are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// If nothing is said, lb-agent goes by the kind of link and kube-proxy, which cannot, by the pods' addresses.
    pub(crate) detect_local: Option<DetectLocal>,
    pub(crate) node_ports: NodePorts,
}

impl Settings {
    /// Whether a source is a pod to both.
    pub(crate) fn is_local(&self, source: Source) -> bool {
        self.detect_local.unwrap_or(DetectLocal::NodeCidr).is_local(source)
    }

    /// As arguments of lb-agent.
    pub(crate) fn of_lb_agent(&self) -> Vec<String> {
        let mut args = Vec::new();
        if let Some(mode) = self.detect_local {
            args.push(format!("--detect-local-mode={}", mode.word()));
            args.extend(match mode {
                DetectLocal::NodeCidr => None,
                DetectLocal::ClusterCidr => Some(format!("--cluster-cidr={CLUSTER_CIDRS}")),
                DetectLocal::BridgeInterface => Some(format!("--pod-bridge-interface={}", plan::BRIDGE)),
                DetectLocal::InterfaceNamePrefix => Some(format!("--pod-interface-name-prefix={LINK_PREFIX}")),
            });
        }
        if self.node_ports == NodePorts::All {
            args.push("--node-port-addresses=all".to_owned());
        }
        args
    }

    /// As kube-proxy wants to hear it.
    pub(crate) fn of_kube_proxy(&self, mode: Mode) -> KubeProxyOptions {
        let node_port_addresses = match self.node_ports {
            NodePorts::Primary => vec!["primary".to_owned()],
            NodePorts::All => vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()],
        };
        KubeProxyOptions {
            mode,
            tools: IptablesTools::OfTheSystem,
            detect_local_mode: self.detect_local.unwrap_or(DetectLocal::NodeCidr).word().to_owned(),
            cluster_cidr: CLUSTER_CIDRS.to_owned(),
            bridge_interface: plan::BRIDGE.to_owned(),
            interface_name_prefix: LINK_PREFIX.to_owned(),
            node_port_addresses,
        }
    }
}
