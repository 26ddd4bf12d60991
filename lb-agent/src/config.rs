//! What the agent is told to do: by flags, by the environment, by a file.
//!
//! There is one list of settings. Each is a flag (`--max-services`), a variable of the environment
//! (`LB_AGENT_MAX_SERVICES`) and a field of the file given by `--config` (`maxServices`). The flag
//! comes first, then the environment, then the file, then the default.

mod bind_address;
mod detect_local;
mod planes;
#[cfg(test)]
mod tests;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::{NonZeroU32, ParseIntError},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, bail};
pub use bind_address::{BindAddress, InvalidBindAddress};
pub use detect_local::DetectLocalMode;
use ipnet::IpNet;
use lb_common::config::DEFAULT_MASQUERADE_MARK;
use serde::Deserialize;

use crate::{
    kernel::{ipvs::Scheduler, links::PodLinks},
    model::{NodePortAddress, Rules},
    plane::{choice::Wanted, ebpf::MapSizes},
};

/// A setting each, where it is given.
#[derive(Clone, PartialEq, Eq, Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Settings {
    /// Read Services, EndpointSlices and this Node from the manifests in this folder, and follow
    /// their changes, instead of talking to an API server
    #[arg(long, value_name = "DIR", env = "LB_AGENT_SOURCE")]
    pub source: Option<PathBuf>,

    /// Kubeconfig for the API server [default: the pod's service account, else what kubectl reads]
    #[arg(long, value_name = "FILE", env = "LB_AGENT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// URL of the API server, in place of the one in the kubeconfig
    #[arg(long, value_name = "URL", env = "LB_AGENT_APISERVER")]
    pub apiserver: Option<String>,

    /// Name of this node's Node object [default: $NODE_NAME, else the host's name]
    #[arg(long, value_name = "NAME", env = "LB_AGENT_NODE_NAME")]
    pub node_name: Option<String>,

    /// What serves: BPF programs, the kernel's IPVS, or by `auto` BPF where the node can do all of it and
    /// else IPVS [default: auto]
    #[arg(long, value_name = "PLANE", env = "LB_AGENT_PLANE")]
    pub plane: Option<Wanted>,

    /// A folder for the agent's own files: its status, its lock. Made if it is not there, for root only
    /// [default: /run/lb-agent]
    #[arg(long, value_name = "DIR", env = "LB_AGENT_RUN_DIR")]
    pub run_dir: Option<PathBuf>,

    /// The BPF file system, for maps and programs that outlive the agent [default: /sys/fs/bpf]
    #[arg(long, value_name = "DIR", env = "LB_AGENT_BPFFS")]
    pub bpffs: Option<PathBuf>,

    /// The cgroup whose sockets are translated [default: where cgroup v2 is mounted]
    #[arg(long, value_name = "DIR", env = "LB_AGENT_CGROUP")]
    pub cgroup: Option<PathBuf>,

    /// Whose sockets are translated when they connect [default: host]
    #[arg(long, value_name = "WHO", env = "LB_AGENT_SOCKET_LB")]
    pub socket_lb: Option<SocketLb>,

    /// Bit of the packet mark that asks the kernel to masquerade [default: 0x4000]
    #[arg(long, value_name = "BIT", env = "LB_AGENT_MASQUERADE_MARK")]
    pub masquerade_mark: Option<Mark>,

    /// Room for frontends: addresses and ports that clients dial [default: 262144]
    #[arg(long, value_name = "N", env = "LB_AGENT_MAX_SERVICES")]
    pub max_services: Option<NonZeroU32>,

    /// Room for the endpoints that frontends choose from [default: 1048576]
    #[arg(long, value_name = "N", env = "LB_AGENT_MAX_SLOTS")]
    pub max_slots: Option<NonZeroU32>,

    /// Room for endpoints [default: 524288]
    #[arg(long, value_name = "N", env = "LB_AGENT_MAX_BACKENDS")]
    pub max_backends: Option<NonZeroU32>,

    /// Room for flows, of which each takes two [default: 524288]
    #[arg(long, value_name = "N", env = "LB_AGENT_MAX_FLOWS")]
    pub max_flows: Option<NonZeroU32>,

    /// Room for connected sockets that are translated [default: 131072]
    #[arg(long, value_name = "N", env = "LB_AGENT_MAX_SOCKETS")]
    pub max_sockets: Option<NonZeroU32>,

    /// Room for clients that session affinity remembers [default: 131072]
    #[arg(long, value_name = "N", env = "LB_AGENT_MAX_AFFINITY")]
    pub max_affinity: Option<NonZeroU32>,

    /// Room for source ranges of load balancers [default: 65536]
    #[arg(long, value_name = "N", env = "LB_AGENT_MAX_SOURCE_RANGES")]
    pub max_source_ranges: Option<NonZeroU32>,

    /// What the links are whose whole names match: `REGEX=pod`, `=uplink`, `=tunnel` or `=ignore`.
    /// May be given several times, in the variable one a line; the first that matches counts
    /// [default: by the kind of link]
    // The name of a link holds no white space, so that no rule has a use for a line break.
    #[arg(long, value_name = "RULE", env = "LB_AGENT_LINK", value_delimiter = '\n')]
    pub link: Vec<String>,

    /// Where NodePorts are served: `primary` addresses of the Node, `localhost`, `all`, or networks of
    /// either family. May be several. A family of which no word says anything, since there are
    /// networks of the other one only, has them on every address, as with kube-proxy
    /// [default: primary]
    #[arg(
        long,
        value_name = "WORD",
        env = "LB_AGENT_NODE_PORT_ADDRESSES",
        value_delimiter = ',',
        alias = "nodeport-addresses"
    )]
    pub node_port_addresses: Vec<NodePortAddress>,

    /// Masquerade every client of a ClusterIP [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        env = "LB_AGENT_MASQUERADE_ALL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub masquerade_all: Option<bool>,

    /// Serve the externalIPs of Services, which Kubernetes 1.36 deprecates [default: true]
    #[arg(
        long,
        value_name = "BOOL",
        env = "LB_AGENT_EXTERNAL_IPS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub external_ips: Option<bool>,

    /// How a client is known to be a pod of this node, or of the cluster [default: Link]
    #[arg(long, value_name = "MODE", env = "LB_AGENT_DETECT_LOCAL_MODE")]
    pub detect_local_mode: Option<DetectLocalMode>,

    /// Where the cluster's pods have their addresses, for the mode ClusterCIDR
    #[arg(long, value_name = "CIDR", env = "LB_AGENT_CLUSTER_CIDR", value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,

    /// The bridge whose ports are links of pods, for the mode BridgeInterface
    #[arg(long, value_name = "LINK", env = "LB_AGENT_POD_BRIDGE_INTERFACE")]
    pub pod_bridge_interface: Option<String>,

    /// How the names of pods' links begin, for the mode InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX", env = "LB_AGENT_POD_INTERFACE_NAME_PREFIX")]
    pub pod_interface_name_prefix: Option<String>,

    /// With the plane ipvs: how IPVS chooses among endpoints: rr, wrr, lc, wlc, sh, dh, sed, nq or mh
    /// [default: rr]
    #[arg(long, value_name = "NAME", env = "LB_AGENT_IPVS_SCHEDULER")]
    pub ipvs_scheduler: Option<Scheduler>,

    /// With the plane ipvs: say nothing by ARP of the addresses of services, which others in the
    /// network tell of, such as MetalLB [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        env = "LB_AGENT_IPVS_STRICT_ARP",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub ipvs_strict_arp: Option<bool>,

    /// With the plane ipvs: make the virtual services and addresses of a kube-proxy in IPVS mode ours,
    /// which must not run any more [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        env = "LB_AGENT_IPVS_TAKE_OVER",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub ipvs_take_over: Option<bool>,

    /// Set the sysctls that are not as they must be, instead of only naming them [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        env = "LB_AGENT_SET_SYSCTLS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub set_sysctls: Option<bool>,

    /// Where /healthz and /livez are answered: an address, with or without a port. Empty turns them
    /// off [default: 0.0.0.0:10256, which is IPv6 too]
    #[arg(long, value_name = "ADDRESS", env = "LB_AGENT_HEALTHZ_BIND_ADDRESS")]
    pub healthz_bind_address: Option<BindAddress<HEALTHZ_PORT>>,

    /// Where /metrics and /proxyMode are answered: an address, with or without a port. Empty turns them
    /// off [default: 127.0.0.1:10249]
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "LB_AGENT_METRICS_BIND_ADDRESS",
        alias = "metrics-address"
    )]
    pub metrics_bind_address: Option<BindAddress<METRICS_PORT>>,

    /// How much to log [default: info]
    #[arg(long, value_name = "LEVEL", env = "LB_AGENT_LOG_LEVEL")]
    pub log_level: Option<LogLevel>,

    /// How to log [default: text]
    #[arg(long, value_name = "FORMAT", env = "LB_AGENT_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// Whose sockets are translated when they connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketLb {
    /// Those of the host's network namespace.
    #[default]
    Host,
    /// Those of pods as well, where it is certain how a service treats them. A mesh that reads from a socket
    /// what was dialled has its pods left out by the annotation `lb-agent.io/socket-lb: "off"`.
    All,
    /// Nobody's: processes of the host reach no service by this agent. Packets are translated
    /// where they come in by a link, which those of the host itself do not.
    Off,
}

