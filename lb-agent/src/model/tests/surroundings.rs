//! What is the same for every Service: whose addresses are the cluster's, and which clients are pods.

use std::collections::BTreeMap;

use super::*;
use crate::model::{DetectLocal, Pod, ServiceCidr};

fn service_cidr(name: &str, cidrs: &[&str]) -> ServiceCidr {
    ServiceCidr {
        name: name.to_owned(),
        cidrs: networks(cidrs).into_iter().collect(),
    }
}

fn apply_service_cidr(cluster: &mut Cluster, object: ServiceCidr) {
    cluster.apply(Event::ServiceCidrs(Update::Apply(object)));
}

/// `+` for addresses that are ours by now, `/` for another proxy's, `-` for those that are gone.
fn cluster_ips(change: &Change) -> Vec<String> {
    let sign = |served_by: &Option<ServedBy>| match served_by {
        Some(ServedBy::Us) => "+",
        Some(ServedBy::AnotherProxy) => "/",
        None => "-",
    };
    let change = change.cluster_ips.iter();
    change
        .map(|(ip, served_by)| format!("{} {ip}", sign(served_by)))
        .collect()
}

#[test]
fn cluster_ips_are_those_of_every_service_in_both_families() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, service("a", &["10.96.0.1", "fd00:96::1"]));
    let b = Service {
        external_ips: service_ips(&["192.0.2.1"]),
        load_balancer_ips: service_ips(&["203.0.113.1"]),
        ..service("b", &["10.96.0.2"])
    };
    apply_service(&mut cluster, b);
    assert_eq!(
        cluster_ips(&cluster.take_change()),
        ["+ 10.96.0.1", "+ 10.96.0.2", "+ fd00:96::1"]
    );
    delete_service(&mut cluster, "a");
    assert_eq!(cluster_ips(&cluster.take_change()), ["- 10.96.0.1", "- fd00:96::1"]);
    assert_eq!(
        cluster.state().cluster_ips,
        BTreeMap::from([(ip("10.96.0.2"), ServedBy::Us)])
    );
}

#[test]
fn a_cluster_ip_of_two_services_stays_until_both_are_gone() {
    let mut cluster = Cluster::default();
    for name in ["a", "b"] {
        apply_service(&mut cluster, service(name, &["10.96.0.1"]));
    }
    assert_eq!(cluster_ips(&cluster.take_change()), ["+ 10.96.0.1"]);
    delete_service(&mut cluster, "a");
    assert_eq!(cluster_ips(&cluster.take_change()), [""; 0]);
    delete_service(&mut cluster, "b");
    assert_eq!(cluster_ips(&cluster.take_change()), ["- 10.96.0.1"]);
}

#[test]
fn a_service_that_gets_other_cluster_ips_lets_go_of_the_ones_before() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, service("a", &["10.96.0.1", "fd00:96::1"]));
    cluster.take_change();
    apply_service(&mut cluster, service("a", &["10.96.0.1"]));
    assert_eq!(cluster_ips(&cluster.take_change()), ["- fd00:96::1"]);
    // An address that passes from one to the other within a change has not changed.
    apply_service(&mut cluster, service("a", &["10.96.0.2"]));
    apply_service(&mut cluster, service("b", &["10.96.0.1"]));
    assert_eq!(cluster_ips(&cluster.take_change()), ["+ 10.96.0.2"]);
}

#[test]
fn of_a_service_of_another_proxy_there_are_its_addresses_and_nothing_else() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, of_another_proxy("a", &["10.96.0.1", "fd00:96::1"]));
    apply_slice(&mut cluster, slice("a-1", "a", &[here("10.0.0.1")]));
    let change = cluster.take_change();
    assert_eq!(cluster_ips(&change), ["/ 10.96.0.1", "/ fd00:96::1"]);
    assert!(change.services.is_empty());
    assert_eq!(cluster.recomputations(), 0);

    apply_service(&mut cluster, of_another_proxy("a", &["10.96.0.1"]));
    assert_eq!(cluster_ips(&cluster.take_change()), ["- fd00:96::1"]);
    delete_service(&mut cluster, "a");
    assert_eq!(cluster_ips(&cluster.take_change()), ["- 10.96.0.1"]);
}

