//! What most of these tests begin with.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lb_tests::agent::{Agent, Options};
use lb_tests::client::{Client, Failure, Outcome, Protocol};
use lb_tests::manifests::{self, Manifest, Service};
use lb_tests::network::{Attachment, Network, Node, Pod, plan};
use lb_tests::patience::patient;
use lb_tests::plane::{self, Plane};
use lb_tests::process;
use lb_tests::server::Server;
use lb_tests::source::Source;
use lb_tests::stage::{Family, TARGET};

pub(crate) const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
/// Longer than any change takes that works.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Shorter than a patient client waits, for answers that must not come.
pub(crate) const BRIEFLY: Duration = Duration::from_millis(300);

/// A network with objects and agents. Fields are dropped in their order.
pub(crate) struct World {
    pub(crate) agents: Vec<Agent>,
    pub(crate) source: Source,
    servers: Vec<Server>,
    pub(crate) network: Network,
}

impl World {
    /// Without agents and with the objects of the nodes.
    pub(crate) fn new() -> Self {
        Self::with(lb_tests::network::Options::default())
    }

    pub(crate) fn with(options: lb_tests::network::Options) -> Self {
        let network = Network::with(options).unwrap();
        let source = Source::folder().unwrap();
        for node in network.nodes() {
            source.apply(&[Manifest::new(&manifests::node(node)).unwrap()]).unwrap();
        }
        Self {
            agents: Vec::new(),
            source,
            servers: Vec::new(),
            network,
        }
    }

    /// One with a Service at [`NODE_PORT`] that has a single backend, on that node. No agent runs yet.
    pub(crate) fn with_node_port(backend: usize) -> (Self, Pod, Service) {
        let mut world = Self::new();
        let backend = world.backend(backend, "backend", Attachment::Veth);
        let service = Service::new("web", 1, TARGET)
            .at_node_port(NODE_PORT)
            .with_endpoints([&backend]);
        world.apply(&service);
        (world, backend, service)
    }

    /// A pod with a server.
    pub(crate) fn backend(&mut self, node: usize, name: &str, attachment: Attachment) -> Pod {
        let pod = self.network.nodes()[node - 1].add_pod(name, attachment).unwrap();
        self.servers.push(pod.serve(TARGET).unwrap());
        pod
    }

    pub(crate) fn apply(&self, service: &Service) {
        self.source.apply(&service.manifests().unwrap()).unwrap();
    }

    pub(crate) fn delete(&self, service: &Service) {
        self.source.delete(&service.manifests().unwrap()).unwrap();
    }

    /// Starts an agent on a node and waits until it is ready.
    pub(crate) fn start_agent(&mut self, node: usize) {
        self.start_agent_with(node, &[]);
    }

    /// The same, with more arguments.
    pub(crate) fn start_agent_with(&mut self, node: usize, args: &[&str]) {
        let node = &self.network.nodes()[node - 1];
        let options = Options {
            args: args.iter().map(Into::into).collect(),
            ..Options::default()
        };
        self.agents.push(Agent::start(node, &self.source, &options).unwrap());
    }

    pub(crate) fn node1(&self) -> &Node {
        self.network.node1()
    }
}

/// The networks that cluster addresses come from.
pub(crate) fn service_cidr() -> Manifest {
    let object = networking::ServiceCIDR {
        metadata: ObjectMeta {
            name: Some("kubernetes".into()),
            ..ObjectMeta::default()
        },
        spec: Some(networking::ServiceCIDRSpec {
            cidrs: Some(plan::SERVICE_CIDRS.map(|cidr| cidr.to_string()).into()),
        }),
        ..networking::ServiceCIDR::default()
    };
    Manifest::new(&object).unwrap()
}

/// The NodePort of [`World::with_node_port`].
pub(crate) const NODE_PORT: u16 = 30_080;

/// Where a Service is dialled at its cluster addresses.
pub(crate) fn cluster_ips(service: &Service) -> [SocketAddr; 2] {
    service.cluster_ips.map(|ip| SocketAddr::new(ip, service.ports[0].port))
}

/// Where a Service is dialled at a node.
pub(crate) fn node_ports(service: &Service, node: &Node) -> [SocketAddr; 2] {
    node.addresses()
        .map(|ip| SocketAddr::new(ip, service.ports[0].node_port.unwrap()))
}

