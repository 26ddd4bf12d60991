//! The network itself, without any agent: what is not right here cannot be right above.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lb_tests::capture::Capture;
use lb_tests::client::{Client, Failure, Protocol};
use lb_tests::interrupt::eventually;
use lb_tests::network::{Attachment, Network, Options, Pod};
use lb_tests::packet::{self, Macs};
use lb_tests::plane::{Plane, other_than};

/// Why these are tests of one plane only.
const NO_AGENT: &str = "no agent runs";

const PORT: u16 = 8080;
const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// Asks a pod at both of its addresses with both protocols, and expects it to see these.
#[track_caller]
fn reaches(what: &str, client: &Client, pod: &Pod, seen_as: impl Fn(SocketAddr) -> bool) {
    for address in pod.addresses() {
        for protocol in BOTH {
            let to = SocketAddr::new(address, PORT);
            let answer = client
                .ask(protocol, to)
                .unwrap_or_else(|error| panic!("{what}: {protocol} to {to}: {error}"));
            assert_eq!(answer.server, pod.name());
            assert!(
                seen_as(answer.seen),
                "{what}: {protocol} to {to}: seen as {}",
                answer.seen
            );
        }
    }
}

#[test]
fn every_pod_reaches_every_pod_with_its_own_address() {
    if other_than(Plane::Ebpf, NO_AGENT) {
        return;
    }
    let started = Instant::now();
    let network = Network::new().unwrap();
    let mut pods = Vec::new();
    for node in network.nodes() {
        for (kind, attachment) in [("bridge", Attachment::Bridge), ("veth", Attachment::Veth)] {
            for n in 1..=2 {
                let name = format!("{kind}{n}-{}", node.name());
                pods.push(node.add_pod(&name, attachment).unwrap());
            }
        }
    }
    let servers: Vec<_> = pods.iter().map(|pod| pod.serve(PORT).unwrap()).collect();
    println!("network with {} pods: {:?}", pods.len(), started.elapsed());
    for from in &pods {
        for to in &pods {
            let what = format!("{} to {}", from.name(), to.name());
            reaches(&what, &from.client(), to, |seen| from.addresses().contains(&seen.ip()));
        }
    }
    println!("all asked: {:?}", started.elapsed());
    assert!(
        servers
            .iter()
            .all(|server| server.counts().tcp() == 16 && server.counts().udp() == 16)
    );
    drop(pods);
    drop(network);
    println!("gone: {:?}", started.elapsed());
}

#[test]
fn a_process_of_a_node_reaches_all_pods_and_the_client_outside_none() {
    if other_than(Plane::Ebpf, NO_AGENT) {
        return;
    }
    let network = Network::new().unwrap();
    let here = network.node1().add_pod("here", Attachment::Bridge).unwrap();
    let aside = network.node1().add_pod("aside", Attachment::Veth).unwrap();
    let there = network.node2().add_pod("there", Attachment::Bridge).unwrap();
    let host = network.node1().client().unwrap();
    for pod in [&here, &aside, &there] {
        let _server = pod.serve(PORT).unwrap();
        reaches("host", &host, pod, |seen| network.node1().has_address(seen.ip()));
        let outside = network.outside().client().with_timeout(Duration::from_millis(200));
        for address in pod.addresses() {
            let outcome = outside.ask(Protocol::Tcp, SocketAddr::new(address, PORT));
            assert!(
                matches!(outcome, Err(Failure::Unreachable | Failure::Timeout)),
                "{outcome:?}"
            );
        }
    }
}

#[test]
fn a_closed_port_refuses_and_a_pod_that_is_gone_is_unreachable() {
    if other_than(Plane::Ebpf, NO_AGENT) {
        return;
    }
    let network = Network::new().unwrap();
    let from = network.node1().add_pod("from", Attachment::Veth).unwrap();
    let to = network.node1().add_pod("to", Attachment::Veth).unwrap();
    let client = from.client();
    let address = SocketAddr::new(to.addresses()[0], PORT);
    for protocol in BOTH {
        assert_eq!(client.ask(protocol, address), Err(Failure::Refused));
    }
    let server = to.serve(PORT).unwrap();
    assert_eq!(client.ask(Protocol::Tcp, address).unwrap().server, "to");
    drop(to);
    // Its route went with its link; what is left is the default route, which leads to nobody.
    let outcome = client
        .with_timeout(Duration::from_millis(200))
        .ask(Protocol::Tcp, address);
    assert!(
        matches!(outcome, Err(Failure::Timeout | Failure::Unreachable)),
        "{outcome:?}"
    );
    assert_eq!(server.counts().tcp(), 1);
}

#[test]
fn a_long_line_crosses_the_tunnel_both_ways() {
    if other_than(Plane::Ebpf, NO_AGENT) {
        return;
    }
    let network = Network::new().unwrap();
    let from = network.node1().add_pod("from", Attachment::Bridge).unwrap();
    let to = network.node2().add_pod("to", Attachment::Veth).unwrap();
    let _server = to.serve(PORT).unwrap();
    let line = "x".repeat(100_000);
    for address in to.addresses() {
        let mut connection = from
            .client()
            .connect(Protocol::Tcp, SocketAddr::new(address, PORT))
            .unwrap();
        assert_eq!(connection.ask(&line).unwrap().server, "to");
        assert_eq!(connection.ask("still there").unwrap().server, "to");
    }
}

