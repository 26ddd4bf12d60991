//! What is handed out when objects change, and what that costs.

use super::*;
use crate::model::Kind;

fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    for (name, address, backend) in [("a", "10.96.0.1", "10.0.1.1"), ("b", "10.96.0.2", "10.0.1.2")] {
        apply_service(&mut cluster, service(name, &[address]));
        apply_slice(&mut cluster, slice(&format!("{name}-1"), name, &[elsewhere(backend)]));
    }
    cluster
}

fn replace<T>(objects: Vec<T>) -> Update<T> {
    Update::Replace {
        objects,
        unreadable: Vec::new(),
    }
}

#[test]
fn a_change_holds_what_is_different_and_nothing_else() {
    let mut cluster = cluster();
    assert_eq!(
        names(&cluster.take_change()),
        ["+ shop/a TCP IPv4", "+ shop/b TCP IPv4"]
    );
    assert!(cluster.take_change().is_empty());

    apply_slice(&mut cluster, slice("b-1", "b", &[elsewhere("10.0.1.3")]));
    assert_eq!(names(&cluster.take_change()), ["+ shop/b TCP IPv4"]);

    delete_service(&mut cluster, "a");
    assert_eq!(names(&cluster.take_change()), ["- shop/a TCP IPv4"]);
}

#[test]
fn what_comes_and_goes_between_two_changes_is_in_none() {
    let mut cluster = cluster();
    cluster.take_change();
    delete_service(&mut cluster, "a");
    apply_service(&mut cluster, service("a", &["10.96.0.1"]));
    apply_service(&mut cluster, service("c", &["10.96.0.3"]));
    delete_service(&mut cluster, "c");
    assert!(cluster.take_change().is_empty());
}

#[test]
fn an_object_that_says_the_same_again_costs_nothing() {
    let mut cluster = cluster();
    cluster.take_change();
    let before = cluster.recomputations();
    apply_service(&mut cluster, service("a", &["10.96.0.1"]));
    apply_slice(&mut cluster, slice("a-1", "a", &[elsewhere("10.0.1.1")]));
    assert!(cluster.take_change().is_empty());
    assert_eq!(cluster.recomputations(), before);
}

#[test]
fn slices_may_come_before_their_service() {
    let mut cluster = Cluster::default();
    apply_slice(&mut cluster, slice("a-1", "a", &[elsewhere("10.0.1.1")]));
    assert!(cluster.take_change().is_empty());
    apply_service(&mut cluster, service("a", &["10.96.0.1"]));
    cluster.take_change();
    assert_eq!(
        lines(cluster.state()),
        ["10.96.0.1:80/TCP near=Cluster far=Cluster WhereNeeded: 10.0.1.1:8080[C]"]
    );
}

#[test]
fn a_slice_that_moves_to_another_service_leaves_the_one_before() {
    let mut cluster = cluster();
    cluster.take_change();
    apply_slice(&mut cluster, slice("a-1", "b", &[elsewhere("10.0.1.1")]));
    assert_eq!(cluster.take_change().services.len(), 2);
    assert_eq!(
        lines(cluster.state()),
        [
            "10.96.0.1:80/TCP near=Reject far=Reject WhereNeeded:",
            "10.96.0.2:80/TCP near=Cluster far=Cluster WhereNeeded: \
             10.0.1.1:8080[C] 10.0.1.2:8080[C]",
        ]
    );
}

#[test]
fn a_relist_replaces_everything_of_its_kind_and_nothing_else() {
    let mut cluster = cluster();
    cluster.take_change();
    let services = [service("b", &["10.96.0.2"]), service("c", &["10.96.0.3"])];
    cluster.apply(Event::Services(replace(services.map(AnyService::from).into())));
    assert_eq!(
        names(&cluster.take_change()),
        ["- shop/a TCP IPv4", "+ shop/c TCP IPv4"]
    );

    let slices = vec![slice("c-1", "c", &[elsewhere("10.0.1.9")])];
    cluster.apply(Event::EndpointSlices(replace(slices)));
    assert_eq!(
        names(&cluster.take_change()),
        ["+ shop/b TCP IPv4", "+ shop/c TCP IPv4"]
    );
}

