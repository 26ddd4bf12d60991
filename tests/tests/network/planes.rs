//! From one plane to the other and back, while clients connect anew all the time: none of their short connections fails,
//! neither to open nor once it stands.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use lb_tests::client::{Client, Failure, Protocol};
use lb_tests::interrupt::eventually;
use lb_tests::ipvs::Table;
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node};
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;

use crate::cleanup::{pins, programs, ruleset};
use crate::fixture::{BOTH, SOON, World, addresses_of, cluster_ips, node_ports};

/// Between two connections of a client.
const PACE: Duration = Duration::from_millis(20);
/// How many connections each client makes at the least before and after each change of planes.
const SOME: usize = 20;

/// Who connects, and to where.
struct Player {
    name: &'static str,
    client: Client,
    to: [SocketAddr; 2],
    made: AtomicUsize,
    failed: Mutex<Vec<Failed>>,
}

/// A connection that came to nothing.
struct Failed {
    protocol: Protocol,
    to: SocketAddr,
    /// Whether the connection stood, and it was the question over it that had no answer.
    was_open: bool,
    why: Failure,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, to, why, .. } = self;
        let stood = if self.was_open { "once it stood" } else { "at its begin" };
        write!(f, "{protocol} to {to}, {stood}: {why}")
    }
}

fn told(failed: &[Failed]) -> String {
    let lines: Vec<String> = failed.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

impl Player {
    fn play(&self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::SeqCst) {
            for to in self.to {
                for protocol in BOTH {
                    self.connect(protocol, to);
                    thread::sleep(PACE);
                }
            }
        }
    }

    fn connect(&self, protocol: Protocol, to: SocketAddr) {
        let opened = self.client.connect(protocol, to);
        let was_open = opened.is_ok();
        if let Err(why) = opened.and_then(|mut connection| connection.ask("?")) {
            self.failed.lock().unwrap().push(Failed {
                protocol,
                to,
                was_open,
                why,
            });
        }
        self.made.fetch_add(1, Ordering::SeqCst);
    }

    /// Fails for what has failed since the last time.
    #[track_caller]
    fn check(&self) {
        let failed = std::mem::take(&mut *self.failed.lock().unwrap());
        assert!(failed.is_empty(), "{}: {}", self.name, told(&failed));
    }
}

/// Waits until each has made some more connections.
#[track_caller]
fn some_more(players: &[Player]) {
    let before: Vec<usize> = players
        .iter()
        .map(|player| player.made.load(Ordering::SeqCst))
        .collect();
    eventually(SOON, "clients connect", || {
        let mut made = players.iter().zip(&before);
        Ok(made
            .all(|(player, before)| player.made.load(Ordering::SeqCst) >= before + SOME)
            .then_some(()))
    })
    .unwrap();
}

#[track_caller]
fn has_nothing_of(plane: Plane, node: &Node) {
    match plane {
        Plane::Ebpf => {
            assert_eq!(programs(node), 0);
            assert_eq!(pins(&node.bpffs().path()), [""; 0]);
        }
        Plane::Ipvs => {
            assert_eq!(Table::of(node).unwrap(), Table::default());
            assert_eq!(addresses_of(node, "lb-ipvs0"), None);
        }
    }
    let tables = ruleset(node);
    let table = match plane {
        Plane::Ebpf => "table inet lb-agent {",
        Plane::Ipvs => "table inet lb-agent-ipvs {",
    };
    assert!(!tables.contains(table), "{tables}");
}

#[test]
fn no_connection_fails_to_open_and_nothing_of_the_plane_before_stays() {
    if other_than(Plane::Ipvs, "it is between both, and once is enough") || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let backends = [
        world.backend(1, "here", Attachment::Bridge),
        world.backend(2, "there", Attachment::Veth),
    ];
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints(&backends);
    world.apply(&service);
    let player = |name, client, to| Player {
        name,
        client,
        to,
        made: AtomicUsize::new(0),
        failed: Mutex::default(),
    };
    let players = [
        player("pod", pod.client(), cluster_ips(&service)),
        player(
            "outside",
            world.network.outside().client(),
            node_ports(&service, world.node1()),
        ),
        player("host", world.node1().client().unwrap(), cluster_ips(&service)),
    ];
    world.start_agent_with(1, &["--plane", "ebpf"]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also when something is wrong here: the scope waits for the players.
        let _over = Over(&is_over);
        for player in &players {
            scope.spawn(|| player.play(&is_over));
        }
        some_more(&players);
        for (from, to) in [(Plane::Ebpf, Plane::Ipvs), (Plane::Ipvs, Plane::Ebpf)] {
            world.agents.pop().unwrap().stop().unwrap();
            some_more(&players);
            world.start_agent_with(1, &["--plane", to.word()]);
            let removed = format!("removed what {} had left", from.word());
            world.agents[0].wait_for_log(SOON, &removed).unwrap();
            some_more(&players);
            has_nothing_of(from, world.node1());
            for player in &players {
                player.check();
            }
        }
    });
    players.iter().for_each(Player::check);
}

/// Says that it is over when it goes.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
