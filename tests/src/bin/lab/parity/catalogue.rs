//! Which Services there are: every state of endpoints with every pair of policies, and one for each other rule.

use lb_tests::client::Protocol;
use lb_tests::network::plan;
use lb_tests::stage::Family;

use super::actors::{self, Backend, NODE_RANGES, Net, Source};
use super::probe::{Entry, Frontend};
use super::service::{Endpoint, Ingress, Kind, Policy, SECOND_TARGET, Service, TARGET};

/// The number of the Service whose load balancer's address the node has itself.
pub(crate) const OWNED: u8 = 250;

/// The zone of the first node, and of what is on it.
pub(crate) const ZONE_HERE: &str = "zone-here";
/// The zone of the second.
pub(crate) const ZONE_THERE: &str = "zone-there";

/// All of them.
pub(crate) fn all() -> Vec<Entry> {
    let mut catalogue = Catalogue::default();
    catalogue.states_and_policies();
    catalogue.hairpin();
    catalogue.ports();
    catalogue.slices();
    catalogue.topology();
    catalogue.affinity();
    catalogue.source_ranges();
    catalogue.ingress();
    catalogue.node_addresses();
    catalogue.other_kinds();
    catalogue.families();
    catalogue.entries
}

#[derive(Default)]
struct Catalogue {
    entries: Vec<Entry>,
}

use Backend::{HereBridge, HereVeth, NodeHere, NodeThere, ThereBridge, ThereVeth};

impl Catalogue {
    /// The next number. Small enough for a catalogue of two hundred.
    fn number(&self) -> u8 {
        u8::try_from(self.entries.len() + 1).unwrap_or(u8::MAX)
    }

    /// Adds a Service with the usual frontends, dialled by everybody.
    fn add(
        &mut self,
        name: impl Into<String>,
        endpoints: Vec<Endpoint>,
        change: impl FnOnce(Service) -> Service,
    ) -> &mut Entry {
        let service = change(Service::new(name, self.number(), endpoints));
        self.entries.push(Entry {
            service,
            frontends: Frontend::USUAL.to_vec(),
            sources: Source::ALL.to_vec(),
        });
        self.entries.last_mut().expect("one has just been added")
    }

    /// Who may answer under which pair of policies.
    fn states_and_policies(&mut self) {
        use Endpoint as E;
        let states: [(&str, Vec<Endpoint>); 13] = [
            ("here", vec![E::ready(HereBridge), E::ready(HereVeth)]),
            ("there", vec![E::ready(ThereBridge), E::ready(ThereVeth)]),
            ("both", vec![E::ready(HereVeth), E::ready(ThereBridge)]),
            ("none", vec![]),
            ("not-ready", vec![E::not_ready(HereBridge), E::not_ready(ThereBridge)]),
            ("ending", vec![E::ending(HereBridge), E::ending(ThereBridge)]),
            (
                "terminating",
                vec![E::terminating(HereBridge), E::terminating(ThereBridge)],
            ),
            (
                "terminating-there",
                vec![E::terminating(ThereBridge), E::ending(HereVeth)],
            ),
            (
                "terminating-here",
                vec![E::ready(ThereBridge), E::terminating(HereBridge)],
            ),
            (
                "one-terminating",
                vec![
                    E::ready(HereVeth),
                    E::terminating(HereBridge),
                    E::terminating(ThereVeth),
                ],
            ),
            ("unknown", vec![E::unknown(HereBridge), E::unknown(ThereVeth)]),
            ("host-network", vec![E::ready(NodeHere), E::ready(NodeThere)]),
            ("host-network-there", vec![E::ready(NodeThere)]),
        ];
        for (state, endpoints) in states {
            for external in Policy::ALL {
                for internal in Policy::ALL {
                    let name = format!("{state}-{}-{}", external.word(), internal.word()).to_lowercase();
                    self.add(name, endpoints.clone(), |mut service| {
                        (service.external, service.internal) = (external, internal);
                        service
                    });
                }
            }
        }
    }

    /// A pod that reaches itself, or another one that asks.
    fn hairpin(&mut self) {
        for (name, backend) in [
            ("self-bridge", Backend::BridgeClient),
            ("self-veth", Backend::VethClient),
        ] {
            for policy in Policy::ALL {
                let name = format!("{name}-{}", policy.word()).to_lowercase();
                self.add(name, vec![Endpoint::ready(backend)], |mut service| {
                    (service.external, service.internal) = (policy, policy);
                    service
                });
            }
        }
    }

