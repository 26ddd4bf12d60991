//! Health checks of Services, asked for through real sockets.

use std::num::NonZeroU16;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Duration, timeout},
};

use super::*;
use crate::health::tests::{SOON, ask, becomes_answered, becomes_refused, free_port};

const V4: &str = "127.0.0.1";
const V6: &str = "::1";

/// Servers of health checks.
struct Node {
    wanted: watch::Sender<Wanted>,
    health: ProxyHealth,
    _servers: JoinHandle<()>,
}

impl Node {
    fn at(addresses: &[&str]) -> Self {
        Self::with(ProxyHealth::new(), addresses)
    }

    fn with(health: ProxyHealth, addresses: &[&str]) -> Self {
        let (wanted, receiver) = watch::channel(Wanted {
            checks: BTreeMap::new(),
            addresses: parse(addresses),
        });
        let servers = tokio::spawn(serve(receiver, health.clone()));
        Self {
            wanted,
            health,
            _servers: servers,
        }
    }

    /// A Service of one family with so many endpoints here.
    fn has(&self, service: &str, port: u16, local_endpoints: usize) {
        self.has_in_each(service, port, &[(Family::V4, local_endpoints)]);
    }

    fn has_in_each(&self, service: &str, port: u16, local_endpoints: &[(Family, usize)]) {
        self.change(|wanted| {
            wanted.checks.insert(name(service), check(port, local_endpoints));
        });
    }

    fn change(&self, change: impl FnOnce(&mut Wanted)) {
        self.wanted.send_modify(change);
    }
}

fn name(service: &str) -> ObjectName {
    ObjectName::new("shop", service)
}

fn check(port: u16, local_endpoints: &[(Family, usize)]) -> HealthCheck {
    HealthCheck {
        port: NonZeroU16::new(port).unwrap(),
        local_endpoints: local_endpoints.iter().copied().collect(),
    }
}

fn parse(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

#[tokio::test]
async fn the_answer_is_kube_proxys_to_the_byte() {
    let node = Node::at(&[V4]);
    let place = at(V4, free_port());
    node.has("web", place.port(), 3);
    becomes_answered(place).await;
    for path in ["/", "/healthz", "/any/path?at=all"] {
        let answer = ask(place, path).await.unwrap();
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("Content-Type"), Some("application/json"));
        assert_eq!(answer.header("X-Content-Type-Options"), Some("nosniff"));
        assert_eq!(answer.header("X-Load-Balancing-Endpoint-Weight"), Some("3"));
        let lines = [
            "{",
            "\t\"service\": {",
            "\t\t\"namespace\": \"shop\",",
            "\t\t\"name\": \"web\"",
            "\t},",
            "\t\"localEndpoints\": 3,",
            "\t\"serviceProxyHealthy\": true",
            "}",
        ];
        assert_eq!(answer.body, lines.join("\n"));
    }
}

#[tokio::test]
async fn a_node_without_endpoint_says_no_until_it_has_one() {
    let node = Node::at(&[V4]);
    let place = at(V4, free_port());
    node.has("web", place.port(), 0);
    becomes_answered(place).await;
    let answer = ask(place, "/").await.unwrap();
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("X-Load-Balancing-Endpoint-Weight"), Some("0"));
    assert!(answer.body.contains("\"localEndpoints\": 0"), "{}", answer.body);

    node.has("web", place.port(), 1);
    assert_eq!(ask(place, "/").await.unwrap().status, 200);
}

