//! `lb-agent explain` says of a packet what then becomes of real ones, and leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use aya::maps::HashMap;
use k8s_openapi::api::core::v1 as core;
use lb_common::maps;
use lb_tests::agent;
use lb_tests::client::{Client, Failure, Outcome, Protocol};
use lb_tests::interrupt::eventually;
use lb_tests::manifests::{Manifest, Service};
use lb_tests::network::{Attachment, Node, Pod, plan};
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;
use serde_json::{Value, json};

use crate::fixture::{BOTH, BRIEFLY, SOON, World, cluster_ips, frontends, is_silence, node_ports, service_cidr};

/// Why these are tests of one plane only.
const ASKS_A_PROGRAM: &str = "a program is asked";
/// An address for Services that no Service has.
const UNALLOCATED: u8 = 99;
/// The addresses of a load balancer: any that is routed to the node as those of Services are.
const BALANCER: u8 = 201;

/// Longer than a kernel holds back an acknowledgement.
const AT_REST: Duration = Duration::from_millis(300);

/// Runs it: exit code, and what it says on standard output and error.
#[track_caller]
fn run(node: &Node, verb: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let output = agent::offline(node, verb, args).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn json(node: &Node, verb: &str, args: &[&str]) -> Value {
    let args = [&["-o", "json"], args].concat();
    let (_, printed, said) = run(node, verb, &args);
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}{said}"))
}

/// What it says of a packet, and its exit code.
#[track_caller]
fn explain(node: &Node, protocol: Protocol, from: SocketAddr, to: SocketAddr) -> (Option<i32>, Value) {
    let protocol = protocol.to_string().to_lowercase();
    let (from, to) = (from.to_string(), to.to_string());
    let (code, printed, said) = run(node, "explain", &["-o", "json", &protocol, &from, &to]);
    let value = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}{said}"));
    (code, value)
}

/// The bytes of a map's rows. One that a real packet only looked at again has another time in it.
fn rows<const K: usize, const V: usize>(node: &Node, map: &str) -> BTreeMap<[u8; K], [u8; V]> {
    let map: HashMap<_, [u8; K], [u8; V]> = node.bpffs().map(map).unwrap().try_into().unwrap();
    map.iter().map(Result::unwrap).collect()
}

/// All that programs on links write and that outlives a packet.
#[derive(PartialEq, Debug)]
struct Traces {
    flows: BTreeMap<[u8; 40], [u8; 48]>,
    affinity: BTreeMap<[u8; 20], [u8; 16]>,
    counters: Value,
}

impl Traces {
    fn of(node: &Node) -> Self {
        Self {
            flows: rows(node, maps::FLOWS),
            affinity: rows(node, maps::AFFINITY),
            counters: json(node, "monitor", &["--counters"]),
        }
    }

    /// The same once nothing is under way: an acknowledgement may come late.
    #[track_caller]
    fn at_rest(node: &Node) -> Self {
        let mut last = Self::of(node);
        let is_at_rest = || {
            std::thread::sleep(AT_REST);
            let next = Self::of(node);
            let is_same = next == last;
            last = next;
            Ok(is_same.then_some(()))
        };
        eventually(SOON, "quiet", is_at_rest).unwrap();
        last
    }
}

/// Who may ask, and the addresses that it asks with.
struct Asker {
    name: &'static str,
    client: Client,
    addresses: [IpAddr; 2],
}

/// Services that treat their clients in every way there is, and an agent on node 1.
struct Scene {
    world: World,
    pods: [Pod; 2],
    own: Pod,
    /// Endpoints of the Services, as long as the test.
    _backends: [Pod; 2],
    services: Vec<Service>,
}

