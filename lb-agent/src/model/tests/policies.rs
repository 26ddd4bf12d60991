//! Where near and far clients go, by traffic policy and by what endpoints there are.

use super::*;
use TrafficPolicy::{Cluster as ClusterPolicy, Local as LocalPolicy};

/// Near and far of the ClusterIP's and of the NodePort's route.
fn routes(policy: TrafficPolicy, endpoints: &[Endpoint]) -> [String; 2] {
    let web = Service {
        ports: ports(&[("", Protocol::Tcp, 80, Some(30080))]),
        internal_traffic_policy: policy,
        external_traffic_policy: policy,
        ..service("web", &["10.96.0.1"])
    };
    let state = state(vec![web], vec![slice("web-1", "web", endpoints)]);
    let lines = lines(&state);
    let mut routes = lines.iter().map(|line| {
        let (_, route) = line.split_once(' ').unwrap();
        route.split_once(':').unwrap().0.to_owned()
    });
    [routes.next().unwrap(), routes.next().unwrap()]
}

#[test]
fn policy_cluster_takes_every_client_to_every_endpoint() {
    for endpoints in [&[here("10.0.0.1")][..], &[elsewhere("10.0.1.1")]] {
        assert_eq!(
            routes(ClusterPolicy, endpoints),
            [
                "near=Cluster far=Cluster WhereNeeded",
                "near=Cluster far=Cluster WhereNeeded",
            ]
        );
    }
}

#[test]
fn policy_local_keeps_clients_here_and_spares_them_the_nodes_address() {
    assert_eq!(
        routes(LocalPolicy, &[here("10.0.0.1"), elsewhere("10.0.1.1")]),
        ["near=Local far=Local WhereNeeded", "near=Cluster far=Local WhereNeeded"]
    );
}

#[test]
fn policy_local_without_an_endpoint_here_drops_but_near_clients_take_the_short_way() {
    assert_eq!(
        routes(LocalPolicy, &[elsewhere("10.0.1.1")]),
        ["near=Drop far=Drop WhereNeeded", "near=Cluster far=Drop WhereNeeded"]
    );
}

#[test]
fn policy_local_falls_back_to_an_endpoint_here_that_serves_while_terminating() {
    let leaving = endpoint("10.0.0.1", Placement::Here, serving_terminating());
    assert_eq!(
        routes(LocalPolicy, &[leaving, elsewhere("10.0.1.1")]),
        ["near=Local far=Local WhereNeeded", "near=Cluster far=Local WhereNeeded"]
    );
}

#[test]
fn no_usable_endpoint_anywhere_is_a_reject_whatever_the_policy() {
    let endpoints = [
        endpoint("10.0.0.1", Placement::Here, not_ready()),
        endpoint("10.0.1.1", Placement::Elsewhere, not_ready()),
    ];
    for endpoints in [&endpoints[..], &[]] {
        assert_eq!(
            routes(ClusterPolicy, endpoints),
            [
                "near=Reject far=Reject WhereNeeded",
                "near=Reject far=Reject WhereNeeded",
            ]
        );
        assert_eq!(
            routes(LocalPolicy, endpoints),
            [
                "near=Reject far=Reject WhereNeeded",
                "near=Reject far=Reject WhereNeeded",
            ]
        );
    }
}

#[test]
fn the_policies_of_cluster_ip_and_node_port_are_their_own() {
    let web = Service {
        ports: ports(&[("", Protocol::Tcp, 80, Some(30080))]),
        internal_traffic_policy: LocalPolicy,
        ..service("web", &["10.96.0.1", "fd00:96::1"])
    };
    let state = state(vec![web], vec![slice("web-1", "web", &[elsewhere("10.0.1.1")])]);
    assert_eq!(
        lines(&state),
        [
            "10.96.0.1:80/TCP near=Drop far=Drop WhereNeeded: 10.0.1.1:8080[C]",
            "0.0.0.0:30080/TCP near=Cluster far=Cluster WhereNeeded: 10.0.1.1:8080[C]",
            "[fd00:96::1]:80/TCP near=Reject far=Reject WhereNeeded:",
            "[::]:30080/TCP near=Reject far=Reject WhereNeeded:",
        ]
    );
}
