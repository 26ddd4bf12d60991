//! Two service ports that claim one frontend.

use super::*;

fn conflicts(cluster: &Cluster) -> Vec<String> {
    cluster.conflicts().map(|conflict| conflict.to_string()).collect()
}

/// Who holds each frontend after this, by `name → frontend`.
fn held(cluster: &Cluster) -> Vec<String> {
    let services = cluster.state().services.iter();
    services
        .flat_map(|(name, service)| {
            service
                .frontends
                .keys()
                .map(move |frontend| format!("{} {frontend}", name.name))
        })
        .collect()
}

#[test]
fn of_two_that_come_together_the_smallest_name_wins_in_any_order() {
    for order in [["a", "b"], ["b", "a"]] {
        let mut cluster = Cluster::default();
        for name in order {
            apply_service(&mut cluster, service(name, &["10.96.0.1"]));
        }
        assert_eq!(names(&cluster.take_change()), ["+ shop/a TCP IPv4"]);
        assert_eq!(
            conflicts(&cluster),
            ["10.96.0.1:80/TCP of shop/b TCP IPv4 is not served: shop/a TCP IPv4 holds it"]
        );
    }
}

#[test]
fn the_one_that_holds_it_keeps_it() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, service("b", &["10.96.0.1"]));
    cluster.take_change();
    apply_service(&mut cluster, service("a", &["10.96.0.1"]));
    assert!(cluster.take_change().is_empty());
    assert_eq!(held(&cluster), ["b 10.96.0.1:80/TCP"]);
    assert_eq!(conflicts(&cluster).len(), 1);
}

#[test]
fn the_next_one_gets_it_in_the_change_in_which_the_holder_lets_go() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, service("a", &["10.96.0.1"]));
    apply_service(&mut cluster, service("b", &["10.96.0.1"]));
    apply_slice(&mut cluster, slice("b-1", "b", &[elsewhere("10.0.1.1")]));
    cluster.take_change();

    delete_service(&mut cluster, "a");
    assert_eq!(
        names(&cluster.take_change()),
        ["- shop/a TCP IPv4", "+ shop/b TCP IPv4"]
    );
    assert_eq!(
        lines(cluster.state()),
        ["10.96.0.1:80/TCP near=Cluster far=Cluster WhereNeeded: 10.0.1.1:8080[C]"]
    );
    assert!(conflicts(&cluster).is_empty());
}

#[test]
fn a_loser_that_gives_up_is_no_conflict_any_more() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, service("a", &["10.96.0.1"]));
    apply_service(&mut cluster, service("b", &["10.96.0.1"]));
    cluster.take_change();
    apply_service(&mut cluster, service("b", &["10.96.0.2"]));
    assert_eq!(names(&cluster.take_change()), ["+ shop/b TCP IPv4"]);
    assert!(conflicts(&cluster).is_empty());
    delete_service(&mut cluster, "b");
    delete_service(&mut cluster, "a");
    cluster.take_change();
    assert!(cluster.holds_nothing());
}

#[test]
fn two_services_may_swap_their_node_ports_in_one_change_in_any_order() {
    let web = |name: &str, address: &str, node_port| Service {
        ports: ports(&[("", Protocol::Tcp, 80, Some(node_port))]),
        ..service(name, &[address])
    };
    for order in [[0, 1], [1, 0]] {
        let mut cluster = Cluster::default();
        apply_service(&mut cluster, web("a", "10.96.0.1", 30001));
        apply_service(&mut cluster, web("b", "10.96.0.2", 30002));
        cluster.take_change();

        let after = [web("a", "10.96.0.1", 30002), web("b", "10.96.0.2", 30001)];
        for index in order {
            apply_service(&mut cluster, after[index].clone());
        }
        assert_eq!(
            names(&cluster.take_change()),
            ["+ shop/a TCP IPv4", "+ shop/b TCP IPv4"]
        );
        assert_eq!(
            held(&cluster),
            [
                "a 10.96.0.1:80/TCP",
                "a 0.0.0.0:30002/TCP",
                "b 10.96.0.2:80/TCP",
                "b 0.0.0.0:30001/TCP"
            ]
        );
        assert!(conflicts(&cluster).is_empty());
    }
}

#[test]
fn a_swap_that_comes_in_two_changes_ends_as_it_should() {
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, service("a", &["10.96.0.1"]));
    apply_service(&mut cluster, service("b", &["10.96.0.2"]));
    cluster.take_change();

    apply_service(&mut cluster, service("a", &["10.96.0.2"]));
    cluster.take_change();
    assert_eq!(held(&cluster), ["b 10.96.0.2:80/TCP"]);
    apply_service(&mut cluster, service("b", &["10.96.0.1"]));
    cluster.take_change();
    assert_eq!(held(&cluster), ["a 10.96.0.2:80/TCP", "b 10.96.0.1:80/TCP"]);
}

#[test]
fn only_the_contested_frontend_is_withheld() {
    let web = |name: &str, address: &str| Service {
        ports: ports(&[("", Protocol::Tcp, 80, Some(30080))]),
        ..service(name, &[address])
    };
    let mut cluster = Cluster::default();
    apply_service(&mut cluster, web("a", "10.96.0.1"));
    apply_service(&mut cluster, web("b", "10.96.0.2"));
    cluster.take_change();
    assert_eq!(
        held(&cluster),
        ["a 10.96.0.1:80/TCP", "a 0.0.0.0:30080/TCP", "b 10.96.0.2:80/TCP"]
    );
}

#[test]
fn one_number_of_two_protocols_or_families_is_no_conflict() {
    let udp = Service {
        ports: ports(&[("", Protocol::Udp, 80, Some(30080))]),
        ..service("udp", &["10.96.0.1"])
    };
    let v6 = Service {
        ports: ports(&[("", Protocol::Udp, 80, Some(30080))]),
        ..service("v6", &["fd00:96::1"])
    };
    let tcp = Service {
        ports: ports(&[("", Protocol::Tcp, 80, Some(30080))]),
        ..service("tcp", &["10.96.0.1"])
    };
    let mut cluster = Cluster::default();
    for service in [udp, v6, tcp] {
        apply_service(&mut cluster, service);
    }
    assert_eq!(cluster.take_change().services.len(), 3);
    assert!(conflicts(&cluster).is_empty());
}