/// How much to log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What stops the agent.
    Error,
    /// What somebody should look at.
    Warn,
    /// One line a change.
    #[default]
    Info,
    /// One line a service port that changes.
    Debug,
    /// Everything.
    Trace,
}

/// How to log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// One bit of a packet's mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "u32")]
pub struct Mark(u32);

/// Why something is not one bit of a mark.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidMark {
    /// Not a number.
    #[error("not a number: {0}")]
    Number(#[from] ParseIntError),
    /// None, or more than one bit.
    #[error("{0:#x} is not one bit")]
    Bits(u32),
}

impl Mark {
    /// The mark with this bit and no other.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Mark {
    type Error = InvalidMark;

    fn try_from(mark: u32) -> Result<Self, Self::Error> {
        if mark.is_power_of_two() {
            Ok(Self(mark))
        } else {
            Err(InvalidMark::Bits(mark))
        }
    }
}

impl FromStr for Mark {
    type Err = InvalidMark;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mark = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16)?,
            None => text.parse()?,
        };
        mark.try_into()
    }
}

impl Settings {
    /// Those of a file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let context = || format!("--config {}", path.display());
        let text = fs::read_to_string(path).with_context(context)?;
        Self::parse(&text).with_context(context)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        // An empty file sets nothing.
        let settings: Option<Self> =
            serde_saphyr::from_str_with_options(text, serde_saphyr::options! { with_snippet: false })?;
        Ok(settings.unwrap_or_default())
    }

    /// These, and where one is not given, that of the `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            source: self.source.or(others.source),
            kubeconfig: self.kubeconfig.or(others.kubeconfig),
            apiserver: self.apiserver.or(others.apiserver),
            node_name: self.node_name.or(others.node_name),
            plane: self.plane.or(others.plane),
            run_dir: self.run_dir.or(others.run_dir),
            bpffs: self.bpffs.or(others.bpffs),
            cgroup: self.cgroup.or(others.cgroup),
            socket_lb: self.socket_lb.or(others.socket_lb),
            masquerade_mark: self.masquerade_mark.or(others.masquerade_mark),
            max_services: self.max_services.or(others.max_services),
            max_slots: self.max_slots.or(others.max_slots),
            max_backends: self.max_backends.or(others.max_backends),
            max_flows: self.max_flows.or(others.max_flows),
            max_sockets: self.max_sockets.or(others.max_sockets),
            max_affinity: self.max_affinity.or(others.max_affinity),
            max_source_ranges: self.max_source_ranges.or(others.max_source_ranges),
            link: if self.link.iter().all(|rule| is_blank(rule)) {
                others.link
            } else {
                self.link
            },
            node_port_addresses: either(self.node_port_addresses, others.node_port_addresses),
            masquerade_all: self.masquerade_all.or(others.masquerade_all),
            external_ips: self.external_ips.or(others.external_ips),
            detect_local_mode: self.detect_local_mode.or(others.detect_local_mode),
            cluster_cidr: either(self.cluster_cidr, others.cluster_cidr),
            pod_bridge_interface: self.pod_bridge_interface.or(others.pod_bridge_interface),
            pod_interface_name_prefix: self.pod_interface_name_prefix.or(others.pod_interface_name_prefix),
            ipvs_scheduler: self.ipvs_scheduler.or(others.ipvs_scheduler),
            ipvs_strict_arp: self.ipvs_strict_arp.or(others.ipvs_strict_arp),
            ipvs_take_over: self.ipvs_take_over.or(others.ipvs_take_over),
            set_sysctls: self.set_sysctls.or(others.set_sysctls),
            healthz_bind_address: self.healthz_bind_address.or(others.healthz_bind_address),
            metrics_bind_address: self.metrics_bind_address.or(others.metrics_bind_address),
            log_level: self.log_level.or(others.log_level),
            log_format: self.log_format.or(others.log_format),
        }
    }
}

