//! What kube-proxy is to do with a probe, as its source says.
//!
//! Without this, a network that leads nowhere would make two proxies agree in everything. It is also the reason that a
//! disagreement is read by: these are the rules.

use lb_tests::controlplane::Mode;
use lb_tests::stage::Family;

use super::actors::{Backend, Source};
use super::outcome::{Observed, Outcome, Saw};
use super::probe::{Frontend, Probe};
use super::service::{Ingress, Kind, Policy, SECOND_TARGET, Service};
use super::settings::{NodePorts, Settings};
use super::twin::Twin;
use super::usable::Endpoints;

/// What a packet is addressed to, in the eyes of kube-proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    /// A port of a Service at its cluster address.
    Internal,
    /// A port of a Service at one of the addresses for clients outside the cluster.
    External,
    /// A Service's cluster address, at another port.
    UndefinedPort,
    /// Something else at an address of the node.
    Node,
    /// Something else.
    Nothing,
}

/// What kube-proxy is to do with a probe.
pub(crate) fn expected(probe: &Probe, mode: Mode, settings: &Settings, twin: &Twin) -> Outcome {
    if probe.frontend == Frontend::EachInTurn {
        let each = Frontend::USUAL.iter().flat_map(|frontend| {
            let one = Probe {
                frontend: *frontend,
                ..probe.clone()
            };
            expected(&one, mode, settings, twin).0
        });
        return each.collect();
    }
    let rules = Rules {
        probe,
        service: &probe.service,
        mode,
        settings,
        twin,
    };
    rules.outcome()
}

struct Rules<'a> {
    probe: &'a Probe,
    service: &'a Service,
    mode: Mode,
    settings: &'a Settings,
    twin: &'a Twin,
}

