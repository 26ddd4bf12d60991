//! Every kind of client × every kind of frontend × protocol × family × place of the backends: what must come of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use anyhow::Result;

use crate::client::{Answer, Client, Outcome, Protocol};
use crate::interrupt;
use crate::manifests::Service;
use crate::plane::{self, Difference};
use crate::stage::{Family, Stage};

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Asker {
    /// A pod on a bridge of the first node.
    BridgePod,
    /// A pod on a link of its own, of the first node.
    VethPod,
    /// A process of the first node.
    Host,
    /// A machine that is no node.
    Outside,
}

/// What is dialled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Frontend {
    /// The cluster address of the Service.
    ClusterIp,
    /// The first node, at the Service's port.
    NodePort,
}

/// Where the endpoints are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Backend {
    /// On the first node.
    Here,
    /// On the second node.
    There,
    /// The endpoint is the asking pod.
    Itself,
}

/// What a backend is to see of its client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Seen {
    /// The client's own address.
    Client,
    /// An address of the first node.
    Node,
}

impl Asker {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::BridgePod, Self::VethPod, Self::Host, Self::Outside];
}

impl Frontend {
    /// Both.
    pub const ALL: [Self; 2] = [Self::ClusterIp, Self::NodePort];
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BridgePod => "pod on a bridge",
            Self::VethPod => "pod on a veth",
            Self::Host => "host process",
            Self::Outside => "outside client",
        })
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
        })
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here => "this node",
            Self::There => "other node",
            Self::Itself => "itself",
        })
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Node => "node",
        })
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// One cell of the matrix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cell {
    /// Who asks.
    pub from: Asker,
    /// What is dialled.
    pub frontend: Frontend,
    /// Where the endpoints are.
    pub backend: Backend,
    /// With which protocol.
    pub protocol: Protocol,
    /// In which family.
    pub family: Family,
}

impl Cell {
    /// The matrix, and the pods that reach themselves.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for from in Asker::ALL {
            for frontend in Frontend::ALL {
                let itself = matches!(from, Asker::BridgePod | Asker::VethPod).then_some(Backend::Itself);
                for backend in [Backend::Here, Backend::There].into_iter().chain(itself) {
                    for protocol in [Protocol::Tcp, Protocol::Udp] {
                        cells.extend(Family::ALL.map(|family| Self {
                            from,
                            frontend,
                            backend,
                            protocol,
                            family,
                        }));
                    }
                }
            }
        }
        cells
    }

    /// The same without processes of the host where this kernel's agents do not serve them.
    #[must_use]
    pub fn served() -> Vec<Self> {
        let mut cells = Self::all();
        if !plane::serves_host() {
            cells.retain(|cell| cell.from != Asker::Host);
        }
        cells
    }

    /// What the backend is to see. A client keeps its address, unless the answer would not come back by this node then:
    /// that of a client which is not on it when the backend is not either, and that of a pod to itself. That of a process
    /// of the node may be the node's to choose ([`Difference::HostMasqueraded`]).
    #[must_use]
    pub fn seen(&self) -> Seen {
        match (self.from, self.backend) {
            (Asker::Host, _) if Difference::HostMasqueraded.applies() => Seen::Node,
            (Asker::Outside, Backend::There) | (_, Backend::Itself) => Seen::Node,
            _ => Seen::Client,
        }
    }

    fn client(&self, stage: &Stage) -> Client {
        match self.from {
            Asker::BridgePod => stage.bridge_pod().client(),
            Asker::VethPod => stage.veth_pod().client(),
            Asker::Host => stage.host().clone(),
            Asker::Outside => stage.network().outside().client(),
        }
    }

    fn service<'a>(&self, stage: &'a Stage) -> &'a Service {
        let services = stage.services();
        match (self.backend, self.from) {
            (Backend::Here, _) => &services.here,
            (Backend::There, _) => &services.there,
            (Backend::Itself, Asker::VethPod) => &services.veth_pod,
            (Backend::Itself, _) => &services.bridge_pod,
        }
    }

    /// Asks that many times, each time over a new connection, and judges the answers.
    pub fn run(&self, stage: &Stage, times: u32) -> Result<Played> {
        let (client, service) = (self.client(stage), self.service(stage));
        let to = match self.frontend {
            Frontend::ClusterIp => Stage::cluster_ip(service, self.family),
            Frontend::NodePort => stage.node_port(service, self.family)?,
        };
        let mut played = Played::new(*self, to, service);
        for turn in 0..times {
            interrupt::check()?;
            // Sockets of both kinds, since their answers take different ways through the kernel.
            let outcome = match self.protocol {
                Protocol::Udp if turn % 2 == 1 => client.ask_unconnected(to),
                protocol => client.ask(protocol, to),
            };
            played.note(stage, outcome);
            // Each further one would only cost the time until it is given up.
            if played.wrong.len() >= 3 {
                break;
            }
        }
        played.judge_spread();
        Ok(played)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            from,
            frontend,
            backend,
            protocol,
            family,
        } = self;
        write!(f, "{from}, {frontend}, {protocol}, {family}, backend: {backend}")
    }
}

