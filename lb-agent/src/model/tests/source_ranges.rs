//! Who may dial the addresses of load balancers.

use super::*;

fn web(ranges: &[&str]) -> Service {
    Service {
        ports: ports(&[("", Protocol::Tcp, 80, Some(30080))]),
        external_ips: service_ips(&["192.0.2.1"]),
        load_balancer_ips: service_ips(&["203.0.113.1", "2001:db8::1"]),
        source_ranges: networks(ranges),
        ..service("web", &["10.96.0.1", "fd00:96::1"])
    }
}

fn node(address: &str) -> Option<Node> {
    Some(Node {
        internal_ips: vec![ip(address)],
        ..Node::default()
    })
}

/// Of each service port: the frontends that are restricted, and `to` whom, `node` if to its own
/// processes.
fn restricted(service: Service, node: Option<Node>) -> Vec<String> {
    let state = state_under(Rules::default(), node, vec![service], Vec::new());
    let ports = state.services.values();
    ports
        .map(|port| {
            let routes = port.frontends.iter();
            let frontends = routes.filter(|(_, route)| route.restricted);
            let frontends: Vec<_> = frontends.map(|(frontend, _)| frontend.to_string()).collect();
            let sources = &port.allowed_sources;
            let mut to: Vec<_> = sources.ranges.iter().map(ToString::to_string).collect();
            if sources.node {
                to.push("node".to_owned());
            }
            format!("{} to {}", frontends.join(" "), to.join(" "))
        })
        .collect()
}

#[test]
fn ranges_restrict_the_addresses_of_load_balancers_in_their_family_only() {
    assert_eq!(
        restricted(web(&["198.51.100.0/24", "198.51.0.0/24"]), None),
        ["203.0.113.1:80/TCP to 198.51.0.0/24 198.51.100.0/24", " to "]
    );
    assert_eq!(
        restricted(web(&["198.51.100.0/24", "2001:db8:1::/64"]), None),
        [
            "203.0.113.1:80/TCP to 198.51.100.0/24",
            "[2001:db8::1]:80/TCP to 2001:db8:1::/64",
        ]
    );
}

#[test]
fn a_range_of_the_whole_family_restricts_nothing_in_it() {
    assert_eq!(
        restricted(web(&["198.51.100.0/24", "0.0.0.0/0", "2001:db8:1::/64"]), None),
        [" to ", "[2001:db8::1]:80/TCP to 2001:db8:1::/64"]
    );
}

#[test]
fn no_range_and_no_address_of_a_load_balancer_restrict_nothing() {
    assert_eq!(restricted(web(&[]), None), [" to ", " to "]);
    let without = Service {
        load_balancer_ips: BTreeSet::new(),
        ..web(&["198.51.100.0/24"])
    };
    assert_eq!(restricted(without, node("198.51.100.1")), [" to ", " to "]);
}

#[test]
fn a_node_within_the_ranges_may_dial_also_with_the_address_itself_as_source() {
    assert_eq!(
        restricted(web(&["198.51.100.0/24"]), node("198.51.100.1")),
        ["203.0.113.1:80/TCP to 198.51.100.0/24 203.0.113.1/32 node", " to "]
    );
    assert_eq!(
        restricted(web(&["198.51.100.0/24"]), node("198.51.0.1")),
        ["203.0.113.1:80/TCP to 198.51.100.0/24", " to "]
    );
}

#[test]
fn only_the_nodes_primary_address_counts() {
    let node = Some(Node {
        internal_ips: vec![ip("192.168.0.1"), ip("198.51.100.1")],
        ..Node::default()
    });
    assert_eq!(
        restricted(web(&["198.51.100.0/24"]), node),
        ["203.0.113.1:80/TCP to 198.51.100.0/24", " to "]
    );
}

#[test]
fn a_node_that_gets_another_address_recomputes_the_services_with_ranges_and_no_other() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Node(node("198.51.100.1")));
    apply_service(&mut cluster, web(&["198.51.100.0/24"]));
    apply_service(&mut cluster, service("other", &["10.96.0.2"]));
    cluster.take_change();
    let before = cluster.recomputations();

    cluster.apply(Event::Node(node("192.168.0.1")));
    assert_eq!(names(&cluster.take_change()), ["+ shop/web TCP IPv4"]);
    assert_eq!(cluster.recomputations(), before + 1);

    // Another zone is nothing to them.
    let moved = node("192.168.0.1").map(|node| Node {
        zone: Some("a".to_owned()),
        ..node
    });
    cluster.apply(Event::Node(moved));
    cluster.take_change();
    assert_eq!(cluster.recomputations(), before + 1);
}