    fn ports(&mut self) {
        let both = || vec![Endpoint::ready(HereBridge), Endpoint::ready(ThereVeth)];
        self.add("second-port", both(), |service| {
            service.with_second_port(Some(SECOND_TARGET))
        });
        self.add("port-without-endpoints", both(), |service| {
            service.with_second_port(None)
        });
        self.add("tcp-only", both(), |mut service| {
            service.protocols = vec![Protocol::Tcp];
            service
        });
        self.add("udp-only", both(), |mut service| {
            service.protocols = vec![Protocol::Udp];
            service
        });
        for (name, endpoints) in [("undefined", both()), ("undefined-none", vec![])] {
            let undefined = self.add(name, endpoints, |service| service);
            undefined.frontends = vec![
                Frontend::ClusterIpUndefinedPort,
                Frontend::Unallocated,
                Frontend::LoadBalancerUndefinedPort,
                Frontend::LoadBalancerAtNodePort,
                Frontend::ExternalUndefinedPort,
                Frontend::NodeAtServicePort,
            ];
        }
        // Two Services at one address of a load balancer, by port.
        let number = self.number();
        self.add("shared-address-a", vec![Endpoint::ready(HereBridge)], |service| service);
        self.add("shared-address-b", vec![Endpoint::ready(ThereBridge)], |mut service| {
            service.ingress = vec![Ingress::Vip(actors::addresses(Net::LoadBalancer, number))];
            service.ports[0].port = 81;
            service
        });
    }

    fn slices(&mut self) {
        use Endpoint as E;
        // One pod's address that another, which is about to end, has not given up yet.
        self.add(
            "twice",
            vec![
                E::terminating(HereBridge).in_slice(1),
                E::ready(HereBridge).in_slice(2),
                E::ready(ThereBridge).in_slice(1),
            ],
            |service| service,
        );
        self.add(
            "twice-reversed",
            vec![E::ready(HereVeth).in_slice(1), E::terminating(HereVeth).in_slice(2)],
            |service| service,
        );
        self.add(
            "slices-of-other-ports",
            vec![
                E::ready(HereBridge).in_slice(1),
                E::ready(ThereBridge).behind_by(2, SECOND_TARGET - TARGET),
            ],
            |service| service,
        );
        self.add(
            "many",
            vec![
                E::ready(HereBridge),
                E::ready(HereVeth).in_slice(1),
                E::ready(ThereBridge).in_slice(2),
                E::ready(ThereVeth).in_slice(2),
            ],
            |service| service,
        );
    }

    fn topology(&mut self) {
        use Endpoint as E;
        let here = || E::ready(HereBridge);
        let there = || E::ready(ThereBridge);
        for (name, endpoints) in [
            (
                "zones",
                vec![here().for_zones(&[ZONE_HERE]), there().for_zones(&[ZONE_THERE])],
            ),
            (
                "zones-swapped",
                vec![here().for_zones(&[ZONE_THERE]), there().for_zones(&[ZONE_HERE])],
            ),
            (
                "zones-elsewhere",
                vec![here().for_zones(&["a"]), there().for_zones(&["b"])],
            ),
            ("zones-of-some", vec![here().for_zones(&[ZONE_HERE]), there()]),
            (
                "zones-of-all-ready",
                vec![
                    here().for_zones(&[ZONE_HERE]),
                    there().for_zones(&["b"]),
                    E::not_ready(HereVeth),
                ],
            ),
            (
                "zones-of-terminating",
                vec![
                    E::terminating(HereBridge).for_zones(&[ZONE_THERE]),
                    E::terminating(ThereBridge).for_zones(&[ZONE_THERE]),
                ],
            ),
            (
                "nodes",
                vec![here().for_nodes(&["node1"]), there().for_nodes(&["node2"])],
            ),
            (
                "nodes-swapped",
                vec![here().for_nodes(&["node2"]), there().for_nodes(&["node1"])],
            ),
            (
                "nodes-before-zones",
                vec![
                    here().for_nodes(&["node2"]).for_zones(&[ZONE_HERE]),
                    there().for_nodes(&["node1"]).for_zones(&[ZONE_THERE]),
                ],
            ),
            (
                "zones-when-no-node",
                vec![
                    here().for_nodes(&["node8"]).for_zones(&[ZONE_THERE]),
                    there().for_nodes(&["node9"]).for_zones(&[ZONE_HERE]),
                ],
            ),
        ] {
            self.add(format!("hints-{name}"), endpoints.clone(), |service| service);
        }
        // A Local policy takes no notice of hints, and the short way for clients on the node does.
        self.add(
            "hints-local",
            vec![here().for_zones(&[ZONE_THERE]), there().for_zones(&[ZONE_HERE])],
            |mut service| {
                (service.external, service.internal) = (Policy::Local, Policy::Local);
                service
            },
        );
    }

