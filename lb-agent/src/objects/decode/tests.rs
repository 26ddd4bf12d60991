use serde_json::{Value, json};

use super::*;
use crate::{desired::Distribution, model::AnyService};

pub(super) fn decode<T: Decode>(object: Value) -> Result<Decoded<T>, FieldError> {
    T::decode(serde_json::from_value(object).unwrap(), "this-node")
}

pub(super) fn object<T: Decode>(object: Value) -> T {
    match decode(object).unwrap() {
        Decoded::Object { object, skipped } => {
            assert_eq!(skipped, []);
            object
        }
        Decoded::Ignored(reason) => panic!("ignored: {reason}"),
    }
}

fn slice(ports: Value, endpoints: Value) -> Value {
    json!({
        "metadata": {
            "namespace": "shop",
            "name": "web-1",
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": endpoints,
    })
}

#[test]
fn a_slice_tells_when_the_change_was_that_it_is_for_unless_that_makes_no_sense() {
    let triggered = |time: &str| {
        let mut wire = slice(json!([]), json!([]));
        wire["metadata"]["annotations"] = json!({ "endpoints.kubernetes.io/last-change-trigger-time": time });
        object::<EndpointSlice>(wire).triggered()
    };
    let expected = "2026-12-01T02:03:04.000000005Z".parse().ok();
    assert_eq!(triggered("2026-12-01T02:03:04.000000005Z"), expected);
    assert_eq!(triggered("2026-12-01T03:03:04.000000005+01:00"), expected);
    assert_eq!(triggered("yesterday"), None);
    assert_eq!(object::<EndpointSlice>(slice(json!([]), json!([]))).triggered(), None);
}

#[test]
fn a_slice_as_the_api_server_writes_it() {
    let slice: EndpointSlice = object(slice(
        json!([{ "name": "http", "protocol": "TCP", "port": 8080 }]),
        json!([
            {
                "addresses": ["10.0.0.1", "10.0.0.99"],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": "this-node",
            },
            { "addresses": ["10.0.1.1"], "conditions": {}, "nodeName": "other" },
            { "addresses": ["10.0.1.2"] },
        ]),
    ));
    assert_eq!(slice.service().to_string(), "shop/web");
    let endpoints: Vec<_> = slice
        .endpoints()
        .iter()
        .map(|endpoint| (endpoint.address.to_string(), endpoint.placement))
        .collect();
    let expected = [
        ("10.0.0.1".to_owned(), Placement::Here),
        ("10.0.1.1".to_owned(), Placement::Elsewhere),
        ("10.0.1.2".to_owned(), Placement::Elsewhere),
    ];
    assert_eq!(endpoints, expected);
    assert!(slice.endpoints().iter().all(|endpoint| endpoint.conditions.is_ready()));
}

#[test]
fn an_endpoint_is_meant_for_the_nodes_and_zones_of_its_hints() {
    let hints = |hints: Value| {
        let endpoint = json!({ "addresses": ["10.0.0.1"], "hints": hints });
        let slice: EndpointSlice = object(slice(json!([{ "port": 8080 }]), json!([endpoint])));
        slice.endpoints()[0].hints.clone()
    };
    let zones = |zones: &[&str]| zones.iter().map(|&zone| zone.to_owned()).collect();
    assert_eq!(hints(Value::Null), Hints::default());
    assert_eq!(hints(json!({ "forNodes": [], "forZones": [] })), Hints::default());
    assert_eq!(
        hints(json!({ "forNodes": [{ "name": "other" }, { "name": "this-node" }] })),
        Hints::new(["this-node"], zones(&[]), "this-node")
    );
    assert_eq!(
        hints(json!({ "forNodes": [{ "name": "other" }], "forZones": [{ "name": "a" }, { "name": "b" }] })),
        Hints::new(["other"], zones(&["a", "b"]), "this-node")
    );
}

#[test]
fn an_endpoint_that_says_nonsense_costs_itself_and_not_its_slice() {
    let wire = slice(
        json!([{ "port": 8080 }, { "name": "all" }]),
        json!([
            { "addresses": ["10.0.0.1"] },
            { "addresses": ["127.0.0.1"] },
            { "addresses": ["fd00::1"] },
            { "addresses": ["web"] },
            { "addresses": [] },
        ]),
    );
    let Decoded::Object { object, skipped } = decode::<EndpointSlice>(wire).unwrap() else {
        panic!("a slice expected");
    };
    assert_eq!(object.endpoints().len(), 1);
    assert_eq!(object.ports().len(), 1);
    let skipped: Vec<_> = skipped.iter().map(ToString::to_string).collect();
    assert_eq!(
        skipped,
        [
            "ports[1].port: missing, and a service proxy serves no \"all ports\"",
            "endpoints[1].addresses[0]: 127.0.0.1 cannot be the address of an endpoint",
            "endpoints[2].addresses[0]: fd00::1 is not an IPv4 address",
            "endpoints[3].addresses[0]: \"web\" is not an IP address",
            "endpoints[4].addresses[0]: missing",
        ]
    );
}

#[test]
fn slices_that_no_proxy_serves_are_ignored() {
    let mut of_no_service = slice(json!([]), json!([]));
    of_no_service["metadata"]["labels"] = json!({});
    let mut headless = slice(json!([]), json!([]));
    headless["metadata"]["labels"][HEADLESS] = json!("");
    let mut names = slice(json!([]), json!([]));
    names["addressType"] = json!("FQDN");
    for ignored in [of_no_service, headless, names] {
        assert!(matches!(decode::<EndpointSlice>(ignored), Ok(Decoded::Ignored(_))));
    }
}

#[test]
fn a_node_has_the_addresses_of_its_status() {
    let node: Node = object(json!({
        "metadata": { "name": "this-node" },
        "status": { "addresses": [
            { "type": "Hostname", "address": "this-node" },
            { "type": "ExternalIP", "address": "1.2.3.4" },
            { "type": "InternalIP", "address": "192.168.0.1" },
        ] },
    }));
    assert_eq!(node.internal_ips, ["192.168.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(node.external_ips, ["1.2.3.4".parse::<IpAddr>().unwrap()]);
}

#[test]
fn a_node_is_leaving_when_it_is_deleted_or_tainted_by_the_autoscaler() {
    let is_leaving = |metadata: Value, taints: Value| {
        let node: Node = object(json!({ "metadata": metadata, "spec": { "taints": taints } }));
        node.is_leaving
    };
    let taint = |key: &str, effect: &str| json!([{ "key": key, "effect": effect }]);
    let deleted = json!({ "name": "this-node", "deletionTimestamp": "2026-11-30T12:00:00Z" });
    let alive = || json!({ "name": "this-node" });
    assert!(!is_leaving(alive(), json!([])));
    assert!(is_leaving(deleted, json!([])));
    for effect in ["NoSchedule", "PreferNoSchedule"] {
        assert!(is_leaving(alive(), taint("ToBeDeletedByClusterAutoscaler", effect)));
    }
    assert!(!is_leaving(
        alive(),
        taint("node.kubernetes.io/unschedulable", "NoSchedule")
    ));
}

#[test]
fn a_node_has_the_zone_of_its_label_and_the_networks_of_its_pods() {
    let node = |labels: Value, spec: Value| -> Node {
        object(json!({ "metadata": { "name": "this-node", "labels": labels }, "spec": spec }))
    };
    let networks = |node: &Node| node.pod_cidrs.iter().map(ToString::to_string).collect::<Vec<_>>();

    let full = node(
        json!({ "topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r" }),
        json!({ "podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/64"] }),
    );
    assert_eq!(full.zone.as_deref(), Some("a"));
    assert_eq!(networks(&full), ["10.0.0.0/24", "fd00::/64"]);

    let bare = node(json!({}), json!({ "podCIDR": "10.0.0.0/24" }));
    assert_eq!(bare.zone, None);
    assert_eq!(networks(&bare), ["10.0.0.0/24"]);
}

#[test]
fn a_node_that_cannot_be_read_is_told_from_one_that_is_not_there() {
    let list = |objects: Vec<Node>, unreadable: &[&str]| {
        let unreadable = unreadable
            .iter()
            .map(|name| ObjectName::new("default", *name))
            .collect();
        Node::event(Update::Replace { objects, unreadable })
    };
    let node = Node::default();
    assert_eq!(list(vec![node.clone()], &[]), Event::Node(Some(node)));
    assert_eq!(list(Vec::new(), &[]), Event::Node(None));
    assert_eq!(list(Vec::new(), &["this-node"]), Event::UnreadableNode);
}

#[test]
fn a_service_cidr_has_the_networks_of_its_spec() {
    let with = |cidrs: Value| json!({ "metadata": { "name": "kubernetes" }, "spec": { "cidrs": cidrs } });
    let cidr: ServiceCidr = object(with(json!(["10.96.0.0/16", "fd00:96::/112"])));
    let networks: Vec<_> = cidr.cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(
        (cidr.name.as_str(), networks),
        ("kubernetes", vec!["10.96.0.0/16".into(), "fd00:96::/112".into()])
    );

    let wire = with(json!(["10.96.0.1/16", "10.96.0.0", "10.96.0.0/33"]));
    let Decoded::Object { object, skipped } = decode::<ServiceCidr>(wire).unwrap() else {
        panic!("a ServiceCIDR expected");
    };
    assert_eq!(object.cidrs, ["10.96.0.0/16".parse().unwrap()]);
    let skipped: Vec<_> = skipped.iter().map(ToString::to_string).collect();
    let expected = [
        "spec.cidrs[1]: \"10.96.0.0\" is not a CIDR",
        "spec.cidrs[2]: \"10.96.0.0/33\" is not a CIDR",
    ];
    assert_eq!(skipped, expected);
}

#[test]
fn a_pod_is_read_if_it_is_of_this_node_and_says_something_of_its_sockets() {
    let wire = |node: &str, annotations: Value| {
        json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "0a1b", "annotations": annotations },
            "spec": { "nodeName": node, "containers": [] }
        })
    };
    let pod = |value: &str| object::<Pod>(wire("this-node", json!({ "lb-agent.io/socket-lb": value })));
    assert_eq!(
        pod("off"),
        Pod {
            name: ObjectName::new("shop", "web"),
            uid: "0a1b".to_owned(),
            is_opted_out: true,
        }
    );
    assert!(!pod("on").is_opted_out);
    let with_phase = |phase: &str| {
        let mut wire = wire("this-node", json!({ "lb-agent.io/socket-lb": "off" }));
        wire["status"] = json!({ "phase": phase });
        wire
    };
    assert!(object::<Pod>(with_phase("Running")).is_opted_out);
    let ignored = [
        wire("other-node", json!({ "lb-agent.io/socket-lb": "off" })),
        wire("this-node", json!({ "lb-agent.io/other": "off" })),
        wire("this-node", Value::Null),
        with_phase("Succeeded"),
        with_phase("Failed"),
        json!({ "metadata": { "name": "web", "annotations": { "lb-agent.io/socket-lb": "off" } } }),
    ];
    for wire in ignored {
        assert!(matches!(decode::<Pod>(wire).unwrap(), Decoded::Ignored(_)));
    }
    // One that the kubelet has from a file has another UID for the kubelet than at the server.
    let annotations = json!({ "lb-agent.io/socket-lb": "off", "kubernetes.io/config.hash": "f00d" });
    assert_eq!(object::<Pod>(wire("this-node", annotations)).uid, "f00d");
}

