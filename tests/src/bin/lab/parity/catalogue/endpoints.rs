//! Services that differ in their endpoints: who they are, in what state, and what chooses among them.

use super::{Catalogue, ZONE_HERE, ZONE_THERE};
use crate::parity::actors::Backend::{self, HereBridge, HereVeth, NodeHere, NodeThere, ThereBridge, ThereVeth};
use crate::parity::probe::Frontend;
use crate::parity::service::{Endpoint, Policy, SECOND_TARGET, TARGET};

impl Catalogue {
    /// Who may answer under which pair of policies.
    pub(super) fn states_and_policies(&mut self) {
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
    pub(super) fn hairpin(&mut self) {
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

    /// How endpoints are spread over EndpointSlices.
    pub(super) fn slices(&mut self) {
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

    /// Hints.
    pub(super) fn topology(&mut self) {
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

    /// `sessionAffinity: ClientIP`.
    pub(super) fn affinity(&mut self) {
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
}
