//! The agent may end in any way: what is programmed goes on, and the next one takes it over.

use lb_tests::agent::{Agent, Options};
use lb_tests::client::{Client, Connection, Protocol};
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Pod};
use lb_tests::stage::TARGET;

use crate::fixture::{BOTH, World, answerers, becomes_answered_by, cluster_ips, names, node_ports};

struct Running {
    world: World,
    clients: Vec<Client>,
    _client_pod: Pod,
    pods: [Pod; 2],
    service: Service,
}

fn running() -> Running {
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
    let clients = vec![
        client_pod.client(),
        world.node1().client().unwrap(),
        world.network.outside().client(),
    ];
    Running {
        world,
        clients,
        _client_pod: client_pod,
        pods,
        service,
    }
}

impl Running {
    fn agent(&mut self) -> Agent {
        self.world.agents.pop().unwrap()
    }

    /// One connection for each client, protocol and frontend, with who answers it.
    fn connections(&self) -> Vec<(Connection, String)> {
        let mut connections = Vec::new();
        for client in &self.clients {
            for to in cluster_ips(&self.service)
                .into_iter()
                .chain(node_ports(&self.service, self.world.node1()))
            {
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
    fn still_answer(when: &str, connections: &mut [(Connection, String)]) {
        for (connection, server) in connections {
            let answer = connection
                .ask("still you?")
                .unwrap_or_else(|failure| panic!("{when}: {failure}"));
            assert_eq!(answer.server, *server, "{when}");
        }
    }

    #[track_caller]
    fn new_ones_are_answered(&self) {
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
