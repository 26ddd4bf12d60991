//! The agent behind a real API server: what is applied with kubectl is what connections meet.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use lb_tests::agent::{self, Agent, Options};
use lb_tests::client::{Client, Failure, Outcome, Protocol, TIMEOUT};
use lb_tests::controlplane::ControlPlane;
use lb_tests::exposition::Exposition;
use lb_tests::http;
use lb_tests::manifests::{self, Manifest, Service};
use lb_tests::network::{Attachment, Network, Node, Pod};
use lb_tests::server::Server;
use lb_tests::source::Source;
use lb_tests::stage::TARGET;
use serde_json::Value;

const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
/// Longer than any change takes that works, also where a watch that failed waits before it tries again.
const SOON: Duration = Duration::from_secs(90);
/// Shorter than a patient client waits, for answers that must not come.
const BRIEFLY: Duration = Duration::from_millis(300);

/// What the agent may do, as it is shipped.
const RIGHTS: &str = include_str!("../../../deploy/rbac.yaml");

/// A network with an API server at its switch. Fields are dropped in their order.
struct World {
    agent: Option<Agent>,
    source: Source,
    _servers: [Server; 2],
    here: Pod,
    there: Pod,
    client: Pod,
    network: Network,
}

impl World {
    /// With the objects of the nodes, a backend on each node, and without an agent.
    fn new() -> Self {
        let network = Network::new().unwrap();
        let source = Source::api_server(&network).unwrap();
        let nodes = network.nodes().each_ref();
        source
            .apply(&nodes.map(|node| Manifest::new(&manifests::node(node)).unwrap()))
            .unwrap();
        let here = network.node1().add_pod("here", Attachment::Veth).unwrap();
        let there = network.node2().add_pod("there", Attachment::Bridge).unwrap();
        let client = network.node1().add_pod("client", Attachment::Bridge).unwrap();
        Self {
            agent: None,
            source,
            _servers: [&here, &there].map(|pod| pod.serve(TARGET).unwrap()),
            here,
            there,
            client,
            network,
        }
    }

    fn start_agent(&mut self) {
        let agent = Agent::start(self.network.node1(), &self.source, &Options::default()).unwrap();
        self.agent = Some(agent);
    }

    fn agent(&mut self) -> &mut Agent {
        self.agent.as_mut().unwrap()
    }

    fn cluster(&mut self) -> &mut ControlPlane {
        match &mut self.source {
            Source::ApiServer(cluster) => cluster,
            Source::Folder(_) => panic!("an API server expected"),
        }
    }

    fn apply(&self, service: &Service) {
        self.source.apply(&service.manifests().unwrap()).unwrap();
    }

    fn apply_slices(&self, service: &Service) {
        self.source.apply(&service.slice_manifests().unwrap()).unwrap();
    }

    fn delete(&self, service: &Service) {
        self.source.delete(&service.manifests().unwrap()).unwrap();
    }

