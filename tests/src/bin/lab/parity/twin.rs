//! One of the two copies of the network: all who ask and all who answer.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use lb_tests::client::Client;
use lb_tests::interrupt;
use lb_tests::netlink::{Cidr, Route};
use lb_tests::netns::Netns;
use lb_tests::network::{Attachment, Network, Options, Pod, plan};
use lb_tests::server::Server;

use super::actors::{self, Backend, Net, SERVICE_NETS, Source};
use super::catalogue;
use super::service::{SECOND_TARGET, TARGET};

/// A copy. Its addresses and names are those of the other one.
#[derive(Debug)]
pub(crate) struct Twin {
    clients: BTreeMap<Source, Client>,
    // They hold sockets in the namespaces; who drops the network drops them first.
    _servers: Vec<Server>,
    pods: BTreeMap<Pods, Pod>,
    network: Network,
}

/// The pods, in the order in which they get their addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Pods {
    Backend(Backend),
    ClientElsewhere,
}

impl Twin {
    /// Builds it.
    pub(crate) fn build() -> Result<Self> {
        let network = Network::with(Options {
            // Packets of the other node's pods to the node's own address come in by the uplink, and the answers leave by the tunnel.
            rp_filter: 2,
            // What kube-proxy does is not ours to answer for.
            verify_checksums: false,
            ..Options::default()
        })?;
        prepare(&network)?;
        let (here, there) = (network.node1(), network.node2());
        let mut pods = BTreeMap::new();
        for (backend, node, attachment) in [
            (Backend::HereBridge, here, Attachment::Bridge),
            (Backend::HereVeth, here, Attachment::Veth),
            (Backend::ThereBridge, there, Attachment::Bridge),
            (Backend::ThereVeth, there, Attachment::Veth),
            (Backend::BridgeClient, here, Attachment::Bridge),
            (Backend::VethClient, here, Attachment::Veth),
        ] {
            pods.insert(Pods::Backend(backend), node.add_pod(backend.name(), attachment)?);
            interrupt::check()?;
        }
        let elsewhere = there.add_pod("client-elsewhere", Attachment::Bridge)?;
        pods.insert(Pods::ClientElsewhere, elsewhere);
        // A redirect would teach clients a way around the node.
        for pod in pods.values() {
            refuse_redirects(pod.netns())?;
        }
        refuse_redirects(network.outside().netns())?;

        let mut servers = Vec::new();
        for backend in Backend::ALL {
            let (netns, addresses) = match backend {
                Backend::NodeHere => (here.netns(), here.addresses()),
                Backend::NodeThere => (there.netns(), there.addresses()),
                pod => {
                    let pod = pods.get(&Pods::Backend(pod)).context("a pod is missing")?;
                    (pod.netns(), pod.addresses())
                }
            };
            servers.push(Server::start_at(netns, backend.name(), addresses, TARGET)?);
            let second = format!("{}/second", backend.name());
            servers.push(Server::start_at(netns, second, addresses, SECOND_TARGET)?);
        }
        let mut clients = BTreeMap::from([
            (Source::Host, here.client()?),
            (Source::Outside, network.outside().client()),
        ]);
        for (source, pod) in [
            (Source::BridgePod, Pods::Backend(Backend::BridgeClient)),
            (Source::VethPod, Pods::Backend(Backend::VethClient)),
            (Source::PodElsewhere, Pods::ClientElsewhere),
        ] {
            clients.insert(source, pods.get(&pod).context("a pod is missing")?.client());
        }
        Ok(Self {
            clients,
            _servers: servers,
            pods,
            network,
        })
    }

    /// The network.
    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// The client of a source.
    pub(crate) fn client(&self, source: Source) -> Result<&Client> {
        self.clients
            .get(&source)
            .with_context(|| format!("there is no client for {source}"))
    }

    /// The addresses of an endpoint, IPv4 first.
    pub(crate) fn addresses(&self, backend: Backend) -> [IpAddr; 2] {
        match backend {
            Backend::NodeHere => self.network.node1().addresses(),
            Backend::NodeThere => self.network.node2().addresses(),
            pod => self.pods[&Pods::Backend(pod)].addresses(),
        }
    }

    /// The addresses of a source, IPv4 first. A process of the node has any of the node's; this is the first.
    pub(crate) fn addresses_of(&self, source: Source) -> [IpAddr; 2] {
        match source {
            Source::BridgePod => self.addresses(Backend::BridgeClient),
            Source::VethPod => self.addresses(Backend::VethClient),
            Source::Host => self.network.node1().addresses(),
            Source::PodElsewhere => self.pods[&Pods::ClientElsewhere].addresses(),
            Source::Outside => self.network.outside().addresses(),
        }
    }

