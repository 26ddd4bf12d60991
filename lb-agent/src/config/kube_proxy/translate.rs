//! From kube-proxy's words to ours.

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{
    super::{DetectLocalMode, Given, LogFormat, LogLevel, METRICS_PORT, Mark, Settings},
    table::{Fate, Row, TABLE},
    types::{KubeProxyConfiguration, Mode},
};
use crate::model::NodePortAddress;

/// Where a document is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// A file, which says everything: what is not in there has kube-proxy's default.
    File,
    /// Flags, which say what they say.
    Flags,
}

impl Origin {
    /// How somebody who reads a message knows a row.
    pub(super) fn name(self, row: &Row) -> String {
        match (self, row.field, row.flag) {
            (Self::Flags, _, Some(flag)) | (Self::File, None, Some(flag)) => format!("--{flag}"),
            (_, Some(field), _) => field.to_owned(),
            (_, None, None) => String::new(),
        }
    }
}

/// What a configuration says. The document is the same as it was written: what is in there was said.
///
/// # Errors
/// Something is refused, or is not a value that it can have. All of them are told at once.
pub(super) fn translate(
    configuration: &KubeProxyConfiguration,
    document: &Value,
    origin: Origin,
) -> anyhow::Result<Given> {
    let mode = configuration.mode.unwrap_or(Mode::Iptables);
    if mode == Mode::Kernelspace {
        bail!("mode kernelspace is for Windows: leave it out");
    }
    let mut given = Given {
        mode: configuration.mode,
        ..Given::default()
    };
    given.warnings = passed_over(document, mode, origin)?;
    let mut wrong = Vec::new();
    let mut check = |name: &str, result: anyhow::Result<()>| {
        if let Err(error) = result {
            wrong.push(format!("{name}: {error:#}"));
        }
    };
    check("logging", logging(configuration, &mut given.settings));
    check("masqueradeBit", masquerade(configuration, mode, &mut given.settings));
    check("ipvs", ipvs(configuration, mode, &mut given.settings));
    check("detectLocalMode", detect_local(configuration, origin, &mut given));
    check("nodePortAddresses", node_ports(configuration, mode, origin, &mut given));
    check("bindAddress", addresses(configuration, mode, &mut given));
    given.settings.kubeconfig = said(configuration.client_connection.kubeconfig.as_deref()).map(Into::into);
    given.settings.node_name = said(configuration.hostname_override.as_deref()).map(|name| name.trim().to_lowercase());
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(given)
}

/// The warnings for what does nothing here.
fn passed_over(document: &Value, mode: Mode, origin: Origin) -> anyhow::Result<Vec<String>> {
    let (mut warnings, mut refused) = (Vec::new(), Vec::new());
    for row in TABLE {
        let Some(value) = row.field.and_then(|field| document.pointer(&pointer(field))) else {
            continue;
        };
        if !row.counts_in(mode) || row.is_default(value) {
            continue;
        }
        match row.fate {
            Fate::Setting(..) => {}
            Fate::Ignored(why) => warnings.push(format!("{} does nothing here: {why}", origin.name(row))),
            Fate::Refused(instead) => refused.push(format!("{}: {instead}", origin.name(row))),
        }
    }
    if refused.is_empty() {
        Ok(warnings)
    } else {
        bail!("{}", refused.join("\n"))
    }
}

/// Where a field is in a document (RFC 6901).
pub(super) fn pointer(field: &str) -> String {
    format!("/{}", field.replace('.', "/"))
}

