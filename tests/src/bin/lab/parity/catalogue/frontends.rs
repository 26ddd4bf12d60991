//! Services that differ in their frontends: addresses, ports, and who may dial them.

use lb_tests::client::Protocol;
use lb_tests::netlink::Cidr;
use lb_tests::network::plan;
use lb_tests::stage::Family;

use super::{Catalogue, OWNED};
use crate::parity::actors::Backend::{HereBridge, HereVeth, ThereBridge, ThereVeth};
use crate::parity::actors::{self, NODE_RANGES, Net};
use crate::parity::probe::Frontend;
use crate::parity::service::{Endpoint, Ingress, Kind, Policy, SECOND_TARGET, Service};

impl Catalogue {
    /// Ports and protocols, and those that a Service does not have.
    pub(super) fn ports(&mut self) {
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

    /// `loadBalancerSourceRanges`.
    pub(super) fn source_ranges(&mut self) {
        let both = || vec![Endpoint::ready(HereBridge), Endpoint::ready(ThereBridge)];
        let pods_of = |node| plan::pod_cidrs(node).to_vec();
        let outside = || vec![Cidr::host(plan::OUTSIDE_V4), Cidr::host(plan::OUTSIDE_V6)];
        let nobodys = || Cidr::new([192, 168, 0, 0], 16);
        let all = [Cidr::new([0, 0, 0, 0], 0), Cidr::new([0_u16; 8], 0)];
        let ranged = |ranges: Vec<Cidr>| {
            move |mut service: Service| {
                service.source_ranges = ranges;
                service
            }
        };
        for (name, ranges) in [
            ("outside", outside()),
            ("pods-here", pods_of(1)),
            ("pods-elsewhere", pods_of(2)),
            ("node", NODE_RANGES.to_vec()),
            (
                "nobody",
                vec![nobodys(), Cidr::new([0xfd00, 0x192, 0, 0, 0, 0, 0, 0], 64)],
            ),
            ("several", [outside(), pods_of(2)].concat()),
            ("everybody", all.to_vec()),
            ("one-family", vec![nobodys()]),
            ("nobody-and-everybody", vec![nobodys(), all[0]]),
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

    /// `status.loadBalancer`.
    pub(super) fn ingress(&mut self) {
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
    pub(super) fn node_addresses(&mut self) {
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
            service.source_ranges = NODE_RANGES.to_vec();
            service
        });
        ranges.frontends = vec![Frontend::LoadBalancer];
        let external = self.add("external-owned", here(), |mut service| {
            service.external_ips = vec![actors::second_node_addresses()];
            service
        });
        external.frontends = vec![Frontend::External, Frontend::ExternalUndefinedPort];
    }

    /// Types of Services, and what is no Service to a proxy.
    pub(super) fn other_kinds(&mut self) {
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

    /// Services of one family.
    pub(super) fn families(&mut self) {
        for family in Family::ALL {
            let both = vec![Endpoint::ready(HereBridge), Endpoint::ready(ThereBridge)];
            self.add(format!("only-{family}").to_lowercase(), both, |mut service| {
                service.families = vec![family];
                service
            });
        }
    }
}
