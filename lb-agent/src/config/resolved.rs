//! The settings with every default filled in.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, bail};
use lb_common::config::DEFAULT_MASQUERADE_MARK;

use super::{
    BindAddress, HEALTHZ_PORT, METRICS_PORT, Settings, detect_local,
    settings::is_blank,
    values::{Algorithm, LogFormat, LogLevel, Mark, Snat, SocketLb, TableSize, Time},
};
use crate::{
    desired::Distribution,
    kernel::{ipvs::Scheduler, links::PodLinks},
    model::Rules,
    objects::kube::ServerUrl,
    plane::{
        choice::Wanted,
        ebpf::{DEFAULT_TABLE_SIZE, MapSizes},
    },
};

/// Where objects come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A folder of manifests.
    Folder(PathBuf),
    /// An API server.
    ApiServer {
        /// Kubeconfig.
        kubeconfig: Option<PathBuf>,
        /// URL, in place of the kubeconfig's.
        url: Option<ServerUrl>,
    },
}

/// What is said of the plane ipvs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpvsSettings {
    /// How IPVS chooses among endpoints.
    pub scheduler: Scheduler,
    /// Whether ARP says nothing of addresses of services.
    pub strict_arp: bool,
    /// Whether what a kube-proxy left becomes ours.
    pub take_over: bool,
}

/// All that the agent needs to know to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Where objects come from.
    pub source: Source,
    /// Name of this node.
    pub node_name: String,
    /// What is to serve.
    pub plane: Wanted,
    /// The folder of the agent's own files.
    pub run_dir: PathBuf,
    /// The BPF file system.
    pub bpffs: PathBuf,
    /// The cgroup whose sockets are translated, if it was said.
    pub cgroup: Option<PathBuf>,
    /// Whose sockets are translated.
    pub socket_lb: SocketLb,
    /// Who masquerades.
    pub snat: Snat,
    /// Bit of the mark.
    pub masquerade_mark: u32,
    /// Slots of a table of Maglev's.
    pub maglev_table: u32,
    /// Sizes of the maps.
    pub sizes: MapSizes,
    /// How long flows of an earlier agent may go on that cannot be taken over.
    pub drain: Duration,
    /// Rules for links.
    pub link_rules: Vec<String>,
    /// Which links are those of pods.
    pub pod_links: PodLinks,
    /// What holds for every Service.
    pub rules: Rules,
    /// For the plane ipvs.
    pub ipvs: IpvsSettings,
    /// Whether to set sysctls.
    pub set_sysctls: bool,
    /// Where `/healthz` and `/livez` are answered, if they are.
    pub healthz_address: Option<SocketAddr>,
    /// Where `/metrics` is answered, if it is.
    pub metrics_address: Option<SocketAddr>,
    /// How much to log.
    pub log_level: LogLevel,
    /// How to log.
    pub log_format: LogFormat,
}

/// Longer than most connections are.
const DEFAULT_DRAIN: Duration = Duration::from_secs(3600);

/// Where the BPF file system is, unless it was said.
pub const DEFAULT_BPFFS: &str = "/sys/fs/bpf";

/// Where the agent's own files are, unless it was said.
pub const DEFAULT_RUN_DIR: &str = "/run/lb-agent";

impl Config {
    /// The settings with every default filled in.
    pub fn new(settings: Settings) -> anyhow::Result<Self> {
        let source = match settings {
            Settings {
                source: Some(_),
                kubeconfig: Some(_),
                ..
            } => bail!("source and kubeconfig exclude each other"),
            Settings {
                source: Some(_),
                apiserver: Some(_),
                ..
            } => bail!("source and apiserver exclude each other"),
            Settings {
                source: Some(folder), ..
            } => Source::Folder(folder),
            Settings {
                kubeconfig,
                apiserver: url,
                ..
            } => Source::ApiServer { kubeconfig, url },
        };
        let (detect_local, pod_links) = detect_local::resolve(
            settings.detect_local_mode,
            settings.cluster_cidr,
            settings.pod_bridge_interface,
            settings.pod_interface_name_prefix,
        )?;
        let rules = Rules {
            node_port_addresses: settings.node_port_addresses.into_iter().collect(),
            masquerade_all: settings.masquerade_all.unwrap_or(false),
            serve_external_ips: settings.external_ips.unwrap_or(true),
            detect_local,
            distribution: match settings.algorithm.unwrap_or_default() {
                Algorithm::Random => Distribution::Random,
                Algorithm::Maglev => Distribution::Maglev,
            },
        };
        let sizes = MapSizes::default();
        let size = |size: Option<NonZeroU32>, default| size.map_or(default, NonZeroU32::get);
        Ok(Self {
            source,
            node_name: match settings.node_name {
                Some(name) => name,
                None => default_node_name()?,
            },
            plane: settings.plane.unwrap_or_default(),
            run_dir: settings.run_dir.unwrap_or_else(|| DEFAULT_RUN_DIR.into()),
            bpffs: settings.bpffs.unwrap_or_else(|| DEFAULT_BPFFS.into()),
            cgroup: settings.cgroup,
            socket_lb: settings.socket_lb.unwrap_or_default(),
            snat: settings.snat.unwrap_or_default(),
            masquerade_mark: settings.masquerade_mark.map_or(DEFAULT_MASQUERADE_MARK, Mark::get),
            maglev_table: settings.maglev_table_size.map_or(DEFAULT_TABLE_SIZE, TableSize::get),
            sizes: MapSizes {
                services: size(settings.max_services, sizes.services),
                slots: size(settings.max_slots, sizes.slots),
                backends: size(settings.max_backends, sizes.backends),
                flows: size(settings.max_flows, sizes.flows),
                sockets: size(settings.max_sockets, sizes.sockets),
                affinity: size(settings.max_affinity, sizes.affinity),
                source_ranges: size(settings.max_source_ranges, sizes.source_ranges),
            },
            drain: settings.drain.map_or(DEFAULT_DRAIN, Time::get),
            link_rules: settings.link.into_iter().filter(|rule| !is_blank(rule)).collect(),
            pod_links,
            rules,
            ipvs: IpvsSettings {
                scheduler: settings.ipvs_scheduler.unwrap_or(Scheduler::RoundRobin),
                strict_arp: settings.ipvs_strict_arp.unwrap_or(false),
                take_over: settings.ipvs_take_over.unwrap_or(false),
            },
            set_sysctls: settings.set_sysctls.unwrap_or(false),
            healthz_address: settings.healthz_bind_address.map_or(
                Some(default_address(Ipv4Addr::UNSPECIFIED, HEALTHZ_PORT)),
                BindAddress::get,
            ),
            metrics_address: settings.metrics_bind_address.map_or(
                Some(default_address(Ipv4Addr::LOCALHOST, METRICS_PORT)),
                BindAddress::get,
            ),
            log_level: settings.log_level.unwrap_or_default(),
            log_format: settings.log_format.unwrap_or_default(),
        })
    }
}

const fn default_address(ip: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(ip), port)
}

fn default_node_name() -> anyhow::Result<String> {
    if let Ok(name) = std::env::var("NODE_NAME") {
        return Ok(name);
    }
    // As kubelet does: names of objects have no capitals.
    let name = fs::read_to_string("/proc/sys/kernel/hostname").context("the host's name")?;
    Ok(name.trim().to_lowercase())
}
