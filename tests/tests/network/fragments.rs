//! Datagrams larger than the links, through services: in the order in which a kernel cuts them, and in any other.

use std::net::{SocketAddr, UdpSocket};

use lb_tests::capture::Capture;
use lb_tests::client::{Client, Protocol};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod};
use lb_tests::packet::{Macs, fragments, udp};
use lb_tests::stage::TARGET;
use socket2::SockRef;

use crate::fixture::{BRIEFLY, SOON, World, cluster_ips, node_ports};

const NODE_PORT: u16 = 30_080;
const CLIENT_PORT: u16 = 40_000;
/// Bytes in a piece: less than any link takes.
const PIECE: usize = 1_200;
/// Bytes of a datagram that makes three.
const LENGTH: usize = 3_000;
/// Every order of three.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// A client on node 1, and the only backend on either node.
fn scene(backend: usize) -> (World, [Pod; 2], Service) {
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let backend = world.backend(backend, "backend", Attachment::Bridge);
    let service = Service::new("web", 1, TARGET)
        .at_node_port(NODE_PORT)
        .with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    (world, [client, backend], service)
}

/// Somebody who sends frames as they are, and receives as anybody does.
struct Sender {
    client: Client,
    wire: Capture,
    macs: Macs,
    addresses: [std::net::IpAddr; 2],
}

impl Sender {
    fn pod(world: &World, pod: &Pod) -> Self {
        Self {
            client: pod.client(),
            wire: Capture::start(pod.netns(), pod.link()).unwrap(),
            macs: Macs {
                from: pod.link().mac,
                to: pod.gateway_mac(world.node1()).unwrap(),
            },
            addresses: pod.addresses(),
        }
    }

    fn outside(world: &World) -> Self {
        let outside = world.network.outside();
        Self {
            client: outside.client(),
            wire: Capture::start(outside.netns(), outside.uplink()).unwrap(),
            macs: Macs {
                from: outside.uplink().mac,
                to: world.node1().uplink().mac,
            },
            addresses: outside.addresses(),
        }
    }

    /// A socket that hears what is answered to the frames.
    fn socket(&self, to: SocketAddr, port: u16) -> UdpSocket {
        let socket = self.client.datagrams(to).unwrap();
        SockRef::from(&socket).bind(&self.from(to, port).into()).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket
    }

    fn from(&self, to: SocketAddr, port: u16) -> SocketAddr {
        let [v4, v6] = self.addresses;
        SocketAddr::new(if to.is_ipv4() { v4 } else { v6 }, port)
    }

    fn pieces(&self, to: SocketAddr, port: u16, identification: u16, letter: u8) -> Vec<Vec<u8>> {
        let whole = udp(self.macs, self.from(to, port), to, &[letter; LENGTH]).unwrap();
        fragments(&whole, PIECE, identification).unwrap()
    }

    fn send(&self, pieces: &[Vec<u8>], order: impl IntoIterator<Item = usize>) {
        for index in order {
            self.wire.send(&pieces[index]).unwrap();
        }
    }
}

/// An answer of the server comes from the frontend, and has all of the question in it.
#[track_caller]
fn is_answered(socket: &UdpSocket, to: SocketAddr, letter: u8, what: &str) {
    let mut buffer = vec![0; 65_536];
    let (length, from) = socket
        .recv_from(&mut buffer)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let letters = buffer[..length].iter().filter(|byte| **byte == letter).count();
    assert_eq!(from, to, "{what}");
    assert!(letters >= LENGTH, "{what}: {letters} bytes of the question came back");
}

/// The cluster addresses for a pod, the NodePorts for a client outside.
fn dials(world: &World, pod: &Pod, service: &Service) -> Vec<(Sender, [SocketAddr; 2])> {
    vec![
        (Sender::pod(world, pod), cluster_ips(service)),
        (Sender::outside(world), node_ports(service, world.node1())),
    ]
}

