//! The kernel's IPVS through the agent's own messages, and what `ipvsadm` says of it.

mod destinations;
mod refusals;
mod services;

use std::fs;
use std::num::NonZeroU32;
use std::process::{Command as Program, Stdio};

use lb_agent::desired::{Family, Protocol};
use lb_agent::kernel::ipvs::{
    Command, Destination, DestinationState, Forward, Ipvs, IpvsError, Scheduler, ServiceConfig, ServiceKey, Timeouts,
};
use lb_tests::kernel::{Feature, lacks};
use lb_tests::netns::Netns;
use lb_tests::process::spawn;

/// IPVS of a namespace of its own.
struct Table {
    netns: Netns,
    ipvs: Ipvs,
}

impl Table {
    /// None: this kernel has none.
    fn new() -> Option<Self> {
        if lacks(Feature::Ipvs) {
            return None;
        }
        let netns = Netns::new("ipvs").unwrap();
        let ipvs = netns.run(Ipvs::open).unwrap().unwrap();
        Some(Self { netns, ipvs })
    }

    /// Carries out commands that the kernel has nothing against.
    fn send(&mut self, commands: &[Command]) {
        for (answer, command) in self.ipvs.send(commands).unwrap().into_iter().zip(commands) {
            answer.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        }
    }

    /// Why the kernel does not carry out a command.
    fn refusal(&mut self, command: Command) -> IpvsError {
        let [answer] = self.ipvs.send(&[command]).unwrap().try_into().unwrap();
        answer.expect_err(&format!("{command:?}"))
    }

    /// The services, in the order of their keys.
    fn services(&mut self) -> Vec<(ServiceKey, ServiceConfig)> {
        let mut services = self.ipvs.services().unwrap();
        services.sort_by_key(|(key, _)| *key);
        services
    }

    /// The destinations, in the order of their addresses.
    fn destinations(&mut self, key: &ServiceKey) -> Vec<DestinationState> {
        let mut destinations = self.ipvs.destinations(key).unwrap();
        destinations.sort_by_key(|state| state.destination.address);
        destinations
    }

    /// What `ipvsadm` prints.
    fn ipvsadm(&self, arguments: &str) -> String {
        let mut program = Program::new("ipvsadm");
        program.args(arguments.split(' ')).stdout(Stdio::piped());
        let output = spawn(program, &self.netns, None).unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "ipvsadm {arguments}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Asserts that these arguments of `ipvsadm` would make the table as it is.
    #[track_caller]
    fn assert_is_made_by(&self, expected: &[&str]) {
        let saved = self.ipvsadm("-S -n");
        let mut lines: Vec<_> = saved
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        lines.sort();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(lines, expected);
    }
}

fn service(protocol: Protocol, address: &str) -> ServiceKey {
    let address = address.parse().unwrap();
    ServiceKey::Address { protocol, address }
}

fn marked(family: Family, mark: u32) -> ServiceKey {
    let mark = NonZeroU32::new(mark).unwrap();
    ServiceKey::Mark { family, mark }
}

fn destination(address: &str, weight: u32) -> Destination {
    let address = address.parse().unwrap();
    Destination { address, weight }
}

/// A destination as it is before there are connections.
fn unused(address: &str, weight: u32) -> DestinationState {
    DestinationState {
        destination: destination(address, weight),
        forward: Forward::Masquerade,
        active: 0,
        inactive: 0,
        persistent: 0,
    }
}

fn round_robin() -> ServiceConfig {
    ServiceConfig::new(Scheduler::RoundRobin)
}

#[test]
fn timeouts_are_set_one_by_one() {
    let Some(mut table) = Table::new() else { return };
    let timeouts = |tcp, tcp_fin, udp| Timeouts {
        tcp: NonZeroU32::new(tcp),
        tcp_fin: NonZeroU32::new(tcp_fin),
        udp: NonZeroU32::new(udp),
    };
    table.ipvs.set_timeouts(&timeouts(1000, 100, 10)).unwrap();
    table.ipvs.set_timeouts(&timeouts(0, 0, 20)).unwrap();
    assert_eq!(table.ipvs.timeouts().unwrap(), timeouts(1000, 100, 20));
    let said = table.ipvsadm("-L --timeout");
    assert!(said.contains("1000 100 20"), "{said}");
    let said = table.ipvs.set_timeouts(&timeouts(u32::MAX, 0, 0)).unwrap_err();
    assert!(said.to_string().contains("too long"), "{said}");
}

#[test]
fn the_version_is_that_of_proc() {
    let Some(mut table) = Table::new() else { return };
    let listing = table.netns.run(|| fs::read_to_string("/proc/thread-self/net/ip_vs"));
    let listing = listing.unwrap().unwrap();
    let version = table.ipvs.version().unwrap();
    assert!(
        listing.starts_with(&format!("IP Virtual Server version {version} ")),
        "{listing}"
    );
}

#[test]
fn a_table_is_that_of_the_namespace_where_it_was_opened() {
    let Some(mut table) = Table::new() else { return };
    let mut other = Table::new().unwrap();
    let key = service(Protocol::Tcp, "10.96.0.1:80");
    table.send(&[Command::AddService(key, round_robin())]);
    assert_eq!(other.services(), []);
    other.send(&[Command::AddService(key, ServiceConfig::new(Scheduler::SourceHash))]);
    assert_eq!(table.services(), [(key, round_robin())]);
}
