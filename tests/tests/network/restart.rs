//! The agent may end in any way: what is programmed goes on, and the next one takes it over.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::links::{FdLink, PinnedLink};
use lb_tests::agent::{Agent, Maps, Options};
use lb_tests::client::{Client, Connection, Protocol};
use lb_tests::ipvs::Table;
use lb_tests::kernel::Feature;
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node, Pod};
use lb_tests::owner::Folder;
use lb_tests::patience::patient;
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;

use crate::fixture::{
    BOTH, SOON, World, answerers, becomes_answered_by, cluster_ips, frontends, host_that_is_served, names, run,
};

pub(crate) struct Running {
    pub(crate) world: World,
    pub(crate) clients: Vec<Client>,
    pub(crate) client_pod: Pod,
    pub(crate) pods: [Pod; 2],
    pub(crate) service: Service,
}

pub(crate) fn running() -> Running {
    let mut world = World::new();
    let client_pod = world.node1().add_pod("client", Attachment::Bridge).unwrap();
    let pods = [
        world.backend(1, "here", Attachment::Veth),
        world.backend(2, "there", Attachment::Bridge),
    ];
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&pods[0], &pods[1]]);
    world.apply(&service);
    world.start_agent(1);
    let clients = [client_pod.client(), world.network.outside().client()];
    let clients = clients.into_iter().chain(host_that_is_served(world.node1())).collect();
    Running {
        world,
        clients,
        client_pod,
        pods,
        service,
    }
}

impl Running {
    pub(crate) fn agent(&mut self) -> Agent {
        self.world.agents.pop().unwrap()
    }

    /// One connection for each client, protocol and frontend, with who answers it.
    pub(crate) fn connections(&self) -> Vec<(Connection, String)> {
        let mut connections = Vec::new();
        for client in &self.clients {
            for to in frontends(&self.service, self.world.node1()) {
                for protocol in BOTH {
                    let mut connection = client.connect(protocol, to).unwrap();
                    let server = connection.ask("who").unwrap().server;
                    connections.push((connection, server));
                }
            }
        }
        connections
    }

    #[track_caller]
    pub(crate) fn still_answer(when: &str, connections: &mut [(Connection, String)]) {
        for (connection, server) in connections {
            let answer = connection
                .ask("still you?")
                .unwrap_or_else(|failure| panic!("{when}: {failure}"));
            assert_eq!(answer.server, *server, "{when}");
        }
    }

    #[track_caller]
    pub(crate) fn new_ones_are_answered(&self) {
        for client in &self.clients {
            for to in cluster_ips(&self.service) {
                assert_eq!(answerers(client, Protocol::Tcp, to, 40), names(&self.pods));
            }
        }
    }
}

#[test]
fn connections_outlive_an_agent_that_is_killed_and_the_next_one_takes_over() {
    let mut running = running();
    let mut connections = running.connections();
    running.agent().kill().unwrap();
    Running::still_answer("without an agent", &mut connections);
    running.new_ones_are_answered();

    running.world.start_agent(1);
    Running::still_answer("after the restart", &mut connections);
    running.new_ones_are_answered();
}

#[test]
fn connections_outlive_an_agent_that_is_stopped() {
    let mut running = running();
    let mut connections = running.connections();
    running.agent().stop().unwrap();
    Running::still_answer("without an agent", &mut connections);
    running.new_ones_are_answered();
    running.world.start_agent(1);
    Running::still_answer("after the restart", &mut connections);
}

/// Each flow keeps the one who masquerades it, whoever does that for new ones.
#[test]
fn connections_outlive_a_change_of_who_masquerades() {
    if other_than(Plane::Ebpf, "it always has the kernel masquerade") {
        return;
    }
    let mut running = running();
    let mut by_programs = running.connections();
    running.agent().stop().unwrap();
    running.world.start_agent_with(1, &["--snat", "kernel"]);
    Running::still_answer("once the kernel masquerades", &mut by_programs);
    running.new_ones_are_answered();
    let mut by_kernel = running.connections();

    running.agent().stop().unwrap();
    running.world.start_agent(1);
    let mut again_by_programs = running.connections();
    let until = Instant::now() + patient(Duration::from_secs(60));
    while run(running.world.node1(), "nft list table inet lb-agent").contains("masquerade") {
        assert!(Instant::now() < until, "the kernel still masquerades");
        Running::still_answer("while both masquerade", &mut by_kernel);
        thread::sleep(Duration::from_millis(500));
    }
    for connections in [&mut by_programs, &mut by_kernel, &mut again_by_programs] {
        Running::still_answer("once programs masquerade again", connections);
    }
    running.new_ones_are_answered();
}

