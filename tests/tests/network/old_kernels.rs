//! What an older kernel lacks: the agent does without, or ends, and says so. On a newer one there is nothing to see.

use lb_tests::agent::{Agent, Options};
use lb_tests::client::{Failure, Protocol};
use lb_tests::kernel::{Feature, has, lacks};
use lb_tests::manifests::Service;
use lb_tests::network::Attachment;
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;

use crate::fixture::{SOON, World, becomes_answered_by, cluster_ips};

/// Why these are tests of one plane only.
const OF_PROGRAMS: &str = "it is about what programs need of the kernel";

#[test]
fn without_tcx_the_agent_says_that_it_uses_filters_and_they_serve() {
    if other_than(Plane::Ebpf, OF_PROGRAMS) {
        return;
    }
    if has(Feature::Tcx) {
        return;
    }
    let mut world = World::new();
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let backend = world.backend(2, "backend", Attachment::Bridge);
    let service = Service::new("web", 1, TARGET).with_endpoints([&backend]);
    world.apply(&service);
    world.start_agent(1);
    world.agents[0].wait_for_log(SOON, Feature::Tcx.without()).unwrap();
    for to in cluster_ips(&service) {
        becomes_answered_by(&client.client(), Protocol::Tcp, to, "backend");
    }
    let netlink = world.node1().netns().netlink().unwrap();
    assert_eq!(netlink.bpf_filters(client.host_link().index).unwrap(), 2);
}

#[test]
fn where_processes_of_the_host_cannot_be_told_from_others_the_agent_ends_and_says_how_to_go_without() {
    if other_than(Plane::Ebpf, OF_PROGRAMS) {
        return;
    }
    if has(Feature::NetnsCookie) {
        return;
    }
    let world = World::new();
    let options = Options {
        args: ["--socket-lb", "host"].map(Into::into).into(),
        ..Options::default()
    };
    let error = Agent::start(world.node1(), &world.source, &options).unwrap_err();
    let said = format!("{error:#}");
    assert!(said.contains(Feature::NetnsCookie.without()), "{said}");
}

#[test]
fn without_set_retval_the_agent_says_how_processes_of_the_host_are_refused() {
    if other_than(Plane::Ebpf, OF_PROGRAMS) {
        return;
    }
    if has(Feature::SetRetval) || lacks(Feature::NetnsCookie) {
        return;
    }
    let mut world = World::new();
    let service = Service::new("empty", 9, TARGET);
    world.apply(&service);
    world.start_agent(1);
    world.agents[0]
        .wait_for_log(SOON, Feature::SetRetval.without())
        .unwrap();
    let host = world.node1().client().unwrap();
    for to in cluster_ips(&service) {
        assert_eq!(host.ask(Protocol::Tcp, to), Err(Failure::Denied), "{to}");
    }
}

#[test]
fn where_maps_are_locked_memory_the_agent_needs_one_more_capability_and_names_it() {
    if other_than(Plane::Ebpf, OF_PROGRAMS) {
        return;
    }
    if has(Feature::MapMemory) {
        return;
    }
    let world = World::new();
    // The one with ptrace is for the bpffs of the test, which is reached through this process.
    let without_it = "setpriv --bounding-set=-all,+bpf,+net_admin,+perfmon,+sys_ptrace";
    // Other tests may have lifted the limit of this process.
    let launcher = ["sh", "-c", &format!("ulimit -l 64 && exec {without_it} \"$@\""), "sh"];
    let options = Options {
        launcher: launcher.map(Into::into).into(),
        ..Options::default()
    };
    let error = Agent::start(world.node1(), &world.source, &options).unwrap_err();
    let said = format!("{error:#}");
    assert!(said.contains(Feature::MapMemory.without()), "{said}");
}