fn scene() -> Scene {
    let mut world = World::new();
    let pods = [("bridge", Attachment::Bridge), ("veth", Attachment::Veth)]
        .map(|(name, attachment)| world.node1().add_pod(name, attachment).unwrap());
    let here = world.backend(1, "here", Attachment::Veth);
    let there = world.backend(2, "there", Attachment::Bridge);
    let own = world.backend(1, "own", Attachment::Veth);
    let service = |name, number: u8, endpoints: &[&Pod]| {
        Service::new(name, number, TARGET)
            .at_node_port(30_080 + u16::from(number))
            .with_endpoints(endpoints.iter().copied())
    };
    let services = vec![
        service("both", 1, &[&here, &there]),
        service("remote", 2, &[&there]),
        service("empty", 3, &[]),
        service("local", 4, &[&there]),
        service("itself", 5, &[&own]),
        service("ranges", 6, &[&here]),
    ];
    for service in &services {
        world.apply(service);
    }
    let change = |service: &Service, change: &dyn Fn(&mut core::ServiceSpec)| {
        let mut object = service.service();
        change(object.spec.as_mut().unwrap());
        if service.name == "ranges" {
            let ingress = plan::service_addresses(BALANCER).map(|ip| core::LoadBalancerIngress {
                ip: Some(ip.to_string()),
                ..Default::default()
            });
            object.status = Some(core::ServiceStatus {
                load_balancer: Some(core::LoadBalancerStatus {
                    ingress: Some(ingress.into()),
                }),
                ..Default::default()
            });
        }
        world.source.apply(&[Manifest::new(&object).unwrap()]).unwrap();
    };
    change(&services[3], &|spec| {
        spec.external_traffic_policy = Some("Local".into());
    });
    let allowed = pods[1]
        .addresses()
        .map(|ip| format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 }));
    change(&services[5], &|spec| {
        spec.type_ = Some("LoadBalancer".into());
        spec.load_balancer_source_ranges = Some(allowed.clone().into());
    });
    world.source.apply(&[service_cidr()]).unwrap();
    world.start_agent(1);
    Scene {
        world,
        pods,
        own,
        _backends: [here, there],
        services,
    }
}

impl Scene {
    fn node(&self) -> &Node {
        self.world.node1()
    }

    fn askers(&self) -> Vec<Asker> {
        let pod = |name, pod: &Pod| Asker {
            name,
            client: pod.client(),
            addresses: pod.addresses(),
        };
        let outside = self.world.network.outside();
        vec![
            pod("bridge", &self.pods[0]),
            pod("veth", &self.pods[1]),
            pod("own", &self.own),
            Asker {
                name: "outside",
                client: outside.client(),
                addresses: outside.addresses(),
            },
        ]
    }

    /// Everything there is to dial; for a pod that is an endpoint, what leads to itself.
    fn dialled(&self, asker: &Asker) -> BTreeSet<SocketAddr> {
        if asker.name == "own" {
            return frontends(&self.services[4], self.node()).collect();
        }
        let mut dialled: BTreeSet<SocketAddr> = BTreeSet::new();
        for service in &self.services {
            dialled.extend(frontends(service, self.node()));
        }
        // A ClusterIP that has no such port, and an address that no Service has.
        dialled.extend(self.services[0].cluster_ips.map(|ip| SocketAddr::new(ip, 81)));
        dialled.extend(plan::service_addresses(UNALLOCATED).map(|ip| SocketAddr::new(ip, 80)));
        dialled.extend(plan::service_addresses(BALANCER).map(|ip| SocketAddr::new(ip, 80)));
        dialled
    }
}

/// Whether a real client meets what was said, and what a backend sees of it.
#[track_caller]
fn agrees(what: &str, said: &Value, code: Option<i32>, asker: &Asker, outcome: &Outcome) {
    let is_right = match said["verdict"].as_str().unwrap() {
        "sent" => {
            let answer = outcome
                .as_ref()
                .unwrap_or_else(|failure| panic!("{what}: {failure}, but {said}"));
            let is_masqueraded = !asker.addresses.contains(&answer.seen.ip());
            let possible = said["possible"].as_array().unwrap();
            // Whose address it is that answered is told by whether it is masqueraded for all of those.
            let is_possible = possible
                .iter()
                .any(|backend| backend["masquerade"] == json!(is_masqueraded));
            let is_drawn = possible
                .iter()
                .any(|backend| backend["backend"] == said["sent"]["backend"]);
            is_possible && is_drawn && said["reason"] == json!(null)
        }
        "refused" => *outcome == Err(Failure::Refused) && said["reason"] == "rejected",
        "dropped" => is_silence(outcome) && said["reason"].as_str().unwrap().starts_with("dropped_"),
        _ => false,
    };
    assert!(is_right, "{what}: {outcome:?}, but {said}");
    let is_good = said["verdict"] == "sent";
    assert_eq!(code, Some(if is_good { 0 } else { 1 }), "{what}: {said}");
}

