//! In the place of the real kube-proxy: its configuration is understood, it is noticed while it runs, and what it
//! leaves is removed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use lb_agent::config::{Given, kube_proxy::TABLE};
use lb_tests::agent::{self, Agent, Options};
use lb_tests::controlplane::{ControlPlane, KubeProxy, KubeProxyOptions, Mode, kube_proxy_output};
use lb_tests::interrupt::eventually;
use lb_tests::manifests::{self, Manifest, Service};
use lb_tests::network::{Attachment, Network, Node};
use lb_tests::owner::Folder;
use lb_tests::process;
use lb_tests::source::Source;
use lb_tests::stage::TARGET;

/// Longer than an agent takes to look again.
const SOON: Duration = Duration::from_secs(90);
/// Both kinds of the tools, in both families, as far as this machine has them.
const TOOLS: [&str; 4] = ["iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"];
/// Somebody else's rules: a chain of its own with a name that begins like kube-proxy's, and a rule of the user.
const FOREIGN: &str = "\
*filter
:KUBE-ROUTER-INPUT - [0:0]
-A INPUT -j KUBE-ROUTER-INPUT
-A KUBE-ROUTER-INPUT -p tcp -m tcp --dport 9 -m comment --comment \"not -j KUBE-FORWARD\" -j DROP
COMMIT
*nat
:CNI-HOSTPORT-DNAT - [0:0]
-A PREROUTING -j CNI-HOSTPORT-DNAT
COMMIT
";

/// A network with an API server, the objects of its nodes, and a Service with an endpoint.
fn cluster() -> (Network, Source) {
    let network = Network::new().unwrap();
    let source = Source::api_server(&network).unwrap();
    let nodes = network.nodes().each_ref();
    source
        .apply(&nodes.map(|node| Manifest::new(&manifests::node(node)).unwrap()))
        .unwrap();
    let pod = network.node1().add_pod("backend", Attachment::Veth).unwrap();
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&pod]);
    source.apply(&service.manifests().unwrap()).unwrap();
    (network, source)
}

fn api(source: &Source) -> &ControlPlane {
    match source {
        Source::ApiServer(cluster) => cluster,
        Source::Folder(_) => panic!("an API server expected"),
    }
}

