//! Addresses from outside: load balancers', external ones, NodePorts on loopback, and who may dial them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use k8s_openapi::api::core::v1 as core;
use lb_tests::client::{Client, Failure, Protocol};
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::{Manifest, Service};
use lb_tests::netlink::Cidr;
use lb_tests::network::{Attachment, Pod, plan};
use lb_tests::plane::Difference;
use lb_tests::stage::TARGET;

use crate::fixture::{
    BOTH, BRIEFLY, World, answerers, becomes, becomes_answered_by, host_that_is_served, is_silence, names,
};

const NODE_PORT: u16 = 30_090;
/// Addresses of a load balancer: any that is routed to the node as those of Services are.
const BALANCER: u8 = 201;
const EXTERNAL: u8 = 202;

/// A client of each kind, and pods with servers on either node.
struct Scene {
    world: World,
    pod: Pod,
    host: Option<Client>,
    outside: Client,
    backends: [Pod; 2],
}

fn scene() -> Scene {
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let backends = [
        world.backend(1, "here", Attachment::Bridge),
        world.backend(2, "there", Attachment::Veth),
    ];
    Scene {
        host: host_that_is_served(world.node1()),
        outside: world.network.outside().client(),
        world,
        pod,
        backends,
    }
}

impl Scene {
    /// A Service of type LoadBalancer with an address of each family, changed by `change`.
    fn balance(&self, change: impl FnOnce(&mut core::Service)) -> Service {
        let service = Service::new("web", 1, TARGET)
            .at_node_port(NODE_PORT)
            .with_endpoints(&self.backends);
        let mut object = service.service();
        object.spec.as_mut().unwrap().type_ = Some("LoadBalancer".into());
        let ingress = plan::service_addresses(BALANCER).map(|ip| core::LoadBalancerIngress {
            ip: Some(ip.to_string()),
            ..Default::default()
        });
        object.status = Some(core::ServiceStatus {
            load_balancer: Some(core::LoadBalancerStatus {
                ingress: Some(ingress.into()),
            }),
            ..Default::default()
        });
        change(&mut object);
        self.write(&object);
        let slices = service.slice_manifests().unwrap();
        self.world.source.apply(&slices).unwrap();
        service
    }

    fn write(&self, object: &core::Service) {
        self.world.source.apply(&[Manifest::new(object).unwrap()]).unwrap();
    }

    fn clients(&self) -> impl Iterator<Item = (&'static str, Client)> {
        let host = self.host.clone().map(|host| ("host", host));
        [("pod", self.pod.client()), ("outside", self.outside.clone())]
            .into_iter()
            .chain(host)
    }
}

fn at(number: u8, port: u16) -> [SocketAddr; 2] {
    plan::service_addresses(number).map(|ip| SocketAddr::new(ip, port))
}

fn spec(object: &mut core::Service) -> &mut core::ServiceSpec {
    object.spec.as_mut().unwrap()
}

#[test]
fn the_address_of_a_load_balancer_is_served_to_everybody() {
    let mut scene = scene();
    scene.balance(|_| {});
    scene.world.start_agent(1);
    for (who, client) in scene.clients() {
        for to in at(BALANCER, 80) {
            for protocol in BOTH {
                eprintln!("{who} {protocol} {to}");
                assert_eq!(answerers(&client, protocol, to, 40), names(&scene.backends));
            }
        }
    }
}

#[test]
fn a_node_port_is_not_served_on_the_address_of_a_load_balancer() {
    let mut scene = scene();
    scene.balance(|_| {});
    scene.world.start_agent(1);
    for (who, client) in scene.clients() {
        let client = client.with_timeout(BRIEFLY);
        for to in at(BALANCER, NODE_PORT) {
            let outcome = client.ask(Protocol::Tcp, to);
            let is_said_no = if Difference::UndefinedPortsRefused.applies() {
                outcome == Err(Failure::Refused)
            } else {
                is_silence(&outcome)
            };
            assert!(is_said_no, "{who} to {to}: {outcome:?}");
        }
    }
}

#[test]
fn an_address_that_the_balancer_serves_itself_is_left_to_it() {
    let mut scene = scene();
    scene.balance(|object| {
        let status = object.status.as_mut().unwrap().load_balancer.as_mut().unwrap();
        for ingress in status.ingress.as_mut().unwrap() {
            ingress.ip_mode = Some("Proxy".into());
        }
    });
    scene.world.start_agent(1);
    for (who, client) in scene.clients() {
        let client = client.with_timeout(BRIEFLY);
        for to in at(BALANCER, 80) {
            let outcome = client.ask(Protocol::Tcp, to);
            assert!(outcome.is_err(), "{who} to {to}: {outcome:?}");
        }
    }
}