    /// Whether the first node has this address.
    pub(crate) fn node_has(&self, address: IpAddr) -> bool {
        self.network.node1().has_address(address)
            || actors::second_node_addresses().contains(&address)
            || owned_addresses().contains(&address)
    }

    /// A name and the way in, for people who look around.
    pub(crate) fn namespaces(&self) -> Vec<(String, std::path::PathBuf)> {
        let mut all = Vec::new();
        for node in self.network.nodes() {
            all.push((node.name().to_owned(), node.netns().path()));
        }
        all.push(("outside".into(), self.network.outside().netns().path()));
        all.extend(
            self.pods
                .values()
                .map(|pod| (pod.name().to_owned(), pod.netns().path())),
        );
        all
    }
}

/// Addresses of a load balancer that the node has itself, as behind one which passes packets on unchanged.
pub(crate) fn owned_addresses() -> [IpAddr; 2] {
    actors::addresses(Net::LoadBalancer, catalogue::OWNED)
}

/// What this network needs beyond the usual: ways to the Services' addresses, more addresses, no limits.
fn prepare(network: &Network) -> Result<()> {
    let (here, there, outside) = (network.node1(), network.node2(), network.outside());
    // What the other node's pods send to Services comes by the tunnel, as their source addresses want it.
    let tunnel = there.netns().netlink()?.link(plan::TUNNEL)?.index;
    for nets in SERVICE_NETS.into_iter().chain([plan::SERVICE_CIDRS]) {
        for (to, via) in nets.into_iter().zip(plan::tunnel_addresses(here.number())) {
            there.netns().netlink()?.add_route(Route {
                to,
                via: Some(via),
                link: tunnel,
                onlink: false,
            })?;
        }
    }
    // The network has routed the cluster addresses already.
    for nets in SERVICE_NETS {
        for (to, via) in nets.into_iter().zip(here.addresses()) {
            outside.netns().netlink()?.add_route(Route {
                to,
                via: Some(via),
                link: outside.uplink().index,
                onlink: false,
            })?;
        }
    }
    let netlink = here.netns().netlink()?;
    for (address, length) in actors::second_node_addresses().into_iter().zip([24, 64]) {
        netlink.add_address(here.uplink().index, Cidr::new(address, length))?;
    }
    let loopback = netlink.link("lo")?.index;
    for address in owned_addresses() {
        netlink.add_address(loopback, Cidr::host(address))?;
    }
    for node in network.nodes() {
        send_no_redirects(node.netns())?;
    }
    // What nobody serves ends at the switch. Without a route it would say so of IPv6, now and then.
    let switch = network.switch().netlink()?;
    switch.add_route(Route {
        to: Cidr::new([0_u16; 8], 0),
        via: None,
        link: switch.link("br0")?.index,
        onlink: false,
    })?;
    for netns in [here.netns(), there.netns(), outside.netns()] {
        answer_every_error(netns)?;
    }
    Ok(())
}

/// The kernel sends a client a handful of ICMP errors and then one a second; more are not refused then, but silent.
fn answer_every_error(netns: &Netns) -> Result<()> {
    netns.set_sysctl("ipv4.icmp_ratemask", "0")?;
    netns.set_sysctl("ipv6.icmp.ratelimit", "0")?;
    // There is no empty list: what is limited is a question, which nobody asks.
    netns.set_sysctl("ipv6.icmp.ratemask", "128")
}

fn send_no_redirects(netns: &Netns) -> Result<()> {
    // Either of the two switches it on for a link.
    let mut scopes = vec!["all".to_owned(), "default".to_owned()];
    scopes.extend(netns.netlink()?.links()?.into_iter().map(|link| link.name));
    scopes
        .iter()
        .try_for_each(|scope| netns.set_sysctl(&format!("ipv4.conf.{scope}.send_redirects"), "0"))
}

fn refuse_redirects(netns: &Netns) -> Result<()> {
    for scope in ["all", "default", plan::UPLINK] {
        netns.set_sysctl(&format!("ipv4.conf.{scope}.accept_redirects"), "0")?;
        netns.set_sysctl(&format!("ipv6.conf.{scope}.accept_redirects"), "0")?;
    }
    Ok(())
}