#[test]
fn a_service_may_pass_to_another_proxy_and_back_with_its_addresses() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, with_health_check("a", &["10.96.0.1"]));
    cluster.take_change();
    for _ in 0..2 {
        apply_service(&mut cluster, of_another_proxy("a", &["10.96.0.1"]));
        assert_eq!(cluster_ips(&cluster.take_change()), ["/ 10.96.0.1"]);
        assert!(cluster.state().services.is_empty());
        assert!(cluster.health_checks().is_empty());

        apply_service(&mut cluster, with_health_check("a", &["10.96.0.1"]));
        assert_eq!(cluster_ips(&cluster.take_change()), ["+ 10.96.0.1"]);
        assert_eq!(cluster.state().services.len(), 1);
        assert_eq!(cluster.health_checks().len(), 1);
    }
}

#[test]
fn a_relist_takes_services_from_and_to_another_proxy_and_leaves_alone_what_it_could_not_read() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, service("becomes", &["10.96.0.1"]));
    apply_service(&mut cluster, of_another_proxy("was", &["10.96.0.2"]));
    apply_service(&mut cluster, of_another_proxy("unreadable", &["10.96.0.3"]));
    apply_service(&mut cluster, of_another_proxy("gone", &["10.96.0.4"]));
    cluster.take_change();
    cluster.apply(Event::Services(Update::Replace {
        objects: vec![
            of_another_proxy("becomes", &["10.96.0.1"]),
            service("was", &["10.96.0.2"]).into(),
        ],
        unreadable: vec![ObjectName::new("shop", "unreadable")],
    }));
    assert_eq!(
        cluster_ips(&cluster.take_change()),
        ["/ 10.96.0.1", "+ 10.96.0.2", "- 10.96.0.4"]
    );
    assert_eq!(
        cluster.state().cluster_ips.get(&ip("10.96.0.3")),
        Some(&ServedBy::AnotherProxy)
    );
}

#[test]
fn an_address_that_both_are_to_serve_is_ours_for_as_long_as_we_are() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, of_another_proxy("a", &["10.96.0.1"]));
    assert_eq!(cluster_ips(&cluster.take_change()), ["/ 10.96.0.1"]);
    apply_service(&mut cluster, service("b", &["10.96.0.1"]));
    assert_eq!(cluster_ips(&cluster.take_change()), ["+ 10.96.0.1"]);
    apply_service(&mut cluster, of_another_proxy("c", &["10.96.0.1"]));
    assert_eq!(cluster_ips(&cluster.take_change()), [""; 0]);
    delete_service(&mut cluster, "b");
    assert_eq!(cluster_ips(&cluster.take_change()), ["/ 10.96.0.1"]);
}

#[test]
fn a_service_without_ports_has_no_address() {
    let mut cluster = Cluster::default();
    let without = Service {
        ports: ports(&[]),
        ..service("a", &["10.96.0.1"])
    };
    apply_service(&mut cluster, without);
    assert!(cluster.take_change().is_empty());
}

#[test]
fn service_cidrs_are_those_of_all_objects() {
    let mut cluster = Cluster::default();
    apply_service_cidr(
        &mut cluster,
        service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]),
    );
    apply_service_cidr(&mut cluster, service_cidr("more", &["10.96.0.0/16", "10.97.0.0/16"]));
    assert_eq!(
        cluster.take_change().service_cidrs,
        Some(networks(&["10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112"]))
    );

    // One that another object names as well stays.
    cluster.apply(Event::ServiceCidrs(Update::Delete(ObjectName::new("", "more"))));
    assert_eq!(
        cluster.take_change().service_cidrs,
        Some(networks(&["10.96.0.0/16", "fd00:96::/112"]))
    );

    cluster.apply(Event::ServiceCidrs(Update::Replace {
        objects: vec![service_cidr("new", &["10.98.0.0/16"])],
        unreadable: vec![ObjectName::new("", "kubernetes")],
    }));
    assert_eq!(
        cluster.take_change().service_cidrs,
        Some(networks(&["10.96.0.0/16", "10.98.0.0/16", "fd00:96::/112"]))
    );

    apply_service_cidr(&mut cluster, service_cidr("new", &["10.98.0.0/16"]));
    assert!(cluster.take_change().is_empty());
}

