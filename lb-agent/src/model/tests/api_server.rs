//! The API server's own Service keeps its last endpoint.

use super::*;

fn kubernetes() -> Service {
    Service {
        name: ObjectName::new("default", "kubernetes"),
        ..service("kubernetes", &["10.96.0.1"])
    }
}

fn slice_of_kubernetes(endpoints: &[Endpoint]) -> EndpointSlice {
    let ports = vec![EndpointPort {
        name: String::new(),
        protocol: Protocol::Tcp,
        port: number(6443),
    }];
    let name = ObjectName::new("default", "kubernetes");
    let mut slice = EndpointSlice::new(name, "kubernetes".into(), Family::V4, ports);
    for endpoint in endpoints {
        slice.add(endpoint.clone()).unwrap();
    }
    slice
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, kubernetes());
    apply_slice(
        &mut cluster,
        slice_of_kubernetes(&[elsewhere("192.168.0.1"), elsewhere("192.168.0.2")]),
    );
    cluster.take_change();
    cluster
}

const LAST: &str = "10.96.0.1:80/TCP near=Cluster far=Cluster WhereNeeded: 192.168.0.2:6443[C]";

#[test]
fn endpoints_go_one_by_one_but_the_last_one_stays() {
    let mut cluster = cluster();
    apply_slice(&mut cluster, slice_of_kubernetes(&[elsewhere("192.168.0.2")]));
    cluster.take_change();
    assert_eq!(lines(cluster.state()), [LAST]);

    let not_ready = endpoint("192.168.0.2", Placement::Elsewhere, not_ready());
    for endpoints in [&[][..], &[not_ready]] {
        apply_slice(&mut cluster, slice_of_kubernetes(endpoints));
        assert!(cluster.take_change().is_empty());
    }
    let name = ObjectName::new("default", "kubernetes");
    cluster.apply(Event::EndpointSlices(Update::Delete(name)));
    assert!(cluster.take_change().is_empty());
    assert_eq!(lines(cluster.state()), [LAST]);
}

#[test]
fn another_one_takes_its_place_at_once() {
    let mut cluster = cluster();
    apply_slice(&mut cluster, slice_of_kubernetes(&[]));
    cluster.take_change();
    apply_slice(&mut cluster, slice_of_kubernetes(&[elsewhere("192.168.0.2")]));
    cluster.take_change();
    assert_eq!(lines(cluster.state()), [LAST]);
}

#[test]
fn a_service_that_never_had_one_is_refused() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, kubernetes());
    cluster.take_change();
    assert_eq!(
        lines(cluster.state()),
        ["10.96.0.1:80/TCP near=Reject far=Reject WhereNeeded:"]
    );
}

#[test]
fn nothing_is_kept_of_a_service_that_is_gone() {
    let mut cluster = cluster();
    let name = ObjectName::new("default", "kubernetes");
    cluster.apply(Event::EndpointSlices(Update::Delete(name.clone())));
    cluster.apply(Event::Services(Update::Delete(name)));
    cluster.take_change();
    assert!(cluster.holds_nothing());
}

#[test]
fn nothing_is_kept_of_a_service_that_another_proxy_serves() {
    let mut cluster = cluster();
    apply_slice(&mut cluster, slice_of_kubernetes(&[]));
    let Service { name, cluster_ips, .. } = kubernetes();
    apply_service(&mut cluster, AnyService::OfAnotherProxy { name, cluster_ips });
    cluster.take_change();
    apply_service(&mut cluster, kubernetes());
    cluster.take_change();
    assert_eq!(
        lines(cluster.state()),
        ["10.96.0.1:80/TCP near=Reject far=Reject WhereNeeded:"]
    );
}

#[test]
fn other_services_lose_theirs() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, service("kubernetes", &["10.96.0.1"]));
    apply_slice(&mut cluster, slice("k-1", "kubernetes", &[elsewhere("10.0.1.1")]));
    cluster.take_change();
    apply_slice(&mut cluster, slice("k-1", "kubernetes", &[]));
    cluster.take_change();
    assert_eq!(
        lines(cluster.state()),
        ["10.96.0.1:80/TCP near=Reject far=Reject WhereNeeded:"]
    );
}
