//! Checksums that senders leave to their links (`CHECKSUM_PARTIAL`), as every machine does that is not told otherwise.
//!
//! Such a packet bears a sum over its addresses only. Who translates it has to correct that one, and not as one corrects a
//! checksum; whether it did shows where the kernel computes the rest. Here that is each link behind the sender's own, so
//! that every receiver gets whole checksums and verifies them.

use lb_tests::agent::Options;
use lb_tests::capture::Capture;
use lb_tests::client::Protocol;
use lb_tests::ethtool;
use lb_tests::matrix::Cell;
use lb_tests::network::{Network, plan};
use lb_tests::source::Source;
use lb_tests::stage::{Family, Stage};

/// More than a link takes at once, so that it leaves its sender as one segment to be cut up.
const BULK: usize = 20_000;

#[test]
fn a_checksum_that_is_left_to_the_link_is_right_once_it_is_computed() {
    let mut stage = Stage::build(Network::new().unwrap(), Source::folder().unwrap()).unwrap();
    stage.start_agents(&Options::default()).unwrap();
    let clients = [stage.bridge_pod(), stage.veth_pod()];
    let pods: Vec<_> = clients.into_iter().chain(stage.here()).chain(stage.there()).collect();
    let outside = stage.network().outside();
    let senders = pods.iter().map(|pod| pod.netns()).chain([outside.netns()]);
    for sender in senders {
        ethtool::set_tx_checksum(sender, plan::UPLINK, true).unwrap();
    }
    let node = stage.network().node1();
    let captures = clients.map(|pod| Capture::start(node.netns(), pod.host_link()).unwrap());

    for cell in Cell::served() {
        let played = cell.run(&stage, 2).unwrap();
        // So few that chance may leave a backend out.
        let other_than_spread = played.wrong.iter().filter(|wrong| !wrong.starts_with("unevenly"));
        assert_eq!(other_than_spread.count(), 0, "{cell}: {:?}", played.wrong);
    }
    for pod in clients {
        for service in [&stage.services().here, &stage.services().there] {
            for family in Family::ALL {
                let to = Stage::cluster_ip(service, family);
                let mut connection = pod.client().connect(Protocol::Tcp, to).unwrap();
                let answer = connection.ask(&"x".repeat(BULK));
                assert!(answer.is_ok(), "{} to {to}: {answer:?}", pod.name());
            }
        }
    }

    for (pod, capture) in clients.into_iter().zip(captures) {
        let frames = capture.frames().unwrap();
        let (left, right): (Vec<_>, Vec<_>) = frames.iter().partition(|frame| !frame.outgoing);
        let pending = left.iter().filter(|frame| frame.checksum_pending);
        assert!(
            pending.clone().count() > 50,
            "{} computes its checksums itself",
            pod.name()
        );
        assert!(pending.clone().any(|frame| frame.bytes.len() > 5_000), "all is cut up");
        // An answer from another node has been through a tunnel, and is whole by then.
        assert!(right.len() > 50, "{} gets no answers", pod.name());
    }
    for (name, sniffer) in pods
        .iter()
        .map(|pod| (pod.name(), pod.sniffer()))
        .chain([("outside", outside.sniffer())])
    {
        assert_eq!(sniffer.unwrap().take(), [""; 0], "{name}");
    }
}