#[test]
fn pods_are_told_by_their_addresses_only_where_the_operator_says_so() {
    let node = Node {
        pod_cidrs: networks(&["10.0.0.0/24", "fd00::/64"]),
        ..Node::default()
    };
    let pod_cidrs = |detect_local: DetectLocal| {
        let rules = Rules {
            detect_local,
            ..Rules::default()
        };
        state_under(rules, Some(node.clone()), Vec::new(), Vec::new()).pod_cidrs
    };
    assert_eq!(pod_cidrs(DetectLocal::ByLink), networks(&[]));
    assert_eq!(
        pod_cidrs(DetectLocal::NodeCidr),
        networks(&["10.0.0.0/24", "fd00::/64"])
    );
    let cluster_cidr = networks(&["10.0.0.0/8"]);
    assert_eq!(pod_cidrs(DetectLocal::ClusterCidr(cluster_cidr.clone())), cluster_cidr);
}

#[test]
fn the_networks_of_the_cluster_are_in_the_first_change_and_those_of_the_node_in_the_one_that_brings_it() {
    let rules = |detect_local| Rules {
        detect_local,
        ..Rules::default()
    };
    let mut cluster = Cluster::new(rules(DetectLocal::ClusterCidr(networks(&["10.0.0.0/8"]))));
    assert_eq!(cluster.take_change().pod_cidrs, Some(networks(&["10.0.0.0/8"])));
    assert!(cluster.take_change().is_empty());

    let mut cluster = Cluster::new(rules(DetectLocal::NodeCidr));
    assert!(cluster.take_change().is_empty());
    cluster.apply(Event::Node(Some(Node {
        pod_cidrs: networks(&["10.0.0.0/24"]),
        ..Node::default()
    })));
    assert_eq!(cluster.take_change().pod_cidrs, Some(networks(&["10.0.0.0/24"])));
}

/// The health checks, by Service: port, and count in each family.
fn health_checks(cluster: &Cluster) -> BTreeMap<String, (u16, Vec<(Family, usize)>)> {
    let checks = cluster.health_checks().iter();
    checks
        .map(|(name, check)| {
            let counts = check.local_endpoints.iter().map(|(family, count)| (*family, *count));
            (name.to_string(), (check.port.get(), counts.collect()))
        })
        .collect()
}

fn with_health_check(name: &str, cluster_ips: &[&str]) -> Service {
    Service {
        health_check_node_port: Some(number(32000)),
        ..service(name, cluster_ips)
    }
}

#[test]
fn a_health_check_counts_the_addresses_here_that_are_ready() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, with_health_check("web", &["10.96.0.1"]));
    apply_service(&mut cluster, service("other", &["10.96.0.2"]));
    cluster.take_change();
    let counted = |count| BTreeMap::from([("shop/web".to_owned(), (32000, vec![(Family::V4, count)]))]);
    assert_eq!(health_checks(&cluster), counted(0));

    let endpoints = [
        here("10.0.0.1"),
        here("10.0.0.2"),
        elsewhere("10.0.1.1"),
        endpoint("10.0.0.3", Placement::Here, serving_terminating()),
        endpoint("10.0.0.4", Placement::Here, not_ready()),
    ];
    let two_ports = [("", Protocol::Tcp, 8080), ("metrics", Protocol::Tcp, 9090)];
    apply_slice(&mut cluster, slice_with_ports("web-1", "web", &two_ports, &endpoints));
    // The same address once more.
    apply_slice(&mut cluster, slice("web-2", "web", &[here("10.0.0.1")]));
    cluster.take_change();
    assert_eq!(health_checks(&cluster), counted(2));

    delete_service(&mut cluster, "web");
    cluster.take_change();
    assert_eq!(health_checks(&cluster), BTreeMap::new());
}

