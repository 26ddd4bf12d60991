//! Where one target is measured: a network of its own, with a client and a server a node, all the same for each target.
//!
//! Every endpoint of every Service answers: all addresses that endpoints of a node have are those of one pod there. So any
//! of ten thousand Services can be dialled, and it takes two servers.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lb_tests::cgroup::Cgroup;
use lb_tests::netlink::Route;
use lb_tests::netns::Netns;
use lb_tests::network::{self, Attachment, Network, Node, Pod, plan};
use lb_tests::relay::Relay;
use lb_tests::stage::Family;
use lb_tests::{ethtool, process, usage};

use super::cluster::Cluster;
use super::load::{Ask, Done};
use super::objects;
use super::proxy::Proxy;
use super::target::Target;

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Client {
    /// A pod of the first node.
    Pod,
    /// A process of the first node.
    Host,
    /// A machine that is none of the nodes, by way of the first node.
    Outside,
}

impl Client {
    /// As cases are named.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Host => "host",
            Self::Outside => "outside",
        }
    }
}

/// It. Fields are dropped in their order: processes end before what they are in.
#[derive(Debug)]
pub(crate) struct Site {
    target: Target,
    proxy: Option<Proxy>,
    servers: Vec<Server>,
    _relay: Relay,
    client: Pod,
    backends: [Pod; 2],
    pods: Cgroup,
    host: Cgroup,
    network: Network,
}

impl Site {
    /// Builds one, without its proxy.
    pub(crate) fn build(target: Target, cluster: &Cluster) -> Result<Self> {
        let network = Network::with(network::Options {
            // Endpoints are not where their addresses suggest.
            rp_filter: 0,
            // As links are unless told otherwise, and nobody looks at packets but who is measured.
            checksum_offload: true,
            verify_checksums: false,
            ..network::Options::default()
        })?;
        let (here, there) = (network.node1(), network.node2());
        let client = here.add_pod("client", Attachment::Veth)?;
        let backends = [
            here.add_pod("server-here", Attachment::Veth)?,
            there.add_pod("server-there", Attachment::Veth)?,
        ];
        route(&network, &backends)?;
        for netns in [client.netns(), here.netns(), network.outside().netns()] {
            // Thousands of connections a second to one address would else run out of ports: those of connections that
            // are over are free again after a second.
            netns.set_sysctl("ipv4.tcp_tw_reuse", "1")?;
        }
        let pods = here.cgroup().below("pods")?;
        let host = here.cgroup().below("host")?;
        let servers = [
            Server::start(backends[0].netns(), &pods),
            Server::start(backends[1].netns(), there.cgroup()),
            Server::start(here.netns(), &host),
        ];
        let relay = cluster.reach_from(&network)?;
        cluster.announce(&network)?;
        Ok(Self {
            target,
            proxy: None,
            servers: servers.into_iter().collect::<Result<_>>()?,
            _relay: relay,
            client,
            backends,
            pods,
            host,
            network,
        })
    }

    /// Starts its proxy without waiting for it.
    pub(crate) fn spawn_proxy(&mut self, cluster: &Cluster) -> Result<()> {
        self.proxy = Proxy::spawn(self.target, self.node(), cluster)?;
        Ok(())
    }

    /// Starts its proxy, and waits until it has written its rules and has nothing more to do.
    pub(crate) fn serve(&mut self, cluster: &Cluster) -> Result<()> {
        const LIMIT: Duration = Duration::from_secs(300);
        self.spawn_proxy(cluster)?;
        if let Some(mut proxy) = self.proxy.take() {
            proxy.wait_ready(self.node())?;
            proxy.settle(LIMIT)?;
            self.proxy = Some(proxy);
        }
        Ok(())
    }

    /// Ends its proxy. What it has written stays.
    pub(crate) fn stop_proxy(&mut self) {
        self.proxy = None;
    }

    /// Its proxy, if it has one.
    pub(crate) fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// The node that the proxy is on.
    pub(crate) fn node(&self) -> &Node {
        self.network.node1()
    }

    /// The asking pod.
    pub(crate) fn client_pod(&self) -> &Pod {
        &self.client
    }