#[test]
fn what_changed_while_no_agent_ran_is_made_up_for() {
    let mut running = running();
    running.agent().kill().unwrap();
    let gone = Service::new("gone", 2, TARGET).with_endpoints([&running.pods[0]]);
    let service = running.service.clone().with_endpoints([&running.pods[1]]);
    running.world.apply(&service);
    running.world.apply(&gone);
    running.world.start_agent(1);
    for to in cluster_ips(&service) {
        assert_eq!(
            answerers(&running.clients[0], Protocol::Tcp, to, 20),
            names([&running.pods[1]])
        );
    }
    running.agent().kill().unwrap();
    running.world.delete(&gone);
    running.world.start_agent(1);
    let hasty = running.clients[0].with_timeout(crate::fixture::BRIEFLY);
    assert!(crate::fixture::is_silence(
        &hasty.ask(Protocol::Tcp, cluster_ips(&gone)[0])
    ));
}

/// The API server may be away when a node starts its agent anew, for a minute or an hour.
#[test]
fn an_agent_that_waits_for_its_objects_takes_nothing_away() {
    /// Nobody listens there.
    const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: away, cluster: {server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true}}]
contexts: [{name: away, context: {cluster: away, user: nobody}}]
users: [{name: nobody, user: {token: none}}]
current-context: away
";
    let mut running = running();
    let mut connections = running.connections();
    running.agent().kill().unwrap();
    let folder = Folder::new().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    fs::write(&kubeconfig, KUBECONFIG).unwrap();
    let source = ["--kubeconfig".into(), kubeconfig.into_os_string()];
    let agent = Agent::spawn_reading(running.world.node1(), source, &Options::default()).unwrap();
    running.world.agents.push(agent);
    // Planes look after what is theirs every few seconds.
    thread::sleep(patient(Duration::from_secs(7)));
    Running::still_answer("while the next agent waits", &mut connections);
    running.new_ones_are_answered();

    running.agent().stop().unwrap();
    running.world.start_agent(1);
    Running::still_answer("after it has them", &mut connections);
    running.new_ones_are_answered();
}

#[test]
fn a_pod_link_that_came_while_no_agent_ran_is_found() {
    let mut running = running();
    running.agent().kill().unwrap();
    let late = running.world.node1().add_pod("late", Attachment::Veth).unwrap();
    running.world.start_agent(1);
    for to in cluster_ips(&running.service) {
        assert_eq!(answerers(&late.client(), Protocol::Tcp, to, 40), names(&running.pods));
    }
}

#[test]
fn two_restarts_in_a_row_change_nothing() {
    let mut running = running();
    let mut connections = running.connections();
    for round in 1..=2 {
        running.agent().stop().unwrap();
        let agent = Agent::start(running.world.node1(), &running.world.source, &Options::default()).unwrap();
        running.world.agents.push(agent);
        Running::still_answer(&format!("round {round}"), &mut connections);
    }
    for to in cluster_ips(&running.service) {
        becomes_answered_by(&running.clients[0], Protocol::Udp, to, "here");
    }
}

/// Without `CAP_SYS_ADMIN` nobody may ask what program it is that an earlier agent left on a link.
#[test]
fn a_restart_without_cap_sys_admin_takes_no_program_off_its_link() {
    if other_than(Plane::Ebpf, "programs stay on their links") {
        return;
    }
    let mut running = running();
    let mut connections = running.connections();
    let before = links(running.world.node1());
    // Those of sockets at least: without TCX (kernel 6.6) links have filters, which are not pinned.
    assert_eq!(
        before.len() >= 8,
        Feature::NetnsCookie.is_there().unwrap(),
        "{before:?}"
    );
    running.agent().kill().unwrap();

    // The one with ptrace is for the bpffs of the test, which is reached through this process.
    let mut launcher = "setpriv --bounding-set=-all,+bpf,+net_admin,+perfmon,+sys_ptrace".to_owned();
    if !Feature::MapMemory.is_there().unwrap() {
        launcher.push_str(",+sys_resource");
    }
    let options = Options {
        launcher: launcher.split(' ').map(Into::into).collect(),
        ..Options::default()
    };
    let agent = Agent::start(running.world.node1(), &running.world.source, &options).unwrap();
    Running::still_answer("after the restart", &mut connections);
    let after = links(running.world.node1());
    for ((name, link, program), (name_after, link_after, program_after)) in before.iter().zip(&after) {
        assert_eq!((name, link), (name_after, link_after), "the same link");
        assert_ne!(program, program_after, "{name} has the new program");
    }
    assert_eq!(before.len(), after.len());
    running.world.agents.push(agent);
    running.new_ones_are_answered();
}

/// What is pinned on hooks of a node: name, number of the link, number of its program.
fn links(node: &Node) -> Vec<(String, u32, u32)> {
    let versions = node.bpffs().path().join("lb-agent");
    let mut links = Vec::new();
    for version in names_in(&versions).into_iter().filter(|name| name.starts_with('v')) {
        let folder = versions.join(version).join("links");
        for name in names_in(&folder) {
            let link = FdLink::from(PinnedLink::from_pin(folder.join(&name)).unwrap());
            let info = link.info().unwrap();
            links.push((name, info.id(), info.program_id()));
        }
    }
    links
}

