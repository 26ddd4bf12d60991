//! How a client is known to be a pod.

use anyhow::bail;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{kernel::links::PodLinks, model::DetectLocal};

/// How a client is known to be a pod. The words are kube-proxy's, but for the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize, Serialize)]
pub enum DetectLocalMode {
    /// By the kind of link that its packets come in by.
    #[default]
    #[value(name = "Link")]
    Link,
    /// By its address, which is of the cluster's pods.
    #[value(name = "ClusterCIDR")]
    #[serde(rename = "ClusterCIDR")]
    ClusterCidr,
    /// By its address, which is of this node's pods, as its Node object says.
    #[value(name = "NodeCIDR")]
    #[serde(rename = "NodeCIDR")]
    NodeCidr,
    /// By the bridge that its link is a port of.
    #[value(name = "BridgeInterface")]
    BridgeInterface,
    /// By the name of its link.
    #[value(name = "InterfaceNamePrefix")]
    InterfaceNamePrefix,
}

/// What a mode comes to in the model and among the links. Each of the three settings belongs to one
/// mode, and one without the other would be no more than a mistake; but that the networks of the cluster are
/// given without a mode means the mode that they are for, as it does with kube-proxy.
pub(super) fn resolve(
    mode: Option<DetectLocalMode>,
    cluster_cidr: Vec<IpNet>,
    bridge: Option<String>,
    prefix: Option<String>,
) -> anyhow::Result<(DetectLocal, PodLinks)> {
    use DetectLocalMode as Mode;
    let mode = mode.unwrap_or(match cluster_cidr.is_empty() {
        true => Mode::default(),
        false => Mode::ClusterCidr,
    });
    // An empty name or prefix would be that of every link.
    let bridge = bridge.filter(|name| !name.is_empty());
    let prefix = prefix.filter(|prefix| !prefix.is_empty());
    for (setting, is_given, its_mode, name) in [
        (
            "cluster-cidr",
            !cluster_cidr.is_empty(),
            Mode::ClusterCidr,
            "ClusterCIDR",
        ),
        (
            "pod-bridge-interface",
            bridge.is_some(),
            Mode::BridgeInterface,
            "BridgeInterface",
        ),
        (
            "pod-interface-name-prefix",
            prefix.is_some(),
            Mode::InterfaceNamePrefix,
            "InterfaceNamePrefix",
        ),
    ] {
        match (is_given, mode == its_mode) {
            (true, false) => bail!("{setting} means something with detect-local-mode {name} only"),
            (false, true) => bail!("detect-local-mode {name} needs {setting}"),
            (true, true) | (false, false) => {}
        }
    }
    let networks = cluster_cidr.iter().map(IpNet::trunc).collect();
    Ok(match (mode, bridge, prefix) {
        (Mode::ClusterCidr, ..) => (DetectLocal::ClusterCidr(networks), PodLinks::ByKind),
        (Mode::NodeCidr, ..) => (DetectLocal::NodeCidr, PodLinks::ByKind),
        (_, Some(bridge), _) => (DetectLocal::ByLink, PodLinks::PortsOf(bridge)),
        (_, _, Some(prefix)) => (DetectLocal::ByLink, PodLinks::Named { prefix }),
        (_, None, None) => (DetectLocal::ByLink, PodLinks::ByKind),
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Config, Settings, tests::flags},
        *,
    };

    #[test]
    fn pods_are_known_by_addresses_or_by_links() {
        let known_by = |arguments: &[&str]| {
            let config = Config::new(flags(arguments).unwrap()).unwrap();
            (config.rules.detect_local, config.pod_links)
        };
        let mode = |mode: &'static str| ["--detect-local-mode", mode];
        let networks = ["10.0.0.0/8", "fd00::/16"].map(|network| network.parse().unwrap());
        let by_link = DetectLocal::ByLink;
        let table = [
            (vec![], by_link.clone(), PodLinks::ByKind),
            (mode("Link").to_vec(), by_link.clone(), PodLinks::ByKind),
            (mode("NodeCIDR").to_vec(), DetectLocal::NodeCidr, PodLinks::ByKind),
            (
                [&mode("ClusterCIDR")[..], &["--cluster-cidr", "10.1.0.0/8,fd00::/16"]].concat(),
                DetectLocal::ClusterCidr(networks.into()),
                PodLinks::ByKind,
            ),
            (
                vec!["--cluster-cidr", "10.1.0.0/8,fd00::/16"],
                DetectLocal::ClusterCidr(networks.into()),
                PodLinks::ByKind,
            ),
            (
                [&mode("BridgeInterface")[..], &["--pod-bridge-interface", "cbr0"]].concat(),
                by_link.clone(),
                PodLinks::PortsOf("cbr0".to_owned()),
            ),
            (
                [
                    &mode("InterfaceNamePrefix")[..],
                    &["--pod-interface-name-prefix", "cali"],
                ]
                .concat(),
                by_link,
                PodLinks::Named {
                    prefix: "cali".to_owned(),
                },
            ),
        ];
        for (arguments, detect_local, pod_links) in table {
            assert_eq!(known_by(&arguments), (detect_local, pod_links), "{arguments:?}");
        }
        let file = Settings::parse("detectLocalMode: ClusterCIDR\nclusterCidr: [10.0.0.0/8, 'fd00::/16']").unwrap();
        assert_eq!(
            Config::new(file).unwrap().rules.detect_local,
            DetectLocal::ClusterCidr(networks.into())
        );
    }

    #[test]
    fn a_mode_and_its_setting_come_together() {
        let error = |arguments: &[&str]| {
            let error = Config::new(flags(arguments).unwrap()).unwrap_err();
            error.to_string()
        };
        for (mode, setting, value) in [
            ("ClusterCIDR", "cluster-cidr", "10.0.0.0/8"),
            ("BridgeInterface", "pod-bridge-interface", "cbr0"),
            ("InterfaceNamePrefix", "pod-interface-name-prefix", "cali"),
        ] {
            let needs = format!("detect-local-mode {mode} needs {setting}");
            assert_eq!(error(&["--detect-local-mode", mode]), needs);
            let only = format!("{setting} means something with detect-local-mode {mode} only");
            let setting = format!("--{setting}");
            if mode != "ClusterCIDR" {
                assert_eq!(error(&[&setting, value]), only);
            }
            assert_eq!(error(&[&setting, value, "--detect-local-mode", "NodeCIDR"]), only);
        }
        let empty = [
            "--detect-local-mode=InterfaceNamePrefix",
            "--pod-interface-name-prefix=",
        ];
        assert_eq!(
            error(&empty),
            "detect-local-mode InterfaceNamePrefix needs pod-interface-name-prefix"
        );
    }
}
