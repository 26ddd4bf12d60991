//! What is wanted, and the commands that lead there, against an IPVS in memory that refuses what the kernel
//! refuses. The kernel itself comes in the network tests.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{
    inspect::{self, Held},
    limit::Limit,
    ports::{Ports, Touched},
    rules::{Key, Row, Table, Verdict},
    servers::Servers,
    wanted::Surroundings,
};
use crate::{
    desired::{
        Endpoint, Family, Frontend, FrontendAddress, Masquerade, Protocol, Route, ServicePort, ServicePortName, State,
        Target, Weight,
        any::{any_state, difference},
        text::{self, Line},
    },
    kernel::ipvs::{Command, Destination, DestinationState, Forward, Scheduler, ServiceConfig, ServiceKey},
};

/// What the kernel's IPVS holds, with connections to destinations.
#[derive(Default)]
struct Kernel {
    services: BTreeMap<ServiceKey, (ServiceConfig, BTreeMap<std::net::SocketAddr, u32>)>,
    /// Destinations that have a connection.
    connected: BTreeSet<(ServiceKey, std::net::SocketAddr)>,
}

impl Kernel {
    /// Panics where the kernel would say no, or where a connection would be lost.
    fn carry_out(&mut self, command: Command) {
        match command {
            Command::AddService(key, config) => {
                let before = self.services.insert(key, (config, BTreeMap::new()));
                assert!(before.is_none(), "EEXIST: {key}");
            }
            Command::SetService(key, config) => self.services.get_mut(&key).expect("ESRCH").0 = config,
            Command::DeleteService(key) => {
                let (_, destinations) = self.services.remove(&key).expect("ESRCH");
                for address in destinations.into_keys() {
                    assert!(!self.connected.contains(&(key, address)), "{key} lost a connection");
                }
            }
            Command::AddDestination(key, destination) => {
                let before = self.destinations(key).insert(destination.address, destination.weight);
                assert_eq!(before, None, "EEXIST: {key} {destination:?}");
            }
            Command::SetDestination(key, destination) => {
                let before = self.destinations(key).insert(destination.address, destination.weight);
                assert!(before.is_some(), "ENOENT: {key} {destination:?}");
            }
            Command::DeleteDestination(key, address) => {
                assert!(
                    self.destinations(key).remove(&address).is_some(),
                    "ENOENT: {key} {address}"
                );
                assert!(!self.connected.contains(&(key, address)), "{key} lost a connection");
            }
        }
    }

    fn destinations(&mut self, key: ServiceKey) -> &mut BTreeMap<std::net::SocketAddr, u32> {
        &mut self.services.get_mut(&key).expect("ESRCH").1
    }

    fn counted(&self, key: ServiceKey) -> Vec<DestinationState> {
        let destinations = self.services[&key].1.iter();
        destinations
            .map(|(address, weight)| DestinationState {
                destination: Destination {
                    address: *address,
                    weight: *weight,
                },
                forward: Forward::Masquerade,
                active: u32::from(self.connected.contains(&(key, *address))),
                inactive: 0,
                persistent: 0,
            })
            .collect()
    }

    fn held(&self) -> Held {
        let services = self.services.iter();
        services
            .map(|(key, (config, destinations))| {
                let serving = destinations.iter().filter(|(_, weight)| **weight > 0);
                (*key, (*config, serving.map(|(address, _)| *address).collect()))
            })
            .collect()
    }
}

/// An agent without the rules.
#[derive(Default)]
struct Agent {
    ports: Ports,
    servers: Servers,
    kernel: Kernel,
    state: State,
}

impl Agent {
    fn around(&self) -> Surroundings {
        let addresses = self.state.node_port_addresses.iter().copied();
        Surroundings {
            node_port_addresses: addresses.clone().filter(|ip| !ip.is_loopback()).collect(),
            has_loopback_node_ports: addresses.clone().any(|ip| ip.is_loopback()),
            families_with_pod_cidrs: self
                .state
                .pod_cidrs
                .iter()
                .map(|cidr| Family::of(cidr.addr()))
                .collect(),
            scheduler: Scheduler::RoundRobin,
        }
    }

