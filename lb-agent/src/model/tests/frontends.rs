//! What clients of a Service dial.

use super::*;
use crate::desired::Target;

/// A Service with an address of each kind, of type LoadBalancer.
fn web() -> Service {
    Service {
        ports: ports(&[("", Protocol::Tcp, 80, Some(30080))]),
        external_ips: service_ips(&["192.0.2.1"]),
        load_balancer_ips: service_ips(&["203.0.113.1"]),
        ..service("web", &["10.96.0.1"])
    }
}

/// `frontend near/far`, with `restricted` and `always` masqueraded where it is.
fn frontends(state: &State) -> Vec<String> {
    let ports = state.services.values();
    let routes = ports.flat_map(|port| &port.frontends);
    routes
        .map(|(frontend, route)| {
            let mut line = format!("{frontend} {:?}/{:?}", route.near, route.far);
            if route.restricted {
                line += " restricted";
            }
            if route.masquerade == crate::desired::Masquerade::Always {
                line += " always";
            }
            line
        })
        .collect()
}

fn served(service: Service, rules: Rules) -> Vec<String> {
    frontends(&state_under(
        rules,
        None,
        vec![service],
        vec![slice("web-1", "web", &[elsewhere("10.0.1.1")])],
    ))
}

#[test]
fn each_kind_of_address_is_a_frontend_and_all_but_the_cluster_ip_follow_the_external_policy() {
    let web = Service {
        external_traffic_policy: TrafficPolicy::Local,
        ..web()
    };
    assert_eq!(
        served(web, Rules::default()),
        [
            "10.96.0.1:80/TCP Cluster/Cluster",
            "192.0.2.1:80/TCP Cluster/Drop",
            "203.0.113.1:80/TCP Cluster/Drop",
            "0.0.0.0:30080/TCP Cluster/Drop",
        ]
    );
}

#[test]
fn external_ips_may_be_switched_off() {
    let rules = Rules {
        serve_external_ips: false,
        ..Rules::default()
    };
    assert_eq!(
        served(web(), rules),
        [
            "10.96.0.1:80/TCP Cluster/Cluster",
            "203.0.113.1:80/TCP Cluster/Cluster",
            "0.0.0.0:30080/TCP Cluster/Cluster",
        ]
    );
}

#[test]
fn masquerade_all_concerns_cluster_ips_only() {
    let rules = Rules {
        masquerade_all: true,
        ..Rules::default()
    };
    assert_eq!(
        served(web(), rules),
        [
            "10.96.0.1:80/TCP Cluster/Cluster always",
            "192.0.2.1:80/TCP Cluster/Cluster",
            "203.0.113.1:80/TCP Cluster/Cluster",
            "0.0.0.0:30080/TCP Cluster/Cluster",
        ]
    );
}

#[test]
fn addresses_are_served_in_the_families_that_have_a_cluster_ip() {
    let addresses = |cluster_ips: &[&str]| {
        let web = Service {
            external_ips: service_ips(&["192.0.2.1", "2001:db8::1"]),
            load_balancer_ips: service_ips(&["203.0.113.1", "203.0.113.2", "2001:db8::2"]),
            ..service("web", cluster_ips)
        };
        let state = state(vec![web], Vec::new());
        let ports = state.services.values();
        let frontends: Vec<_> = ports.map(|port| port.frontends.len()).collect();
        frontends
    };
    assert_eq!(addresses(&["10.96.0.1"]), [4]);
    assert_eq!(addresses(&["fd00:96::1"]), [3]);
    assert_eq!(addresses(&["10.96.0.1", "fd00:96::1"]), [4, 3]);
}

#[test]
fn every_port_is_served_on_every_address() {
    let web = Service {
        ports: ports(&[
            ("http", Protocol::Tcp, 80, None),
            ("quic", Protocol::Udp, 443, Some(30443)),
        ]),
        ..web()
    };
    let mut frontends = served(web, Rules::default());
    frontends.sort();
    assert_eq!(
        frontends,
        [
            "0.0.0.0:30443/UDP Reject/Reject",
            "10.96.0.1:443/UDP Reject/Reject",
            "10.96.0.1:80/TCP Reject/Reject",
            "192.0.2.1:443/UDP Reject/Reject",
            "192.0.2.1:80/TCP Reject/Reject",
            "203.0.113.1:443/UDP Reject/Reject",
            "203.0.113.1:80/TCP Reject/Reject",
        ]
    );
}

#[test]
fn an_address_that_a_service_has_twice_is_an_external_one() {
    let web = Service {
        external_ips: service_ips(&["10.96.0.1", "203.0.113.1"]),
        source_ranges: networks(&["198.51.100.0/24"]),
        external_traffic_policy: TrafficPolicy::Local,
        ..web()
    };
    let rules = Rules {
        masquerade_all: true,
        ..Rules::default()
    };
    assert_eq!(
        served(web, rules),
        [
            // Its address is among the ClusterIPs all the same, whose clients are masqueraded.
            "10.96.0.1:80/TCP Cluster/Drop always",
            "203.0.113.1:80/TCP Cluster/Drop restricted",
            "0.0.0.0:30080/TCP Cluster/Drop",
        ]
    );
}

#[test]
fn affinity_is_that_of_the_service_in_every_port() {
    let seconds = std::num::NonZeroU32::new(60);
    let web = Service {
        affinity: seconds,
        ..service("web", &["10.96.0.1", "fd00:96::1"])
    };
    let state = state(vec![web], Vec::new());
    assert!(state.services.values().all(|port| port.affinity == seconds));
    assert_eq!(state.services.len(), 2);
}

#[test]
fn an_address_of_two_services_is_told_apart_by_port() {
    let with_port = |name: &str, cluster_ip: &str, number| Service {
        load_balancer_ips: service_ips(&["203.0.113.1"]),
        ports: ports(&[("", Protocol::Tcp, number, None)]),
        ..service(name, &[cluster_ip])
    };
    let services = vec![with_port("a", "10.96.0.1", 80), with_port("b", "10.96.0.2", 443)];
    let state = state(services, vec![slice("b-1", "b", &[elsewhere("10.0.1.1")])]);
    let targets: Vec<Target> = state
        .services
        .values()
        .flat_map(|port| port.frontends.values().map(|route| route.far))
        .collect();
    assert_eq!(
        targets,
        [Target::Reject, Target::Reject, Target::Cluster, Target::Cluster]
    );
}