#[test]
fn what_a_pod_cannot_say_of_its_sockets_leaves_them_as_they_are() {
    let pod = |value: &str, host_network: bool| {
        json!({
            "metadata": { "name": "web", "uid": "0a1b", "annotations": { "lb-agent.io/socket-lb": value } },
            "spec": { "nodeName": "this-node", "hostNetwork": host_network, "containers": [] }
        })
    };
    for (wire, said) in [
        (pod("Off", false), "\"Off\" is neither on nor off"),
        (pod("", false), "\"\" is neither on nor off"),
        (
            pod("off", true),
            "a pod in the host's network has no link that would serve it instead",
        ),
    ] {
        let (object, skipped) = with_skipped::<Pod>(wire);
        assert!(!object.is_opted_out);
        assert_eq!(
            skipped,
            [format!("metadata.annotations[lb-agent.io/socket-lb]: {said}")]
        );
    }
}

/// The object, and what was left out of it.
fn with_skipped<T: Decode>(wire: Value) -> (T, Vec<String>) {
    let Decoded::Object { object, skipped } = decode(wire).unwrap() else {
        panic!("an object expected");
    };
    (object, skipped.iter().map(ToString::to_string).collect())
}

#[test]
fn a_slice_may_say_what_each_of_its_endpoints_weighs() {
    let weight = |weight: &str| {
        let ports = json!([{ "port": 80 }]);
        let mut wire = slice(ports, json!([{ "addresses": ["10.0.0.1"] }]));
        wire["metadata"]["annotations"] = json!({ "lb-agent.io/weight": weight });
        let (slice, skipped) = with_skipped::<EndpointSlice>(wire);
        (slice.endpoints()[0].weight.get(), skipped)
    };
    assert_eq!(weight("7"), (7, vec![]));
    for wrong in ["0", "101", "-1", "much"] {
        let said = format!("metadata.annotations[lb-agent.io/weight]: {wrong:?} is not a weight (1-100)");
        assert_eq!(weight(wrong), (1, vec![said]));
    }
}

