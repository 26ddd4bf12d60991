//! What becomes of each field and each flag.

use serde_json::Value;

use super::{duration::GoDuration, types::Mode};

/// A field of the file, a flag, or both.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The field, with the sections that it is in; `None` if there is a flag only.
    pub field: Option<&'static str>,
    /// The flag without its dashes; `None` if there is a field only.
    pub flag: Option<&'static str>,
    /// What its value is.
    pub kind: Kind,
    /// kube-proxy's default as it is written in a file; empty if there is none.
    pub default: &'static str,
    /// What becomes of it.
    pub fate: Fate,
}

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Characters.
    Text,
    /// `true` or `false`; a flag alone is `true`.
    Bool,
    /// A number.
    Number,
    /// As Go writes one.
    Duration,
    /// Several texts, in a flag with commas.
    List,
    /// Several `name=true` or `name=false`.
    Gates,
    /// Whatever it is, nobody looks into it.
    Any,
}

/// What becomes of what somebody says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It says this setting (the name of its flag), in this way.
    Setting(&'static str, &'static str),
    /// It does nothing here, for this reason.
    Ignored(&'static str),
    /// It cannot be left out without harm; this is to be done instead.
    Refused(&'static str),
}

const SYNC: Fate =
    Fate::Ignored("each change is written at once, and what others break is looked for every 30 seconds");
const CLIENT: Fate = Fate::Ignored("the API server is watched, which takes a handful of requests");
const MASQUERADE_BIT: Fate = Fate::Setting("masquerade-mark", "the mark with that bit");
const MASQUERADE_ALL: Fate = Fate::Setting("masquerade-all", "");
const CONNTRACK_SIZE: Fate = Fate::Ignored(
    "the size of the kernel's connection tracking is the node's: set the sysctl net.netfilter.nf_conntrack_max. The \
     flows of services have maps of their own (--max-flows)",
);
const CONNTRACK_TIMEOUT: Fate = Fate::Ignored(
    "how long the kernel tracks connections is the node's: set the sysctls net.netfilter.nf_conntrack_*_timeout*",
);
const IPVS_TIMEOUT: Fate = Fate::Refused(
    "the timeouts of IPVS belong to the whole node and are left as they are: set them with \
     `ipvsadm --set TCP TCPFIN UDP` and leave this out",
);
const WINDOWS: Fate = Fate::Ignored("it is for Windows");
const LOG_DETAIL: Fate = Fate::Ignored("the log is written line by line to standard error");
const ONE_SHOT: Fate = Fate::Refused("`lb-agent run` would not end after it");
const DEPRECATED_HEALTHZ: Fate = Fate::Refused("say --healthz-bind-address with the port; empty turns it off");
const DEPRECATED_METRICS: Fate = Fate::Refused("say --metrics-bind-address with the port; empty turns it off");
const FILES: Fate = Fate::Ignored("nothing is told of the machine");

const fn both(field: &'static str, flag: &'static str, kind: Kind, default: &'static str, fate: Fate) -> Row {
    Row {
        field: Some(field),
        flag: Some(flag),
        kind,
        default,
        fate,
    }
}

const fn field(field: &'static str, kind: Kind, default: &'static str, fate: Fate) -> Row {
    Row {
        field: Some(field),
        flag: None,
        kind,
        default,
        fate,
    }
}

const fn flag(flag: &'static str, kind: Kind, default: &'static str, fate: Fate) -> Row {
    Row {
        field: None,
        flag: Some(flag),
        kind,
        default,
        fate,
    }
}

/// All of them, in the order of the file.
#[rustfmt::skip]
pub const TABLE: &[Row] = {
    use Kind::{Any, Bool, Duration, Gates, List, Number, Text};
    use Fate::{Ignored, Refused, Setting};
    &[
    both("featureGates", "feature-gates", Gates, "", Ignored("lb-agent has no feature gates")),
    both("clientConnection.kubeconfig", "kubeconfig", Text, "", Setting("kubeconfig", "empty is the pod's service account")),
    field("clientConnection.acceptContentTypes", Text, "", CLIENT),
    both("clientConnection.contentType", "kube-api-content-type", Text, "application/vnd.kubernetes.protobuf", CLIENT),
    both("clientConnection.qps", "kube-api-qps", Number, "5", CLIENT),
    both("clientConnection.burst", "kube-api-burst", Number, "10", CLIENT),
    both("logging.format", "logging-format", Text, "text", Setting("log-format", "")),
    both("logging.flushFrequency", "log-flush-frequency", Duration, "5s", LOG_DETAIL),
    both("logging.verbosity", "v", Number, "0", Setting("log-level", "0 to 3 is info, 4 and 5 debug, more is trace")),
    both("logging.vmodule", "vmodule", Any, "", Ignored("there is one level for everything: --log-level")),
    field("logging.options", Any, "", LOG_DETAIL),
    flag("log-json-info-buffer-size", Any, "", LOG_DETAIL),
    flag("log-json-split-stream", Bool, "false", LOG_DETAIL),
    flag("log-text-info-buffer-size", Any, "", LOG_DETAIL),
    flag("log-text-split-stream", Bool, "false", LOG_DETAIL),
    both("hostnameOverride", "hostname-override", Text, "", Setting("node-name", "empty is the default")),
    both("bindAddress", "bind-address", Text, "0.0.0.0", Setting("metrics-bind-address",
        "an unspecified IPv6 address makes the default [::1]:10249. Any other one, with nodePortAddresses `primary`, is \
         refused: say it in nodePortAddresses as a network of one address; else it does nothing")),
    both("healthzBindAddress", "healthz-bind-address", Text, "0.0.0.0:10256", Setting("healthz-bind-address",
        "empty is the default in the file, and off as a flag")),
    both("metricsBindAddress", "metrics-bind-address", Text, "127.0.0.1:10249", Setting("metrics-bind-address",
        "empty is the default in the file, and off as a flag")),
    both("bindAddressHardFail", "bind-address-hard-fail", Bool, "false",
        Ignored("an address that is taken is told in the log and tried again")),
    both("enableProfiling", "profiling", Bool, "false", Ignored("there is no profile to be had over HTTP: use perf")),
    both("showHiddenMetricsForVersion", "show-hidden-metrics-for-version", Text, "", Ignored("no metric is hidden")),
    both("mode", "proxy-mode", Text, "iptables", Setting("plane",
        "each mode leaves the choice to --plane, whose default is auto; but ipvs with a scheduler other than rr is the \
         plane ipvs. `kernelspace` is refused. It decides which sections count, and what nodePortAddresses are by default")),
    both("iptables.masqueradeBit", "iptables-masquerade-bit", Number, "14", MASQUERADE_BIT),
    both("iptables.masqueradeAll", "masquerade-all", Bool, "false", MASQUERADE_ALL),
    both("iptables.localhostNodePorts", "iptables-localhost-nodeports", Bool, "true", Setting("node-port-addresses",
        "adds `localhost` in mode iptables where nodePortAddresses have 127.0.0.1 in them; this is ::1 too")),
    both("iptables.syncPeriod", "iptables-sync-period", Duration, "30s", SYNC),
    both("iptables.minSyncPeriod", "iptables-min-sync-period", Duration, "1s", SYNC),
    both("ipvs.syncPeriod", "ipvs-sync-period", Duration, "30s", SYNC),
    both("ipvs.minSyncPeriod", "ipvs-min-sync-period", Duration, "1s", SYNC),
    both("ipvs.scheduler", "ipvs-scheduler", Text, "", Setting("ipvs-scheduler", "empty is rr")),
    both("ipvs.excludeCIDRs", "ipvs-exclude-cidrs", List, "", Ignored("no virtual service of others is ever touched")),
    both("ipvs.strictARP", "ipvs-strict-arp", Bool, "false", Setting("ipvs-strict-arp", "the plane ebpf needs none")),
    both("ipvs.tcpTimeout", "ipvs-tcp-timeout", Duration, "0s", IPVS_TIMEOUT),
    both("ipvs.tcpFinTimeout", "ipvs-tcpfin-timeout", Duration, "0s", IPVS_TIMEOUT),
    both("ipvs.udpTimeout", "ipvs-udp-timeout", Duration, "0s", IPVS_TIMEOUT),
    field("nftables.masqueradeBit", Number, "14", MASQUERADE_BIT),
    field("nftables.masqueradeAll", Bool, "false", MASQUERADE_ALL),
    field("nftables.syncPeriod", Duration, "30s", SYNC),
    field("nftables.minSyncPeriod", Duration, "1s", SYNC),
    field("winkernel.networkName", Text, "", WINDOWS),
    field("winkernel.sourceVip", Text, "", WINDOWS),
    field("winkernel.enableDSR", Bool, "false", WINDOWS),
    field("winkernel.rootHnsEndpointName", Text, "", WINDOWS),
    field("winkernel.forwardHealthCheckVip", Bool, "false", WINDOWS),
    both("detectLocalMode", "detect-local-mode", Text, "ClusterCIDR", Setting("detect-local-mode",
        "ClusterCIDR without clusterCIDR is Link, with a warning")),
    both("detectLocal.bridgeInterface", "pod-bridge-interface", Text, "", Setting("pod-bridge-interface",
        "in another mode than BridgeInterface, it does nothing in the file")),
    both("detectLocal.interfaceNamePrefix", "pod-interface-name-prefix", Text, "", Setting("pod-interface-name-prefix",
        "in another mode than InterfaceNamePrefix, it does nothing in the file")),
    both("clusterCIDR", "cluster-cidr", Text, "", Setting("cluster-cidr",
        "in another mode than ClusterCIDR, it does nothing in the file")),
    both("nodePortAddresses", "nodeport-addresses", List, "", Setting("node-port-addresses",
        "without any: `all` in the modes iptables and ipvs, `primary` in mode nftables")),
    both("oomScoreAdj", "oom-score-adj", Number, "-999",
        Ignored("it is the service manager's to set: OOMScoreAdjust= of systemd, the priority class of a pod")),
    both("conntrack.maxPerCore", "conntrack-max-per-core", Number, "32768", CONNTRACK_SIZE),
    both("conntrack.min", "conntrack-min", Number, "131072", CONNTRACK_SIZE),
    both("conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established", Duration, "24h", CONNTRACK_TIMEOUT),
    both("conntrack.tcpCloseWaitTimeout", "conntrack-tcp-timeout-close-wait", Duration, "1h", CONNTRACK_TIMEOUT),
    both("conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal", Bool, "false",
        Ignored("no packet is dropped for its place in a TCP window; for other rules of the node, set the sysctl \
                 net.netfilter.nf_conntrack_tcp_be_liberal")),
    both("conntrack.udpTimeout", "conntrack-udp-timeout", Duration, "0s", CONNTRACK_TIMEOUT),
    both("conntrack.udpStreamTimeout", "conntrack-udp-timeout-stream", Duration, "0s", CONNTRACK_TIMEOUT),
    both("configSyncPeriod", "config-sync-period", Duration, "15m", CLIENT),
    field("portRange", Text, "", Ignored("kube-proxy has no use for it either")),
    field("windowsRunAsService", Bool, "false", WINDOWS),
    flag("master", Text, "", Setting("apiserver", "")),
    flag("boot-id-file", Text, "/proc/sys/kernel/random/boot_id", FILES),
    flag("machine-id-file", Text, "/etc/machine-id,/var/lib/dbus/machine-id", FILES),
    flag("healthz-port", Number, "", DEPRECATED_HEALTHZ),
    flag("metrics-port", Number, "", DEPRECATED_METRICS),
    flag("cleanup", Bool, "false", Refused("it is a command of its own: `lb-agent cleanup --kube-proxy`")),
    flag("init-only", Bool, "false", ONE_SHOT),
    flag("write-config-to", Text, "", ONE_SHOT),
    flag("version", Bool, "false", Refused("it is a command of its own: `lb-agent version`")),
    ]
};

impl Row {
    /// Whether kube-proxy looks at it in this mode.
    pub(super) fn counts_in(&self, mode: Mode) -> bool {
        let section = self
            .field
            .and_then(|field| field.split_once('.'))
            .map(|(section, _)| section);
        match (section, mode) {
            // What only IPVS has is in a section of its own, and what it shares with iptables is in that one's.
            (Some("iptables"), Mode::Ipvs) => self.fate != SYNC,
            (Some("iptables"), _) => mode == Mode::Iptables,
            (Some("ipvs"), _) => mode == Mode::Ipvs,
            (Some("nftables"), _) => mode == Mode::Nftables,
            _ => true,
        }
    }

    /// Whether a value asks for nothing, or for what kube-proxy does anyhow.
    pub(super) fn is_default(&self, value: &Value) -> bool {
        match value {
            Value::Null | Value::Bool(false) if self.default != "true" => true,
            Value::Null => true,
            Value::Bool(is_on) => is_on.to_string() == self.default,
            Value::Number(number) => number.as_f64() == Some(0.0) || number.as_f64() == self.default.parse().ok(),
            Value::String(text) if self.kind == Kind::Duration => {
                let duration = text.parse::<GoDuration>();
                duration.as_ref().is_ok_and(|duration| duration.is_zero()) || duration == self.default.parse()
            }
            Value::String(text) => text.is_empty() || text == "0" || text == self.default,
            Value::Array(values) => values.iter().all(|value| self.is_default(value)),
            Value::Object(fields) => fields.values().all(|value| self.is_default(value)),
        }
    }
}
