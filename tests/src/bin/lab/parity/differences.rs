//! What is different here on purpose. `docs/semantics.md` lists each with its reason.

use lb_tests::controlplane::Mode;
use lb_tests::plane;
use lb_tests::stage::Family;

use super::actors::{Backend, Source};
use super::outcome::{Observed, Outcome, Saw};
use super::probe::{Frontend, Probe};
use super::service::{Ingress, Policy};
use super::settings::{DetectLocal, NodePorts, Settings};

/// A difference that is meant to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Difference {
    /// A backend sees the client where kube-proxy shows it the node, and the answer comes back by this node anyway:
    /// the backend is on this node, or a pod of this node is the client.
    ClientAddressKept,
    /// With `detectLocalMode: ClusterCIDR`, what a pod of another node sends by way of this node to a backend elsewhere is
    /// masqueraded here, so that the answer comes back; kube-proxy leaves it, and the client does not know who answers.
    AnswerBroughtBack,
    /// A process of the node hears at once that it may not connect where kube-proxy would have its packets dropped.
    HostDeniedAtOnce,
    /// iptables mode has NodePorts on 127.0.0.1 when they are on all addresses; here and in nftables mode all addresses do
    /// not mean those of the loopback network.
    LocalhostOnlyByName,
    /// iptables mode lets packets to a port that a Service does not have pass on from its cluster address; here and in
    /// nftables mode they are refused.
    UndefinedPortRefused,
    /// iptables mode has nothing that refuses what the node itself sends to an external or load balancer's address
    /// of a Service without endpoints; here and in nftables mode it is refused.
    HostRefused,
    /// iptables mode drops what is for a NodePort whose policy is Local, without local endpoints, at every address of the
    /// node; here and in nftables mode nothing is done at addresses that have no NodePorts.
    OtherAddressesUntouched,
    /// iptables mode looks at source ranges only when there are endpoints; here and in nftables mode who is not allowed
    /// hears nothing in either case.
    RangesBeforeEndpoints,
    /// One that the plane under test is declared to have to the BPF plane, which does here as kube-proxy does.
    OfPlane(plane::Difference),
}

impl Difference {
    /// All that each plane has.
    pub(crate) const ALL: [Self; 8] = [
        Self::ClientAddressKept,
        Self::AnswerBroughtBack,
        Self::HostDeniedAtOnce,
        Self::LocalhostOnlyByName,
        Self::UndefinedPortRefused,
        Self::HostRefused,
        Self::OtherAddressesUntouched,
        Self::RangesBeforeEndpoints,
    ];