    fn become_(&mut self, state: &State) {
        let change = difference(&self.state, state);
        self.state = state.clone();
        let around = self.around();
        let mut touched = Touched::default();
        for (name, service) in &change.services {
            self.ports.set(name, service.as_ref(), &around, &mut touched).unwrap();
        }
        for (name, service) in self.ports.depending_on_node() {
            self.ports.set(&name, Some(&service), &around, &mut touched).unwrap();
        }
        for key in touched.servers {
            let wanted = self.ports.server(key);
            self.servers.want(key, wanted.is_some());
            let protocol = wanted.map_or(Protocol::Tcp, |server| server.protocol);
            for command in self.servers.commands(key, wanted) {
                self.kernel.carry_out(command);
                self.servers.done(&command, protocol);
            }
        }
    }

    /// A round of questions about connections.
    fn drain(&mut self) {
        for key in self.servers.draining().collect::<Vec<_>>() {
            for command in self.servers.drained(key, &self.kernel.counted(key)) {
                self.kernel.carry_out(command);
                self.servers.done(&command, Protocol::Tcp);
            }
        }
    }

    fn lines(&self) -> BTreeSet<String> {
        let table = Table {
            frontends: self.ports.all_rows(),
            cluster_ips: self.state.cluster_ips.clone(),
            service_cidrs: self.state.service_cidrs.clone(),
            pod_cidrs: self.state.pod_cidrs.clone(),
            local_endpoints: self.ports.endpoints(),
            ..Table::default()
        };
        let lines = inspect::lines(&table, &self.kernel.held());
        lines.iter().map(ToString::to_string).collect()
    }
}

/// The lines of a state, with NodePorts at each address that they are served on here.
fn expected(state: &State) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for line in text::lines(state) {
        match line {
            Line::Frontend(line) if line.address.ip().is_unspecified() => {
                let addresses = state.node_port_addresses.iter();
                for ip in addresses.filter(|ip| !ip.is_loopback() && ip.is_ipv4() == line.address.is_ipv4()) {
                    let mut line = line.clone();
                    line.address.set_ip(*ip);
                    lines.insert(Line::Frontend(line).to_string());
                }
            }
            Line::Address(_, text::AddressRole::NodePorts | text::AddressRole::NodePortsForHost) => {}
            line => {
                lines.insert(line.to_string());
            }
        }
    }
    lines
}

proptest! {
    #[test]
    fn whatever_comes_ipvs_holds_what_is_desired(states in prop::collection::vec(any_state(), 1..6)) {
        let mut agent = Agent::default();
        for state in &states {
            agent.become_(state);
            let lines = agent.lines();
            let errors: Vec<_> = lines.iter().filter(|line| line.contains("error=")).collect();
            prop_assert!(errors.is_empty(), "{errors:?}");
            prop_assert_eq!(lines, expected_with_affinity(state));
            agent.drain();
        }
        agent.become_(&State::default());
        agent.drain();
        prop_assert!(agent.kernel.services.is_empty());
    }

    #[test]
    fn a_connection_keeps_its_destination_until_it_ends(
        states in prop::collection::vec(any_state(), 2..6),
        which in any::<prop::sample::Index>(),
    ) {
        let mut agent = Agent::default();
        agent.become_(&states[0]);
        let all: Vec<_> = agent.kernel.services.iter().flat_map(|(key, (_, destinations))| {
            destinations.keys().map(|address| (*key, *address))
        }).collect();
        if !all.is_empty() {
            agent.kernel.connected.insert(all[which.index(all.len())]);
        }
        // The kernel in memory panics if it is lost.
        for state in &states[1..] {
            agent.become_(state);
            agent.drain();
        }
        agent.become_(&State::default());
        agent.drain();
        prop_assert_eq!(agent.kernel.services.len(), agent.kernel.connected.len());
        agent.kernel.connected.clear();
        agent.drain();
        prop_assert!(agent.kernel.services.is_empty());
    }
}

/// Frontends without endpoints have no virtual service, which would say how long clients are remembered.
fn expected_with_affinity(state: &State) -> BTreeSet<String> {
    let without = |line: String| {
        let leads_nowhere = line.contains(" to=reject") || line.contains(" to=drop");
        match line.find(" affinity=").filter(|_| leads_nowhere) {
            Some(at) => {
                let end = line[at + 1..].find(' ').map_or(line.len(), |space| at + 1 + space);
                format!("{}{}", &line[..at], &line[end..])
            }
            None => line,
        }
    };
    expected(state).into_iter().map(without).collect()
}

