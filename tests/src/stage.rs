//! A whole cluster in miniature: the network, pods that ask, pods that answer, Services, and an agent on each node.
//!
//! The demo and the tests of the matrix ([`crate::matrix`]) play on it.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};

use crate::agent::{Agent, Options};
use crate::client::Client;
use crate::interrupt;
use crate::manifests::{self, Manifest, Service};
use crate::network::{Attachment, Network, Pod};
use crate::server::Server;
use crate::source::Source;

/// Where the pods' servers listen.
pub const TARGET: u16 = 8080;

/// Where a Service can be dialled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Which of two addresses, of which IPv4's comes first.
    #[must_use]
    pub fn of(self, addresses: [IpAddr; 2]) -> IpAddr {
        match self {
            Self::V4 => addresses[0],
            Self::V6 => addresses[1],
        }
    }
}

/// The cluster. Fields are dropped in their order: agents end before what they work on.
#[derive(Debug)]
pub struct Stage {
    agents: Vec<Agent>,
    source: Source,
    servers: Vec<Server>,
    clients: Clients,
    here: Vec<Pod>,
    there: Vec<Pod>,
    services: Services,
    network: Network,
}

/// Who asks: all on the first node, but for the last.
#[derive(Debug)]
pub struct Clients {
    bridge_pod: Pod,
    veth_pod: Pod,
    host: Client,
}

/// The Services.
#[derive(Clone, Debug)]
pub struct Services {
    /// Its endpoints are on the first node.
    pub here: Service,
    /// Its endpoints are on the second node.
    pub there: Service,
    /// Its only endpoint is the asking pod on the bridge.
    pub bridge_pod: Service,
    /// Its only endpoint is the asking pod on its own link.
    pub veth_pod: Service,
    /// Its endpoints change: two of the first node, one of the second.
    pub changing: Service,
}

impl Services {
    fn all(&self) -> [&Service; 5] {
        [
            &self.here,
            &self.there,
            &self.bridge_pod,
            &self.veth_pod,
            &self.changing,
        ]
    }

    /// The objects of all of them.
    pub fn manifests(&self) -> Result<Vec<Manifest>> {
        let mut manifests = Vec::new();
        for service in self.all() {
            manifests.extend(service.manifests()?);
        }
        Ok(manifests)
    }
}

impl Stage {
    /// Builds the network with its pods, and writes the objects. Agents are for [`Stage::start_agents`].
    pub fn build(network: Network, source: Source) -> Result<Self> {
        let (node1, node2) = (network.node1(), network.node2());
        let clients = Clients {
            bridge_pod: node1.add_pod("bridge-pod", Attachment::Bridge)?,
            veth_pod: node1.add_pod("veth-pod", Attachment::Veth)?,
            host: node1.client()?,
        };
        let backends = |node: &crate::network::Node, prefix: &str| -> Result<Vec<Pod>> {
            let kinds = [
                ("a", Attachment::Bridge),
                ("b", Attachment::Veth),
                ("c", Attachment::Bridge),
            ];
            let pods = kinds.map(|(letter, kind)| node.add_pod(&format!("{prefix}-{letter}"), kind));
            pods.into_iter().collect()
        };
        let (here, there) = (backends(node1, "here")?, backends(node2, "there")?);
        interrupt::check()?;
        let mut servers = Vec::new();
        for pod in here
            .iter()
            .chain(&there)
            .chain([&clients.bridge_pod, &clients.veth_pod])
        {
            servers.push(pod.serve(TARGET)?);
        }
        let service = |name: &str, number, pods: &[&Pod]| {
            let service = Service::new(name, number, TARGET).at_node_port(30_080 + u16::from(number));
            service.with_endpoints(pods.iter().copied())
        };
        let services = Services {
            here: service("here", 1, &here.iter().collect::<Vec<_>>()),
            there: service("there", 2, &there.iter().collect::<Vec<_>>()),
            bridge_pod: service("bridge-pod", 3, &[&clients.bridge_pod]),
            veth_pod: service("veth-pod", 4, &[&clients.veth_pod]),
            changing: service("changing", 5, &[&here[0], &here[1], &there[0]]),
        };
        let nodes = network
            .nodes()
            .each_ref()
            .map(|node| Manifest::new(&manifests::node(node)));
        source.apply(&nodes.into_iter().collect::<Result<Vec<_>>>()?)?;
        source.apply(&services.manifests()?)?;
        Ok(Self {
            agents: Vec::new(),
            source,
            servers,
            clients,
            here,
            there,
            services,
            network,
        })
    }

    /// Starts an agent on each node, both at once, and waits until they are ready.
    pub fn start_agents(&mut self, options: &Options) -> Result<()> {
        for node in self.network.nodes() {
            self.agents.push(Agent::spawn(node, &self.source, options)?);
        }
        self.agents.iter_mut().try_for_each(Agent::wait_ready)
    }

    /// The agents, in the order of their nodes.
    #[must_use]
    pub fn agents(&self) -> &[Agent] {
        &self.agents
    }

    /// The network.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Where the objects are.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The Services as they were written.
    #[must_use]
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// The answering pods of the first node.
    #[must_use]
    pub fn here(&self) -> &[Pod] {
        &self.here
    }

    /// The answering pods of the second node.
    #[must_use]
    pub fn there(&self) -> &[Pod] {
        &self.there
    }

    /// The asking pod on the bridge.
    #[must_use]
    pub fn bridge_pod(&self) -> &Pod {
        &self.clients.bridge_pod
    }

    /// The asking pod on a link of its own.
    #[must_use]
    pub fn veth_pod(&self) -> &Pod {
        &self.clients.veth_pod
    }

    /// The asking process of the first node.
    #[must_use]
    pub fn host(&self) -> &Client {
        &self.clients.host
    }

    /// The servers, one a pod.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Where a Service is dialled at its cluster address.
    #[must_use]
    pub fn cluster_ip(service: &Service, family: Family) -> SocketAddr {
        SocketAddr::new(family.of(service.cluster_ips), service.ports[0].port)
    }

    /// Where a Service is dialled at the first node.
    pub fn node_port(&self, service: &Service, family: Family) -> Result<SocketAddr> {
        let port = service.ports[0].node_port;
        let port = port.with_context(|| format!("the Service {} has no NodePort", service.name))?;
        Ok(SocketAddr::new(family.of(self.network.node1().addresses()), port))
    }
}