#[test]
fn senders_compute_checksums_and_captures_verify_them() {
    if other_than(Plane::Ebpf, NO_AGENT) {
        return;
    }
    let network = Network::new().unwrap();
    let from = network.node1().add_pod("from", Attachment::Bridge).unwrap();
    let to = network.node2().add_pod("to", Attachment::Veth).unwrap();
    let _server = to.serve(PORT).unwrap();
    let captures = [
        (from.netns(), from.link()),
        (network.node2().netns(), to.host_link()),
        (to.netns(), to.link()),
    ]
    .map(|(netns, link)| Capture::start(netns, link).unwrap());
    reaches("from", &from.client(), &to, |_| true);
    for capture in &captures {
        let packets = capture.verified().unwrap();
        let tcp = packets.iter().filter(|packet| packet.tcp().is_some()).count();
        let udp = packets.iter().filter(|packet| packet.udp().is_some()).count();
        assert!(tcp >= 2 * 8 && udp == 4, "{packets:#?}");
    }
}

#[test]
fn with_the_offload_on_nobody_computes_a_checksum() {
    if other_than(Plane::Ebpf, NO_AGENT) {
        return;
    }
    let options = Options {
        checksum_offload: true,
        ..Options::default()
    };
    let network = Network::with(options).unwrap();
    let from = network.node1().add_pod("from", Attachment::Veth).unwrap();
    let to = network.node1().add_pod("to", Attachment::Veth).unwrap();
    let _server = to.serve(PORT).unwrap();
    let capture = Capture::start(to.netns(), to.link()).unwrap();
    reaches("from", &from.client(), &to, |_| true);
    assert!(capture.frames().unwrap().iter().any(|frame| frame.checksum_pending));
}

#[test]
fn a_frame_made_by_hand_arrives_and_is_answered() {
    if other_than(Plane::Ebpf, NO_AGENT) {
        return;
    }
    let network = Network::new().unwrap();
    let from = network.node1().add_pod("from", Attachment::Bridge).unwrap();
    let to = network.node2().add_pod("to", Attachment::Bridge).unwrap();
    let _server = to.serve(PORT).unwrap();
    let capture = Capture::start(from.netns(), from.link()).unwrap();
    let macs = Macs {
        from: from.link().mac,
        to: from.gateway_mac(network.node1()).unwrap(),
    };
    for (mine, theirs) in from.addresses().into_iter().zip(to.addresses()) {
        let (mine, theirs) = (SocketAddr::new(mine, 4321), SocketAddr::new(theirs, PORT));
        capture
            .send(&packet::udp(macs, mine, theirs, b"by hand").unwrap())
            .unwrap();
        let answer = capture
            .find(Duration::from_secs(2), |packet| packet.ends() == Some((theirs, mine)))
            .unwrap();
        let answer = answer.expect("an answer");
        answer.verify().unwrap();
        assert!(String::from_utf8_lossy(&answer.payload).contains("by hand"));
    }
}

#[test]
fn a_wrong_checksum_is_dropped_by_the_receiver() {
    if other_than(Plane::Ebpf, NO_AGENT) {
        return;
    }
    let network = Network::new().unwrap();
    let from = network.node1().add_pod("from", Attachment::Veth).unwrap();
    let to = network.node2().add_pod("to", Attachment::Veth).unwrap();
    let server = to.serve(PORT).unwrap();
    let capture = Capture::start(from.netns(), from.link()).unwrap();
    let macs = Macs {
        from: from.link().mac,
        to: from.gateway_mac(network.node1()).unwrap(),
    };
    let (mine, theirs) = (
        SocketAddr::new(from.addresses()[0], 4321),
        SocketAddr::new(to.addresses()[0], PORT),
    );
    let right = packet::udp(macs, mine, theirs, b"right").unwrap();
    let mut wrong = packet::udp(macs, mine, theirs, b"wrong").unwrap();
    *wrong.last_mut().unwrap() ^= 1;
    capture.send(&wrong).unwrap();
    capture.send(&right).unwrap();
    let answer = capture
        .find(Duration::from_secs(2), |packet| packet.ends() == Some((theirs, mine)))
        .unwrap();
    assert!(String::from_utf8_lossy(&answer.unwrap().payload).contains("right"));
    assert_eq!(server.counts().udp(), 1);
    // Who looks for that sees it too, and would let the test fail for it.
    let found = eventually(Duration::from_secs(20), "the wrong packet", || {
        let found = to.sniffer().unwrap().take();
        Ok(Some(found).filter(|found| !found.is_empty()))
    });
    let found = found.unwrap();
    assert!(
        matches!(&found[..], [wrong] if wrong.contains("UDP checksum")),
        "{found:?}"
    );
}