    /// Its name in `docs/semantics.md`.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::ClientAddressKept => "client-address-kept",
            Self::AnswerBroughtBack => "answer-brought-back",
            Self::LocalhostOnlyByName => "localhost-only-by-name",
            Self::HostDeniedAtOnce => "host-denied-at-once",
            Self::UndefinedPortRefused => "undefined-port-refused",
            Self::HostRefused => "host-refused",
            Self::OtherAddressesUntouched => "other-addresses-untouched",
            Self::RangesBeforeEndpoints => "ranges-before-endpoints",
            Self::OfPlane(difference) => difference.id(),
        }
    }

    /// The difference that explains what came of a probe on kube-proxy's side and on ours, if one does.
    pub(crate) fn explaining(
        probe: &Probe,
        mode: Mode,
        settings: &Settings,
        theirs: &Outcome,
        ours: &Outcome,
    ) -> Option<Self> {
        let of_plane = [
            plane::Difference::AffinityByFrontend,
            plane::Difference::UndefinedPortsRefused,
        ];
        let of_plane = of_plane.into_iter().filter(|difference| difference.applies());
        Self::ALL
            .into_iter()
            .chain(of_plane.map(Self::OfPlane))
            .find(|difference| difference.explains(probe, mode, settings, theirs, ours))
    }

    fn explains(self, probe: &Probe, mode: Mode, settings: &Settings, theirs: &Outcome, ours: &Outcome) -> bool {
        let silent_becomes_refused = || theirs.is_only(&Observed::Silent) && ours.is_only(&Observed::Refused);
        let has_endpoints = probe.service.endpoints.iter().any(|endpoint| {
            endpoint.ready.unwrap_or(true) || (endpoint.serving.unwrap_or(true) && endpoint.terminating == Some(true))
        });
        match self {
            Self::ClientAddressKept => client_is_kept(probe, settings, theirs, ours),
            Self::AnswerBroughtBack => {
                settings.detect_local == Some(DetectLocal::ClusterCidr)
                    && probe.source == Source::PodElsewhere
                    && brings_answers_back(probe, theirs, ours)
            }
            Self::LocalhostOnlyByName => {
                (mode, settings.node_ports) == (Mode::Iptables, NodePorts::All)
                    && (probe.frontend, probe.family) == (Frontend::NodePortOnLocalhost, Family::V4)
                    && theirs.0.iter().all(Observed::is_answer)
                    && ours.is_only(&Observed::Refused)
            }
            Self::HostDeniedAtOnce => {
                probe.source == Source::Host && theirs.is_only(&Observed::Silent) && ours.is_only(&Observed::Denied)
            }
            Self::UndefinedPortRefused => {
                mode == Mode::Iptables
                    && (probe.frontend == Frontend::ClusterIpUndefinedPort
                        || (probe.frontend == Frontend::ClusterIp
                            && !probe.service.protocols.contains(&probe.protocol)))
                    && silent_becomes_refused()
            }
            Self::HostRefused => {
                mode == Mode::Iptables
                    && probe.source == Source::Host
                    && matches!(probe.frontend, Frontend::External | Frontend::LoadBalancer)
                    && (!has_endpoints || probe.service.ports[probe.port].target.is_none())
                    && silent_becomes_refused()
            }
            Self::OtherAddressesUntouched => {
                mode == Mode::Iptables
                    && probe.frontend.is_elsewhere_on_node()
                    && probe.service.external == Policy::Local
                    && silent_becomes_refused()
            }
            Self::RangesBeforeEndpoints => {
                mode == Mode::Iptables
                    && probe.frontend == Frontend::LoadBalancer
                    && !probe.service.source_ranges.is_empty()
                    && !has_endpoints
                    && theirs.is_only(&Observed::Refused)
                    && ours.is_only(&Observed::Silent)
            }
            Self::OfPlane(plane::Difference::AffinityByFrontend) => {
                probe.frontend == Frontend::EachInTurn
                    && probe.service.affinity
                    && chooses_for_each(probe, settings, theirs, ours)
            }
            Self::OfPlane(plane::Difference::UndefinedPortsRefused) => {
                is_undefined_at_address_of_its_own(probe) && silent_becomes_refused()
            }
            Self::OfPlane(_) => false,
        }
    }
}

/// Every backend of ours answers as one that kube-proxy's side might have chosen.
fn chooses_for_each(probe: &Probe, settings: &Settings, theirs: &Outcome, ours: &Outcome) -> bool {
    let is_choice_of_theirs = |observed: &Observed| match observed {
        Observed::Answered { saw, .. } => {
            let seen_there = theirs
                .0
                .iter()
                .any(|theirs| matches!(theirs, Observed::Answered { saw: there, .. } if there == saw));
            seen_there || (*saw == Saw::Client && keeps_client(probe, settings, observed.backend()))
        }
        _ => false,
    };
    theirs.0.iter().all(Observed::is_answer) && !ours.0.is_empty() && ours.0.iter().all(is_choice_of_theirs)
}

/// Whether a load balancer's or external address of the Service is dialled where it has no port.
fn is_undefined_at_address_of_its_own(probe: &Probe) -> bool {
    let service = &probe.service;
    let is_served = |which: usize| matches!(service.ingress.get(which), Some(Ingress::Vip(_)));
    let has_protocol = service.protocols.contains(&probe.protocol);
    let is_own = match probe.frontend {
        Frontend::LoadBalancerUndefinedPort | Frontend::LoadBalancerAtNodePort => is_served(0),
        Frontend::LoadBalancer => is_served(0) && !has_protocol,
        Frontend::SecondLoadBalancer => is_served(1) && !has_protocol,
        Frontend::ExternalUndefinedPort => !service.external_ips.is_empty(),
        Frontend::External => !service.external_ips.is_empty() && !has_protocol,
        _ => false,
    };
    is_own && service.families.contains(&probe.family)
}

