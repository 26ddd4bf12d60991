//! The agent's metrics say what has really happened.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use lb_agent::metrics::{Description, descriptions};
use lb_agent::plane::PlaneName;
use lb_tests::client::Protocol;
use lb_tests::exposition::Exposition;
use lb_tests::http;
use lb_tests::manifests::{Manifest, Service};
use lb_tests::network::{Attachment, Node, Pod, plan};
use lb_tests::patience::patient;
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;

use crate::fixture::{SOON, World, cluster_ips, frontends, host_that_is_served, service_cidr};

/// Where the agent tells its metrics, unless it is told otherwise.
const PORT: u16 = 10249;
/// Longer than a count of rows is good for.
const RECOUNTED: Duration = Duration::from_secs(40);
/// The number of an address that no Service has.
const UNALLOCATED: u8 = 99;
/// Why these are tests of one plane only.
const COUNTED_BY_PROGRAMS: &str = "programs count what they do";

fn metrics(node: &Node) -> Exposition {
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT);
    let answer = http::get(node.netns(), at, "/metrics").unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    Exposition::parse(&answer.body).unwrap()
}

/// Waits until the series has this value.
#[track_caller]
fn becomes(node: &Node, name: &str, labels: &[(&str, &str)], expected: f64) {
    let until = Instant::now() + patient(SOON + RECOUNTED);
    loop {
        let value = metrics(node).value(name, labels);
        if value == Some(expected) {
            return;
        }
        assert!(
            Instant::now() < until,
            "{name} {labels:?} is {value:?}, expected {expected}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Datagrams from one socket, each of which is answered.
fn ask_by_udp(pod: &Pod, to: SocketAddr) {
    pod.client().ask(Protocol::Udp, to).unwrap();
}

#[test]
fn packets_are_counted_by_what_became_of_them() {
    if other_than(Plane::Ebpf, COUNTED_BY_PROGRAMS) {
        return;
    }
    let mut world = World::new();
    let here = world.backend(1, "here", Attachment::Veth);
    let there = world.backend(2, "there", Attachment::Bridge);
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let web = Service::new("web", 1, TARGET).with_endpoints([&here]);
    let refusing = Service::new("refusing", 2, TARGET);
    let elsewhere = Service::new("elsewhere", 3, TARGET).with_endpoints([&there]);
    for service in [&web, &refusing, &elsewhere] {
        world.apply(service);
    }
    let mut local = elsewhere.service();
    local.spec.as_mut().unwrap().internal_traffic_policy = Some("Local".into());
    world
        .source
        .apply(&[Manifest::new(&local).unwrap(), service_cidr()])
        .unwrap();
    world.start_agent(1);
    let node = world.node1();

    let before = metrics(node);
    for name in [
        "lb_flows_created_total",
        "lb_rejects_total",
        "lb_socket_translations_total",
    ] {
        assert_eq!(before.value(name, &[]), Some(0.0), "{name}");
    }
    // Three flows of UDP, two of TCP: one in each family, but for one of UDP more.
    for to in cluster_ips(&web) {
        ask_by_udp(&client, to);
        client.client().ask(Protocol::Tcp, to).unwrap();
    }
    ask_by_udp(&client, cluster_ips(&web)[0]);
    // As many datagrams as numbers say.
    let nobody = plan::service_addresses(UNALLOCATED).map(|ip| SocketAddr::new(ip, 80));
    for (to, count) in [
        (cluster_ips(&refusing)[0], 2),
        (cluster_ips(&elsewhere)[1], 3),
        (nobody[0], 4),
    ] {
        for _ in 0..count {
            let socket = client.client().datagrams(to).unwrap();
            socket.send_to(b"?", to).unwrap();
        }
    }
    becomes(node, "lb_flows_created_total", &[], 5.0);
    becomes(node, "lb_rejects_total", &[], 2.0);
    let drops = "lb_drops_total";
    becomes(node, drops, &[("reason", "no_local_endpoint")], 3.0);
    becomes(node, drops, &[("reason", "unallocated")], 4.0);
    becomes(node, drops, &[("reason", "flow_table")], 0.0);
    becomes(node, "lb_flows", &[("protocol", "UDP"), ("state", "active")], 3.0);
    becomes(node, "lb_flows", &[("protocol", "TCP"), ("state", "closing")], 2.0);
    becomes(node, "lb_flows", &[("protocol", "SCTP"), ("state", "active")], 0.0);
    becomes(node, "lb_flows_max", &[], 8192.0);
    becomes(node, "lb_lru_map_entries", &[("map", "FLOWS")], 10.0);
    becomes(node, "lb_lru_map_capacity", &[("map", "FLOWS")], 16384.0);

    if let Some(host) = host_that_is_served(node) {
        host.ask(Protocol::Tcp, cluster_ips(&web)[0]).unwrap();
        becomes(node, "lb_socket_translations_total", &[], 1.0);
    }
}

#[test]
fn what_there_is_and_how_much_room_is_told_as_it_changes() {
    let mut world = World::new();
    let here = world.backend(1, "here", Attachment::Veth);
    let there = world.backend(2, "there", Attachment::Bridge);
    let web = Service::new("web", 1, TARGET)
        .at_node_port(30_080)
        .with_endpoints([&here, &there]);
    world.apply(&web);
    world.start_agent(1);
    let node = world.node1();
    // Two families, two protocols; a ClusterIP and a NodePort each.
    becomes(node, "lb_services", &[], 1.0);
    becomes(node, "lb_service_ports", &[], 4.0);
    becomes(node, "lb_frontends", &[], 8.0);
    becomes(node, "lb_ready", &[], 1.0);
    assert_eq!(frontends(&web, node).count() * 2, 8);
    let map = |name| [("map", name)];
    if Plane::under_test() == Plane::Ebpf {
        becomes(node, "lb_map_entries", &map("SERVICES"), 8.0);
        becomes(node, "lb_map_capacity", &map("SERVICES"), 4096.0);
        // Each service port has its two endpoints once, and its range of both.
        becomes(node, "lb_map_entries", &map("BACKENDS"), 8.0);
        becomes(node, "lb_map_entries", &map("SLOTS"), 8.0);
    }
    let pods = [("role", "pod"), ("state", "served")];
    let served = metrics(node).value("lb_links", &pods).unwrap();
    let late = node.add_pod("late", Attachment::Veth).unwrap();
    becomes(node, "lb_links", &pods, served + 1.0);
    drop(late);
    becomes(node, "lb_links", &pods, served);

    let syncs = metrics(node).value("lb_syncs_total", &[]).unwrap();
    world.delete(&web);
    becomes(node, "lb_frontends", &[], 0.0);
    if Plane::under_test() == Plane::Ebpf {
        becomes(node, "lb_map_entries", &map("SERVICES"), 0.0);
        becomes(node, "lb_map_entries", &map("BACKENDS"), 0.0);
        becomes(node, "lb_map_entries", &map("SLOTS"), 0.0);
    }
    let after = metrics(node);
    assert!(after.value("lb_syncs_total", &[]).unwrap() > syncs);
    let slices = after.value("lb_programming_duration_seconds_count", &[("source", "EndpointSlice")]);
    assert!(slices.unwrap() >= 2.0, "a list and what was deleted: {slices:?}");
    for family in ["IPv4", "IPv6"] {
        let family = [("ip_family", family)];
        let full = after.value("kubeproxy_sync_full_proxy_rules_duration_seconds_count", &family);
        assert_eq!(full, Some(1.0));
    }
}

#[test]
fn each_metric_is_described_and_each_that_the_plane_has_is_there() {
    let mut world = World::new();
    let here = world.backend(1, "here", Attachment::Veth);
    let web = Service::new("web", 1, TARGET).with_endpoints([&here]);
    world.apply(&web);
    world.start_agent(1);
    let node = world.node1();
    becomes(node, "lb_ready", &[], 1.0);
    for path in ["/healthz", "/livez"] {
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10256);
        http::get(node.netns(), at, path).unwrap();
    }
    // A change after the first state.
    world.apply(&Service::new("other", 2, TARGET));
    becomes(node, "lb_services", &[], 2.0);

    let plane = match Plane::under_test() {
        Plane::Ebpf => PlaneName::Ebpf,
        Plane::Ipvs => PlaneName::Ipvs,
    };
    let exposed = metrics(node);
    let described: Vec<&Description> = descriptions().collect();
    for (name, kind) in &exposed.kinds {
        let found = described.iter().find(|description| description.name == name);
        let found = found.unwrap_or_else(|| panic!("{name} is described nowhere"));
        assert_eq!(*kind, found.kind.to_string(), "{name}");
        assert!(
            found.plane.is_none_or(|only| only == plane),
            "{name} has no meaning here"
        );
    }
    for description in described {
        // Those of an API server there is none of here, and nothing tells of the time of a change.
        let is_of_server = description.name.starts_with("lb_watch_")
            || description.name == "kubeproxy_network_programming_duration_seconds";
        let is_there = exposed.kinds.contains_key(description.name);
        let is_expected = !is_of_server && description.plane.is_none_or(|only| only == plane);
        assert_eq!(is_there, is_expected, "{}", description.name);
        if is_there {
            let labels = description.labels.iter().map(|&label| label.to_owned()).collect();
            let series = &description.series()[0];
            assert_eq!(exposed.labels(series), Some(labels), "{series}");
        }
    }
}
