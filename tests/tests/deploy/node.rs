//! The agent of the image serves a node, with the rights that the DaemonSet gives it.

use std::net::SocketAddr;

use k8s_openapi::api::apps::v1::DaemonSet;
use lb_tests::agent::{Agent, Options};
use lb_tests::client::{Client, Protocol};
use lb_tests::container::{Capability, RootFs};
use lb_tests::manifests::{self, Manifest, Service};
use lb_tests::network::{Attachment, Network};
use lb_tests::source::Source;
use lb_tests::stage::TARGET;

use crate::archive::Image;

const MANIFEST: &str = include_str!("../../../deploy/lb-agent.yaml");
const NODE_PORT: u16 = 30_080;
/// Enough for each of two backends to be drawn.
const TIMES: usize = 40;

/// What the shipped DaemonSet lets the agent do.
pub(crate) fn shipped() -> Vec<Capability> {
    let daemon_set = MANIFEST
        .split("\n---\n")
        .find(|document| document.contains("\nkind: DaemonSet\n"))
        .unwrap();
    let daemon_set: DaemonSet = serde_saphyr::from_str(daemon_set).unwrap();
    let pod = daemon_set.spec.unwrap().template.spec.unwrap();
    let context = pod.containers[0].security_context.clone().unwrap();
    let capabilities = context.capabilities.unwrap();
    assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
    assert_ne!(context.privileged, Some(true));
    let names = capabilities.add.unwrap();
    names.iter().map(|name| Capability::named(name).unwrap()).collect()
}

#[test]
fn every_client_is_served_and_a_restart_finds_what_there_is() {
    let image = Image::open();
    let rootfs = RootFs::unpack(image.layers()).unwrap();
    let network = Network::new().unwrap();
    let source = Source::folder().unwrap();
    for node in network.nodes() {
        source.apply(&[Manifest::new(&manifests::node(node)).unwrap()]).unwrap();
    }
    let pods = [
        network.node1().add_pod("here", Attachment::Veth).unwrap(),
        network.nodes()[1].add_pod("there", Attachment::Bridge).unwrap(),
    ];
    let _servers = pods.each_ref().map(|pod| pod.serve(TARGET).unwrap());
    let client = network.node1().add_pod("client", Attachment::Bridge).unwrap();
    let service = Service::new("web", 1, TARGET)
        .at_node_port(NODE_PORT)
        .with_endpoints(&pods);
    source.apply(&service.manifests().unwrap()).unwrap();

    let mut capabilities = shipped();
    // The files of this test lie behind `/proc/<pid of the test>`, which a node's do not.
    capabilities.push(Capability::SysPtrace);
    let options = Options {
        launcher: rootfs.launcher(&capabilities).unwrap(),
        ..Options::default()
    };
    let (pod, host, outside) = (
        client.client(),
        network.node1().client().unwrap(),
        network.outside().client(),
    );
    let cluster = service.cluster_ips.map(|ip| SocketAddr::new(ip, service.ports[0].port));
    let node = network.node1().addresses().map(|ip| SocketAddr::new(ip, NODE_PORT));
    for _ in 0..2 {
        let agent = Agent::start(network.node1(), &source, &options).unwrap();
        for to in cluster {
            for client in [&pod, &host] {
                is_served_by_both(client, to);
            }
        }
        for to in node {
            is_served_by_both(&outside, to);
        }
        let log = agent.log().unwrap();
        assert!(!log.contains("ERROR"), "{log}");
        agent.stop().unwrap();
    }
}

#[track_caller]
fn is_served_by_both(client: &Client, to: SocketAddr) {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let mut names: Vec<_> = (0..TIMES).map(|_| client.ask(protocol, to).unwrap().server).collect();
        names.sort();
        names.dedup();
        assert_eq!(names, ["here", "there"], "{protocol} to {to}");
    }
}
