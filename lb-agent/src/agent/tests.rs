//! The loop, with a plane that writes down what it is asked.

mod measured;

use std::{
    net::Ipv4Addr,
    num::NonZeroU16,
    sync::{Arc, Mutex},
};

use tokio::{sync::oneshot, task::JoinHandle};

use super::*;
use crate::{
    desired::{Protocol, State},
    metrics::Sources,
    model::{ClusterIps, Event, Node, ObjectName, Service, ServiceIp, ServicePort, ServicePorts, Update},
    plane::{
        PlaneError, PlaneName, Unsupported,
        choice::{Choice, Reason},
    },
};

/// What a plane was asked, and which names it is to refuse.
#[derive(Default)]
struct Record {
    calls: Vec<String>,
    refuse: Vec<String>,
    /// The first state cannot be taken on.
    fails: bool,
    unsupported: Vec<Unsupported>,
}

/// How many the plane says to have.
const FRONTENDS: usize = 7;

/// Where the objects come from.
const API_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 250));

/// What the plane is to refuse so that it cannot write addresses. No name of a service.
const ADDRESSES: &str = "the addresses";

#[derive(Clone, Default)]
struct FakePlane(Arc<Mutex<Record>>);

impl FakePlane {
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().calls)
    }

    fn refuse(&self, names: &[&str]) {
        self.0.lock().unwrap().refuse = names.iter().map(|&name| name.to_owned()).collect();
    }

    fn write(&self, verb: &str, services: Vec<(&ServicePortName, bool)>) -> Outcome {
        let mut record = self.0.lock().unwrap();
        let mut outcome = Outcome::default();
        let mut names = Vec::new();
        for (name, served) in services {
            names.push(format!("{}{}", if served { "+" } else { "-" }, name.name));
            if record.refuse.contains(&name.name) {
                outcome.failed.push((name.clone(), refusal(name.protocol)));
            } else {
                outcome.programmed += 1;
            }
        }
        if record.refuse.iter().any(|name| name == ADDRESSES) {
            outcome.addresses = Some(refusal(Protocol::Tcp));
        }
        record.calls.push(format!("{verb} {}", names.join(" ")));
        outcome
    }
}

impl Plane for FakePlane {
    fn replace(&mut self, state: &State) -> anyhow::Result<Outcome> {
        if self.0.lock().unwrap().fails {
            bail!("no place to take");
        }
        Ok(self.write("replace", state.services.keys().map(|name| (name, true)).collect()))
    }

    fn apply(&mut self, change: &Change) -> Outcome {
        let services = change.services.iter();
        self.write(
            "apply",
            services.map(|(name, service)| (name, service.is_some())).collect(),
        )
    }

    fn tick(&mut self) {}

    fn frontends(&self) -> usize {
        FRONTENDS
    }

    fn unsupported(&self) -> Vec<Unsupported> {
        self.0.lock().unwrap().unsupported.clone()
    }
}

fn refusal(protocol: Protocol) -> PlaneError {
    match protocol {
        Protocol::Tcp | Protocol::Sctp => PlaneError::MapFull {
            map: "SERVICES",
            capacity: 1,
            flag: "--max-services",
        },
        Protocol::Udp => PlaneError::kernel("a write", std::io::Error::from(std::io::ErrorKind::PermissionDenied)),
    }
}

struct Running {
    plane: FakePlane,
    batches: mpsc::Sender<Batch>,
    links: watch::Sender<bool>,
    is_filled: watch::Receiver<bool>,
    node_addresses: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    health: ProxyHealth,
    health_checks: watch::Receiver<Wanted>,
    progress: watch::Receiver<Progress>,
    metrics: Metrics,
    stop: oneshot::Sender<()>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    fn start() -> Self {
        Self::under(Rules::default())
    }

