//! Metrics beside those of the real kube-proxy, of the same node and the same objects.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use lb_agent::metrics::{Kind, descriptions};
use lb_tests::agent::{Agent, Options};
use lb_tests::controlplane::{ControlPlane, KubeProxy, KubeProxyOptions, Mode};
use lb_tests::exposition::Exposition;
use lb_tests::http;
use lb_tests::interrupt::eventually;
use lb_tests::manifests::{self, Manifest, Service};
use lb_tests::network::{Attachment, Network, Node};
use lb_tests::source::Source;
use lb_tests::stage::TARGET;
use serde_json::json;

/// Longer than a change takes, with kube-proxy's pauses.
const SOON: Duration = Duration::from_secs(60);
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const PROGRAMMED: &str = "kubeproxy_network_programming_duration_seconds";

fn api(source: &Source) -> &ControlPlane {
    match source {
        Source::ApiServer(cluster) => cluster,
        Source::Folder(_) => panic!("an API server expected"),
    }
}

fn ask(node: &Node, port: u16, path: &str) -> http::Answer {
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    http::get(node.netns(), at, path).unwrap()
}

/// Has an endpoint become ready or not, for a change that is told to have been now.
fn change_endpoint(cluster: &ControlPlane, slice: &str, is_ready: bool) {
    let now = jiff::Timestamp::now().to_string();
    let patch = json!([
        {
            "op": "add",
            "path": "/metadata/annotations",
            "value": { "endpoints.kubernetes.io/last-change-trigger-time": now },
        },
        { "op": "add", "path": "/endpoints/0/conditions", "value": { "ready": is_ready } },
    ]);
    cluster
        .kubectl(&["patch", "endpointslice", slice, "--type=json", "-p", &patch.to_string()])
        .unwrap();
}

/// Asks for the health and has an endpoint change, and gives the metrics after that.
fn observed(node: &Node, cluster: &ControlPlane, is_ready: bool, metrics: impl Fn() -> String) -> Exposition {
    for path in ["/healthz", "/healthz", "/livez"] {
        let good = || Ok((ask(node, 10256, path).status == 200).then_some(()));
        eventually(SOON, path, good).unwrap();
    }
    let slices = cluster
        .kubectl(&[
            "get",
            "endpointslices",
            "-l=kubernetes.io/service-name=web",
            "-o=jsonpath={range .items[?(@.addressType==\"IPv4\")]}{.metadata.name}{\"\\n\"}{end}",
        ])
        .unwrap();
    change_endpoint(cluster, slices.lines().next().unwrap(), is_ready);
    eventually(SOON, "a change that was measured", || {
        let metrics = Exposition::parse(&metrics())?;
        // kube-proxy tells the one within a round, and the other at its end.
        let counts = [PROGRAMMED, "kubeproxy_sync_partial_proxy_rules_duration_seconds"]
            .map(|name| metrics.value(&format!("{name}_count"), &[("ip_family", "IPv4")]));
        let are_measured = counts.iter().all(|count| count.is_some_and(|count| count >= 1.0));
        Ok(are_measured.then_some(metrics))
    })
    .unwrap()
}

