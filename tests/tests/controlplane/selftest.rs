//! The control plane itself: that what other tests stand on is there, and is the real thing.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Service;
use kube::config::Kubeconfig;
use kube::{Api, Client, Config};
use lb_tests::controlplane::{ControlPlane, Options, kubernetes_version};
use lb_tests::netlink::Cidr;
use lb_tests::netns::Netns;
use serde_json::Value;

/// A dual-stack Service with the endpoints of one family written by hand, as every test here does it.
const WEB: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  ipFamilyPolicy: RequireDualStack
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: default
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
endpoints:
  - addresses: [10.0.1.7]
    conditions: {ready: true}
ports: [{name: http, port: 8080, protocol: TCP}]
"#;

/// What the agent's user may do, as the API server sums it up: `verb group/resource` (no group is the core group). What
/// every user may do, which is to ask who they are and what they may, is left out.
fn agent_rights(cluster: &ControlPlane) -> Result<BTreeSet<String>> {
    let review = cluster.dir().join("review.yaml");
    fs::write(
        &review,
        "{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectRulesReview, spec: {namespace: default}}",
    )?;
    let path = review.to_str().context("the path is no text")?;
    let answer: Value =
        serde_json::from_str(&cluster.kubectl_as_agent(&["create", "--validate=false", "-o", "json", "-f", path])?)?;
    assert_eq!(answer["status"]["incomplete"], false, "{answer}");
    let strings = |value: &Value| -> Vec<String> {
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in answer["status"]["resourceRules"]
        .as_array()
        .context("there are no rules")?
    {
        assert!(rule.get("resourceNames").is_none(), "{rule}");
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                rights.extend(
                    strings(&rule["verbs"])
                        .iter()
                        .map(|verb| format!("{verb} {group}/{resource}")),
                );
            }
        }
    }
    rights.retain(|right| !right.starts_with("create auth") || !right.contains("k8s.io/self"));
    Ok(rights)
}

/// The names of all Services, read with the client library that the agent uses.
fn names_by_library(kubeconfig: &Path) -> Result<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &Default::default()).await?;
        let services = Api::<Service>::all(Client::try_from(config)?)
            .list(&Default::default())
            .await?;
        let mut names: Vec<_> = services
            .items
            .into_iter()
            .filter_map(|service| service.metadata.name)
            .collect();
        names.sort();
        Ok(names)
    })
}