    fn under(rules: Rules) -> Self {
        let plane = FakePlane::default();
        let (batch_sender, batches) = crate::objects::channel();
        let (link_sender, links) = watch::channel(false);
        let (filled_sender, is_filled) = watch::channel(false);
        let (address_sender, node_addresses) = watch::channel(None);
        let (stop, stopped) = oneshot::channel();
        let (check_sender, health_checks) = watch::channel(Wanted::default());
        let (progress_sender, progress) = watch::channel(Progress::default());
        let health = ProxyHealth::new();
        let choice = Choice {
            plane: PlaneName::Ebpf,
            reason: Reason::Configured,
        };
        let metrics = Metrics::new(&choice, Sources::default());
        let outputs = Outputs {
            node_addresses: address_sender,
            families: watch::channel(BTreeSet::new()).0,
            is_filled: filled_sender,
            health: health.clone(),
            health_checks: check_sender,
            metrics: metrics.clone(),
            progress: progress_sender,
        };
        let mut agent = Agent::new(plane.clone(), rules, outputs, Instant::now());
        let inputs = Inputs {
            batches,
            links,
            api_server: Some(API_SERVER),
        };
        let task = tokio::spawn(async move { agent.run(inputs, async { stopped.await.unwrap_or_default() }).await });
        Self {
            plane,
            batches: batch_sender,
            links: link_sender,
            is_filled,
            node_addresses,
            health,
            health_checks,
            progress,
            metrics,
            stop,
            task,
        }
    }

    async fn send(&self, events: Vec<Event>) {
        self.batches.send(events.into()).await.unwrap();
    }

    async fn send_lists(&self, services: Vec<Service>) {
        self.send(vec![list(services), no_slices(), Event::Node(Some(node()))])
            .await;
    }