#[test]
fn a_service_may_say_how_flows_are_spread() {
    let distribution = |annotations: Value| {
        let wire = json!({
            "metadata": { "name": "web", "annotations": annotations },
            "spec": { "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] },
        });
        let (service, skipped) = with_skipped::<AnyService>(wire);
        (service.ours().unwrap().distribution, skipped)
    };
    let algorithm = |algorithm: &str| distribution(json!({ "lb-agent.io/algorithm": algorithm }));
    assert_eq!(distribution(Value::Null), (None, vec![]));
    assert_eq!(algorithm("random"), (Some(Distribution::Random), vec![]));
    assert_eq!(algorithm("maglev"), (Some(Distribution::Maglev), vec![]));
    let said = "metadata.annotations[lb-agent.io/algorithm]: \"Maglev\" is neither random nor maglev";
    assert_eq!(algorithm("Maglev"), (None, vec![said.to_owned()]));
}

#[test]
fn addresses_are_read_as_the_api_reads_them() {
    let read = |address| ip("", address).ok().map(|ip| ip.to_string());
    assert_eq!(read("010.000.000.001").as_deref(), Some("10.0.0.1"));
    assert_eq!(read("::ffff:10.0.0.1").as_deref(), Some("10.0.0.1"));
    assert_eq!(read("FD00::1").as_deref(), Some("fd00::1"));
    for nonsense in ["", "10.0.0", "10.0.0.0.1", "10.0.0.256", "+10.0.0.1", "10.0.0.1/24"] {
        assert_eq!(read(nonsense), None, "{nonsense}");
    }
}
