use std::collections::BTreeSet;

use clap::Parser as _;
use serde_json::Value;

use super::{super::*, types::KubeProxyConfiguration, *};
use crate::{
    kernel::{ipvs::Scheduler, links::PodLinks},
    model::{DetectLocal, NodePortAddress, NodePortAddresses},
    plane::choice::Wanted,
};

const HEADER: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn file(body: &str) -> anyhow::Result<Given> {
    Given::parse(&format!("{HEADER}{body}"))
}

fn error(body: &str) -> String {
    format!("{:#}", file(body).unwrap_err())
}

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

/// What a command line comes to, with a file if there is one.
fn run(flags: &[&str], body: Option<&str>) -> anyhow::Result<(Config, Vec<String>)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("config.yaml");
    let mut line = vec!["lb-agent".to_owned()];
    if let Some(body) = body {
        std::fs::write(&path, format!("{HEADER}{body}"))?;
        line.push(format!("--config={}", path.display()));
    }
    line.extend(flags.iter().map(|flag| (*flag).to_owned()));
    Line::try_parse_from(line)?.arguments.resolve()
}

fn words(config: &Config) -> NodePortAddresses {
    config.rules.node_port_addresses.clone()
}

/// What kubeadm writes, and most clusters run with.
const KUBEADM: &str = "
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ''
  burst: 0
  contentType: ''
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16,fd00:244::/56
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: '', interfaceNamePrefix: ''}
detectLocalMode: ''
enableProfiling: false
healthzBindAddress: ''
hostnameOverride: ''
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: '', strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}, verbosity: 0}
metricsBindAddress: ''
mode: ''
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ''
showHiddenMetricsForVersion: ''
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: '', rootHnsEndpointName: '', sourceVip: ''}
";

#[test]
fn the_file_that_kubeadm_writes_is_understood_without_a_word() {
    let (config, warnings) = run(&["--hostname-override=Node-1"], Some(KUBEADM)).unwrap();
    assert_eq!(warnings, [""; 0]);
    assert_eq!(config.node_name, "node-1");
    let kubeconfig = Some("/var/lib/kube-proxy/kubeconfig.conf".into());
    assert_eq!(config.source, Source::ApiServer { kubeconfig, url: None });
    let networks = ["10.244.0.0/16", "fd00:244::/56"].map(|network| network.parse().unwrap());
    assert_eq!(config.rules.detect_local, DetectLocal::ClusterCidr(networks.into()));
    let everywhere = [NodePortAddress::All, NodePortAddress::Localhost];
    assert_eq!(words(&config), everywhere.into_iter().collect());
    assert_eq!(config.plane, Wanted::Auto);
    assert_eq!(config.masquerade_mark, 0x4000);
    assert_eq!(config.healthz_address.unwrap().to_string(), "0.0.0.0:10256");
    assert_eq!(config.metrics_address.unwrap().to_string(), "127.0.0.1:10249");
}

#[test]
fn each_field_has_a_row_and_each_row_a_field() {
    let whole = serde_json::to_value(KubeProxyConfiguration::default()).unwrap();
    let mut fields = BTreeSet::new();
    for (name, value) in whole.as_object().unwrap() {
        match value {
            Value::Object(section) => fields.extend(section.keys().map(|field| format!("{name}.{field}"))),
            _ => drop(fields.insert(name.clone())),
        }
    }
    fields.remove("apiVersion");
    fields.remove("kind");
    let rows: Vec<String> = TABLE.iter().filter_map(|row| row.field.map(str::to_owned)).collect();
    let known: BTreeSet<String> = rows.iter().cloned().collect();
    assert_eq!(known.len(), rows.len(), "a field has two rows");
    assert_eq!(fields, known);
    let flags: Vec<&str> = TABLE.iter().filter_map(|row| row.flag).collect();
    assert_eq!(
        flags.iter().collect::<BTreeSet<_>>().len(),
        flags.len(),
        "a flag has two rows"
    );
}

#[test]
fn a_file_is_kube_proxys_by_its_version_and_kind() {
    assert!(recognises(HEADER).unwrap());
    for text in ["", "maxServices: 1", "- a", "apiVersion: v1\nkind: Service"] {
        assert!(!recognises(text).unwrap(), "{text}");
    }
    let told = |text| recognises(text).unwrap_err().to_string();
    assert!(told("apiVersion: kubeproxy.config.k8s.io/v1beta9\nkind: KubeProxyConfiguration").contains("v1beta9"));
    assert!(told("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Other").contains("Other"));
    assert!(told("kind: KubeProxyConfiguration").contains("needs apiVersion"));
}

