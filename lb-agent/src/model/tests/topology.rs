//! Which endpoints hints keep for clients on this node, which is in zone `a`.

use super::*;

fn hinted(address: &str, nodes: &[&str], zones: &[&str]) -> Endpoint {
    let zones = zones.iter().map(|&zone| zone.to_owned()).collect();
    Endpoint {
        hints: Hints::new(nodes.iter().copied(), zones, "this-node"),
        ..elsewhere(address)
    }
}

fn in_zone(zone: Option<&str>) -> Option<Node> {
    Some(Node {
        zone: zone.map(str::to_owned),
        ..Node::default()
    })
}

fn cluster_set(node: Option<Node>, endpoints: &[Endpoint]) -> Vec<String> {
    let services = vec![service("web", &["10.96.0.1"])];
    let state = state_under(Rules::default(), node, services, vec![slice("web-1", "web", endpoints)]);
    let ports = state.services.values();
    let endpoints = ports.flat_map(|port| &port.endpoints);
    let in_set = endpoints.filter(|(_, endpoint)| endpoint.cluster);
    in_set.map(|(address, _)| address.ip().to_string()).collect()
}

#[test]
fn the_cluster_set_by_the_hints_of_ready_endpoints() {
    type Hinted<'a> = (&'a [&'a str], &'a [&'a str]);
    let table: [(&str, [Hinted<'_>; 3], &[u8]); 12] = [
        ("no hints", [(&[], &[]), (&[], &[]), (&[], &[])], &[1, 2, 3]),
        (
            "zones, one of them ours",
            [(&[], &["a"]), (&[], &["b"]), (&[], &["c"])],
            &[1],
        ),
        (
            "one endpoint for several zones",
            [(&[], &["a"]), (&[], &["b", "a"]), (&[], &["c"])],
            &[1, 2],
        ),
        (
            "zones, none of them ours",
            [(&[], &["b"]), (&[], &["b"]), (&[], &["c"])],
            &[1, 2, 3],
        ),
        (
            "zones, but one endpoint has none",
            [(&[], &["a"]), (&[], &[]), (&[], &["b"])],
            &[1, 2, 3],
        ),
        (
            "nodes, one of them this",
            [(&["this-node"], &[]), (&["other"], &[]), (&["third"], &[])],
            &[1],
        ),
        (
            "nodes, none of them this",
            [(&["other"], &[]), (&["other"], &[]), (&["third"], &[])],
            &[1, 2, 3],
        ),
        (
            "nodes, but one endpoint has none",
            [(&["this-node"], &[]), (&[], &[]), (&["other"], &[])],
            &[1, 2, 3],
        ),
        (
            "nodes come before zones",
            [
                (&["other"], &["a"]),
                (&["this-node", "fourth"], &["b"]),
                (&["third", "this-node"], &["c"]),
            ],
            &[2, 3],
        ),
        (
            "zones where no node is this",
            [(&["other"], &["a"]), (&["other"], &["b"]), (&["third"], &["a"])],
            &[1, 3],
        ),
        (
            "zones where one endpoint has no node",
            [(&["this-node"], &["b"]), (&[], &["a"]), (&["third"], &["b"])],
            &[2],
        ),
        (
            "neither is complete",
            [(&["this-node"], &["a"]), (&[], &["a"]), (&["third"], &[])],
            &[1, 2, 3],
        ),
    ];
    for (name, hints, expected) in table {
        let hinted = (1..).zip(hints).map(|(host, (nodes, zones))| {
            let address = format!("10.0.1.{host}");
            hinted(&address, nodes, zones)
        });
        let endpoints: Vec<Endpoint> = hinted.collect();
        let expected: Vec<String> = expected.iter().map(|host| format!("10.0.1.{host}")).collect();
        assert_eq!(cluster_set(in_zone(Some("a")), &endpoints), expected, "{name}");
    }
}

#[test]
fn without_a_zone_of_its_own_a_node_uses_every_endpoint() {
    let endpoints = [hinted("10.0.1.1", &[], &["a"]), hinted("10.0.1.2", &[], &["b"])];
    for node in [None, in_zone(None)] {
        assert_eq!(cluster_set(node, &endpoints), ["10.0.1.1", "10.0.1.2"]);
    }
}

#[test]
fn endpoints_that_are_not_ready_have_no_say() {
    let unhinted_not_ready = endpoint("10.0.1.3", Placement::Elsewhere, not_ready());
    let endpoints = [
        hinted("10.0.1.1", &[], &["a"]),
        hinted("10.0.1.2", &[], &["b"]),
        unhinted_not_ready,
    ];
    assert_eq!(cluster_set(in_zone(Some("a")), &endpoints), ["10.0.1.1"]);
}

#[test]
fn the_last_resort_knows_no_hints() {
    let leaving = |address: &str, zone: &str| Endpoint {
        conditions: serving_terminating(),
        ..hinted(address, &[], &[zone])
    };
    let endpoints = [leaving("10.0.1.1", "a"), leaving("10.0.1.2", "b")];
    assert_eq!(cluster_set(in_zone(Some("a")), &endpoints), ["10.0.1.1", "10.0.1.2"]);
}

#[test]
fn the_local_set_knows_no_hints() {
    let here_for_others = Endpoint {
        placement: Placement::Here,
        ..hinted("10.0.0.1", &["other"], &["b"])
    };
    let endpoints = [here_for_others, hinted("10.0.1.1", &["other"], &["a"])];
    let services = vec![service("web", &["10.96.0.1"])];
    let slices = vec![slice("web-1", "web", &endpoints)];
    let state = state_under(Rules::default(), in_zone(Some("a")), services, slices);
    assert_eq!(
        lines(&state),
        ["10.96.0.1:80/TCP near=Cluster far=Cluster WhereNeeded: 10.0.0.1:8080[LN] 10.0.1.1:8080[C]"]
    );
}

#[test]
fn a_node_that_changes_its_zone_recomputes_the_services_with_hints_and_no_other() {
    let mut cluster = Cluster::default();
    cluster.apply(Event::Node(in_zone(Some("a"))));
    for (name, address) in [("hinted", "10.96.0.1"), ("plain", "10.96.0.2")] {
        apply_service(&mut cluster, service(name, &[address]));
    }
    let endpoints = [hinted("10.0.1.1", &[], &["a"]), hinted("10.0.1.2", &[], &["b"])];
    apply_slice(&mut cluster, slice("hinted-1", "hinted", &endpoints));
    apply_slice(&mut cluster, slice("plain-1", "plain", &[elsewhere("10.0.1.3")]));
    cluster.take_change();
    let before = cluster.recomputations();

    cluster.apply(Event::Node(in_zone(Some("b"))));
    assert_eq!(names(&cluster.take_change()), ["+ shop/hinted TCP IPv4"]);
    assert_eq!(cluster.recomputations(), before + 1);
    assert_eq!(
        lines(cluster.state())[0],
        "10.96.0.1:80/TCP near=Cluster far=Cluster WhereNeeded: 10.0.1.1:8080[] 10.0.1.2:8080[C]"
    );

    // A Node object changes all the time in fields that matter to nobody here.
    cluster.apply(Event::Node(in_zone(Some("b"))));
    assert!(cluster.take_change().is_empty());
    assert_eq!(cluster.recomputations(), before + 1);
}