#[test]
fn an_object_that_a_relist_could_not_read_keeps_its_last_good_version() {
    let mut cluster = cluster();
    cluster.take_change();
    cluster.apply(Event::Services(Update::Replace {
        objects: vec![service("b", &["10.96.0.2"]).into()],
        unreadable: vec![ObjectName::new("shop", "a"), ObjectName::new("shop", "never-seen")],
    }));
    assert!(cluster.take_change().is_empty());
}

#[test]
fn a_complete_list_of_each_kind_is_awaited_even_an_empty_one() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, service("a", &["10.96.0.1"]));
    assert_eq!(cluster.awaited(), [Kind::Service, Kind::EndpointSlice, Kind::Node]);
    cluster.apply(Event::Services(replace(Vec::new())));
    cluster.apply(Event::Node(None));
    assert_eq!(cluster.awaited(), [Kind::EndpointSlice]);
    cluster.apply(Event::EndpointSlices(replace(Vec::new())));
    assert!(cluster.awaited().is_empty());
}

#[test]
fn node_ports_are_served_on_the_nodes_primary_addresses_as_they_come_and_go() {
    let node = |address: &str| Node {
        internal_ips: vec![ip(address), ip("192.168.0.9")],
        ..Node::default()
    };
    let mut cluster = Cluster::default();
    cluster.apply(Event::Node(None));
    assert_eq!(cluster.take_change().node_port_addresses, None);

    cluster.apply(Event::Node(Some(node("192.168.0.1"))));
    let expected = BTreeSet::from([ip("192.168.0.1")]);
    assert_eq!(cluster.take_change().node_port_addresses, Some(expected.clone()));
    assert_eq!(cluster.state().node_port_addresses, expected);
    assert!(cluster.take_change().is_empty());

    cluster.apply(Event::UnreadableNode);
    assert!(cluster.take_change().is_empty());
    assert_eq!(cluster.state().node_port_addresses, expected);

    cluster.apply(Event::Node(None));
    assert_eq!(cluster.take_change().node_port_addresses, Some(BTreeSet::new()));
}

#[test]
fn a_node_object_that_was_never_readable_holds_up_no_service() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Services(replace(Vec::new())));
    cluster.apply(Event::EndpointSlices(replace(Vec::new())));
    cluster.apply(Event::UnreadableNode);
    assert!(cluster.awaited().is_empty());
}

#[test]
fn one_changed_slice_among_5000_services_recomputes_one_service() {
    const SERVICES: u32 = 5_000;
    let address = |base: u32, index: u32| std::net::Ipv4Addr::from(base + index).to_string();
    let endpoints = |service: u32, count: u32| -> Vec<Endpoint> {
        (0..count)
            .map(|index| elsewhere(&address(0x0a00_0001, service * 16 + index)))
            .collect()
    };
    let mut cluster = Cluster::default();
    for index in 0..SERVICES {
        let name = format!("s{index}");
        apply_service(&mut cluster, service(&name, &[&address(0x0a60_0001, index)]));
        apply_slice(&mut cluster, slice(&format!("{name}-1"), &name, &endpoints(index, 10)));
    }
    assert_eq!(cluster.take_change().services.len(), 5_000);
    assert_eq!(cluster.recomputations(), u64::from(SERVICES));

    apply_slice(&mut cluster, slice("s2500-1", "s2500", &endpoints(2500, 9)));
    assert_eq!(names(&cluster.take_change()), ["+ shop/s2500 TCP IPv4"]);
    assert_eq!(cluster.recomputations(), u64::from(SERVICES) + 1);
}