#[test]
fn what_it_says_is_what_becomes_of_real_packets_and_it_leaves_no_rows() {
    if other_than(Plane::Ebpf, ASKS_A_PROGRAM) {
        return;
    }
    let scene = scene();
    let before = Traces::of(scene.node());
    let mut said = Vec::new();
    let mut reasons = BTreeSet::new();
    for (number, asker) in scene.askers().into_iter().enumerate() {
        for (index, to) in scene.dialled(&asker).into_iter().enumerate() {
            let from = asker.addresses[usize::from(to.is_ipv6())];
            // Ports that no client is given.
            let from = SocketAddr::new(from, 1_000 + number as u16);
            // In turn: every program is verified once more for each.
            let protocol = BOTH[(number + index) % 2];
            let (code, answer) = explain(scene.node(), protocol, from, to);
            reasons.extend(answer["reason"].as_str().map(str::to_owned));
            said.push((number, protocol, to, code, answer));
        }
    }
    assert_eq!(Traces::of(scene.node()), before);
    let expected = [
        "dropped_no_local_endpoint",
        "dropped_source_range",
        "dropped_unallocated",
        "rejected",
    ];
    assert_eq!(
        reasons,
        expected.map(str::to_owned).into(),
        "each is there to be compared"
    );

    let askers = scene.askers();
    for (number, protocol, to, code, answer) in said {
        let asker = &askers[number];
        let what = format!("{} {protocol} to {to}", asker.name);
        let client = match answer["verdict"].as_str() {
            Some("dropped") => asker.client.with_timeout(BRIEFLY),
            _ => asker.client.clone(),
        };
        agrees(&what, &answer, code, asker, &client.ask(protocol, to));
    }
}

#[test]
fn it_tells_frontend_policy_backends_and_masquerade_of_each_kind_of_client() {
    if other_than(Plane::Ebpf, ASKS_A_PROGRAM) {
        return;
    }
    let scene = scene();
    let [v4, _] = scene.pods[0].addresses();
    let [outside, _] = scene.world.network.outside().addresses();
    let ask = |from, to: SocketAddr| explain(scene.node(), Protocol::Tcp, SocketAddr::new(from, 1_000), to).1;
    let summary = |said: &Value| {
        let masqueraded = said["possible"]
            .as_array()
            .unwrap()
            .iter()
            .map(|backend| backend["masquerade"].clone());
        let masqueraded: Vec<Value> = masqueraded.collect();
        json!([said["frontend"], said["client"], masqueraded, said["verdict"]])
    };
    let both = &scene.services[0];
    let (cluster, node_port) = (cluster_ips(both)[0], node_ports(both, scene.node())[0]);
    let any = SocketAddr::new([0, 0, 0, 0].into(), node_port.port());
    // Backends are told in the order of their addresses, and that of this node comes first.
    assert_eq!(
        summary(&ask(v4, cluster)),
        json!([cluster, "near", [false, false], "sent"])
    );
    assert_eq!(
        summary(&ask(v4, node_port)),
        json!([any, "near", [false, false], "sent"])
    );
    assert_eq!(
        summary(&ask(outside, cluster)),
        json!([cluster, "far", [false, true], "sent"])
    );
    assert_eq!(
        summary(&ask(outside, node_port)),
        json!([any, "far", [false, true], "sent"])
    );
    // The pod that dials itself.
    let itself = cluster_ips(&scene.services[4])[0];
    assert_eq!(
        summary(&ask(scene.own.addresses()[0], itself)),
        json!([itself, "near", [true], "sent"])
    );
    // Who may not, may be told where others would be sent.
    let balancer = SocketAddr::new(plan::service_addresses(BALANCER)[0], 80);
    assert_eq!(
        summary(&ask(outside, balancer)),
        json!([balancer, "far", [false], "dropped"])
    );
    // The node's own address is no client's, from whichever link.
    let forged = SocketAddr::new(scene.node().addresses()[0], 1_000).to_string();
    let link = scene.pods[0].host_link().name.clone();
    let args = ["tcp", &forged, &cluster.to_string(), "--from", &link];
    let said = json(scene.node(), "explain", &args);
    assert_eq!(said["reason"], "dropped_spoofed_source", "{said}");
    assert_eq!(said["client"], json!(null));
    // What no hook of a link ever sees is not answered for.
    let (code, printed, error) = run(scene.node(), "explain", &args[..3]);
    assert_eq!((code, printed.as_str()), (Some(2), ""));
    assert!(error.contains("is an address of this node"), "{error}");
}