    fn affinity(&mut self) {
        let here = || vec![Endpoint::ready(HereBridge), Endpoint::ready(HereVeth)];
        let there = || vec![Endpoint::ready(ThereBridge), Endpoint::ready(ThereVeth)];
        let mut frontends = Frontend::USUAL.to_vec();
        frontends.push(Frontend::EachInTurn);
        for (name, endpoints, policy) in [
            ("affinity-here", here(), Policy::Cluster),
            ("affinity-there", there(), Policy::Cluster),
            ("affinity-local", here(), Policy::Local),
        ] {
            let entry = self.add(name, endpoints, |mut service| {
                service.affinity = true;
                (service.external, service.internal) = (policy, policy);
                service
            });
            entry.frontends.clone_from(&frontends);
        }
    }

    fn source_ranges(&mut self) {
        let both = || vec![Endpoint::ready(HereBridge), Endpoint::ready(ThereBridge)];
        let pods_of = |node| plan::pod_cidrs(node).map(|cidr| cidr.to_string()).to_vec();
        let outside = || vec!["172.18.0.100/32".to_owned(), "fd00:172:18::100/128".to_owned()];
        let node = || NODE_RANGES.map(str::to_owned).to_vec();
        let ranged = |ranges: Vec<String>| {
            move |mut service: Service| {
                service.source_ranges = ranges;
                service
            }
        };
        for (name, ranges) in [
            ("outside", outside()),
            ("pods-here", pods_of(1)),
            ("pods-elsewhere", pods_of(2)),
            ("node", node()),
            ("nobody", vec!["192.168.0.0/16".into(), "fd00:192::/64".into()]),
            ("several", [outside(), pods_of(2)].concat()),
            ("everybody", vec!["0.0.0.0/0".into(), "::/0".into()]),
            ("one-family", vec!["192.168.0.0/16".into()]),
            (
                "nobody-and-everybody",
                vec!["192.168.0.0/16".into(), "0.0.0.0/0".into()],
            ),
        ] {
            self.add(format!("ranges-{name}"), both(), ranged(ranges));
        }
        self.add("ranges-none", vec![], ranged(outside()));
        self.add("ranges-local", vec![Endpoint::ready(HereVeth)], |service| {
            let mut service = ranged([outside(), pods_of(1)].concat())(service);
            service.external = Policy::Local;
            service
        });
        self.add("ranges-local-there", vec![Endpoint::ready(ThereVeth)], |service| {
            let mut service = ranged([outside(), pods_of(1)].concat())(service);
            service.external = Policy::Local;
            service
        });
        // The ranges of one Service are not those of another at the same address.
        let number = self.number();
        self.add("ranges-shared-a", both(), ranged(outside()));
        self.add("ranges-shared-b", both(), |service| {
            let mut service = ranged(pods_of(1))(service);
            service.ingress = vec![Ingress::Vip(actors::addresses(Net::LoadBalancer, number))];
            service.ports[0].port = 81;
            service
        });
    }

    fn ingress(&mut self) {
        let both = || vec![Endpoint::ready(HereBridge), Endpoint::ready(ThereBridge)];
        let first = |service: &Service| actors::addresses(Net::LoadBalancer, service.number);
        let second = |service: &Service| actors::addresses(Net::SecondLoadBalancer, service.number);
        self.add("ingress-proxy", both(), |mut service| {
            service.ingress = vec![Ingress::Proxy(first(&service))];
            service
        });
        self.add("ingress-hostname", both(), |mut service| {
            service.ingress = vec![Ingress::Hostname("lb.example")];
            service
        });
        self.add("ingress-none", both(), |mut service| {
            service.ingress = Vec::new();
            service
        });
        for (name, proxy) in [("ingress-two", false), ("ingress-vip-and-proxy", true)] {
            let entry = self.add(name, both(), |mut service| {
                let second = if proxy {
                    Ingress::Proxy(second(&service))
                } else {
                    Ingress::Vip(second(&service))
                };
                service.ingress = vec![Ingress::Vip(first(&service)), second];
                service
            });
            entry.frontends = vec![Frontend::LoadBalancer, Frontend::SecondLoadBalancer];
        }
    }