/// What a program on a node writes to standard output; `None` if this machine has it not.
fn run(node: &Node, program: &str, args: &[&str], input: Option<&str>) -> Option<String> {
    let folder = Folder::new().unwrap();
    let path = folder.path().join("input");
    std::fs::write(&path, input.unwrap_or_default()).unwrap();
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(std::fs::File::open(&path).unwrap())
        .stdout(Stdio::piped());
    Command::new(program).arg("--version").output().ok()?;
    let output = process::spawn(command, node.netns(), None)
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert!(output.status.success(), "{program} {args:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Rules and chains of iptables as each tool lists them, but for the built-in chains, with which counters go.
fn chains(node: &Node) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for tool in TOOLS {
        let Some(listing) = run(node, &format!("{tool}-save"), &[], None) else {
            continue;
        };
        let mut table = "";
        for line in listing.lines() {
            match line.as_bytes().first() {
                Some(b'*') => table = line,
                Some(b':') if line.contains(" - ") => {
                    lines.insert(format!("{tool} {table} {}", line.split(' ').next().unwrap()));
                }
                Some(b'-') => drop(lines.insert(format!("{tool} {table} {line}"))),
                _ => {}
            }
        }
    }
    lines
}

/// The tables of nftables that `iptables` did not make.
fn tables(node: &Node) -> BTreeSet<String> {
    let listing = run(node, "nft", &["list", "tables"], None).unwrap();
    let tables = listing.lines().map(str::to_owned);
    tables
        .filter(|table| {
            !["filter", "nat", "mangle"]
                .iter()
                .any(|name| table.ends_with(&format!(" {name}")))
        })
        .collect()
}

/// Removes what a kube-proxy in this mode has left, and looks at what is left then.
#[track_caller]
fn nothing_is_left_but_what_others_wrote(mode: Mode) {
    let (network, source) = cluster();
    let node = network.node1();
    for tool in TOOLS {
        run(node, &format!("{tool}-restore"), &["--noflush"], Some(FOREIGN));
    }
    run(
        node,
        "nft",
        &["-f", "-"],
        Some("add table ip foreign\nadd chain ip foreign kube-proxy\n"),
    );
    let (chains_before, tables_before) = (chains(node), tables(node));
    assert!(chains_before.iter().any(|line| line.contains("KUBE-ROUTER-INPUT")));

    let proxy = KubeProxy::start(node, api(&source), &KubeProxyOptions::in_mode(mode)).unwrap();
    assert_ne!(
        (chains(node), tables(node)),
        (chains_before.clone(), tables_before.clone())
    );
    let refused = agent::offline(node, "cleanup", &["--kube-proxy"]).unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(told.contains(&format!("process {}", proxy.pid())), "{told}");
    drop(proxy);

    let output = agent::offline(node, "cleanup", &["--kube-proxy"]).unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = match mode {
        Mode::Nftables => "removed nft table ip6 kube-proxy\n",
        Mode::Iptables | Mode::Ipvs => "chains of the table nat of ip6tables",
    };
    assert!(told.contains(expected), "{told}");
    assert_eq!(tables(node), tables_before);
    let mut chains_after = chains(node);
    // The kubelet's as much as kube-proxy's, which does not remove it by itself either.
    chains_after.retain(|line| !line.contains("KUBE-FIREWALL"));
    assert_eq!(chains_after, chains_before);

    let again = agent::offline(node, "cleanup", &["--kube-proxy"]).unwrap();
    let told = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(
        told.ends_with("there was nothing of kube-proxy's to remove\n"),
        "{told}"
    );
}

#[test]
fn nothing_is_left_of_nftables_mode_but_what_others_wrote() {
    nothing_is_left_but_what_others_wrote(Mode::Nftables);
}

#[test]
fn nothing_is_left_of_iptables_mode_but_what_others_wrote() {
    nothing_is_left_but_what_others_wrote(Mode::Iptables);
}

#[test]
fn a_kube_proxy_beside_the_agent_is_told_in_the_log_and_on_the_node() {
    let (network, source) = cluster();
    let node = network.node1();
    let options_of_agent = Options {
        args: ["--healthz-bind-address=", "--metrics-bind-address="]
            .map(Into::into)
            .to_vec(),
        ..Options::default()
    };
    let proxy = KubeProxy::start(node, api(&source), &KubeProxyOptions::in_mode(Mode::Nftables)).unwrap();
    let mut agent = Agent::start(node, &source, &options_of_agent).unwrap();
    let told = agent.wait_for_log(SOON, "kube-proxy runs on this node").unwrap();
    assert!(told.contains(&format!("process {}", proxy.pid())), "{told}");
    let event = eventually(SOON, "an event on the Node", || {
        let args = [
            "get",
            "events",
            "-A",
            "--field-selector=reason=KubeProxyActive",
            "-o=wide",
        ];
        let events = api(&source).kubectl(&args)?;
        Ok(events.contains("KubeProxyActive").then_some(events))
    })
    .unwrap();
    assert!(event.contains("Warning") && event.contains(node.name()), "{event}");
    drop(proxy);
    agent.wait_for_log(SOON, "kube-proxy does not run any more").unwrap();
}

#[test]
fn with_kube_proxys_file_and_flags_alone_the_agent_serves_where_kube_proxy_would() {
    let (network, source) = cluster();
    let node = network.node1();
    let folder = Folder::new().unwrap();
    let path = folder.path().join("config.conf");
    let kubeconfig = api(&source).kubeconfig_agent();
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
         clientConnection: {{kubeconfig: {}}}\ndetectLocalMode: NodeCIDR\noomScoreAdj: -998\n",
        kubeconfig.display()
    );
    std::fs::write(&path, text).unwrap();
    let arguments = ["--config".into(), path.into_os_string()];
    let options = Options {
        args: ["--hostname-override", node.name(), "-v=4"].map(Into::into).to_vec(),
        ..Options::default()
    };
    let mut agent = Agent::spawn_reading(node, arguments, &options).unwrap();
    agent.wait_ready().unwrap();
    let log = agent.log().unwrap();
    assert_eq!(log.matches("does nothing here").count(), 1, "{log}");
    assert!(
        log.contains("oomScoreAdj does nothing here") && log.contains("DEBUG"),
        "{log}"
    );
    // In iptables mode every address of the node has NodePorts, that of localhost too.
    let [address, _] = node.addresses();
    let served = agent.wait_for_log(SOON, "NodePorts are served").unwrap();
    for address in ["127.0.0.1", &address.to_string()] {
        assert!(served.contains(address), "{served}");
    }
}

#[test]
fn the_configuration_that_kube_proxy_writes_itself_is_understood() {
    let folder = Folder::new().unwrap();
    let path = folder.path().join("config.yaml");
    kube_proxy_output(&[OsStr::new("--write-config-to"), path.as_os_str()]).unwrap();
    let given = Given::read(&path).unwrap();
    let warnings: Vec<_> = given
        .warnings
        .iter()
        .filter(|warning| !warning.contains("clusterCIDR"))
        .collect();
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn each_flag_that_kube_proxy_has_is_in_the_table() {
    let help = kube_proxy_output(&[OsStr::new("--help")]).unwrap();
    let flags = help.lines().filter_map(|line| {
        let (_, flag) = line.split_once("--")?;
        let is_flag = line.trim_start().starts_with('-');
        is_flag.then(|| flag.split([' ', '=', '[']).next().unwrap_or_default().to_owned())
    });
    let known: BTreeSet<&str> = TABLE.iter().filter_map(|row| row.flag).collect();
    let flags: BTreeSet<String> = flags.collect();
    assert!(flags.len() > 50, "{flags:?}");
    let unknown: Vec<_> = flags
        .iter()
        .filter(|flag| !known.contains(flag.as_str()) && !["config", "help"].contains(&flag.as_str()))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