const HERE: Endpoint = Endpoint {
    on_node: true,
    cluster: true,
    local: true,
    weight: Weight::ONE,
};
const REMOTE: Endpoint = Endpoint {
    on_node: false,
    cluster: true,
    local: false,
    weight: Weight::ONE,
};

/// Two endpoints, one here; an external address with `externalTrafficPolicy: Local`, and a ClusterIP.
fn local_service(affinity: Option<u32>) -> ServicePort {
    let frontend = |ip: &str| Frontend {
        address: FrontendAddress::Ip(ip.parse().unwrap()),
        port: 80.try_into().unwrap(),
        protocol: Protocol::Tcp,
    };
    let route = |far| Route {
        near: Target::Cluster,
        far,
        masquerade: Masquerade::WhereNeeded,
        restricted: false,
    };
    ServicePort {
        frontends: BTreeMap::from([
            (frontend("10.96.0.10"), route(Target::Cluster)),
            (frontend("192.0.2.1"), route(Target::Local)),
        ]),
        endpoints: BTreeMap::from([
            ("10.0.0.1:8080".parse().unwrap(), HERE),
            ("10.0.1.1:8080".parse().unwrap(), REMOTE),
        ]),
        affinity: affinity.and_then(|seconds| seconds.try_into().ok()),
        ..ServicePort::default()
    }
}

fn state_with(service: ServicePort) -> State {
    let protocol = service.frontends.keys().next().unwrap().protocol;
    let name = ServicePortName {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        port: String::new(),
        protocol,
        family: Family::V4,
    };
    State {
        services: BTreeMap::from([(name, service)]),
        ..State::default()
    }
}

fn key(text: &str) -> Key {
    Key {
        protocol: Protocol::Tcp,
        address: text.parse().unwrap(),
    }
}

#[test]
fn near_clients_of_a_local_policy_have_a_mark_and_all_endpoints() {
    let mut agent = Agent::default();
    agent.become_(&state_with(local_service(None)));
    let rows = agent.ports.all_rows();
    let Row {
        near: Verdict::Select(mark),
        far: Verdict::Serve,
        ..
    } = rows[&key("192.0.2.1:80")]
    else {
        panic!("{rows:?}");
    };
    assert_eq!(rows[&key("10.96.0.10:80")].near, Verdict::Serve);
    let destinations = |key: &ServiceKey| agent.kernel.services[key].1.len();
    let marked = ServiceKey::Mark {
        family: Family::V4,
        mark: mark.plain().try_into().unwrap(),
    };
    assert_eq!(destinations(&marked), 2);
    let by_address = ServiceKey::Address {
        protocol: Protocol::Tcp,
        address: "192.0.2.1:80".parse().unwrap(),
    };
    assert_eq!(destinations(&by_address), 1);
    assert_eq!(agent.kernel.services.len(), 3);
    assert!(agent.ports.limits().is_empty());
}

#[test]
fn pods_that_are_known_by_their_addresses_have_the_twin_of_the_mark_too() {
    let mut agent = Agent::default();
    let mut state = state_with(local_service(None));
    state.pod_cidrs = BTreeSet::from(["10.0.0.0/8".parse().unwrap()]);
    agent.become_(&state);
    let marks = agent
        .kernel
        .services
        .keys()
        .filter(|key| matches!(key, ServiceKey::Mark { .. }));
    assert_eq!(marks.count(), 2);
}

#[test]
fn what_affinity_is_not_here_is_told() {
    let mut agent = Agent::default();
    agent.become_(&state_with(local_service(Some(60))));
    let limits: Vec<_> = agent.ports.limits().into_values().cloned().collect();
    assert_eq!(
        limits,
        [BTreeSet::from([Limit::AffinityByFrontend, Limit::AffinityByHash])]
    );
}

#[test]
fn datagrams_leave_an_endpoint_at_once() {
    let mut agent = Agent::default();
    let mut service = local_service(None);
    service.frontends = std::mem::take(&mut service.frontends)
        .into_iter()
        .map(|(frontend, route)| {
            let protocol = Protocol::Udp;
            (Frontend { protocol, ..frontend }, route)
        })
        .collect();
    let mut state = state_with(service);
    agent.become_(&state);
    for service in state.services.values_mut() {
        service.endpoints.pop_last();
    }
    agent.become_(&state);
    let destinations = agent.kernel.services.values().map(|(_, destinations)| destinations);
    assert!(destinations.into_iter().all(|destinations| destinations.len() == 1));
}