    /// What the node's own addresses have to do with it.
    fn node_addresses(&mut self) {
        for (name, endpoints, policy) in [
            (
                "addresses",
                vec![Endpoint::ready(HereBridge), Endpoint::ready(ThereBridge)],
                Policy::Cluster,
            ),
            ("addresses-none", vec![], Policy::Cluster),
            ("addresses-local", vec![Endpoint::ready(ThereBridge)], Policy::Local),
        ] {
            let entry = self.add(name, endpoints, |mut service| {
                service.external = policy;
                service
            });
            entry.frontends = vec![
                Frontend::NodePortOnSecondAddress,
                Frontend::NodePortOnBridgeAddress,
                Frontend::NodePortOnLocalhost,
            ];
        }
        let here = || vec![Endpoint::ready(HereBridge)];
        for (name, policy) in [("owned", Policy::Cluster), ("owned-local", Policy::Local)] {
            let entry = self.add(name, here(), |mut service| {
                service.ingress = vec![Ingress::Vip(actors::addresses(Net::LoadBalancer, OWNED))];
                service.external = policy;
                if policy == Policy::Local {
                    service.ports[0].port = 81;
                }
                service
            });
            entry.frontends = vec![
                Frontend::LoadBalancer,
                Frontend::LoadBalancerUndefinedPort,
                Frontend::LoadBalancerAtNodePort,
            ];
        }
        let ranges = self.add("owned-ranges", here(), |mut service| {
            service.ingress = vec![Ingress::Vip(actors::addresses(Net::LoadBalancer, OWNED))];
            service.ports[0].port = 82;
            service.source_ranges = NODE_RANGES.map(str::to_owned).to_vec();
            service
        });
        ranges.frontends = vec![Frontend::LoadBalancer];
        let external = self.add("external-owned", here(), |mut service| {
            service.external_ips = vec![actors::second_node_addresses()];
            service
        });
        external.frontends = vec![Frontend::External, Frontend::ExternalUndefinedPort];
    }

    fn other_kinds(&mut self) {
        let both = || vec![Endpoint::ready(HereBridge), Endpoint::ready(ThereBridge)];
        self.add("no-node-ports", both(), |mut service| {
            service.node_ports = false;
            service
        });
        for (name, kind) in [
            ("cluster-ip", Kind::ClusterIp),
            ("node-port", Kind::NodePort),
            ("headless", Kind::Headless),
            ("external-name", Kind::ExternalName),
        ] {
            self.add(name, both(), |mut service| {
                service.kind = kind;
                service
            });
        }
        self.add("of-another-proxy", both(), |mut service| {
            service.of_another_proxy = true;
            service
        });
        for (name, endpoints) in [
            ("internal-only", vec![Endpoint::ready(ThereBridge)]),
            ("internal-only-none", vec![]),
        ] {
            let entry = self.add(name, endpoints, |mut service| {
                service.kind = Kind::ClusterIp;
                service.external_ips = Vec::new();
                service.internal = Policy::Local;
                service
            });
            entry.frontends = vec![Frontend::ClusterIp];
        }
    }

    fn families(&mut self) {
        for family in Family::ALL {
            let both = vec![Endpoint::ready(HereBridge), Endpoint::ready(ThereBridge)];
            self.add(format!("only-{family}").to_lowercase(), both, |mut service| {
                service.families = vec![family];
                service
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::parity::probe::Probe;

    #[test]
    fn names_and_numbers_are_whose_they_are() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|entry| &entry.service.name).collect();
        let numbers: BTreeSet<_> = all.iter().map(|entry| entry.service.number).collect();
        assert_eq!((names.len(), numbers.len()), (all.len(), all.len()));
        assert!(!numbers.contains(&OWNED));
    }

    #[test]
    fn the_matrix_is_as_big_as_promised() {
        assert!(all().iter().flat_map(Probe::of).count() >= super::super::FEWEST);
    }
}