/// The same servers answered, and each saw the same, or here the client and there the node.
fn client_is_kept(probe: &Probe, settings: &Settings, theirs: &Outcome, ours: &Outcome) -> bool {
    let as_here = |observed: &Observed| match observed {
        Observed::Answered { by, saw: Saw::Node } if keeps_client(probe, settings, observed.backend()) => {
            Observed::Answered {
                by: by.clone(),
                saw: Saw::Client,
            }
        }
        other => other.clone(),
    };
    let changed: Outcome = theirs.0.iter().map(as_here).collect();
    // Whoever sees the node on their side may see the client on ours; none of ours may see the node where the client could be kept.
    changed == *ours
}

/// Whether the answer comes back by this node even if the backend sees the client: either of the two is on it. A pod
/// that reaches itself would not take its own address for that of somebody else, and what `detectLocalMode` does not take
/// for a pod is a client from elsewhere.
fn keeps_client(probe: &Probe, settings: &Settings, backend: Option<Backend>) -> bool {
    let is_pod = probe.source.is_pod_here() && settings.is_local(probe.source);
    let Some(backend) = backend else {
        // One that stands for whichever affinity chose: they are all on the same side.
        return probe.source != Source::Host && (is_pod || has_all_here(probe));
    };
    probe.source != Source::Host && probe.source.itself() != Some(backend) && (is_pod || backend.is_here())
}

fn has_all_here(probe: &Probe) -> bool {
    probe
        .service
        .endpoints
        .iter()
        .all(|endpoint| endpoint.backend.is_here())
}