#[tokio::test]
async fn a_proxy_that_is_behind_says_no_whatever_the_endpoints() {
    let node = Node::with(ProxyHealth::stale(), &[V4]);
    let place = at(V4, free_port());
    node.has("web", place.port(), 1);
    becomes_answered(place).await;
    let answer = ask(place, "/").await.unwrap();
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("X-Load-Balancing-Endpoint-Weight"), Some("1"));
    assert!(
        answer.body.contains("\"serviceProxyHealthy\": false"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn a_node_that_is_to_go_does_not_change_the_answer() {
    let node = Node::at(&[V4]);
    let place = at(V4, free_port());
    node.has("web", place.port(), 1);
    node.health.set_node_eligible(false);
    becomes_answered(place).await;
    assert_eq!(ask(place, "/").await.unwrap().status, 200);
}

#[tokio::test]
async fn each_family_is_told_of_its_own_endpoints() {
    let node = Node::at(&[V4, V6]);
    let port = free_port();
    node.has_in_each("web", port, &[(Family::V4, 2), (Family::V6, 0)]);
    for (address, status, weight) in [(V4, 200, "2"), (V6, 503, "0")] {
        becomes_answered(at(address, port)).await;
        let answer = ask(at(address, port), "/").await.unwrap();
        assert_eq!(answer.status, status, "{address}");
        assert_eq!(answer.header("X-Load-Balancing-Endpoint-Weight"), Some(weight));
    }
    node.has_in_each("web", port, &[(Family::V6, 1)]);
    becomes_refused(at(V4, port)).await;
    assert_eq!(ask(at(V6, port), "/").await.unwrap().status, 200);
}

#[tokio::test]
async fn a_changed_port_moves() {
    let node = Node::at(&[V4]);
    let (before, after) = (at(V4, free_port()), at(V4, free_port()));
    node.has("web", before.port(), 1);
    becomes_answered(before).await;
    node.has("web", after.port(), 1);
    becomes_answered(after).await;
    becomes_refused(before).await;
}

#[tokio::test]
async fn ports_that_two_services_swap_answer_for_the_other() {
    let node = Node::at(&[V4]);
    let ports = [free_port(), free_port()];
    node.has("web", ports[0], 1);
    node.has("shop", ports[1], 2);
    becomes_answered(at(V4, ports[0])).await;
    becomes_answered(at(V4, ports[1])).await;
    node.change(|wanted| {
        wanted.checks.insert(name("web"), check(ports[1], &[(Family::V4, 1)]));
        wanted.checks.insert(name("shop"), check(ports[0], &[(Family::V4, 2)]));
    });
    let weight_at = async |port| {
        let answer = ask(at(V4, port), "/").await.ok()?;
        answer.header("X-Load-Balancing-Endpoint-Weight").map(str::to_owned)
    };
    let swapped = async {
        while weight_at(ports[0]).await.as_deref() != Some("2") || weight_at(ports[1]).await.as_deref() != Some("1") {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, swapped).await.unwrap();
}

#[tokio::test]
async fn a_service_that_goes_leaves_neither_listener_nor_connection() {
    let node = Node::at(&[V4]);
    let place = at(V4, free_port());
    node.has("web", place.port(), 1);
    becomes_answered(place).await;
    let mut kept = TcpStream::connect(place).await.unwrap();
    kept.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 16];
    kept.read_exact(&mut answer).await.unwrap();

    node.change(|wanted| wanted.checks.clear());
    becomes_refused(place).await;
    let mut rest = Vec::new();
    // Closed or reset, but not left open.
    let _ = timeout(SOON, kept.read_to_end(&mut rest)).await.unwrap();
    // Nor does the port stay taken.
    TcpListener::bind(place).await.unwrap();
}

#[tokio::test]
async fn a_port_that_is_taken_disturbs_no_other_and_is_tried_again() {
    let node = Node::at(&[V4]);
    let holder = TcpListener::bind((V4, 0)).await.unwrap();
    let taken = holder.local_addr().unwrap();
    let (earlier, later) = (at(V4, free_port()), at(V4, free_port()));
    node.has("a", earlier.port(), 1);
    node.has("b", taken.port(), 1);
    node.has("c", later.port(), 1);
    becomes_answered(earlier).await;
    becomes_answered(later).await;
    drop(holder);
    becomes_answered(taken).await;
}

#[tokio::test]
async fn addresses_come_and_go() {
    let node = Node::at(&[V4]);
    let port = free_port();
    node.has("web", port, 1);
    becomes_answered(at(V4, port)).await;
    becomes_refused(at("127.0.0.2", port)).await;
    node.change(|wanted| wanted.addresses = parse(&["127.0.0.2"]));
    becomes_answered(at("127.0.0.2", port)).await;
    becomes_refused(at(V4, port)).await;
}

#[tokio::test]
async fn an_unspecified_address_is_all_of_its_family_and_no_other() {
    let node = Node::at(&["0.0.0.0", V4, V6]);
    let port = free_port();
    node.has_in_each("web", port, &[(Family::V4, 1), (Family::V6, 2)]);
    for (address, weight) in [(V4, "1"), ("127.0.0.2", "1"), (V6, "2")] {
        becomes_answered(at(address, port)).await;
        let answer = ask(at(address, port), "/").await.unwrap();
        assert_eq!(
            answer.header("X-Load-Balancing-Endpoint-Weight"),
            Some(weight),
            "{address}"
        );
    }
    node.change(|wanted| wanted.addresses = parse(&["::"]));
    becomes_refused(at(V4, port)).await;
    becomes_answered(at(V6, port)).await;
}
