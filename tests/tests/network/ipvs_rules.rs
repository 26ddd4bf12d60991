//! The nft table of the IPVS plane on this kernel, without IPVS: a server on the node stands where IPVS would.

mod masquerade;
mod verdicts;
mod writing;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;

use lb_agent::desired::{self, AllowedSources, Masquerade, ServedBy};
use lb_agent::plane::ipvs::rules::{Key, NftError, Row, Rules, Table, Verdict};
use lb_tests::client::{Client, Protocol};
use lb_tests::netlink::{Cidr, End};
use lb_tests::netns::Netns;
use lb_tests::network::{Attachment, Network, Pod, plan};
use lb_tests::process;
use lb_tests::server::Server;

const BIT: u32 = 0x4000;
/// Of a Service on a link of the node, as it would be on the dummy link.
const SERVICE: u8 = 1;

/// A node with a pod, a client beside the cluster, and the rules on the node.
struct Scene {
    rules: Rules,
    pod: Pod,
    host: Client,
    outside: Client,
    network: Network,
}

fn scene() -> Scene {
    let network = Network::new().unwrap();
    let node = network.node1();
    let pod = node.add_pod("client", Attachment::Veth).unwrap();
    // Not on the loopback link: the kernel would take the first address that it finds there for the node's, where a
    // link has none of its own. The dummy link is behind the uplink too.
    let netlink = node.netns().netlink().unwrap();
    let peer = End {
        netns: node.netns(),
        name: "peer",
    };
    netlink.add_veth("services", peer, plan::MTU).unwrap();
    let [link, peer] = ["services", "peer"].map(|name| netlink.link(name).unwrap().index);
    netlink.up(link).unwrap();
    netlink.up(peer).unwrap();
    for address in plan::service_addresses(SERVICE) {
        netlink.add_address(link, Cidr::host(address)).unwrap();
    }
    let rules = inside(node.netns(), || Rules::adopt(BIT)).unwrap();
    let links = BTreeSet::from([pod.host_link().index]);
    inside(node.netns(), || rules.replace_pod_links(&links)).unwrap();
    Scene {
        rules,
        host: node.client().unwrap(),
        outside: network.outside().client(),
        pod,
        network,
    }
}

impl Scene {
    fn node(&self) -> &Arc<Netns> {
        self.network.node1().netns()
    }

    fn replace(&self, table: Table) {
        inside(self.node(), || self.rules.replace(table)).unwrap();
    }

    /// A server of the node at a port of the Service.
    fn serve(&self, port: u16) -> Server {
        Server::start_at(self.node(), "node", plan::service_addresses(SERVICE), port).unwrap()
    }

    /// Who asks, by what they are to the node.
    fn clients(&self) -> [(&'static str, Client); 3] {
        [
            ("pod", self.pod.client()),
            ("node", self.host.clone()),
            ("outside", self.outside.clone()),
        ]
    }
}

/// Does something in a namespace. `nft` is waited for in there, so that it does not outlive the thread.
fn inside<T: Send>(netns: &Netns, work: impl FnOnce() -> Result<T, NftError> + Send) -> Result<T, NftError> {
    netns.run(work).unwrap()
}

/// Runs `nft` with a transaction of the test's own.
#[track_caller]
fn nft(netns: &Netns, transaction: &str) -> String {
    let mut command = Command::new("nft");
    command.arg(transaction);
    command.stdout(std::process::Stdio::piped());
    let child = process::spawn(command, netns, None).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{transaction}");
    String::from_utf8(output.stdout).unwrap()
}

/// Where the Service is dialled.
fn at(port: u16) -> [SocketAddr; 2] {
    plan::service_addresses(SERVICE).map(|ip| SocketAddr::new(ip, port))
}

fn key(protocol: Protocol, address: SocketAddr) -> Key {
    let protocol = match protocol {
        Protocol::Tcp => desired::Protocol::Tcp,
        Protocol::Udp => desired::Protocol::Udp,
    };
    Key { protocol, address }
}

fn row(near: Verdict, far: Verdict) -> Row {
    Row {
        near,
        far,
        masquerade: Masquerade::WhereNeeded,
        allowed: None,
    }
}

/// Both protocols and families of a port.
fn frontends(port: u16, row: &Row) -> impl Iterator<Item = (Key, Row)> {
    let addresses = at(port).into_iter();
    addresses.flat_map(|address| [Protocol::Tcp, Protocol::Udp].map(|protocol| (key(protocol, address), row.clone())))
}

/// A table with these ports of the Service, whose addresses are ours.
fn table<'a>(ports: impl IntoIterator<Item = &'a (u16, Row)>) -> Table {
    let ports = ports.into_iter();
    Table {
        frontends: ports.flat_map(|(port, row)| frontends(*port, row)).collect(),
        cluster_ips: plan::service_addresses(SERVICE).map(|ip| (ip, ServedBy::Us)).into(),
        ..Table::default()
    }
}

fn allowed(addresses: impl IntoIterator<Item = IpAddr>, node: bool) -> Option<Arc<AllowedSources>> {
    let ranges = addresses.into_iter().map(ipnet::IpNet::from).collect();
    Some(Arc::new(AllowedSources { ranges, node }))
}