#[test]
fn what_has_kube_proxys_name_is_what_kube_proxy_tells() {
    let network = Network::new().unwrap();
    let source = Source::api_server(&network).unwrap();
    let node = network.node1();
    let nodes = network.nodes().each_ref();
    source
        .apply(&nodes.map(|node| Manifest::new(&manifests::node(node)).unwrap()))
        .unwrap();
    let here = node.add_pod("here", Attachment::Veth).unwrap();
    let there = network.node2().add_pod("there", Attachment::Veth).unwrap();
    let web = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&here]);
    let elsewhere = Service::new("elsewhere", 2, TARGET)
        .at_node_port(30_002)
        .with_endpoints([&there]);
    for service in [&web, &elsewhere] {
        source.apply(&service.manifests().unwrap()).unwrap();
    }
    let local = r#"{"spec": {"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}}"#;
    api(&source)
        .kubectl(&["patch", "service", "elsewhere", "--type=merge", "-p", local])
        .unwrap();

    let options = KubeProxyOptions::in_mode(Mode::Nftables);
    let proxy = KubeProxy::start(node, api(&source), &options).unwrap();
    let theirs = observed(node, api(&source), false, || proxy.metrics(node).unwrap());
    drop(proxy);
    let agent = Agent::start(node, &source, &Options::default()).unwrap();
    let ours = observed(node, api(&source), true, || ask(node, 10249, "/metrics").body);

    for description in descriptions().filter(|it| it.name.starts_with("kubeproxy_")) {
        let name = description.name;
        assert_eq!(theirs.kinds.get(name), Some(&description.kind.to_string()), "{name}");
        assert_eq!(ours.kinds.get(name), theirs.kinds.get(name), "{name}");
        for series in description.series() {
            assert_eq!(ours.labels(&series), theirs.labels(&series), "{series}");
        }
        if description.kind == Kind::Histogram {
            let (ours, theirs) = (ours.bounds(name), theirs.bounds(name));
            assert!(
                theirs.iter().all(|bound| ours.contains(bound)),
                "{name}: {theirs:?} {ours:?}"
            );
        }
    }
    let same = |name: &str, labels: &[(&str, &str)]| {
        let value = ours.value(name, labels);
        assert!(value.is_some_and(|value| value > 0.0), "{name} {labels:?}: {value:?}");
        assert_eq!(value, theirs.value(name, labels), "{name} {labels:?}");
    };
    for family in FAMILIES {
        for policy in ["internal", "external"] {
            let labels = [("traffic_policy", policy), ("ip_family", family)];
            same("kubeproxy_sync_proxy_rules_no_local_endpoints_total", &labels);
        }
    }
    same("kubeproxy_proxy_healthz_total", &[("code", "200")]);
    same("kubeproxy_proxy_livez_total", &[("code", "200")]);
    // Those of the list, and the one that changed.
    same("kubeproxy_sync_proxy_rules_endpoint_changes_total", &[]);
    same(&format!("{PROGRAMMED}_count"), &[("ip_family", "IPv4")]);
    let services = "kubeproxy_sync_proxy_rules_service_changes_total";
    let once_a_family = ours.value(services, &[]).map(|count| count * 2.0);
    assert_eq!(theirs.value(services, &[]), once_a_family);
    for pending in ["endpoint", "service"] {
        let name = format!("kubeproxy_sync_proxy_rules_{pending}_changes_pending");
        assert_eq!(
            (ours.value(&name, &[]), theirs.value(&name, &[])),
            (Some(0.0), Some(0.0))
        );
    }
    agent.stop().unwrap();
}

#[test]
fn an_api_server_that_is_reached_through_a_service_of_the_agents_is_refused_while_it_still_is() {
    let network = Network::new().unwrap();
    let source = Source::api_server(&network).unwrap();
    let node = network.node1();
    source.apply(&[Manifest::new(&manifests::node(node)).unwrap()]).unwrap();
    let options = KubeProxyOptions::in_mode(Mode::Nftables);
    // Somebody serves the Service that leads to the API server, or nobody would hear of it.
    let _proxy = KubeProxy::start(node, api(&source), &options).unwrap();
    let by_service = [
        "--kubeconfig".into(),
        api(&source).kubeconfig_agent().into_os_string(),
        "--apiserver=https://10.96.0.1:443".into(),
    ];
    let elsewhere = Options {
        args: ["--healthz-bind-address=", "--metrics-bind-address="]
            .map(Into::into)
            .to_vec(),
        ..Options::default()
    };
    let mut agent = Agent::spawn_reading(node, by_service, &elsewhere).unwrap();
    let told = agent
        .wait_for_log(SOON, "the ClusterIP of a Service that this agent serves")
        .unwrap();
    for said in ["10.96.0.1", "--apiserver URL", "KUBERNETES_SERVICE_HOST"] {
        assert!(told.contains(said), "no {said} in: {told}");
    }
    assert!(!agent.log().unwrap().contains(" ready "));
}