#[test]
fn each_family_has_a_count_of_its_own() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, with_health_check("web", &["10.96.0.1", "fd00:96::1"]));
    apply_slice(
        &mut cluster,
        slice("web-4", "web", &[here("10.0.0.1"), here("10.0.0.2")]),
    );
    apply_slice(
        &mut cluster,
        slice("web-6", "web", &[here("fd00::1"), elsewhere("fd00::2")]),
    );
    cluster.take_change();
    let counts = vec![(Family::V4, 2), (Family::V6, 1)];
    assert_eq!(health_checks(&cluster)["shop/web"], (32000, counts));
}

#[test]
fn health_checks_are_looked_at_again_only_when_one_of_them_or_where_they_are_has_changed() {
    let mut cluster = Cluster::default();
    let changed_by = |cluster: &mut Cluster| {
        cluster.take_change();
        cluster.take_health_checks_changed()
    };
    assert!(changed_by(&mut cluster), "where they are is new");
    apply_service(&mut cluster, with_health_check("web", &["10.96.0.1"]));
    assert!(changed_by(&mut cluster));
    apply_service(&mut cluster, service("other", &["10.96.0.2"]));
    apply_slice(&mut cluster, slice("other-1", "other", &[here("10.0.0.1")]));
    apply_slice(&mut cluster, slice("web-1", "web", &[elsewhere("10.0.1.1")]));
    assert!(!changed_by(&mut cluster));
    apply_slice(&mut cluster, slice("web-1", "web", &[here("10.0.0.1")]));
    assert!(changed_by(&mut cluster));
    cluster.apply(Event::Node(Some(Node {
        internal_ips: vec![ip("192.168.0.1")],
        ..Node::default()
    })));
    assert!(changed_by(&mut cluster));
    delete_service(&mut cluster, "web");
    assert!(changed_by(&mut cluster));
    assert!(!changed_by(&mut cluster));
}

#[test]
fn a_service_that_loses_its_health_check_has_none() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, with_health_check("web", &["10.96.0.1"]));
    cluster.take_change();
    apply_service(&mut cluster, service("web", &["10.96.0.1"]));
    cluster.take_change();
    assert_eq!(health_checks(&cluster), BTreeMap::new());
}

#[test]
fn pods_that_opt_out_are_known_once_all_pods_are() {
    let pod = |name: &str, is_opted_out| Pod {
        name: ObjectName::new("shop", name),
        uid: format!("uid-{name}"),
        is_opted_out,
    };
    let uids = |uids: &[&str]| Some(uids.iter().map(|uid| (*uid).to_owned()).collect::<BTreeSet<_>>());
    let mut cluster = Cluster::new(Rules::default());
    cluster.apply(Event::Pods(Update::Apply(pod("a", true))));
    assert_eq!(cluster.take_change().untranslated_pods, None);
    cluster.apply(Event::Pods(Update::Replace {
        objects: vec![pod("a", true), pod("b", false)],
        unreadable: Vec::new(),
    }));
    assert_eq!(cluster.take_change().untranslated_pods, uids(&["uid-a"]));
    cluster.apply(Event::Pods(Update::Apply(pod("c", true))));
    assert_eq!(cluster.take_change().untranslated_pods, uids(&["uid-a", "uid-c"]));
    cluster.apply(Event::Pods(Update::Apply(pod("b", false))));
    assert_eq!(cluster.take_change().untranslated_pods, None, "nothing changes");
    cluster.apply(Event::Pods(Update::Delete(ObjectName::new("shop", "a"))));
    cluster.apply(Event::Pods(Update::Apply(pod("c", false))));
    assert_eq!(cluster.take_change().untranslated_pods, uids(&[]));
    // One that cannot be read stays as it was.
    cluster.apply(Event::Pods(Update::Apply(pod("b", true))));
    cluster.apply(Event::Pods(Update::Replace {
        objects: Vec::new(),
        unreadable: vec![ObjectName::new("shop", "b")],
    }));
    assert_eq!(cluster.take_change().untranslated_pods, uids(&["uid-b"]));
}