    /// The calls, once there are as many as that.
    async fn calls(&self, count: usize) -> Vec<String> {
        let mut calls = Vec::new();
        for _ in 0..500 {
            calls.extend(self.plane.calls());
            if calls.len() >= count {
                return calls;
            }
            time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{count} calls expected: {calls:?}");
    }
}

fn service(name: &str, last_octet: u8) -> Service {
    service_of(Protocol::Tcp, name, last_octet)
}

fn service_of(protocol: Protocol, name: &str, last_octet: u8) -> Service {
    let port = ServicePort {
        name: String::new(),
        protocol,
        port: 80.try_into().unwrap(),
        node_port: None,
    };
    Service {
        name: ObjectName::new("shop", name),
        cluster_ips: ClusterIps::new([IpAddr::from([10, 96, 0, last_octet])]).unwrap(),
        external_ips: BTreeSet::new(),
        load_balancer_ips: BTreeSet::new(),
        source_ranges: BTreeSet::new(),
        ports: ServicePorts::new(vec![port]).unwrap(),
        internal_traffic_policy: Default::default(),
        external_traffic_policy: Default::default(),
        affinity: None,
        health_check_node_port: None,
        distribution: None,
    }
}

fn node() -> Node {
    Node {
        internal_ips: vec![IpAddr::from([192, 168, 0, 1])],
        ..Node::default()
    }
}

fn list(services: Vec<Service>) -> Event {
    Event::Services(Update::Replace {
        objects: services.into_iter().map(Into::into).collect(),
        unreadable: Vec::new(),
    })
}

fn no_slices() -> Event {
    Event::EndpointSlices(Update::Replace {
        objects: Vec::new(),
        unreadable: Vec::new(),
    })
}

fn applied(service: Service) -> Event {
    Event::Services(Update::Apply(service.into()))
}

#[tokio::test]
async fn nothing_is_written_before_each_kind_has_a_complete_list() {
    let agent = Running::start();
    agent.send(vec![list(vec![service("a", 1)])]).await;
    agent.send(vec![no_slices()]).await;
    time::sleep(Duration::from_millis(50)).await;
    assert_eq!(agent.plane.calls(), [""; 0]);
    agent.send(vec![Event::Node(None)]).await;
    assert_eq!(agent.calls(1).await, ["replace +a"]);
}

#[tokio::test]
async fn after_that_only_changes_are_written() {
    let agent = Running::start();
    agent.send_lists(vec![service("a", 1), service("b", 2)]).await;
    assert_eq!(agent.calls(1).await, ["replace +a +b"]);
    let gone = Event::Services(Update::Delete(ObjectName::new("shop", "a")));
    agent.send(vec![gone, applied(service("c", 3))]).await;
    assert_eq!(agent.calls(1).await, ["apply -a +c"]);
    agent.send(vec![list(vec![service("b", 2), service("c", 3)])]).await;
    agent.send(vec![applied(service("d", 4))]).await;
    assert_eq!(agent.calls(1).await, ["apply +d"]);
}

#[tokio::test]
async fn a_service_port_that_fails_is_tried_again_with_what_is_wanted_by_then() {
    let agent = Running::start();
    agent.plane.refuse(&["a"]);
    agent.send_lists(vec![service("a", 1), service("b", 2)]).await;
    assert_eq!(agent.calls(1).await, ["replace +a +b"]);
    assert_eq!(agent.calls(1).await, ["apply +a"]);
    agent.send(vec![list(vec![service("b", 2)])]).await;
    assert_eq!(agent.calls(1).await, ["apply -a"]);
    agent.plane.refuse(&[]);
    assert_eq!(agent.calls(1).await, ["apply -a"]);
    time::sleep(Duration::from_secs(2)).await;
    assert_eq!(agent.plane.calls(), [""; 0]);
}

#[tokio::test]
async fn addresses_that_cannot_be_written_are_tried_again() {
    let agent = Running::start();
    agent.plane.refuse(&[ADDRESSES]);
    agent.send_lists(vec![service("a", 1)]).await;
    assert_eq!(agent.calls(2).await, ["replace +a", "apply "]);
    agent.plane.refuse(&[]);
    assert_eq!(agent.calls(1).await, ["apply "]);
    time::sleep(Duration::from_secs(2)).await;
    assert_eq!(agent.plane.calls(), [""; 0]);
}

#[tokio::test]
async fn the_progress_tells_what_has_failed_until_it_has_not_and_what_cannot_be_done() {
    let mut agent = Running::start();
    agent.plane.refuse(&["a", ADDRESSES]);
    let name = ServicePortName {
        namespace: "shop".to_owned(),
        name: "b".to_owned(),
        port: String::new(),
        protocol: Protocol::Tcp,
        family: Family::V4,
    };
    agent.plane.0.lock().unwrap().unsupported = vec![Unsupported {
        service: name,
        what: "goes cluster-wide".to_owned(),
    }];
    agent.send_lists(vec![service("a", 1), service("b", 2)]).await;
    let is_told = |progress: &Progress| progress.service_ports == 2;
    let progress = agent.progress.wait_for(is_told).await.unwrap().clone();
    let remark = |service: Option<&str>, what: &str| Remark {
        service: service.map(str::to_owned),
        what: what.to_owned(),
    };
    let full = "map SERVICES is full (1 entries): raise --max-services and restart the agent";
    assert_eq!(
        progress.failures,
        [
            remark(None, &format!("addresses or networks: {full}")),
            remark(Some("shop/a TCP IPv4"), full),
        ]
    );
    assert_eq!(
        progress.unsupported,
        [remark(Some("shop/b TCP IPv4"), "goes cluster-wide")]
    );
    assert_eq!((progress.services, progress.frontends), (2, FRONTENDS));
    assert!(progress.last_sync.is_some() && !progress.ready, "links are awaited");

    agent.plane.refuse(&[]);
    agent.links.send_replace(true);
    let is_well = |progress: &Progress| progress.ready && progress.failures.is_empty();
    time::timeout(Duration::from_secs(20), agent.progress.wait_for(is_well))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn those_at_the_links_are_told_when_the_plane_holds_a_complete_state() {
    let mut agent = Running::start();
    agent.send(vec![list(Vec::new())]).await;
    time::sleep(Duration::from_millis(50)).await;
    assert!(!*agent.is_filled.borrow());
    agent.send_lists(Vec::new()).await;
    agent.is_filled.changed().await.unwrap();
    assert_eq!(agent.plane.calls(), ["replace "]);
}

#[tokio::test]
async fn it_ends_before_it_writes_anything_if_the_api_server_is_asked_for_through_a_service() {
    let agent = Running::start();
    agent
        .send_lists(vec![service("a", 1), service("kubernetes", 250)])
        .await;
    let error = agent.task.await.unwrap().unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&kube::Loop::ClusterIp(API_SERVER)));
    assert_eq!(agent.plane.calls(), [""; 0]);
}