/// Here every backend answers, those elsewhere having seen the node; there those elsewhere do not.
fn brings_answers_back(probe: &Probe, theirs: &Outcome, ours: &Outcome) -> bool {
    let is_elsewhere = |observed: &&Observed| match observed.backend() {
        Some(backend) => !backend.is_here(),
        None => !has_all_here(probe),
    };
    let (elsewhere, here): (Vec<&Observed>, Vec<&Observed>) = ours.0.iter().partition(is_elsewhere);
    let lost = Outcome::from_iter([Observed::Silent]);
    let as_theirs: Outcome = here.into_iter().cloned().collect();
    !elsewhere.is_empty()
        && elsewhere
            .iter()
            .all(|observed| matches!(observed, Observed::Answered { saw: Saw::Node, .. }))
        && *theirs == as_theirs.and(&lost)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lb_tests::client::Protocol;

    use super::*;
    use crate::parity::service::{Endpoint, Service};

    #[test]
    fn every_difference_is_in_the_docs_with_its_reason() {
        let docs = include_str!("../../../../../docs/semantics.md");
        for difference in Difference::ALL {
            let row = docs
                .lines()
                .find(|line| line.starts_with(&format!("| `{}` |", difference.id())));
            let row = row.unwrap_or_else(|| panic!("no row for {difference:?}"));
            let cells: Vec<_> = row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
            assert_eq!(cells.len(), 4, "id, kube-proxy, here, reason: {row}");
        }
    }

    #[test]
    fn the_docs_list_no_difference_that_is_unknown() {
        let docs = include_str!("../../../../../docs/semantics.md");
        let table = docs.split("## Declared differences").nth(1).unwrap();
        let table = table.split("\n## ").next().unwrap();
        let ids = table
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        for id in ids {
            assert!(
                Difference::ALL.iter().any(|difference| difference.id() == id),
                "{id} is listed and not known"
            );
        }
    }

    const USUAL: Settings = Settings {
        detect_local: None,
        node_ports: NodePorts::Primary,
    };

    fn probe(source: Source, frontend: Frontend, endpoints: Vec<Endpoint>) -> Probe {
        Probe {
            service: Arc::new(Service::new("web", 1, endpoints)),
            source,
            frontend,
            port: 0,
            protocol: Protocol::Tcp,
            family: Family::V4,
            to: vec!["192.0.2.1:80".parse().unwrap()],
        }
    }

    fn answered(by: Backend, saw: Saw) -> Outcome {
        let by = by.name().to_owned();
        [Observed::Answered { by, saw }].into_iter().collect()
    }

    #[test]
    fn a_client_is_kept_only_where_the_answer_comes_back_by_this_node() {
        let explained = |source, backend| {
            let probe = probe(source, Frontend::NodePort, vec![Endpoint::ready(backend)]);
            let (theirs, ours) = (answered(backend, Saw::Node), answered(backend, Saw::Client));
            Difference::explaining(&probe, Mode::Nftables, &USUAL, &theirs, &ours).is_some()
        };
        assert!(explained(Source::Outside, Backend::HereVeth));
        assert!(explained(Source::BridgePod, Backend::ThereBridge));
        assert!(!explained(Source::Outside, Backend::ThereBridge));
        assert!(!explained(Source::BridgePod, Backend::BridgeClient));
    }

    #[test]
    fn the_other_way_round_is_no_declared_difference() {
        let probe = probe(
            Source::Outside,
            Frontend::NodePort,
            vec![Endpoint::ready(Backend::HereVeth)],
        );
        let (client, node) = (
            answered(Backend::HereVeth, Saw::Client),
            answered(Backend::HereVeth, Saw::Node),
        );
        assert_eq!(
            Difference::explaining(&probe, Mode::Nftables, &USUAL, &client, &node),
            None
        );
        let other = answered(Backend::HereBridge, Saw::Client);
        assert_eq!(
            Difference::explaining(&probe, Mode::Nftables, &USUAL, &node, &other),
            None
        );
    }

    #[test]
    fn affinity_by_frontend_is_one_choice_for_each_and_nothing_else() {
        let backends = [Backend::HereBridge, Backend::HereVeth];
        let mut probe = probe(
            Source::BridgePod,
            Frontend::EachInTurn,
            backends.map(Endpoint::ready).into(),
        );
        Arc::get_mut(&mut probe.service).unwrap().affinity = true;
        let difference = Difference::OfPlane(plane::Difference::AffinityByFrontend);
        let explains = |probe: &Probe, theirs: &Outcome, ours: &Outcome| {
            difference.explains(probe, Mode::Nftables, &USUAL, theirs, ours)
        };
        let theirs = answered(backends[0], Saw::Client);
        let ours = theirs.and(&answered(backends[1], Saw::Client));
        assert!(explains(&probe, &theirs, &ours));
        let refused = Outcome::from_iter([Observed::Refused]);
        assert!(!explains(&probe, &theirs, &ours.and(&refused)));
        assert!(!explains(&probe, &refused, &ours));
        probe.frontend = Frontend::ClusterIp;
        assert!(!explains(&probe, &theirs, &ours));
    }

    #[test]
    fn undefined_ports_are_refused_only_at_addresses_that_the_node_has_for_a_service() {
        let (silent, refused) = (
            Outcome::from_iter([Observed::Silent]),
            Outcome::from_iter([Observed::Refused]),
        );
        let difference = Difference::OfPlane(plane::Difference::UndefinedPortsRefused);
        let explains =
            |probe: &Probe, ours: &Outcome| difference.explains(probe, Mode::Nftables, &USUAL, &silent, ours);
        let endpoints = || vec![Endpoint::ready(Backend::HereVeth)];
        let balancer = probe(Source::Outside, Frontend::LoadBalancerUndefinedPort, endpoints());
        assert!(explains(&balancer, &refused));
        assert!(!explains(&balancer, &answered(Backend::HereVeth, Saw::Client)));
        let served = probe(Source::Outside, Frontend::LoadBalancer, endpoints());
        assert!(!explains(&served, &refused));
        let mut elsewhere = balancer;
        Arc::get_mut(&mut elsewhere.service).unwrap().ingress = Vec::new();
        assert!(!explains(&elsewhere, &refused));
    }

    #[test]
    fn nothing_but_addresses_differs_from_nftables_mode() {
        let silent = Outcome::from_iter([Observed::Silent]);
        let refused = Outcome::from_iter([Observed::Refused]);
        let undefined = probe(Source::Outside, Frontend::ClusterIpUndefinedPort, Vec::new());
        let explain = |mode| Difference::explaining(&undefined, mode, &USUAL, &silent, &refused);
        assert_eq!(explain(Mode::Iptables), Some(Difference::UndefinedPortRefused));
        assert_eq!(explain(Mode::Nftables), None);
    }
}
