//! `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1`, as a file has it.
//!
//! Every field is there, so that one that is not is an error. `null` is as good as leaving a field out, as it is in Go.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::duration::GoDuration;

/// Which part of the kernel kube-proxy is to make Services with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Chains of iptables, the default.
    Iptables,
    /// Virtual services of IPVS.
    Ipvs,
    /// Tables of nftables.
    Nftables,
    /// Windows.
    Kernelspace,
}

/// The whole document.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct KubeProxyConfiguration {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) feature_gates: Option<BTreeMap<String, bool>>,
    #[serde(deserialize_with = "or_default")]
    pub(super) client_connection: ClientConnection,
    #[serde(deserialize_with = "or_default")]
    pub(super) logging: Logging,
    pub(super) hostname_override: Option<String>,
    pub(super) bind_address: Option<String>,
    pub(super) healthz_bind_address: Option<String>,
    pub(super) metrics_bind_address: Option<String>,
    pub(super) bind_address_hard_fail: Option<bool>,
    pub(super) enable_profiling: Option<bool>,
    pub(super) show_hidden_metrics_for_version: Option<String>,
    #[serde(deserialize_with = "word")]
    pub(super) mode: Option<Mode>,
    #[serde(deserialize_with = "or_default")]
    pub(super) iptables: Iptables,
    #[serde(deserialize_with = "or_default")]
    pub(super) ipvs: Ipvs,
    #[serde(deserialize_with = "or_default")]
    pub(super) nftables: Nftables,
    #[serde(deserialize_with = "or_default")]
    pub(super) winkernel: Winkernel,
    pub(super) detect_local_mode: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) detect_local: DetectLocal,
    #[serde(rename = "clusterCIDR")]
    pub(super) cluster_cidr: Option<String>,
    pub(super) node_port_addresses: Option<Vec<String>>,
    pub(super) oom_score_adj: Option<i32>,
    #[serde(deserialize_with = "or_default")]
    pub(super) conntrack: Conntrack,
    pub(super) config_sync_period: Option<GoDuration>,
    pub(super) port_range: Option<String>,
    pub(super) windows_run_as_service: Option<bool>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ClientConnection {
    pub(super) kubeconfig: Option<String>,
    pub(super) accept_content_types: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) qps: Option<f64>,
    pub(super) burst: Option<i32>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Logging {
    pub(super) format: Option<String>,
    /// Nanoseconds, or a duration.
    pub(super) flush_frequency: Option<Value>,
    pub(super) verbosity: Option<u32>,
    pub(super) vmodule: Option<Value>,
    pub(super) options: Option<Value>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Iptables {
    pub(super) masquerade_bit: Option<u32>,
    pub(super) masquerade_all: Option<bool>,
    pub(super) localhost_node_ports: Option<bool>,
    pub(super) sync_period: Option<GoDuration>,
    pub(super) min_sync_period: Option<GoDuration>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Ipvs {
    pub(super) sync_period: Option<GoDuration>,
    pub(super) min_sync_period: Option<GoDuration>,
    pub(super) scheduler: Option<String>,
    #[serde(rename = "excludeCIDRs")]
    pub(super) exclude_cidrs: Option<Vec<String>>,
    #[serde(rename = "strictARP")]
    pub(super) strict_arp: Option<bool>,
    pub(super) tcp_timeout: Option<GoDuration>,
    pub(super) tcp_fin_timeout: Option<GoDuration>,
    pub(super) udp_timeout: Option<GoDuration>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Nftables {
    pub(super) masquerade_bit: Option<u32>,
    pub(super) masquerade_all: Option<bool>,
    pub(super) sync_period: Option<GoDuration>,
    pub(super) min_sync_period: Option<GoDuration>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Winkernel {
    pub(super) network_name: Option<String>,
    pub(super) source_vip: Option<String>,
    #[serde(rename = "enableDSR")]
    pub(super) enable_dsr: Option<bool>,
    pub(super) root_hns_endpoint_name: Option<String>,
    pub(super) forward_health_check_vip: Option<bool>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct DetectLocal {
    pub(super) bridge_interface: Option<String>,
    pub(super) interface_name_prefix: Option<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Conntrack {
    pub(super) max_per_core: Option<u32>,
    pub(super) min: Option<u32>,
    pub(super) tcp_established_timeout: Option<GoDuration>,
    pub(super) tcp_close_wait_timeout: Option<GoDuration>,
    pub(super) tcp_be_liberal: Option<bool>,
    pub(super) udp_timeout: Option<GoDuration>,
    pub(super) udp_stream_timeout: Option<GoDuration>,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A mode; an empty one is none.
fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
    let word: Option<String> = Option::deserialize(deserializer)?;
    match word.as_deref() {
        None | Some("") => Ok(None),
        Some(word) => Mode::deserialize(serde::de::value::StrDeserializer::new(word)).map(Some),
    }
}