#[tokio::test]
async fn it_ends_if_the_plane_cannot_take_the_place_of_an_earlier_one() {
    let agent = Running::start();
    agent.plane.0.lock().unwrap().fails = true;
    agent.send_lists(Vec::new()).await;
    assert!(agent.task.await.unwrap().is_err());
}

#[tokio::test]
async fn the_watcher_of_links_is_told_the_nodes_addresses() {
    let mut agent = Running::start();
    agent.send(vec![list(Vec::new())]).await;
    time::sleep(Duration::from_millis(50)).await;
    assert_eq!(
        *agent.node_addresses.borrow(),
        None,
        "the Node has not been heard of yet"
    );
    agent.send_lists(Vec::new()).await;
    agent.node_addresses.changed().await.unwrap();
    let addresses = agent.node_addresses.borrow_and_update().clone();
    assert_eq!(addresses, Some(BTreeSet::from([IpAddr::from([192, 168, 0, 1])])));
}

#[tokio::test]
async fn a_node_without_an_object_is_known_to_have_no_address() {
    let mut agent = Running::start();
    agent.send(vec![list(Vec::new()), no_slices(), Event::Node(None)]).await;
    agent.node_addresses.changed().await.unwrap();
    assert_eq!(*agent.node_addresses.borrow(), Some(BTreeSet::new()));
}