    /// Asks at each frontend of a Service, from where it is meant for, until the outcome is good.
    #[track_caller]
    fn becomes(&self, service: &Service, patience: Duration, good: impl Fn(&Outcome) -> bool) {
        let port = &service.ports[0];
        let pod = self.client.client();
        let host = self.network.node1().client().unwrap();
        let outside = self.network.outside().client();
        let node = self.network.node1().addresses();
        let mut frontends: Vec<(&Client, SocketAddr)> = Vec::new();
        for ip in service.cluster_ips {
            frontends.extend([&pod, &host].map(|client| (client, (ip, port.port).into())));
        }
        if let Some(node_port) = port.node_port {
            frontends.extend(node.map(|ip| (&outside, (ip, node_port).into())));
        }
        let until = Instant::now() + SOON;
        for (client, to) in frontends {
            for protocol in BOTH {
                let client = client.with_timeout(patience);
                loop {
                    let outcome = client.ask(protocol, to);
                    if good(&outcome) {
                        break;
                    }
                    assert!(
                        Instant::now() < until,
                        "{} by {protocol} at {to}: {outcome:?}",
                        service.name
                    );
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    #[track_caller]
    fn answered_by(&self, service: &Service, server: &Pod) {
        let name = server.name();
        self.becomes(
            service,
            TIMEOUT,
            |outcome| matches!(outcome, Ok(answer) if answer.server == name),
        );
    }
}

fn web(number: u8) -> Service {
    Service::new(&format!("web{number}"), number, TARGET).at_node_port(30_000 + u16::from(number))
}

#[test]
fn what_kubectl_applies_is_served_and_followed() {
    let mut world = World::new();
    world.start_agent();
    // The Service first, as it is in a cluster: its endpoints come when its pods do.
    let service = web(1);
    world.apply(&service);
    world.becomes(&service, TIMEOUT, |outcome| *outcome == Err(Failure::Refused));
    let at_here = service.clone().with_endpoints([&world.here]);
    world.apply_slices(&at_here);
    world.answered_by(&service, &world.here);

    let at_there = service.clone().with_endpoints([&world.there]);
    world.apply_slices(&at_there);
    world.answered_by(&service, &world.there);

    // While no agent runs, what was there is served; the next one hears of what changed.
    let other = web(2).with_endpoints([&world.there]);
    world.apply(&other);
    world.answered_by(&other, &world.there);
    world.agent.take().unwrap().kill().unwrap();
    world.apply_slices(&at_here);
    world.delete(&other);
    world.answered_by(&service, &world.there);
    world.start_agent();
    world.answered_by(&service, &world.here);
    gone(&world, &other);

    world.delete(&service);
    gone(&world, &service);
}

#[test]
fn the_node_object_is_told_which_plane_serves_unless_the_server_refuses() {
    let mut world = World::new();
    let node = world.network.node1().name().to_owned();
    // As `kubectl describe node` looks for them.
    let of_node =
        format!("--field-selector=involvedObject.kind=Node,involvedObject.name={node},involvedObject.uid={node}");
    let output = "-o=jsonpath={range .items[*]}{.type} {.reason} {.reportingComponent}: {.message}{\"\\n\"}{end}";
    let events = ["get", "events", "--namespace=default", &of_node, output];
    world.start_agent();
    let until = Instant::now() + SOON;
    let told = loop {
        let told = world.cluster().kubectl(&events).unwrap();
        if !told.trim().is_empty() {
            break told;
        }
        assert!(Instant::now() < until, "no event: {}", world.agent().log().unwrap());
        std::thread::sleep(Duration::from_millis(100));
    };
    let plane = "lb-agent serves with ebpf: ";
    assert!(
        told.starts_with(&format!("Normal PlaneChosen lb-agent: {plane}")),
        "{told}"
    );

    // One that may not say so serves all the same.
    world.agent.take().unwrap().stop().unwrap();
    let no_events =
        r#"[{"op": "test", "path": "/rules/5/resources/0", "value": "events"}, {"op": "remove", "path": "/rules/5"}]"#;
    world
        .cluster()
        .kubectl(&["patch", "clusterrole", "lb-agent", "--type=json", "-p", no_events])
        .unwrap();
    let until = Instant::now() + SOON;
    let may = ["auth", "can-i", "create", "events.events.k8s.io"];
    while world.cluster().kubectl_as_agent(&may).is_ok() {
        assert!(Instant::now() < until, "it keeps its rights");
    }
    world.start_agent();
    let line = world.agent().wait_for_log(SOON, "the event PlaneChosen").unwrap();
    for said in ["is forbidden", "(status 403)", "create and patch of events"] {
        assert!(line.contains(said), "no {said:?} in: {line}");
    }
    let service = web(1).with_endpoints([&world.here]);
    world.apply(&service);
    world.answered_by(&service, &world.here);
}

/// At a cluster address nobody answers, and processes of the node may not even ask; at the node nobody listens.
#[track_caller]
fn gone(world: &World, service: &Service) {
    let silent = |outcome: &Outcome| {
        use Failure::{Denied, Refused, Timeout, Unreachable};
        matches!(outcome, Err(Timeout | Unreachable | Refused | Denied))
    };
    world.becomes(service, BRIEFLY, silent);
}

#[test]
fn an_outage_of_the_api_server_stops_no_service_and_what_changed_is_followed_after_it() {
    let mut world = World::new();
    let at_both = web(1).with_endpoints([&world.here, &world.there]);
    let deleted = web(2).with_endpoints([&world.here]);
    world.apply(&at_both);
    world.apply(&deleted);
    world.start_agent();
    let answered = |outcome: &Outcome| outcome.is_ok();
    world.becomes(&at_both, TIMEOUT, answered);
    let to = SocketAddr::new(at_both.cluster_ips[0], 80);
    let mut open = world.client.client().connect(Protocol::Tcp, to).unwrap();
    let server = open.ask("who").unwrap().server;

    let url = world.cluster().url();
    world.cluster().stop_apiserver().unwrap();
    // A connection to it that breaks off once is nothing to speak of; that it is not there to be asked again is.
    let line = world
        .agent()
        .wait_for_log(SOON, "the API server cannot be watched")
        .unwrap();
    for said in [url.as_str(), "its last word stays in force"] {
        assert!(line.contains(said), "no {said:?} in: {line}");
    }
    for service in [&at_both, &deleted] {
        world.becomes(service, TIMEOUT, answered);
    }
    assert_eq!(open.ask("still you?").unwrap().server, server);
    let node = world.network.node1();
    let status = status_of(node);
    assert_eq!((&status["state"], &status["ready"]), (&"degraded".into(), &true.into()));
    let outage = &status["outage"];
    assert!(
        outage["reason"].as_str().is_some_and(|reason| !reason.is_empty()),
        "{status}"
    );
    let kinds: Vec<&str> = outage["kinds"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(!kinds.is_empty(), "{status}");
    for kind in kinds {
        let age = metrics(node).value("lb_watch_age_seconds", &[("kind", kind)]);
        assert!(age.is_some_and(|age| age > 0.0), "{kind}: {age:?}");
        let failed = [("kind", kind), ("reason", "connection")];
        let failed = metrics(node).value("lb_watch_errors_total", &failed);
        assert!(failed.is_some_and(|count| count > 0.0), "{kind}: {failed:?}");
    }
    // Links are not the API server's.
    let late = world.network.node1().add_pod("late", Attachment::Veth).unwrap();
    let until = Instant::now() + SOON;
    while let Err(failure) = late.client().ask(Protocol::Tcp, to) {
        assert!(Instant::now() < until, "{failure}");
    }

    world.cluster().start_apiserver().unwrap();
    let at_there = at_both.clone().with_endpoints([&world.there]);
    world.apply_slices(&at_there);
    world.delete(&deleted);
    world
        .agent()
        .wait_for_log(SOON, "the API server is watched again")
        .unwrap();
    // Where both may answer, one right answer says nothing.
    let until = Instant::now() + SOON;
    for to in at_both.cluster_ips.map(|ip| SocketAddr::new(ip, 80)) {
        let client = world.client.client();
        let is_there = |_| matches!(client.ask(Protocol::Tcp, to), Ok(answer) if answer.server == world.there.name());
        while !(0..20).all(is_there) {
            assert!(Instant::now() < until, "{to} still leads to the endpoint that is gone");
        }
    }
    gone(&world, &deleted);
    let node = world.network.node1();
    let status = status_of(node);
    assert_eq!((&status["state"], &status["outage"]), (&"ready".into(), &Value::Null));
    for kind in ["Service", "EndpointSlice", "Node", "ServiceCIDR"] {
        let metrics = metrics(node);
        let of_kind = |name| metrics.value(name, &[("kind", kind)]);
        assert_eq!(of_kind("lb_watch_age_seconds"), Some(0.0), "{kind}");
        let starts = of_kind("lb_watch_starts_total");
        assert!(starts.is_some_and(|starts| starts >= 2.0), "{kind}: {starts:?}");
    }
}

/// What `lb-agent status` says on a node.
fn status_of(node: &Node) -> Value {
    let output = agent::offline(node, "status", &["-o", "json"]).unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn metrics(node: &Node) -> Exposition {
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10249);
    let answer = http::get(node.netns(), at, "/metrics").unwrap();
    Exposition::parse(&answer.body).unwrap()
}

#[test]
fn an_api_server_that_refuses_is_told_in_its_words_and_asked_until_it_does_not() {
    let mut world = World::new();
    let service = web(1).with_endpoints([&world.there]);
    world.apply(&service);
    let url = world.cluster().url();
    world
        .cluster()
        .kubectl(&["delete", "clusterrolebinding", "lb-agent"])
        .unwrap();
    let until = Instant::now() + SOON;
    while world.cluster().kubectl_as_agent(&["get", "services"]).is_ok() {
        assert!(Instant::now() < until, "it keeps its rights");
    }

    let mut agent = Agent::spawn(world.network.node1(), &world.source, &Options::default()).unwrap();
    let line = agent.wait_for_log(SOON, "the API server cannot be watched").unwrap();
    for said in [
        &url,
        "is forbidden",
        "(status 403)",
        "system:serviceaccount:kube-system:lb-agent",
    ] {
        assert!(line.contains(said), "no {said:?} in: {line}");
    }
    assert!(!agent.log().unwrap().contains(" ready "));
    world.cluster().apply(RIGHTS).unwrap();
    agent.wait_for_log(SOON, " ready ").unwrap();
    world.answered_by(&service, &world.there);
    agent.stop().unwrap();
}
