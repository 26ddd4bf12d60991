//! The list of settings.

use std::{num::NonZeroU32, path::PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{
    BindAddress, DetectLocalMode, HEALTHZ_PORT, METRICS_PORT,
    values::{Algorithm, LogFormat, LogLevel, Mark, Snat, SocketLb, TableSize, Time},
};
use crate::{kernel::ipvs::Scheduler, model::NodePortAddress, objects::kube::ServerUrl, plane::choice::Wanted};

/// A setting each, where it is given.
#[derive(Clone, PartialEq, Eq, Debug, Default, clap::Args, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Settings {
    /// Read Services, EndpointSlices and this Node from the manifests in this folder, and follow
    /// their changes, instead of talking to an API server
    #[arg(long, value_name = "DIR", env = "LB_AGENT_SOURCE")]
    pub source: Option<PathBuf>,

    /// Kubeconfig for the API server [default: the pod's service account, else what kubectl reads]
    #[arg(long, value_name = "FILE", env = "LB_AGENT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// URL of the API server, in place of the one in the kubeconfig, or of the pod's variables
    /// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. Not that of its Service, which this agent serves
    #[arg(long, value_name = "URL", env = "LB_AGENT_APISERVER")]
    pub apiserver: Option<ServerUrl>,

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

    /// Who masquerades clients whose answers have to come back by this node [default: bpf]
    #[arg(long, value_name = "WHO", env = "LB_AGENT_SNAT")]
    pub snat: Option<Snat>,

    /// How new flows are spread over the endpoints of a Service whose annotation `lb-agent.io/algorithm` does not say
    /// [default: random]
    #[arg(long, value_name = "HOW", env = "LB_AGENT_ALGORITHM")]
    pub algorithm: Option<Algorithm>,

    /// Slots of a table of Maglev's: a prime, a hundred for each endpoint. Each Service with that algorithm takes as
    /// many of `--max-slots` for a port and family, twice where a traffic policy is Local [default: 2039]
    #[arg(long, value_name = "PRIME", env = "LB_AGENT_MAGLEV_TABLE_SIZE")]
    pub maglev_table_size: Option<TableSize>,

    /// Bit of the packet mark that asks for masquerading [default: 0x4000]
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

    /// How long connections may go on that an agent of another version began, whose flow table this one cannot take
    /// over: what is open then, breaks. Of one with other sizes, all go on [default: 1h]
    #[arg(long, value_name = "TIME", env = "LB_AGENT_DRAIN")]
    pub drain: Option<Time>,

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

    /// How a client is known to be a pod of this node, or of the cluster [default: ClusterCIDR where a
    /// cluster CIDR is given, else Link]
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

impl Settings {
    /// Those of a file that is written in the fields of this list.
    ///
    /// # Errors
    /// A field that there is not, or a value that it cannot have: with the line.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
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
            snat: self.snat.or(others.snat),
            algorithm: self.algorithm.or(others.algorithm),
            maglev_table_size: self.maglev_table_size.or(others.maglev_table_size),
            masquerade_mark: self.masquerade_mark.or(others.masquerade_mark),
            max_services: self.max_services.or(others.max_services),
            max_slots: self.max_slots.or(others.max_slots),
            max_backends: self.max_backends.or(others.max_backends),
            max_flows: self.max_flows.or(others.max_flows),
            max_sockets: self.max_sockets.or(others.max_sockets),
            max_affinity: self.max_affinity.or(others.max_affinity),
            max_source_ranges: self.max_source_ranges.or(others.max_source_ranges),
            drain: self.drain.or(others.drain),
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
pub(super) fn is_blank(rule: &str) -> bool {
    rule.trim().is_empty()
}