#[test]
fn of_protocols_without_clients_here_it_says_what_the_rules_are() {
    if other_than(Plane::Ebpf, ASKS_A_PROGRAM) {
        return;
    }
    let scene = scene();
    let service = &scene.services[0];
    for (from, to) in scene.pods[1].addresses().into_iter().zip(cluster_ips(service)) {
        let [from_end, to_end] = [SocketAddr::new(from, 1_000), to].map(|end| end.to_string());
        // The ClusterIP has no such port.
        let said = json(scene.node(), "explain", &["sctp", &from_end, &to_end]);
        assert_eq!(
            (&said["verdict"], &said["reason"]),
            (&json!("refused"), &json!("rejected"))
        );
        let said = json(
            scene.node(),
            "explain",
            &["icmp", &from.to_string(), &to.ip().to_string()],
        );
        assert_eq!(
            (&said["verdict"], &said["frontend"]),
            (&json!("untouched"), &json!(null))
        );
    }
}

#[test]
fn a_packet_of_a_flow_that_goes_on_goes_where_that_goes_and_does_not_keep_it_alive() {
    if other_than(Plane::Ebpf, ASKS_A_PROGRAM) {
        return;
    }
    let scene = scene();
    let pod = &scene.pods[0];
    for to in frontends(&scene.services[0], scene.node()) {
        for protocol in BOTH {
            let mut connection = pod.client().connect(protocol, to).unwrap();
            let server = connection.ask("who are you?").unwrap().server;
            let from = connection.local().unwrap();
            let args = ["--client", &from.to_string(), "--service", &to.to_string()];
            let flows = json(scene.node(), "flows", &args);
            assert_eq!(flows.as_array().unwrap().len(), 1, "{flows}");
            let before = Traces::at_rest(scene.node());
            for _ in 0..5 {
                let (_, said) = explain(scene.node(), protocol, from, to);
                assert_eq!(said["sent"]["isNew"], json!(false), "{said}");
                assert_eq!(said["sent"]["backend"], flows[0]["backend"], "{server}: {said}");
            }
            assert_eq!(Traces::of(scene.node()), before);
            assert_eq!(connection.ask("still?").unwrap().server, server);
        }
    }
}

#[test]
fn a_client_that_is_to_have_its_backend_again_is_told_that_one() {
    if other_than(Plane::Ebpf, ASKS_A_PROGRAM) {
        return;
    }
    let scene = scene();
    let (service, pod) = (&scene.services[0], &scene.pods[1]);
    let mut object = service.service();
    object.spec.as_mut().unwrap().session_affinity = Some("ClientIP".into());
    scene.world.source.apply(&[Manifest::new(&object).unwrap()]).unwrap();
    let [from, _] = pod.addresses();
    let [to, _] = cluster_ips(service);
    let ask = || explain(scene.node(), Protocol::Tcp, SocketAddr::new(from, 1_000), to).1;
    let has_affinity = || Ok((ask()["affinitySeconds"] == json!(10_800)).then_some(()));
    eventually(SOON, "the affinity", has_affinity).unwrap();
    pod.client().ask(Protocol::Tcp, to).unwrap();
    let flows = json(scene.node(), "flows", &["--client", &from.to_string()]);
    let had = &flows[0]["backend"];
    let before = Traces::at_rest(scene.node());
    assert_eq!(before.affinity.len(), 1);
    for _ in 0..20 {
        let said = ask();
        assert_eq!((&said["sent"]["backend"], &said["sent"]["isNew"]), (had, &json!(true)));
        assert_eq!(said["possible"].as_array().unwrap().len(), 2);
    }
    assert_eq!(Traces::of(scene.node()), before);
}

#[test]
fn it_needs_no_agent_and_says_which_links_it_can_be_asked_about() {
    if other_than(Plane::Ebpf, ASKS_A_PROGRAM) {
        return;
    }
    let mut scene = scene();
    scene.world.agents.pop().unwrap().kill().unwrap();
    let [from, _] = scene.pods[1].addresses();
    let [to, _] = cluster_ips(&scene.services[1]);
    let (code, said) = explain(scene.node(), Protocol::Udp, SocketAddr::new(from, 1_000), to);
    assert_eq!(
        (code, &said["program"]["link"]),
        (Some(0), &json!(scene.pods[1].host_link().name))
    );
    let ends = [format!("{from}:1000"), to.to_string()];
    for (args, reason) in [
        (vec!["--from", "no-such"], "there is no link no-such here"),
        (
            vec!["--from", &scene.node().bridge().name],
            "has no program of lb-agent's",
        ),
    ] {
        let args = [vec!["udp", &ends[0], &ends[1]], args].concat();
        let (code, printed, error) = run(scene.node(), "explain", &args);
        assert_eq!((code, printed.as_str()), (Some(2), ""), "{error}");
        assert!(error.contains(reason), "no {reason:?} in {error}");
    }
}
