//! Links that come and go faster than the kernel takes programs on them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::TcAttachType;
use lb_tests::churn::{Churn, Rate, name};
use lb_tests::client::Protocol;
use lb_tests::hooks;
use lb_tests::interrupt::eventually;
use lb_tests::kernel::Feature;
use lb_tests::manifests::Service;
use lb_tests::netlink::End;
use lb_tests::netns::Netns;
use lb_tests::network::{Attachment, Node, plan};
use lb_tests::patience::patient;
use lb_tests::plane::{self, Plane, other_than};
use lb_tests::stage::TARGET;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::{SOON, World, becomes_answered_by, cluster_ips};

const BOTH_WAYS: [(TcAttachType, &str); 2] = [(TcAttachType::Ingress, "ingress"), (TcAttachType::Egress, "egress")];

/// How many links are a storm: many times what the kernel takes programs for on TCX meanwhile.
const STORM: u32 = 500;

/// Waits until each of these links has our programs once, on TCX or where there is none as filters, and nothing else of
/// ours is left: no filter beside TCX, no pin and no BPF link.
fn assert_served_exactly(node: &Node, links: &[(u32, String)], within: Duration) {
    let mut pins = BTreeSet::new();
    let mut programs = BTreeSet::new();
    let has_tcx = Feature::Tcx.is_there().unwrap();
    let counts = if has_tcx { (1, 0) } else { (0, 1) };
    for (index, link) in links {
        for (direction, hook) in BOTH_WAYS {
            let what = format!("our program once, and no other, on {hook} of {link}");
            let found = eventually(within, &what, || {
                let found = hooks::on(node, link, direction)?;
                Ok((found.ours() == 1 && (found.tcx.len(), found.filters.len()) == counts).then_some(found))
            });
            // Filters are held by their links, and need no pin.
            for (_, program) in found.unwrap().tcx {
                programs.insert(program);
                pins.insert(format!("{hook}-{index}"));
            }
        }
    }
    eventually(SOON, "no pin of a link that is gone", || {
        let found = hooks::pins(node)?;
        assert!(found.is_superset(&pins), "{found:?}");
        Ok((found == pins).then_some(()))
    })
    .unwrap();
    eventually(SOON, "a BPF link for each hook and no other", || {
        Ok((hooks::holders(&programs) == pins.len()).then_some(()))
    })
    .unwrap();
}

/// The links of the node itself that have programs.
fn own_links(node: &Node) -> Vec<(u32, String)> {
    let tunnel = node.netns().netlink().unwrap().link(plan::TUNNEL).unwrap();
    [node.uplink().clone(), tunnel]
        .map(|link| (link.index, link.name))
        .into()
}

#[test]
fn in_a_storm_of_links_each_that_stays_is_served_nothing_is_left_of_the_others_and_services_go_on() {
    let mut world = World::new();
    let backends = ["one", "two"].map(|name| world.backend(1, name, Attachment::Veth));
    let client = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let service = Service::new("web", 1, TARGET);
    world.apply(&service.clone().with_endpoints([&backends[0]]));
    world.start_agent(1);
    let node = world.node1();
    let rate = Rate {
        a_second: 200,
        lifetime: Duration::from_millis(200),
    };
    let mut churn = Churn::new().unwrap();
    let (has_begun, is_served) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let until = Instant::now() + patient(3 * SOON);
            while Instant::now() < until && (churn.made() < STORM || !is_served.load(Ordering::SeqCst)) {
                churn.run(node, rate, Duration::from_millis(500), |_| {}).unwrap();
                has_begun.store(true, Ordering::SeqCst);
            }
        });
        eventually(SOON, "links", || Ok(has_begun.load(Ordering::SeqCst).then_some(()))).unwrap();
        world.apply(&service.clone().with_endpoints([&backends[1]]));
        for to in cluster_ips(&service) {
            becomes_answered_by(&client.client(), Protocol::Tcp, to, "two");
        }
        // The storm goes on until then.
        is_served.store(true, Ordering::SeqCst);
    });
    assert!(churn.made() >= STORM, "only {} links came", churn.made());

    if !plane::is(Plane::Ebpf) {
        // Nothing of it is on a link.
        return;
    }
    let living = churn.living(node).unwrap();
    assert!(!living.is_empty());
    let mut links = own_links(node);
    links.extend(living.into_iter().map(|link| (link.index, link.name)));
    links.extend(
        backends
            .iter()
            .chain([&client])
            .map(|pod| (pod.host_link().index, pod.host_link().name.clone())),
    );
    assert_served_exactly(node, &links, Duration::from_secs(60));
}

/// Of the links that come while the kernel cannot tell, one is still there.
#[test]
fn after_notifications_were_lost_all_links_are_asked_for_once() {
    if other_than(Plane::Ebpf, "programs wait for links to be known") {
        return;
    }
    let mut world = World::new();
    world.start_agent(1);
    let mut agent = world.agents.pop().unwrap();
    let node = world.node1();
    let netlink = node.netns().netlink().unwrap();
    let pods = Netns::new("pods").unwrap();
    let add = |number: u32| {
        let name = name(number);
        let peer = End {
            netns: &pods,
            name: &name,
        };
        netlink
            .add_veth_in_group(&name, peer, plan::POD_MTU, number, None)
            .unwrap();
        netlink.link(&name).unwrap()
    };
    let before = add(1);
    agent.wait_for_log(SOON, "link is served link=\"churn1\"").unwrap();

    let pid = Pid::from_raw(agent.pid().cast_signed());
    kill(pid, Signal::SIGSTOP).unwrap();
    // More than its buffer for notifications holds.
    let tunnel = netlink.link(plan::TUNNEL).unwrap().index;
    for n in 0..12_000 {
        netlink.set_mtu(tunnel, plan::POD_MTU - n % 2).unwrap();
    }
    let after = add(2);
    netlink.remove(before.index).unwrap();
    kill(pid, Signal::SIGCONT).unwrap();

    agent.wait_for_log(SOON, "notifications of links were lost").unwrap();
    let mut links = own_links(node);
    links.push((after.index, after.name));
    assert_served_exactly(node, &links, SOON);
    let log = agent.log().unwrap();
    assert_eq!(log.matches("notifications of links were lost").count(), 1, "{log}");
}