/// The first list, unless it says nothing.
fn either<T>(first: Vec<T>, second: Vec<T>) -> Vec<T> {
    if first.is_empty() { second } else { first }
}

/// What is left of a variable that is empty, or of one that ends with a line break, is no rule.
fn is_blank(rule: &str) -> bool {
    rule.trim().is_empty()
}

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
        url: Option<String>,
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
    /// Bit of the mark.
    pub masquerade_mark: u32,
    /// Sizes of the maps.
    pub sizes: MapSizes,
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

/// Where the BPF file system is, unless it was said.
pub const DEFAULT_BPFFS: &str = "/sys/fs/bpf";

/// Where the agent's own files are, unless it was said.
pub const DEFAULT_RUN_DIR: &str = "/run/lb-agent";

/// The port of `/healthz` that load balancers expect.
const HEALTHZ_PORT: u16 = 10256;
/// The port of kube-proxy's `/metrics`.
const METRICS_PORT: u16 = 10249;

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
            settings.detect_local_mode.unwrap_or_default(),
            settings.cluster_cidr,
            settings.pod_bridge_interface,
            settings.pod_interface_name_prefix,
        )?;
        let rules = Rules {
            node_port_addresses: settings.node_port_addresses.into_iter().collect(),
            masquerade_all: settings.masquerade_all.unwrap_or(false),
            serve_external_ips: settings.external_ips.unwrap_or(true),
            detect_local,
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
            masquerade_mark: settings.masquerade_mark.map_or(DEFAULT_MASQUERADE_MARK, Mark::get),
            sizes: MapSizes {
                services: size(settings.max_services, sizes.services),
                slots: size(settings.max_slots, sizes.slots),
                backends: size(settings.max_backends, sizes.backends),
                flows: size(settings.max_flows, sizes.flows),
                sockets: size(settings.max_sockets, sizes.sockets),
                affinity: size(settings.max_affinity, sizes.affinity),
                source_ranges: size(settings.max_source_ranges, sizes.source_ranges),
            },
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
