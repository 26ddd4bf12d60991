//! What comes to the nodes, and what the chart refuses.

use std::collections::BTreeMap;
use std::fs;

use clap::Parser as _;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, SecurityContext, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use lb_agent::cli::Cli;

use crate::helm::{Rendered, file, helm, render};

/// Values that change what is rendered as much as they can.
pub(crate) const EVERYTHING: [&str; 9] = [
    "--set=socketLB=all",
    "--set=image.digest=sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "--set=imagePullSecrets[0].name=registry",
    "--set=podLabels.team=network",
    "--set=podAnnotations.note=x",
    "--set=podSecurityContext.seccompProfile.type=RuntimeDefault",
    "--set=securityContext.seLinuxOptions.level=s0",
    "--set=serviceAccount.annotations.note=x",
    "--set-json=affinity={\"nodeAffinity\":{}}",
];

fn rendered(args: &[&str]) -> Rendered {
    render(args).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

#[track_caller]
fn is_refused(args: &[&str], said: &[&str]) {
    let Err(error) = render(args) else {
        panic!("{args:?} is rendered");
    };
    for text in said {
        assert!(error.contains(text), "no {text:?} in: {error}");
    }
}

#[test]
fn the_manifests_are_what_the_chart_renders() {
    for (manifest, args) in [
        (
            "deploy/rbac.yaml",
            &["--show-only=templates/rbac.yaml", "--set=socketLB=all"][..],
        ),
        ("deploy/lb-agent.yaml", &[]),
    ] {
        let shipped = fs::read_to_string(file(manifest)).unwrap();
        // Helm leaves empty lines between documents.
        let text = rendered(args).text;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        assert_eq!(
            lines.collect::<Vec<_>>(),
            shipped.lines().collect::<Vec<_>>(),
            "{manifest} is stale: `cargo xtask chart` writes it"
        );
    }
}

#[test]
fn helm_finds_nothing_to_say() {
    for values in [&[][..], &EVERYTHING] {
        let args = [
            "lint",
            "--strict",
            "deploy/helm/lb-agent",
            "--values=deploy/values.yaml",
        ];
        let output = helm(&[&args[..], values].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn every_object_is_one_of_its_type_and_loses_nothing_there() {
    for values in [&[][..], &EVERYTHING] {
        let rendered = rendered(values);
        rendered.object::<ServiceAccount>("ServiceAccount");
        rendered.object::<ClusterRole>("ClusterRole");
        rendered.object::<ClusterRoleBinding>("ClusterRoleBinding");
        rendered.object::<ConfigMap>("ConfigMap");
        rendered.object::<DaemonSet>("DaemonSet");
        assert_eq!(rendered.objects().len(), 5);
    }
}

#[test]
fn the_agent_understands_how_it_is_started() {
    let container = &rendered(&[]).pod().containers[0];
    let args = container.args.clone().unwrap();
    Cli::try_parse_from([&["lb-agent".to_owned()], args.as_slice()].concat()).unwrap();
    let mounts = container.volume_mounts.as_ref().unwrap();
    assert!(args.iter().any(|arg| arg == "--config=/etc/lb-agent/config.yaml"));
    assert!(mounts.iter().any(|mount| mount.mount_path == "/etc/lb-agent"));
}

#[test]
fn the_agent_goes_to_the_api_server_and_not_by_its_service() {
    for (args, host, port) in [
        (&[][..], "api.cluster.example", "6443"),
        (
            &["--set=apiServer.host=fd00::1", "--set=apiServer.port=443"],
            "fd00::1",
            "443",
        ),
    ] {
        let pod = rendered(args).pod();
        assert_eq!(
            (pod.host_network, pod.dns_policy.as_deref()),
            (Some(true), Some("Default"))
        );
        let environment = pod.containers[0].env.clone().unwrap();
        let environment: BTreeMap<_, _> = environment.into_iter().map(|var| (var.name, var.value)).collect();
        assert_eq!(environment["KUBERNETES_SERVICE_HOST"].as_deref(), Some(host));
        assert_eq!(environment["KUBERNETES_SERVICE_PORT"].as_deref(), Some(port));
    }
    is_refused(&["--set=apiServer.host="], &["apiServer.host is empty"]);
}

#[test]
fn the_agent_has_the_rights_that_its_settings_take() {
    let context = |args: &[&str]| rendered(args).pod().containers[0].security_context.clone().unwrap();
    let added = |context: &SecurityContext| context.capabilities.clone().unwrap().add.unwrap();
    let usual = context(&[]);
    assert_eq!(added(&usual), ["NET_ADMIN", "BPF", "PERFMON"]);
    assert_eq!(usual.privileged, None);
    assert_eq!(usual.allow_privilege_escalation, Some(false));
    assert_eq!(usual.read_only_root_filesystem, Some(true));
    // Else AppArmor and SELinux, where a node has them, keep a container from what is below /sys/fs/bpf.
    assert_eq!(usual.app_armor_profile.unwrap().type_, "Unconfined");
    assert_eq!(usual.se_linux_options.unwrap().type_.as_deref(), Some("spc_t"));
    let older = context(&[
        "--set=extraCapabilities[0]=SYS_RESOURCE",
        "--set=extraCapabilities[1]=BPF",
    ]);
    assert_eq!(added(&older), ["NET_ADMIN", "BPF", "PERFMON", "SYS_RESOURCE"]);
    let pods = context(&["--set=socketLB=all"]);
    assert_eq!(added(&pods), ["NET_ADMIN", "BPF", "PERFMON", "SYS_PTRACE", "SYS_ADMIN"]);
    // An API server takes no "never" beside CAP_SYS_ADMIN, nor beside all rights.
    assert_eq!(pods.allow_privilege_escalation, None);
    let all = context(&["--set=privileged=true"]);
    assert_eq!(
        (all.privileged, all.capabilities, all.allow_privilege_escalation),
        (Some(true), None, None)
    );
}

#[test]
fn it_sees_the_pods_and_the_processes_of_a_node_only_where_their_sockets_are_translated() {
    for (who, expected) in [("host", None), ("all", Some(true)), ("off", None)] {
        let rendered = rendered(&[&*format!("--set=socketLB={who}")]);
        assert_eq!(rendered.pod().host_pid, expected, "{who}");
        let role: ClusterRole = rendered.object("ClusterRole");
        let resources: Vec<_> = role
            .rules
            .unwrap()
            .into_iter()
            .filter_map(|rule| rule.resources)
            .collect();
        assert_eq!(
            resources.concat().contains(&"pods".to_owned()),
            expected.is_some(),
            "{who}"
        );
    }
}

#[test]
fn another_configuration_is_rolled_out() {
    let template = |args: &[&str]| {
        let daemon_set: DaemonSet = rendered(args).object("DaemonSet");
        daemon_set.spec.unwrap().template.metadata.unwrap().annotations.unwrap()["lb-agent.io/config"].clone()
    };
    assert_eq!(template(&[]), template(&[]));
    assert_ne!(template(&[]), template(&["--set=log.level=debug"]));
}

#[test]
fn values_that_exclude_each_other_are_refused_with_the_way_out() {
    is_refused(&["--set=plane=ipvs"], &["privileged: true"]);
    is_refused(&["--set=setSysctls=true"], &["privileged: true"]);
    is_refused(&["--set=metrics.podMonitor.enabled=true"], &["metrics.address"]);
    let without = ["--set=metrics.podMonitor.enabled=true", "--set=metrics.enabled=false"];
    is_refused(&without, &["takes metrics.enabled"]);
}

#[test]
fn values_that_there_are_not_or_that_make_no_sense_are_refused_by_their_names() {
    for (args, said) in [
        ("--set=socketLb=all", "socketLb"),
        ("--set=plane=iptables", "plane"),
        ("--set=healthz.port=70000", "port"),
        ("--set=image.digest=abc", "digest"),
        ("--set=extraCapabilities[0]=CAP_BPF", "extraCapabilities"),
        ("--set=hostPaths.run=run", "run"),
    ] {
        is_refused(&[args], &[said]);
    }
}

#[test]
fn prometheus_is_told_where_to_ask_if_it_is_to() {
    let kinds = |rendered: &Rendered| -> Vec<String> {
        let objects = rendered.objects();
        objects
            .iter()
            .map(|object| object["kind"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(!kinds(&rendered(&[])).contains(&"PodMonitor".to_owned()));
    let monitored = rendered(&[
        "--set=metrics.podMonitor.enabled=true",
        "--set=metrics.address=0.0.0.0",
        "--set=metrics.podMonitor.labels.release=prometheus",
    ]);
    let objects = monitored.objects();
    let monitor = objects.iter().find(|object| object["kind"] == "PodMonitor").unwrap();
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
    let ports = monitored.pod().containers[0].ports.clone().unwrap();
    let named: Vec<_> = ports
        .iter()
        .filter(|known| known.name.as_deref() == port.as_str())
        .collect();
    assert_eq!(named[0].container_port, 10249);
    let selector = &monitor["spec"]["selector"]["matchLabels"];
    let daemon_set: DaemonSet = monitored.object("DaemonSet");
    let labels = daemon_set.spec.unwrap().template.metadata.unwrap().labels.unwrap();
    for (name, value) in selector.as_object().unwrap() {
        assert_eq!(labels.get(name).map(String::as_str), value.as_str(), "{name}");
    }
}