#[tokio::test]
async fn the_health_is_told_of_what_the_kernel_does_not_have() {
    let agent = Running::start();
    agent.plane.refuse(&["a"]);
    assert!(!agent.health.waits(Family::V4));
    agent.send_lists(vec![service_of(Protocol::Udp, "a", 1)]).await;
    // The second attempt comes after the outcome of the first.
    agent.calls(2).await;
    assert!(agent.health.waits(Family::V4));
    assert!(!agent.health.waits(Family::V6));

    agent.plane.refuse(&[]);
    let until = Instant::now() + Duration::from_secs(10);
    while agent.health.waits(Family::V4) {
        assert!(Instant::now() < until, "it waits although it has been programmed");
        time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_full_map_is_no_ill_health() {
    let agent = Running::start();
    agent.plane.refuse(&["a"]);
    agent.send_lists(vec![service("a", 1), service("b", 2)]).await;
    agent.calls(2).await;
    assert!(!agent.health.waits(Family::V4));
}

#[tokio::test]
async fn the_health_is_told_whether_the_node_is_leaving_and_keeps_its_last_word() {
    let agent = Running::start();
    let mut calls = 0;
    let mut eligible_after = async |event: Event| {
        calls += 1;
        // What follows the event and is written tells that the event was heard.
        agent.send(vec![event, applied(service("a", calls))]).await;
        agent.calls(1).await;
        agent.health.is_node_eligible()
    };
    let leaving = Node {
        is_leaving: true,
        ..node()
    };
    agent.send(vec![list(Vec::new()), no_slices()]).await;
    assert!(!eligible_after(Event::Node(None)).await);
    assert!(eligible_after(Event::Node(Some(node()))).await);
    assert!(eligible_after(Event::Node(None)).await);
    assert!(!eligible_after(Event::Node(Some(leaving))).await);
    assert!(!eligible_after(Event::Node(None)).await);
}

#[tokio::test]
async fn the_servers_of_health_checks_are_told_what_is_asked_where() {
    let mut agent = Running::start();
    let checked = |port: Option<u16>| Service {
        health_check_node_port: port.and_then(NonZeroU16::new),
        ..service("a", 1)
    };
    agent.send_lists(vec![checked(Some(32_000))]).await;
    agent.health_checks.changed().await.unwrap();
    let wanted = agent.health_checks.borrow_and_update().clone();
    let ports: Vec<_> = wanted.checks.values().map(|check| check.port.get()).collect();
    assert_eq!(ports, [32_000]);
    assert_eq!(wanted.addresses, BTreeSet::from([IpAddr::from([192, 168, 0, 1])]));

    // Nothing of this is the kernel's business.
    agent.calls(1).await;
    agent.send(vec![applied(checked(None))]).await;
    agent.health_checks.changed().await.unwrap();
    assert_eq!(agent.health_checks.borrow_and_update().checks.len(), 0);
    assert_eq!(agent.plane.calls(), [""; 0]);
}

#[tokio::test]
async fn addresses_of_the_node_are_awaited_where_they_decide_and_followed() {
    let mut agent = Running::under(Rules {
        node_port_addresses: ["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()]
            .into_iter()
            .collect(),
        ..Rules::default()
    });
    agent.send_lists(vec![service("a", 1)]).await;
    time::sleep(Duration::from_millis(50)).await;
    assert_eq!(agent.plane.calls(), [""; 0]);

    let mut told_after = async |addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| address.parse().unwrap());
        agent.send(vec![Event::NodeAddresses(addresses.collect())]).await;
        agent.health_checks.changed().await.unwrap();
        let wanted = agent.health_checks.borrow_and_update().clone();
        wanted.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        told_after(&["10.0.0.1", "127.0.0.1", "fd00::1"]).await,
        ["10.0.0.1", "::"]
    );
    assert_eq!(
        told_after(&["10.0.0.2", "10.0.0.1", "192.168.0.1"]).await,
        ["10.0.0.1", "10.0.0.2", "::"]
    );
    assert_eq!(agent.calls(2).await, ["replace +a", "apply "]);
}

#[tokio::test]
async fn it_ends_when_it_is_told_to_and_fails_when_a_source_ends() {
    let agent = Running::start();
    agent.stop.send(()).unwrap();
    assert!(agent.task.await.unwrap().is_ok());

    let agent = Running::start();
    drop(agent.batches);
    assert!(agent.task.await.unwrap().is_err());

    let agent = Running::start();
    drop(agent.links);
    assert!(agent.task.await.unwrap().is_err());
}

#[test]
fn a_service_is_named_for_its_external_ips_once() {
    let with = |name: &str| Service {
        external_ips: BTreeSet::from([ServiceIp::new([192, 0, 2, 1].into()).unwrap()]),
        ..service(name, 1)
    };
    let names =
        |names: &[&str]| -> Vec<ObjectName> { names.iter().map(|name| ObjectName::new("shop", *name)).collect() };
    let mut external_ips = ExternalIps::default();
    let first = list(vec![with("a"), service("b", 2)]);
    assert_eq!(external_ips.note(&first), names(&["a"]));
    assert_eq!(external_ips.note(&first), names(&[]));
    assert_eq!(external_ips.note(&applied(with("b"))), names(&["b"]));
    assert_eq!(external_ips.note(&applied(with("b"))), names(&[]));

    // Whoever makes it anew hears of it again.
    external_ips.note(&Event::Services(Update::Delete(ObjectName::new("shop", "a"))));
    assert_eq!(external_ips.note(&applied(with("a"))), names(&["a"]));
}