/// What a second agent would have changed: programs and their links, or IPVS.
fn programmed(node: &Node) -> String {
    match Plane::under_test() {
        Plane::Ebpf => format!("{:?}", links(node)),
        Plane::Ipvs => Table::of(node).unwrap().to_string(),
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A kubeconfig for an API server that is not there.
fn nobodys_kubeconfig() -> (Folder, [String; 2]) {
    let folder = Folder::new().unwrap();
    let path = folder.path().join("kubeconfig");
    let text = "\
apiVersion: v1
kind: Config
clusters: [{name: nobody, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: nobody, user: {}}]
contexts: [{name: nobody, context: {cluster: nobody, user: nobody}}]
current-context: nobody
";
    fs::write(&path, text).unwrap();
    let args = ["--kubeconfig".to_owned(), path.to_str().unwrap().to_owned()];
    (folder, args)
}

/// Longer than the agent waits for the addresses of its Node before it decides without them.
const WITHOUT_NODE: Duration = Duration::from_secs(6);

#[test]
fn an_agent_with_other_sizes_takes_over_maps_and_flows_though_it_hears_of_no_service() {
    if other_than(Plane::Ebpf, "maps have a size") {
        return;
    }
    let mut running = running();
    let mut connections = running.connections();
    running.agent().kill().unwrap();
    let (_folder, nobody) = nobodys_kubeconfig();
    for maps in [Maps::Resized, Maps::Small] {
        let options = Options {
            maps,
            ..Options::default()
        };
        let mut agent = Agent::spawn_reading(running.world.node1(), &nobody, &options).unwrap();
        agent.wait_for_log(SOON, "some in other sizes").unwrap();
        agent
            .wait_for_log(SOON, "programs of an earlier agent are gone")
            .unwrap();
        let when = format!("{maps:?}");
        Running::still_answer(&when, &mut connections);
        running.new_ones_are_answered();
        // Those that began meanwhile go on with the next sizes too.
        connections.extend(running.connections());
        agent.kill().unwrap();
        Running::still_answer(&when, &mut connections);
    }
}

#[test]
fn agents_whose_maps_have_no_room_and_that_never_hear_of_a_service_change_nothing() {
    if other_than(Plane::Ebpf, "maps have a size") {
        return;
    }
    let mut running = running();
    let mut connections = running.connections();
    let before = links(running.world.node1());
    running.agent().kill().unwrap();
    let (_folder, nobody) = nobodys_kubeconfig();
    let tiny = Options {
        maps: Maps::Tiny,
        ..Options::default()
    };
    let mut logs = String::new();
    for round in ["first", "second"] {
        let mut agent = Agent::spawn_reading(running.world.node1(), &nobody, &tiny).unwrap();
        agent.wait_for_log(SOON, "started").unwrap();
        thread::sleep(WITHOUT_NODE);
        Running::still_answer(round, &mut connections);
        running.new_ones_are_answered();
        logs.push_str(&agent.log().unwrap());
        agent.kill().unwrap();
        Running::still_answer(round, &mut connections);
        running.new_ones_are_answered();
    }
    assert!(!logs.contains("link is served"), "{logs}");
    assert!(logs.contains("BACKENDS needs"), "{logs}");
    assert_eq!(links(running.world.node1()), before);

    // The old sizes take the old maps over, and with them the connections.
    let agent = Agent::spawn_reading(running.world.node1(), &nobody, &Options::default());
    let mut agent = agent.unwrap();
    agent.wait_for_log(SOON, "taking over the maps").unwrap();
    agent.wait_for_log(SOON, "link is served").unwrap();
    Running::still_answer("with the old sizes", &mut connections);
    agent.stop().unwrap();

    // With objects to serve, the new sizes come into use, for one endpoint.
    let service = running.service.clone().with_endpoints([&running.pods[0]]);
    let mut object = service.clone();
    object.ports.truncate(1);
    running.world.delete(&running.service);
    running.world.apply(&object);
    let agent = Agent::start(running.world.node1(), &running.world.source, &tiny).unwrap();
    let is_pinned = Feature::Tcx.is_there().unwrap() || Feature::NetnsCookie.is_there().unwrap();
    assert_eq!(links(running.world.node1()) != before, is_pinned);
    agent.stop().unwrap();
    let mut agent = Agent::spawn_reading(running.world.node1(), &nobody, &tiny).unwrap();
    agent.wait_for_log(SOON, "taking over the maps").unwrap();
}

#[test]
fn a_second_agent_ends_at_once_and_says_why() {
    let mut running = running();
    let mut connections = running.connections();
    let before = programmed(running.world.node1());
    let mut second = Agent::spawn(running.world.node1(), &running.world.source, &Options::default()).unwrap();
    let said = second
        .wait_for_log(SOON, "an lb-agent is running on this node")
        .unwrap();
    assert!(said.contains("stop it first"), "{said}");
    let end = second.wait_for_log(SOON, "what it never says").unwrap_err();
    assert!(format!("{end:#}").contains("it has ended: exit status 1"), "{end:#}");
    assert_eq!(programmed(running.world.node1()), before);
    Running::still_answer("beside a second agent", &mut connections);
    running.new_ones_are_answered();
    running.agent().stop().unwrap();
}