/// A text that says something.
fn said(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

fn logging(configuration: &KubeProxyConfiguration, settings: &mut Settings) -> anyhow::Result<()> {
    settings.log_format = match said(configuration.logging.format.as_deref()) {
        None => None,
        Some("text") => Some(LogFormat::Text),
        Some("json") => Some(LogFormat::Json),
        Some(other) => bail!("format {other:?} is neither text nor json"),
    };
    settings.log_level = configuration.logging.verbosity.map(|verbosity| match verbosity {
        0..=3 => LogLevel::Info,
        4 | 5 => LogLevel::Debug,
        _ => LogLevel::Trace,
    });
    Ok(())
}

fn masquerade(configuration: &KubeProxyConfiguration, mode: Mode, settings: &mut Settings) -> anyhow::Result<()> {
    let (bit, all) = match mode {
        Mode::Nftables => (
            configuration.nftables.masquerade_bit,
            configuration.nftables.masquerade_all,
        ),
        Mode::Iptables | Mode::Ipvs | Mode::Kernelspace => (
            configuration.iptables.masquerade_bit,
            configuration.iptables.masquerade_all,
        ),
    };
    settings.masquerade_all = all;
    if let Some(bit) = bit {
        let mark = 1_u32
            .checked_shl(bit)
            .with_context(|| format!("{bit} is not from 0 to 31"))?;
        settings.masquerade_mark = Some(Mark::try_from(mark)?);
    }
    Ok(())
}

fn ipvs(configuration: &KubeProxyConfiguration, mode: Mode, settings: &mut Settings) -> anyhow::Result<()> {
    if mode != Mode::Ipvs {
        return Ok(());
    }
    let ipvs = &configuration.ipvs;
    settings.ipvs_scheduler = said(ipvs.scheduler.as_deref())
        .map(|name| name.parse().context("scheduler"))
        .transpose()?;
    settings.ipvs_strict_arp = ipvs.strict_arp;
    Ok(())
}

fn detect_local(configuration: &KubeProxyConfiguration, origin: Origin, given: &mut Given) -> anyhow::Result<()> {
    // As flags they have the names of ours, and are none of kube-proxy's own.
    if origin == Origin::Flags {
        return Ok(());
    }
    let settings = &mut given.settings;
    let cluster_cidr = said(configuration.cluster_cidr.as_deref());
    let bridge = said(configuration.detect_local.bridge_interface.as_deref());
    let prefix = said(configuration.detect_local.interface_name_prefix.as_deref());
    let mode = match said(configuration.detect_local_mode.as_deref()) {
        None | Some("ClusterCIDR") => DetectLocalMode::ClusterCidr,
        Some("NodeCIDR") => DetectLocalMode::NodeCidr,
        Some("BridgeInterface") => DetectLocalMode::BridgeInterface,
        Some("InterfaceNamePrefix") => DetectLocalMode::InterfaceNamePrefix,
        Some(other) => {
            bail!("{other:?} is none of ClusterCIDR, NodeCIDR, BridgeInterface and InterfaceNamePrefix")
        }
    };
    let mut unused = vec![
        (DetectLocalMode::ClusterCidr, "clusterCIDR", cluster_cidr),
        (DetectLocalMode::BridgeInterface, "detectLocal.bridgeInterface", bridge),
        (
            DetectLocalMode::InterfaceNamePrefix,
            "detectLocal.interfaceNamePrefix",
            prefix,
        ),
    ];
    unused.retain(|(its_mode, _, value)| *its_mode != mode && value.is_some());
    for (_, name, _) in unused {
        given
            .warnings
            .push(format!("{name} does nothing here: detectLocalMode is another"));
    }
    match mode {
        DetectLocalMode::ClusterCidr => match cluster_cidr {
            Some(networks) => {
                let networks = networks.split(',').map(|network| {
                    let context = || format!("clusterCIDR: {network:?} is no network such as 10.244.0.0/16");
                    network.trim().parse::<IpNet>().with_context(context)
                });
                settings.cluster_cidr = networks.collect::<anyhow::Result<_>>()?;
                settings.detect_local_mode = Some(mode);
            }
            None => given.warnings.push(
                "detectLocalMode ClusterCIDR without clusterCIDR, with which kube-proxy tells pods from nobody: they \
                 are known by the kind of their links"
                    .to_owned(),
            ),
        },
        DetectLocalMode::BridgeInterface => settings.pod_bridge_interface = bridge.map(str::to_owned),
        DetectLocalMode::InterfaceNamePrefix => settings.pod_interface_name_prefix = prefix.map(str::to_owned),
        DetectLocalMode::NodeCidr | DetectLocalMode::Link => {}
    }
    if mode != DetectLocalMode::ClusterCidr {
        settings.detect_local_mode = Some(mode);
    }
    Ok(())
}

fn node_ports(
    configuration: &KubeProxyConfiguration,
    mode: Mode,
    origin: Origin,
    given: &mut Given,
) -> anyhow::Result<()> {
    let words = configuration.node_port_addresses.as_deref().unwrap_or_default();
    let mut addresses = Vec::new();
    for word in words {
        // `localhost` and `all` are no words of kube-proxy's.
        addresses.push(match word.as_str() {
            "primary" if words.len() == 1 => NodePortAddress::Primary,
            "primary" => bail!("`primary` excludes other addresses"),
            _ => {
                let network = word.parse::<IpNet>();
                let network = network.with_context(|| format!("{word:?} is neither `primary` nor a network"))?;
                NodePortAddress::Within(network.trunc())
            }
        });
    }
    let is_implied = addresses.is_empty();
    // Flags that say no mode have no default of their own: the file may have one.
    if is_implied && origin == Origin::Flags && configuration.mode.is_none() {
        return Ok(());
    }
    if is_implied {
        addresses.push(match mode {
            Mode::Nftables => NodePortAddress::Primary,
            Mode::Iptables | Mode::Ipvs | Mode::Kernelspace => NodePortAddress::All,
        });
    }
    let has_loopback = addresses.iter().any(|address| match address {
        NodePortAddress::All => true,
        NodePortAddress::Within(network) => network.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)),
        NodePortAddress::Primary | NodePortAddress::Localhost => false,
    });
    if mode == Mode::Iptables && has_loopback && configuration.iptables.localhost_node_ports != Some(false) {
        addresses.push(NodePortAddress::Localhost);
    }
    match is_implied {
        true => given.implied.node_port_addresses = addresses,
        false => given.settings.node_port_addresses = addresses,
    }
    Ok(())
}

fn addresses(configuration: &KubeProxyConfiguration, mode: Mode, given: &mut Given) -> anyhow::Result<()> {
    let settings = &mut given.settings;
    settings.healthz_bind_address = said(configuration.healthz_bind_address.as_deref())
        .map(|address| address.parse().context("healthzBindAddress"))
        .transpose()?;
    settings.metrics_bind_address = said(configuration.metrics_bind_address.as_deref())
        .map(|address| address.parse().context("metricsBindAddress"))
        .transpose()?;
    let Some(address) = said(configuration.bind_address.as_deref()) else {
        return Ok(());
    };
    let address: IpAddr = address
        .parse()
        .with_context(|| format!("{address:?} is no IP address"))?;
    if address.is_ipv6() {
        let loopback = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), METRICS_PORT);
        given.implied.metrics_bind_address = Some(loopback.to_string().parse()?);
    }
    if address.is_unspecified() {
        return Ok(());
    }
    // There it stands in for the addresses of the Node object.
    let words = configuration.node_port_addresses.as_deref().unwrap_or_default();
    if words == ["primary"] || words.is_empty() && mode == Mode::Nftables {
        bail!(
            "{address} in place of the Node's primary address: say so by nodePortAddresses: [{}]",
            IpNet::from(address)
        );
    }
    given
        .warnings
        .push("bindAddress does nothing here: this node's addresses are those of its Node object".to_owned());
    Ok(())
}