    /// The offloads that the client's link has: as all others do.
    pub(crate) fn offloads(&self) -> Result<Vec<&'static str>> {
        ethtool::offloads(self.client.netns(), plan::UPLINK)
    }

    /// Where a client dials a Service: pods and processes of the node at its cluster address, and the others at the node.
    /// Without a proxy it is the first endpoint.
    pub(crate) fn address(&self, client: Client, service: usize, family: Family) -> Result<SocketAddr> {
        let service = objects::exposed(service, 1)?;
        let port = &service.ports[0];
        if self.target == Target::None {
            return Ok((family.of(service.endpoints[0].addresses), port.target).into());
        }
        match client {
            Client::Pod | Client::Host => Ok((family.of(service.cluster_ips), port.port).into()),
            Client::Outside => {
                let node_port = port
                    .node_port
                    .with_context(|| format!("{} has no NodePort", service.name))?;
                Ok((family.of(self.node().addresses()), node_port).into())
            }
        }
    }

    /// The addresses of a server on the client's node that are no endpoint's, IPv4 first.
    pub(crate) fn server_pod(&self) -> [IpAddr; 2] {
        self.backends[0].addresses()
    }

    /// A server of the node itself.
    pub(crate) fn server_node(&self) -> SocketAddr {
        (self.node().addresses()[0], objects::TARGET).into()
    }

    /// Has a client ask.
    pub(crate) fn ask(&self, client: Client, ask: &Ask) -> Result<Done> {
        let (netns, cgroup) = match client {
            Client::Pod => (self.client.netns(), Some(&self.pods)),
            Client::Host => (self.node().netns(), Some(&self.host)),
            Client::Outside => (self.network.outside().netns(), None),
        };
        let mut command = load("ask")?;
        command.args(ask.args()).stdin(Stdio::null()).stdout(Stdio::piped());
        let child = process::spawn(command, netns, cgroup)?;
        let output = child.wait_with_output().context("waiting for a client")?;
        ensure!(
            output.status.success(),
            "a client ended with {}",
            process::ended(output.status)
        );
        serde_json::from_slice(&output.stdout).context("reading what a client has done")
    }

    /// The processor time of all servers so far.
    pub(crate) fn servers_processor(&self) -> Result<Duration> {
        let times = self.servers.iter().map(|server| usage::processor(server.child.id()));
        times.sum::<Result<_>>()
    }

    /// How many packets have come to the pod behind all endpoints of a node.
    pub(crate) fn delivered(&self, node: u8) -> Result<u64> {
        let pod = self
            .backends
            .get(usize::from(node) - 1)
            .context("there are two nodes")?;
        let text = pod
            .netns()
            .run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
        received(&text.context("reading the counters of links")?, plan::UPLINK)
            .with_context(|| format!("{} is not among the links", plan::UPLINK))
    }

    /// Where iptables has a client's Services, in the order of its rules: none if it is not by iptables that they are
    /// served. It goes through them one by one, in an order that is another one each time that they are written.
    pub(crate) fn iptables_order(&self, client: Client) -> Result<Option<Vec<usize>>> {
        let Some((lb_tests::controlplane::Mode::Iptables, tools)) = self.target.kube_proxy() else {
            return Ok(None);
        };
        let mut command = Command::new(tools.save());
        command.args(["-t", "nat"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let child = process::spawn(command, self.node().netns(), None)?;
        let output = child.wait_with_output().context("reading the rules of iptables")?;
        if !output.status.success() {
            bail!("{} ended with {}", tools.save(), process::ended(output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(Some(order_of_rules(&text, client)))
    }
}

/// How many packets a link has received, of the text that the kernel has about all links.
fn received(text: &str, link: &str) -> Option<u64> {
    let of_link = |line: &str| {
        line.trim_start()
            .strip_prefix(link)?
            .strip_prefix(':')
            .map(str::to_owned)
    };
    let counters = text.lines().find_map(of_link)?;
    // Bytes come first.
    counters.split_whitespace().nth(1)?.parse().ok()
}

/// The numbers of the Services that a client dials, in the order of the rules that it comes by first.
fn order_of_rules(rules: &str, client: Client) -> Vec<usize> {
    let value_of = |line: &str, flag: &str| {
        let mut words = line.split(' ').skip_while(|word| *word != flag);
        words.nth(1).map(str::to_owned)
    };
    let number = |line: &str| match client {
        Client::Pod | Client::Host => {
            let rest = line.strip_prefix("-A KUBE-SERVICES ")?;
            let address: IpAddr = value_of(rest, "-d")?.strip_suffix("/32")?.parse().ok()?;
            objects::number_of(address)
        }
        Client::Outside => {
            let rest = line.strip_prefix("-A KUBE-NODEPORTS ")?;
            objects::number_at(value_of(rest, "--dport")?.parse().ok()?)
        }
    };
    let mut order: Vec<usize> = Vec::new();
    for number in rules.lines().filter_map(number) {
        // A NodePort has a rule for loopback before its own.
        if order.last() != Some(&number) {
            order.push(number);
        }
    }
    order
}

/// Leads what is for an endpoint to the pod of its node.
fn route(network: &Network, backends: &[Pod; 2]) -> Result<()> {
    let [here, there] = network.nodes();
    for (node, pod) in [here, there].into_iter().zip(backends) {
        for (to, via) in objects::endpoint_networks(node.number())
            .into_iter()
            .zip(pod.addresses())
        {
            pod.netns().netlink()?.add_local(to)?;
            node.netns().netlink()?.add_route(Route {
                to,
                via: Some(via),
                link: pod.host_link().index,
                onlink: true,
            })?;
        }
    }
    let tunnel = here.netns().netlink()?.link(plan::TUNNEL)?;
    let networks = objects::endpoint_networks(there.number());
    for (to, via) in networks.into_iter().zip(plan::tunnel_addresses(there.number())) {
        here.netns().netlink()?.add_route(Route {
            to,
            via: Some(via),
            link: tunnel.index,
            onlink: false,
        })?;
    }
    let outside = network.outside();
    for node in [here, there] {
        for (to, via) in objects::endpoint_networks(node.number())
            .into_iter()
            .zip(here.addresses())
        {
            outside.netns().netlink()?.add_route(Route {
                to,
                via: Some(via),
                link: outside.uplink().index,
                onlink: false,
            })?;
        }
    }
    Ok(())
}

/// A server process. Dropping it ends it.
#[derive(Debug)]
struct Server {
    child: Child,
}

impl Server {
    fn start(netns: &Arc<Netns>, cgroup: &Cgroup) -> Result<Self> {
        let mut command = load("serve")?;
        command
            .arg(format!("--port={}", objects::TARGET))
            .args(processor().map(|cpu| format!("--cpu={cpu}")))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = process::spawn(command, netns, Some(cgroup))?;
        let stdout = child.stdout.take().context("a child has no pipes")?;
        let server = Self { child };
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .context("waiting for a server")?;
        ensure!(line.trim() == "ready", "a server said {line:?} instead of \"ready\"");
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to tidy up.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program as one end of a load.
fn load(end: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["load", end]);
    Ok(command)
}

/// The processor for client and server: the last one. With both on one, how many requests there are a second is what a
/// request costs in all, and no matter of who wakes whom on which processor.
pub(crate) fn processor() -> Option<usize> {
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).ok()?;
    let is_allowed = |cpu: &usize| allowed.is_set(*cpu).unwrap_or(false);
    (0..nix::sched::CpuSet::count()).rev().find(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_a_link_has_received_are_read() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       2    0    0    0     0          0         0      100       2    0    0    0     0       0          0
  eth0: 1234567    8901    0    0    0     0          0         0       90       1    0    0    0     0       0          0
";
        assert_eq!(received(text, "eth0"), Some(8901));
        assert_eq!(received(text, "eth"), None);
    }

    #[test]
    fn the_order_of_rules_is_that_of_their_lines() {
        let rules = "\
*nat
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment \"default/bench-7:http\" -m tcp --dport 30107 -m nfacct --nfacct-name  localhost_nps_accepted_pkts -j KUBE-EXT-A
-A KUBE-NODEPORTS -p tcp -m comment --comment \"default/bench-7:http\" -m tcp --dport 30107 -j KUBE-EXT-A
-A KUBE-NODEPORTS -p tcp -m comment --comment \"default/bench-2:http\" -m tcp --dport 30102 -j KUBE-EXT-B
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"default/kubernetes:https cluster IP\" -m tcp --dport 443 -j KUBE-SVC-K
-A KUBE-SERVICES -d 10.96.16.2/32 -p tcp -m comment --comment \"default/bench-2:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-B
-A KUBE-SERVICES -d 10.96.16.7/32 -p tcp -m comment --comment \"default/bench-7:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
";
        assert_eq!(order_of_rules(rules, Client::Pod), [2, 7]);
        assert_eq!(order_of_rules(rules, Client::Outside), [7, 2]);
    }
}