#[test]
fn large_datagrams_and_their_answers_pass() {
    for backend in [1, 2] {
        let (world, [pod, _backend], service) = scene(backend);
        for (sender, frontends) in dials(&world, &pod, &service) {
            for to in frontends {
                for length in [2_000, LENGTH, 60_000] {
                    let mut socket = sender.client.connect(Protocol::Udp, to).unwrap();
                    let question = "x".repeat(length);
                    // Over IPv6 a router tells the first sender how large a piece may be, instead of cutting it.
                    let answer = socket.ask(&question).or_else(|_| socket.ask(&question));
                    assert!(
                        answer.is_ok(),
                        "{length} bytes to {to}, backend on node {backend}: {answer:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_pieces_of_a_question_may_come_in_any_order() {
    for backend in [1, 2] {
        let (world, [pod, _backend], service) = scene(backend);
        for (sender, frontends) in dials(&world, &pod, &service) {
            for to in frontends {
                // The neighbours must know each other before frames are sent past the kernel.
                sender.client.ask(Protocol::Udp, to).unwrap();
                for (identification, order) in (1..).zip(ORDERS) {
                    let socket = sender.socket(to, CLIENT_PORT);
                    sender.send(&sender.pieces(to, CLIENT_PORT, identification, b'x'), order);
                    is_answered(
                        &socket,
                        to,
                        b'x',
                        &format!("{order:?} to {to}, backend on node {backend}"),
                    );
                }
            }
        }
    }
}

#[test]
fn the_pieces_of_two_questions_may_come_in_turns() {
    let (world, [pod, _backend], service) = scene(2);
    for (sender, frontends) in dials(&world, &pod, &service) {
        for to in frontends {
            sender.client.ask(Protocol::Udp, to).unwrap();
            let ports = [CLIENT_PORT, CLIENT_PORT + 1];
            let sockets = ports.map(|port| sender.socket(to, port));
            let [a, b] = [(ports[0], 1, b'a'), (ports[1], 2, b'b')]
                .map(|(port, identification, letter)| sender.pieces(to, port, identification, letter));
            for (pieces, index) in [(&a, 2), (&b, 1), (&a, 0), (&b, 2), (&b, 0), (&a, 1)] {
                sender.send(pieces, [index]);
            }
            is_answered(&sockets[0], to, b'a', "the one");
            is_answered(&sockets[1], to, b'b', "the other");
        }
    }
}

#[test]
fn the_pieces_of_an_answer_may_come_in_any_order() {
    let mut world = World::new();
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let backend = world.network.node2().add_pod("backend", Attachment::Veth).unwrap();
    let service = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    let wire = Capture::start(backend.netns(), backend.link()).unwrap();
    let macs = Macs {
        from: backend.link().mac,
        to: backend.gateway_mac(world.network.node2()).unwrap(),
    };
    for to in cluster_ips(&service) {
        for (identification, order) in (1..).zip(ORDERS) {
            let socket = pod.client().datagrams(to).unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            socket.send_to(b"?", to).unwrap();
            let asked = wire
                .find(SOON, |packet| packet.payload == b"?")
                .unwrap()
                .expect("the question");
            let (client, answerer) = asked.ends().unwrap();
            let whole = udp(macs, answerer, client, &[b'y'; LENGTH]).unwrap();
            let pieces = fragments(&whole, PIECE, identification).unwrap();
            for index in order {
                wire.send(&pieces[index]).unwrap();
            }
            is_answered(&socket, to, b'y', &format!("{order:?} from {to}"));
        }
    }
}

#[test]
fn half_a_question_reaches_nobody() {
    let (world, [pod, _backend], service) = scene(1);
    let sender = Sender::pod(&world, &pod);
    for to in cluster_ips(&service) {
        sender.client.ask(Protocol::Udp, to).unwrap();
        let listen = Capture::start(world.node1().netns(), world.node1().bridge()).unwrap();
        sender.send(&sender.pieces(to, CLIENT_PORT, 1, b'x'), [1, 2]);
        let from = sender.from(to, CLIENT_PORT).ip();
        let seen = listen
            .find(BRIEFLY, |packet| packet.source() == from && !packet.payload.is_empty())
            .unwrap();
        assert!(seen.is_none(), "{}", seen.unwrap());
    }
}