impl Rules<'_> {
    fn outcome(&self) -> Outcome {
        let target = self.target();
        let endpoints = Endpoints::of(self.probe);
        if target == Target::External && !self.is_allowed() {
            let firewalled = self.mode == Mode::Nftables || endpoints.any;
            return only(if firewalled || self.passes_unrefused() {
                Observed::Silent
            } else {
                Observed::Refused
            });
        }
        match target {
            Target::Nothing => only(Observed::Silent),
            Target::Node if self.is_dropped_everywhere(&endpoints) => only(Observed::Silent),
            Target::Node => only(Observed::Refused),
            Target::UndefinedPort => only(match self.mode {
                Mode::Nftables => Observed::Refused,
                Mode::Iptables | Mode::Ipvs => Observed::Silent,
            }),
            Target::Internal => match (self.service.internal, endpoints.any) {
                (_, false) => only(Observed::Refused),
                (Policy::Cluster, _) => self.answers(&endpoints.cluster, !self.is_local()),
                (Policy::Local, _) => self.answers(&endpoints.local, !self.is_local()),
            },
            Target::External if !endpoints.any => only(if self.passes_unrefused() {
                Observed::Silent
            } else {
                Observed::Refused
            }),
            Target::External => match self.service.external {
                Policy::Cluster => self.answers(&endpoints.cluster, true),
                // The short way: neither policy is for those who are here already.
                Policy::Local if self.is_local() => self.answers(&endpoints.cluster, false),
                Policy::Local if self.probe.source == Source::Host => self.answers(&endpoints.cluster, true),
                Policy::Local => self.answers(&endpoints.local, false),
            },
        }
    }

    /// Whether the source is a pod in the eyes of its `detectLocalMode`.
    fn is_local(&self) -> bool {
        self.settings.is_local(self.probe.source)
    }

    /// iptables mode refuses what has no endpoints on its way in and through, not what the node itself sends away.
    fn passes_unrefused(&self) -> bool {
        let to_node = self.is_to_node();
        self.mode == Mode::Iptables && self.probe.source == Source::Host && !to_node
    }

    /// iptables mode drops what is for a NodePort without local endpoints at every address of the node, also where it
    /// serves no NodePorts.
    fn is_dropped_everywhere(&self, endpoints: &Endpoints) -> bool {
        self.mode == Mode::Iptables
            && self.probe.frontend.is_elsewhere_on_node()
            && self.service.has_node_ports()
            && self.service.external == Policy::Local
            && endpoints.any
            && endpoints.local.is_empty()
    }

    /// Whether what is dialled is the node itself.
    fn is_to_node(&self) -> bool {
        let mut to = self.probe.to.iter().map(|to| to.ip());
        to.all(|to| to.is_loopback() || self.twin.node_has(to))
    }

    fn target(&self) -> Target {
        let otherwise = if self.is_to_node() {
            Target::Node
        } else {
            Target::Nothing
        };
        let ignored = self.service.of_another_proxy
            || matches!(self.service.kind, Kind::Headless | Kind::ExternalName)
            || !self.service.families.contains(&self.probe.family);
        if ignored {
            return otherwise;
        }
        let has_protocol = self.service.protocols.contains(&self.probe.protocol);
        match self.probe.frontend {
            Frontend::ClusterIp if has_protocol => Target::Internal,
            Frontend::ClusterIp | Frontend::ClusterIpUndefinedPort => Target::UndefinedPort,
            frontend if has_protocol && self.serves(frontend) => Target::External,
            _ => otherwise,
        }
    }

    /// Whether the Service has such a frontend for clients outside the cluster.
    fn serves(&self, frontend: Frontend) -> bool {
        let is_vip = |which: usize| {
            let ingress = self.service.ingress.get(which);
            self.service.kind == Kind::LoadBalancer && matches!(ingress, Some(Ingress::Vip(_)))
        };
        match frontend {
            Frontend::LoadBalancer => is_vip(0),
            Frontend::SecondLoadBalancer => is_vip(1),
            Frontend::External => !self.service.external_ips.is_empty(),
            Frontend::NodePort => self.service.has_node_ports(),
            Frontend::NodePortOnSecondAddress | Frontend::NodePortOnBridgeAddress => {
                self.service.has_node_ports() && self.settings.node_ports == NodePorts::All
            }
            Frontend::NodePortOnLocalhost => {
                self.service.has_node_ports()
                    && self.settings.node_ports == NodePorts::All
                    && (self.mode, self.probe.family) == (Mode::Iptables, Family::V4)
            }
            // An address of the node is one, whatever else it is.
            Frontend::LoadBalancerAtNodePort => {
                self.service.has_node_ports() && self.settings.node_ports == NodePorts::All && self.is_to_node()
            }
            Frontend::ClusterIp
            | Frontend::ClusterIpUndefinedPort
            | Frontend::Unallocated
            | Frontend::LoadBalancerUndefinedPort
            | Frontend::ExternalUndefinedPort
            | Frontend::NodeAtServicePort
            | Frontend::EachInTurn => false,
        }
    }

    /// Whether the Service's source ranges let the source through.
    fn is_allowed(&self) -> bool {
        if !matches!(
            self.probe.frontend,
            Frontend::LoadBalancer | Frontend::SecondLoadBalancer
        ) {
            return true;
        }
        let is_v4 = self.probe.family == Family::V4;
        let ranges = self.service.source_ranges.iter();
        let ranges: Vec<_> = ranges.filter(|range| range.address.is_ipv4() == is_v4).collect();
        if ranges.is_empty() || ranges.iter().any(|range| range.length == 0) {
            return true;
        }
        let own = self.probe.family.of(self.twin.addresses_of(self.probe.source));
        // What the node sends to an address of its own comes from that address, and counts as the node.
        ranges.iter().any(|range| range.contains(own))
    }

    fn answers(&self, backends: &[(Backend, u16)], masquerade: bool) -> Outcome {
        if backends.is_empty() {
            return only(Observed::Silent);
        }
        let answers = backends.iter().map(|(backend, port)| {
            let is_itself = self.probe.source.itself() == Some(*backend);
            // Masquerading is done on the way out, which what is for the node itself never goes.
            let masquerade = (masquerade && *backend != Backend::NodeHere) || is_itself;
            // The two are nearer to each other than to the node: the answer goes the short way, from a stranger.
            if self.probe.source == Source::PodElsewhere && !backend.is_here() && !masquerade {
                return Observed::Silent;
            }
            Observed::Answered {
                by: server(*backend, *port),
                saw: if masquerade || self.probe.source == Source::Host {
                    Saw::Node
                } else {
                    Saw::Client
                },
            }
        });
        answers.collect()
    }
}

fn only(observed: Observed) -> Outcome {
    Outcome::from_iter([observed])
}

/// What a backend calls itself at a port.
fn server(backend: Backend, port: u16) -> String {
    match port {
        SECOND_TARGET => format!("{}/second", backend.name()),
        _ => backend.name().to_owned(),
    }
}