#[test]
fn what_kube_proxy_has_not_is_an_error_that_names_it() {
    for (body, name) in [
        ("maxServices: 1", "maxServices"),
        ("iptables: {masqueradeBits: 1}", "masqueradeBits"),
        ("mode: ebpf", "ebpf"),
        ("configSyncPeriod: 15", "15"),
        ("ipvs: {syncPeriod: 1 fortnight}", "1 fortnight"),
        ("iptables: {masqueradeBit: 32}", "32"),
        ("detectLocalMode: Links", "Links"),
        ("clusterCIDR: 10.0.0.0", "10.0.0.0"),
        ("nodePortAddresses: [all]", "all"),
        ("nodePortAddresses: [primary, 10.0.0.0/8]", "primary"),
        ("healthzBindAddress: localhost:1", "localhost:1"),
        ("bindAddress: node", "node"),
        ("logging: {format: xml}", "xml"),
        ("mode: ipvs\nipvs: {scheduler: best}", "best"),
        ("mode: iptables\nmode: nftables", "mode"),
    ] {
        assert!(error(body).contains(name), "{body}: {}", error(body));
    }
    for flag in ["--iptables-masquerade-bits=1", "--proxy_mode=ipvs"] {
        assert!(run(&[flag], None).is_err(), "{flag}");
    }
    for (flag, name) in [
        ("--proxy-mode=ebpf", "--proxy-mode"),
        ("--conntrack-min=many", "--conntrack-min"),
        ("--config-sync-period=soon", "--config-sync-period"),
        ("--profiling=perhaps", "--profiling"),
        ("--feature-gates=AllAlpha", "--feature-gates"),
    ] {
        let told = format!("{:#}", run(&[flag], None).unwrap_err());
        assert!(told.contains(name), "{told}");
    }
}

/// A value of each row that says something: neither empty nor the default.
fn telling(row: &Row) -> &'static str {
    match row.kind {
        Kind::Bool if row.default == "true" => "false",
        Kind::Bool => "true",
        Kind::Number => "7",
        Kind::Duration => "7s",
        Kind::Gates => "{AllAlpha: true}",
        Kind::List => "[10.0.0.0/8]",
        Kind::Text | Kind::Any => "something",
    }
}

#[test]
fn what_does_nothing_is_named_in_one_warning_and_what_must_not_be_missing_is_refused() {
    for row in TABLE {
        let Some(field) = row.field else { continue };
        let mode = match field.split('.').next() {
            Some("ipvs") => "ipvs",
            Some("nftables") => "nftables",
            _ => "iptables",
        };
        let assignment = match field.split_once('.') {
            Some((section, field)) => format!("{section}: {{{field}: {}}}", telling(row)),
            None => format!("{field}: {}", telling(row)),
        };
        let body = format!("mode: {mode}\nclusterCIDR: 10.0.0.0/8\n{assignment}");
        match row.fate {
            Fate::Ignored(why) => {
                let warnings = file(&body).unwrap().warnings;
                assert_eq!(warnings, [format!("{field} does nothing here: {why}")], "{body}");
            }
            Fate::Refused(instead) => assert_eq!(error(&body), format!("{field}: {instead}")),
            Fate::Setting(..) => {}
        }
    }
    // Of another mode, it is not looked at.
    assert_eq!(
        file("clusterCIDR: 10.0.0.0/8\nipvs: {tcpTimeout: 7s}")
            .unwrap()
            .warnings,
        [""; 0]
    );
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let told = error("mode: ipvs\nipvs: {tcpTimeout: 7s, udpTimeout: 7s}");
    assert!(
        told.contains("ipvs.tcpTimeout: ") && told.contains("\nipvs.udpTimeout: "),
        "{told}"
    );
    let told = error("bindAddress: node\nnodePortAddresses: [all]");
    assert!(
        told.contains("nodePortAddresses: ") && told.contains("\nbindAddress: "),
        "{told}"
    );
}

#[test]
fn flags_say_what_the_fields_say() {
    let (config, warnings) = run(
        &[
            "--master=https://10.0.0.1:6443",
            "--kubeconfig=/etc/kube-proxy.conf",
            "--hostname-override=node-2",
            "--proxy-mode=iptables",
            "--iptables-masquerade-bit=15",
            "--iptables-localhost-nodeports=false",
            "--masquerade-all",
            "--cluster-cidr=10.0.0.0/8",
            "--kube-api-qps=5",
            "--oom-score-adj=-998",
            "--profiling",
            "-v=4",
            "--logging-format=json",
        ],
        None,
    )
    .unwrap();
    let source = Source::ApiServer {
        kubeconfig: Some("/etc/kube-proxy.conf".into()),
        url: Some("https://10.0.0.1:6443".into()),
    };
    assert_eq!(config.source, source);
    assert_eq!(config.node_name, "node-2");
    assert_eq!(config.masquerade_mark, 0x8000);
    assert!(config.rules.masquerade_all);
    assert_eq!(words(&config), [NodePortAddress::All].into_iter().collect());
    assert_eq!(
        config.rules.detect_local,
        DetectLocal::ClusterCidr(["10.0.0.0/8".parse().unwrap()].into())
    );
    assert_eq!(
        (config.log_level, config.log_format),
        (LogLevel::Debug, LogFormat::Json)
    );
    let named: Vec<&str> = warnings
        .iter()
        .filter_map(|warning| warning.split(' ').next())
        .collect();
    assert_eq!(named, ["--profiling", "--oom-score-adj"]);
    for flag in [
        "--cleanup",
        "--init-only",
        "--write-config-to=x",
        "--version",
        "--healthz-port=1",
    ] {
        let told = format!("{:#}", run(&[flag], None).unwrap_err());
        assert!(told.starts_with(flag.split('=').next().unwrap()), "{told}");
    }
}