#[test]
fn external_ips_are_served_unless_they_are_switched_off() {
    let mut scene = scene();
    scene.balance(|object| {
        spec(object).external_ips = Some(plan::service_addresses(EXTERNAL).map(|ip| ip.to_string()).into());
    });
    scene.world.start_agent(1);
    for (_, client) in scene.clients() {
        for to in at(EXTERNAL, 80) {
            assert_eq!(answerers(&client, Protocol::Tcp, to, 40), names(&scene.backends));
        }
    }
    scene.world.agents.clear();
    scene.world.start_agent_with(1, &["--external-ips=false"]);
    for (who, client) in scene.clients() {
        let client = client.with_timeout(BRIEFLY);
        for to in at(EXTERNAL, 80) {
            let outcome = client.ask(Protocol::Tcp, to);
            assert!(outcome.is_err(), "{who} to {to}: {outcome:?}");
        }
        for to in at(BALANCER, 80) {
            assert!(client.ask(Protocol::Tcp, to).is_ok(), "{who} to {to}");
        }
    }
}

#[test]
fn source_ranges_keep_others_from_the_balancers_address_and_from_no_other_frontend() {
    let mut scene = scene();
    let outside = scene.world.network.outside().addresses().map(|ip| ip.to_string());
    let service = scene.balance(|object| spec(object).load_balancer_source_ranges = Some(as_ranges(&outside)));
    scene.world.start_agent(1);
    for to in at(BALANCER, 80) {
        for protocol in BOTH {
            assert_eq!(answerers(&scene.outside, protocol, to, 40), names(&scene.backends));
            for (who, client) in scene.clients().filter(|(who, _)| *who != "outside") {
                let outcome = client.with_timeout(BRIEFLY).ask(protocol, to);
                assert!(outcome.is_err(), "{who} {protocol} to {to}: {outcome:?}");
            }
            let outcome = scene.pod.client().with_timeout(BRIEFLY).ask(protocol, to);
            assert!(is_silence(&outcome), "a pod is told nothing: {outcome:?}");
        }
    }
    for (_, client) in scene.clients() {
        for to in crate::fixture::frontends(&service, scene.world.node1()) {
            assert!(client.ask(Protocol::Tcp, to).is_ok(), "{to}");
        }
    }

    // Other ranges, while it is served: the pod's and the node's.
    let allowed = [scene.pod.addresses(), scene.world.node1().addresses()].concat();
    let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    scene.balance(|object| spec(object).load_balancer_source_ranges = Some(as_ranges(&allowed)));
    for to in at(BALANCER, 80) {
        let pod = scene.pod.client();
        becomes(
            &format!("pod to {to}"),
            || pod.with_timeout(BRIEFLY).ask(Protocol::Tcp, to),
            |it| it.is_ok(),
        );
        if let Some(host) = &scene.host {
            assert!(host.ask(Protocol::Tcp, to).is_ok(), "host to {to}");
        }
        let outcome = scene.outside.with_timeout(BRIEFLY).ask(Protocol::Tcp, to);
        assert!(is_silence(&outcome), "outside to {to}: {outcome:?}");
    }
}

/// Each address as a range of its own.
fn as_ranges(addresses: &[String]) -> Vec<String> {
    let length = |address: &str| if address.contains(':') { 128 } else { 32 };
    addresses.iter().map(|ip| format!("{ip}/{}", length(ip))).collect()
}

#[test]
fn node_ports_on_loopback_are_for_processes_of_the_node() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let mut scene = scene();
    let host = scene.host.clone().unwrap();
    scene.balance(|_| {});
    scene
        .world
        .start_agent_with(1, &["--node-port-addresses", "primary,localhost"]);
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    for to in loopback.map(|ip| SocketAddr::new(ip, NODE_PORT)) {
        if Difference::NoLocalhostNodePorts.applies() {
            for protocol in BOTH {
                assert_eq!(host.ask(protocol, to), Err(Failure::Refused), "{protocol} to {to}");
            }
        } else {
            for protocol in BOTH {
                assert_eq!(answerers(&host, protocol, to, 40), names(&scene.backends));
            }
            assert!(host.ask_unconnected(to).is_ok());
        }
        // A pod's loopback is its own.
        let outcome = scene.pod.client().with_timeout(BRIEFLY).ask(Protocol::Tcp, to);
        assert_eq!(outcome, Err(Failure::Refused));
    }
    let route_localnet = scene
        .world
        .node1()
        .netns()
        .sysctl("ipv4.conf.all.route_localnet")
        .unwrap();
    assert_eq!(route_localnet.trim(), "0");
}

#[test]
fn node_ports_follow_the_addresses_of_the_node() {
    let mut scene = scene();
    scene.balance(|_| {});
    scene.world.start_agent_with(1, &["--node-port-addresses", "all"]);
    for ip in scene.world.node1().addresses() {
        let to = SocketAddr::new(ip, NODE_PORT);
        assert!(scene.outside.ask(Protocol::Tcp, to).is_ok(), "{to}");
    }
    // Another address on the uplink, which the outside reaches as it reaches Services.
    let node = scene.world.node1();
    let netlink = node.netns().netlink().unwrap();
    let uplink = node.uplink().index;
    for ip in plan::service_addresses(EXTERNAL) {
        netlink.add_address(uplink, Cidr::host(ip)).unwrap();
    }
    for to in at(EXTERNAL, NODE_PORT) {
        let outside = scene.outside.with_timeout(BRIEFLY);
        becomes(&format!("{to}"), || outside.ask(Protocol::Tcp, to), |it| it.is_ok());
    }
    for ip in plan::service_addresses(EXTERNAL) {
        netlink.remove_address(uplink, Cidr::host(ip)).unwrap();
    }
    for to in at(EXTERNAL, NODE_PORT) {
        let outside = scene.outside.with_timeout(BRIEFLY);
        becomes(&format!("{to}"), || outside.ask(Protocol::Tcp, to), |it| it.is_err());
    }
}