/// What came of a cell.
#[derive(Clone, Debug)]
pub struct Played {
    /// The cell.
    pub cell: Cell,
    /// What was dialled.
    pub to: SocketAddr,
    /// How many probes there were: connections, and the look at how they were spread.
    pub probes: u32,
    /// How often each backend answered.
    pub spread: BTreeMap<String, u32>,
    /// Which addresses the backends saw.
    pub seen: BTreeSet<Seen>,
    /// What was wrong, one line a probe.
    pub wrong: Vec<String>,
}

impl Played {
    fn new(cell: Cell, to: SocketAddr, service: &Service) -> Self {
        let backends = service.endpoints.iter().map(|endpoint| (endpoint.name.clone(), 0));
        Self {
            cell,
            to,
            probes: 0,
            spread: backends.collect(),
            seen: BTreeSet::new(),
            wrong: Vec::new(),
        }
    }

    fn note(&mut self, stage: &Stage, outcome: Outcome) {
        self.probes += 1;
        match outcome {
            Ok(answer) => {
                if let Err(wrong) = self.judge(stage, &answer) {
                    self.wrong.push(wrong);
                }
            }
            Err(failure) => self.wrong.push(failure.to_string()),
        }
    }

    fn judge(&mut self, stage: &Stage, answer: &Answer) -> Result<(), String> {
        let Some(count) = self.spread.get_mut(&answer.server) else {
            return Err(format!("answered by {}, which is no endpoint", answer.server));
        };
        *count += 1;
        // A process of the node has an address of the node: both are true, and the first is what is expected.
        let (seen, local) = (answer.seen.ip(), answer.local.ip());
        let is_client = match self.cell.from {
            Asker::BridgePod => stage.bridge_pod().addresses().contains(&seen),
            Asker::VethPod => stage.veth_pod().addresses().contains(&seen),
            // Any address of the node, which may happen to be the socket's.
            Asker::Host if Difference::HostMasqueraded.applies() => false,
            Asker::Host => seen == local || (local.is_unspecified() && stage.network().node1().has_address(seen)),
            Asker::Outside => stage.network().outside().addresses().contains(&seen),
        };
        let seen_as = match is_client {
            true => Seen::Client,
            false if stage.network().node1().has_address(seen) => Seen::Node,
            false => {
                return Err(format!(
                    "{} saw a client at {seen}, who is neither client nor node",
                    answer.server
                ));
            }
        };
        self.seen.insert(seen_as);
        if seen_as != self.cell.seen() {
            return Err(format!(
                "{} saw {seen}, the {seen_as}, not the {}",
                answer.server,
                self.cell.seen()
            ));
        }
        Ok(())
    }

    /// Each backend's part is to be what chance gives in all but one of a million runs.
    fn judge_spread(&mut self) {
        if self.spread.len() < 2 || !self.wrong.is_empty() {
            return;
        }
        self.probes += 1;
        let (total, share) = (
            f64::from(self.spread.values().sum::<u32>()),
            1.0 / self.spread.len() as f64,
        );
        let (mean, deviation) = (total * share, (total * share * (1.0 - share)).sqrt());
        let out = self.spread.values().any(|count| {
            let count = f64::from(*count);
            count == 0.0 || (count - mean).abs() > 5.0 * deviation
        });
        if out {
            self.wrong.push(format!("unevenly spread: {:?}", self.spread));
        }
    }

    /// Whether every probe was right.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.wrong.is_empty()
    }
}