#[test]
fn a_flag_comes_before_the_file_and_what_is_only_implied_after_both() {
    let (config, _) = run(&["--proxy-mode=nftables"], Some("nodePortAddresses: [10.0.0.0/8]")).unwrap();
    let within = NodePortAddress::Within("10.0.0.0/8".parse().unwrap());
    assert_eq!(words(&config), [within].into_iter().collect());
    let (config, _) = run(
        &["--nodeport-addresses=localhost", "-v", "9"],
        Some("logging: {verbosity: 4}"),
    )
    .unwrap();
    assert_eq!(words(&config), [NodePortAddress::Localhost].into_iter().collect());
    assert_eq!(config.log_level, LogLevel::Trace);
}

#[test]
fn node_ports_are_where_the_mode_has_them() {
    let of = |body: &str| words(&run(&[], Some(body)).unwrap().0);
    let list = |addresses: &[NodePortAddress]| addresses.iter().copied().collect();
    let within = |network: &str| NodePortAddress::Within(network.parse().unwrap());
    use NodePortAddress::{All, Localhost, Primary};
    assert_eq!(of("mode: iptables"), list(&[All, Localhost]));
    assert_eq!(of("iptables: {localhostNodePorts: false}"), list(&[All]));
    assert_eq!(of("mode: ipvs"), list(&[All]));
    assert_eq!(of("mode: nftables"), list(&[Primary]));
    assert_eq!(of("nodePortAddresses: [primary]"), list(&[Primary]));
    assert_eq!(of("nodePortAddresses: [10.0.0.0/8]"), list(&[within("10.0.0.0/8")]));
    assert_eq!(
        of("nodePortAddresses: [127.0.0.0/8, 10.0.0.0/8]"),
        list(&[within("127.0.0.0/8"), within("10.0.0.0/8"), Localhost])
    );
}

#[test]
fn a_mode_leaves_the_plane_to_choose_unless_only_one_has_the_scheduler() {
    let plane = |flags: &[&str], body| run(flags, Some(body)).unwrap().0.plane;
    assert_eq!(plane(&[], "mode: nftables"), Wanted::Auto);
    assert_eq!(plane(&[], "mode: ipvs\nipvs: {scheduler: rr}"), Wanted::Auto);
    let least = "mode: ipvs\nipvs: {scheduler: lc, strictARP: true}";
    assert_eq!(plane(&[], least), Wanted::Ipvs);
    assert_eq!(plane(&["--plane=ebpf"], least), Wanted::Ebpf);
    let (config, warnings) = run(&[], Some(least)).unwrap();
    assert_eq!(config.ipvs.scheduler, Scheduler::LeastConnections);
    assert!(config.ipvs.strict_arp);
    assert!(
        warnings.iter().any(|warning| warning.contains("scheduler lc")),
        "{warnings:?}"
    );
    assert!(error("mode: kernelspace").contains("Windows"));
}

#[test]
fn pods_are_told_as_the_mode_says() {
    let of = |body| {
        let (config, warnings) = run(&[], Some(body)).unwrap();
        (config.rules.detect_local, config.pod_links, warnings.len())
    };
    let by_link = DetectLocal::ByLink;
    assert_eq!(
        of("detectLocalMode: NodeCIDR"),
        (DetectLocal::NodeCidr, PodLinks::ByKind, 0)
    );
    assert_eq!(
        of("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}"),
        (by_link.clone(), PodLinks::PortsOf("cbr0".to_owned()), 0)
    );
    let prefix = "cali".to_owned();
    assert_eq!(
        of("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}\nclusterCIDR: 10.0.0.0/8"),
        (by_link.clone(), PodLinks::Named { prefix }, 1)
    );
    assert_eq!(of("detectLocalMode: ClusterCIDR"), (by_link, PodLinks::ByKind, 1));
    assert!(run(&[], Some("detectLocalMode: BridgeInterface")).is_err());
}

#[test]
fn an_address_in_place_of_the_nodes_own_is_refused_where_it_would_count() {
    assert!(error("mode: nftables\nbindAddress: 192.0.2.1").contains("nodePortAddresses: [192.0.2.1/32]"));
    assert!(error("nodePortAddresses: [primary]\nbindAddress: '2001:db8::1'").contains("2001:db8::1/128"));
    assert_eq!(
        file("clusterCIDR: 10.0.0.0/8\nbindAddress: 192.0.2.1")
            .unwrap()
            .warnings
            .len(),
        1
    );
    let (config, _) = run(&[], Some("bindAddress: '::'")).unwrap();
    assert_eq!(config.metrics_address.unwrap().to_string(), "[::1]:10249");
}