#[test]
fn a_client_keeps_its_backend_by_whichever_frontend_it_comes() {
    let mut scene = scene();
    let service = scene.balance(|object| spec(object).session_affinity = Some("ClientIP".into()));
    scene.world.start_agent(1);
    for (who, client) in scene.clients() {
        for (family, balancer) in at(BALANCER, 80).into_iter().enumerate() {
            let frontends = [
                balancer,
                crate::fixture::cluster_ips(&service)[family],
                crate::fixture::node_ports(&service, scene.world.node1())[family],
            ];
            for protocol in BOTH {
                let servers = frontends.map(|to| answerers(&client, protocol, to, 10));
                let all = BTreeSet::from_iter(servers.iter().flatten());
                let is_kept = if Difference::AffinityByFrontend.applies() {
                    servers.iter().all(|of_one| of_one.len() == 1)
                } else {
                    all.len() == 1
                };
                assert!(is_kept, "{who} {protocol}: {servers:?}");
            }
        }
    }
}

/// Near clients of a policy that is Local for others: they go to every endpoint, and keep to the one that they have.
#[test]
fn a_near_client_keeps_its_backend_also_where_others_are_served_here_only() {
    let mut scene = scene();
    let service = scene.balance(|object| {
        spec(object).session_affinity = Some("ClientIP".into());
        spec(object).external_traffic_policy = Some("Local".into());
    });
    scene.world.start_agent(1);
    for (who, client) in scene.clients() {
        let node_ports = crate::fixture::node_ports(&service, scene.world.node1());
        for to in [at(BALANCER, 80), node_ports].concat() {
            for protocol in BOTH {
                let servers = answerers(&client, protocol, to, 10);
                assert_eq!(servers.len(), 1, "{who} {protocol} to {to}: {servers:?}");
                if who == "outside" {
                    assert_eq!(servers, names([&scene.backends[0]]), "{protocol} to {to}");
                }
            }
        }
    }
}

#[test]
fn a_client_whose_backend_is_gone_takes_to_another_and_keeps_that() {
    let mut scene = scene();
    let service = scene.balance(|object| spec(object).session_affinity = Some("ClientIP".into()));
    scene.world.start_agent(1);
    for (_, client) in scene.clients() {
        for to in crate::fixture::cluster_ips(&service) {
            let first = answerers(&client, Protocol::Tcp, to, 5);
            let other = scene.backends.iter().find(|pod| !first.contains(pod.name())).unwrap();
            let slices = service.clone().with_endpoints([other]).slice_manifests().unwrap();
            scene.world.source.apply(&slices).unwrap();
            becomes_answered_by(&client, Protocol::Tcp, to, other.name());
            scene.world.source.apply(&service.slice_manifests().unwrap()).unwrap();
            // Both are there again: it stays where it is.
            assert_eq!(answerers(&client, Protocol::Tcp, to, 20), names([other]));
        }
    }
}

#[test]
fn a_port_that_a_cluster_ip_does_not_have_is_refused() {
    let mut scene = scene();
    let service = scene.balance(|_| {});
    scene.world.start_agent(1);
    for (who, client) in scene.clients() {
        for ip in service.cluster_ips {
            let to = SocketAddr::new(ip, 81);
            for protocol in BOTH {
                assert_eq!(
                    client.ask(protocol, to),
                    Err(Failure::Refused),
                    "{who} {protocol} to {to}"
                );
            }
        }
    }
}

#[test]
fn an_address_of_the_node_itself_is_taken_over_for_the_very_port_only() {
    let mut scene = scene();
    let node = scene.world.node1().addresses().map(|ip| ip.to_string());
    scene.balance(|object| spec(object).external_ips = Some(node.clone().into()));
    // What listens on the node itself goes on.
    let _own = lb_tests::server::Server::start(scene.world.node1().netns(), "node", 81).unwrap();
    scene.world.start_agent(1);
    for (_, client) in scene.clients() {
        for ip in scene.world.node1().addresses() {
            assert_eq!(
                answerers(&client, Protocol::Tcp, SocketAddr::new(ip, 80), 40),
                names(&scene.backends)
            );
            let own = answerers(&client, Protocol::Tcp, SocketAddr::new(ip, 81), 2);
            assert_eq!(own, BTreeSet::from(["node".to_owned()]));
        }
    }
}