/// Every way to dial a Service at a node.
pub(crate) fn frontends(service: &Service, node: &Node) -> impl Iterator<Item = SocketAddr> {
    cluster_ips(service).into_iter().chain(node_ports(service, node))
}

/// The cluster address of one family.
pub(crate) fn cluster_ip(service: &Service, family: Family) -> SocketAddr {
    SocketAddr::new(family.of(service.cluster_ips), service.ports[0].port)
}

/// A process of the node, where the agent serves those: on old kernels programs go without.
pub(crate) fn host_that_is_served(node: &Node) -> Option<Client> {
    plane::serves_host().then(|| node.client().unwrap())
}

/// Whether a process of the node got nothing from where it may not connect. A program fails the call; of what the packet
/// filter drops UDP hears at once, and TCP waits for an answer.
pub(crate) fn is_denied_to_host(outcome: &Outcome) -> bool {
    match Plane::under_test() {
        Plane::Ebpf => *outcome == Err(Failure::Denied),
        Plane::Ipvs => *outcome == Err(Failure::Denied) || is_silence(outcome),
    }
}

/// Who answers that many new connections.
#[track_caller]
pub(crate) fn answerers(client: &Client, protocol: Protocol, to: SocketAddr, times: usize) -> BTreeSet<String> {
    let ask = |_| match client.ask(protocol, to) {
        Ok(answer) => answer.server,
        Err(failure) => panic!("{protocol} to {to}: {failure}"),
    };
    (0..times).map(ask).collect()
}

/// Asks until the outcome is as it should become, and fails if it does not in time.
#[track_caller]
pub(crate) fn becomes(what: &str, mut ask: impl FnMut() -> Outcome, mut good: impl FnMut(&Outcome) -> bool) {
    let until = Instant::now() + patient(SOON);
    loop {
        let outcome = ask();
        if good(&outcome) {
            return;
        }
        assert!(Instant::now() < until, "{what}: still {outcome:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The same, for an answer of this server.
#[track_caller]
pub(crate) fn becomes_answered_by(client: &Client, protocol: Protocol, to: SocketAddr, server: &str) {
    let is_server = |outcome: &Outcome| matches!(outcome, Ok(answer) if answer.server == server);
    becomes(&format!("{protocol} to {to}"), || client.ask(protocol, to), is_server);
}

/// Whether nobody answers: neither yes nor no.
pub(crate) fn is_silence(outcome: &Outcome) -> bool {
    matches!(outcome, Err(Failure::Timeout | Failure::Unreachable))
}

/// Names of pods.
pub(crate) fn names<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeSet<String> {
    pods.into_iter().map(|pod| pod.name().to_owned()).collect()
}

/// Runs a program on a node, which is to end well, and returns what it prints.
#[track_caller]
pub(crate) fn run(node: &Node, command: &str) -> String {
    let output = output_of(node, command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Gives the packet filter of a node more rules, of somebody else's.
#[track_caller]
pub(crate) fn add_rules(node: &Node, rules: &str) {
    let mut nft = Command::new("nft");
    nft.args(["-f", "-"]).stdin(Stdio::piped());
    let mut child = process::spawn(nft, node.netns(), None).unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{rules}");
}

fn output_of(node: &Node, command: &str) -> Output {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = process::spawn(command, node.netns(), None).unwrap();
    child.wait_with_output().unwrap()
}

/// The addresses of a link of a node, if there is one of this name.
pub(crate) fn addresses_of(node: &Node, link: &str) -> Option<BTreeSet<IpAddr>> {
    let output = output_of(node, &format!("ip -oneline address show dev {link}"));
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    // A number, the name, the family and the address with the length of its network.
    let address = |line: &str| line.split_whitespace().nth(3)?.split('/').next()?.parse().ok();
    Some(text.lines().map(|line| address(line).unwrap()).collect())
}

/// Waits for the lock of the plane before. It lives in this process, and a child that another test has forked and that
/// is not its own program yet holds all descriptors of this process too.
pub(crate) fn patiently<T>(mut work: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let until = Instant::now() + patient(SOON);
    loop {
        match work() {
            Err(error) if error.to_string().contains("is running") && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}