#[test]
fn objects_rights_and_an_outage() -> Result<()> {
    let started = Instant::now();
    let mut cluster = ControlPlane::start(&Options::default())?;
    eprintln!(
        "ready after {:.1} s at {}",
        started.elapsed().as_secs_f32(),
        cluster.url()
    );

    // It says that it is what it was built from, not v0.0.0.
    let version: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw=/version"])?)?;
    assert_eq!(version["gitVersion"], format!("v{}", kubernetes_version()));

    // Both families, from our ranges.
    cluster.apply(WEB)?;
    let service: Value = serde_json::from_str(&cluster.kubectl(&["get", "service", "web", "-o", "json"])?)?;
    let ips = service["spec"]["clusterIPs"]
        .as_array()
        .context("the Service has no clusterIPs")?;
    let starts: Vec<_> = ips
        .iter()
        .filter_map(|ip| ip.as_str()?.split_inclusive(['.', ':']).next())
        .collect();
    assert_eq!(starts, ["10.", "fd00:"], "{ips:?}");
    let slice_of = |cluster: &ControlPlane| {
        cluster.kubectl(&[
            "get",
            "endpointslice",
            "web-1",
            "-o",
            "jsonpath={.endpoints[0].addresses[0]}:{.ports[0].port}",
        ])
    };
    assert_eq!(slice_of(&cluster)?, "10.0.1.7:8080");

    // The agent's user: what it needs, nothing else. All of it goes through the role in `deploy/rbac.yaml`.
    let needs = [
        ("list watch", "/services"),
        ("list watch", "discovery.k8s.io/endpointslices"),
        ("list watch", "/nodes"),
        ("list watch", "/pods"),
        ("list watch", "networking.k8s.io/servicecidrs"),
        ("create patch", "events.k8s.io/events"),
    ];
    let needs: BTreeSet<_> = needs
        .iter()
        .flat_map(|(verbs, what)| verbs.split(' ').map(move |verb| format!("{verb} {what}")))
        .collect();
    assert_eq!(agent_rights(&cluster)?, needs);
    // Not only what the server says it would do.
    assert!(
        cluster
            .kubectl_as_agent(&["get", "services", "-A", "-o", "name"])?
            .contains("service/web")
    );
    let refused = format!("{:#}", cluster.kubectl_as_agent(&["get", "secrets", "-A"]).unwrap_err());
    assert!(
        refused.contains("Forbidden") && refused.contains("system:serviceaccount:kube-system:lb-agent"),
        "{refused}"
    );

    // The agent's own client takes the kubeconfig too, and its TLS stack the certificates.
    assert_eq!(names_by_library(&cluster.kubeconfig_agent())?, ["kubernetes", "web"]);

    // An outage: nobody answers, then everything is as it was, at the same place.
    let url = cluster.url();
    let before = service["spec"]["clusterIPs"].clone();
    cluster.stop_apiserver()?;
    assert!(cluster.apiserver_pid().is_none());
    let address: SocketAddr = url.trim_start_matches("https://").parse()?;
    assert!(
        TcpStream::connect(address).is_err(),
        "somebody still listens at {address}"
    );
    cluster.start_apiserver()?;
    assert_eq!(cluster.url(), url);
    let service: Value = serde_json::from_str(&cluster.kubectl(&["get", "service", "web", "-o", "json"])?)?;
    assert_eq!(service["spec"]["clusterIPs"], before);
    assert_eq!(slice_of(&cluster)?, "10.0.1.7:8080");

    // Nothing is left of it, neither processes nor files.
    let pids = [cluster.etcd_pid(), cluster.apiserver_pid()].map(|pid| pid.expect("it runs"));
    let dir = cluster.dir().to_owned();
    assert!(fs::metadata(dir.join("etcd.sock"))?.file_type().is_socket());
    drop(cluster);
    assert!(!dir.exists());
    for pid in pids {
        assert!(
            !Path::new(&format!("/proc/{pid}")).exists(),
            "process {pid} is still there"
        );
    }
    Ok(())
}

#[test]
fn in_a_network_namespace() -> Result<()> {
    let address = IpAddr::from([192, 0, 2, 1]);
    let netns = Netns::new("apiserver")?;
    let lo = netns.netlink()?.link("lo")?;
    netns.netlink()?.add_address(lo.index, Cidr::host(address))?;
    let options = Options {
        netns: Some(netns.path()),
        address,
        ..Options::default()
    };
    let cluster = ControlPlane::start(&options)?;
    assert_eq!(cluster.url(), "https://192.0.2.1:6443");

    // Clients inside reach it, nobody here does.
    let at: SocketAddr = "192.0.2.1:6443".parse()?;
    assert!(netns.run(|| TcpStream::connect(at))?.is_ok());
    let soon = Duration::from_secs(1);
    assert!(TcpStream::connect_timeout(&at, soon).is_err());

    // It keeps its own EndpointSlice, as a real one does.
    let slice = [
        "get",
        "endpointslices",
        "kubernetes",
        "-o",
        "jsonpath={.endpoints[*].addresses[*]}:{.ports[0].port}",
    ];
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match cluster.kubectl(&slice) {
            Ok(endpoint) => break assert_eq!(endpoint, at.to_string()),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
    Ok(())
}

#[test]
fn a_start_that_fails_says_why() {
    let options = Options {
        apiserver_args: vec!["--no-such-flag".into()],
        ..Options::default()
    };
    let error = format!("{:#}", ControlPlane::start(&options).unwrap_err());
    assert!(
        error.contains("kube-apiserver ended") && error.contains("unknown flag: --no-such-flag"),
        "{error}"
    );

    let options = Options {
        tools: "/nonexistent".into(),
        ..Options::default()
    };
    let error = format!("{:#}", ControlPlane::start(&options).unwrap_err());
    assert!(
        error.contains("cargo xtask setup --controlplane") && error.contains("cargo xtask controlplane up"),
        "{error}"
    );
}
