//! Every kind of client reaches every kind of frontend.

use lb_tests::agent::Options;
use lb_tests::capture::Capture;
use lb_tests::matrix::Cell;
use lb_tests::network::{self, Network};
use lb_tests::plane::Difference;
use lb_tests::source::Source;
use lb_tests::stage::Stage;

fn stage(options: network::Options) -> Stage {
    let needs_settings = !options.bridge_netfilter && Difference::BridgeNetfilter.applies();
    let network = Network::with(options).unwrap();
    let mut stage = Stage::build(network, Source::folder().unwrap()).unwrap();
    let set = needs_settings.then(|| "--set-sysctls".into());
    stage
        .start_agents(&Options {
            args: set.into_iter().collect(),
            ..Options::default()
        })
        .unwrap();
    stage
}

#[track_caller]
fn play(stage: &Stage, times: u32) {
    let mut wrong = Vec::new();
    for cell in Cell::served() {
        let played = cell.run(stage, times).unwrap();
        wrong.extend(played.wrong.iter().map(|wrong| format!("{cell}: {wrong}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_client_reaches_each_frontend_in_each_way() {
    play(&stage(network::Options::default()), 40);
}

#[test]
fn the_same_on_nodes_that_leave_all_this_at_the_kernels_defaults() {
    play(
        &stage(network::Options {
            rp_filter: 0,
            checksum_offload: true,
            bridge_netfilter: false,
            // The agent of a plane that needs the packet filter to see bridges turns that on.
            hairpin_mode: Difference::BridgeNetfilter.applies(),
            ..network::Options::default()
        }),
        40,
    );
}

#[test]
fn packets_are_whole_and_right_on_every_link_of_a_client_or_a_backend() {
    let stage = stage(network::Options::default());
    let network = stage.network();
    let pods = [stage.bridge_pod(), stage.veth_pod()]
        .into_iter()
        .chain(stage.here())
        .chain(stage.there());
    let mut captures: Vec<_> = pods
        .map(|pod| (pod.name(), Capture::start(pod.netns(), pod.link()).unwrap()))
        .collect();
    let outside = network.outside();
    captures.push(("outside", Capture::start(outside.netns(), outside.uplink()).unwrap()));
    for cell in Cell::served() {
        // So few that chance may leave a backend out: only what is on the wire is looked at here.
        let played = cell.run(&stage, 2).unwrap();
        let other_than_spread = played.wrong.iter().filter(|wrong| !wrong.starts_with("unevenly"));
        assert_eq!(other_than_spread.count(), 0, "{cell}: {:?}", played.wrong);
    }
    for (name, capture) in captures {
        let packets = capture.verified().unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert!(packets.len() > 20, "{name}: only {} packets", packets.len());
    }
}
