//! Destinations, and what is somebody else's.

use std::num::NonZeroU32;

use lb_agent::desired::{Family, Protocol};
use lb_agent::kernel::ipvs::{Command, DestinationState, Foreign, Forward, Scheduler, ServiceConfig};

use super::{Table, destination, marked, round_robin, service, unused};

#[test]
fn destinations_are_added_changed_and_deleted() {
    let Some(mut table) = Table::new() else { return };
    for (key, [first, second], arguments) in [
        (
            service(Protocol::Tcp, "10.96.0.1:80"),
            ["10.244.1.1:8080", "10.244.1.2:8081"],
            "-t 10.96.0.1:80",
        ),
        (
            service(Protocol::Udp, "[fd00::1]:53"),
            ["[fd01::1]:5353", "[fd01::2]:53"],
            "-u [fd00::1]:53",
        ),
        (
            service(Protocol::Sctp, "10.96.0.1:80"),
            ["10.244.1.1:80", "10.244.1.2:80"],
            "--sctp-service 10.96.0.1:80",
        ),
        (marked(Family::V4, 7), ["10.244.1.1:80", "10.244.1.2:80"], "-f 7"),
        (marked(Family::V6, 7), ["[fd01::1]:80", "[fd01::2]:80"], "-f 7 -6"),
    ] {
        table.send(&[
            Command::AddService(key, round_robin()),
            Command::AddDestination(key, destination(first, 1)),
            Command::AddDestination(key, destination(second, 65_535)),
        ]);
        assert_eq!(table.destinations(&key), [unused(first, 1), unused(second, 65_535)]);
        table.assert_is_made_by(&[
            &format!("-A {arguments} -s rr"),
            &format!("-a {arguments} -r {first} -m -w 1"),
            &format!("-a {arguments} -r {second} -m -w 65535"),
        ]);
        table.send(&[Command::SetDestination(key, destination(first, 0))]);
        assert_eq!(table.destinations(&key), [unused(first, 0), unused(second, 65_535)]);
        table.send(&[Command::DeleteDestination(key, first.parse().unwrap())]);
        assert_eq!(table.destinations(&key), [unused(second, 65_535)]);
        table.send(&[Command::DeleteService(key)]);
        // The kernel does not tell that from a service without destinations.
        assert_eq!(table.destinations(&key), []);
    }
}

#[test]
fn a_service_with_many_destinations_is_read_whole() {
    let Some(mut table) = Table::new() else { return };
    let key = service(Protocol::Tcp, "[fd00::1]:80");
    let addresses: Vec<_> = (1..=500).map(|port| format!("[fd01::1]:{port}")).collect();
    let mut commands = vec![Command::AddService(key, round_robin())];
    commands.extend(
        addresses
            .iter()
            .map(|address| Command::AddDestination(key, destination(address, 1))),
    );
    table.send(&commands);
    let expected: Vec<_> = addresses.iter().map(|address| unused(address, 1)).collect();
    assert_eq!(table.destinations(&key), expected);
}

#[test]
fn services_of_somebody_else_are_read_and_can_be_made_ours() {
    let Some(mut table) = Table::new() else { return };
    table.ipvsadm("-A -t 192.0.2.1:80 -s wlc -p 60 -M 255.255.255.0");
    table.ipvsadm("-a -t 192.0.2.1:80 -r 10.244.1.1:80 -g -w 3");
    table.ipvsadm("-a -t 192.0.2.1:80 -r 10.244.1.2:80 -i -w 4");
    table.ipvsadm("-a -t 192.0.2.1:80 -r [fd01::1]:80 -i -w 5");
    let key = service(Protocol::Tcp, "192.0.2.1:80");
    let theirs = ServiceConfig {
        persistence: NonZeroU32::new(60),
        foreign: Foreign {
            netmask: Some(0xffff_ff00),
            ..Foreign::default()
        },
        ..ServiceConfig::new(Scheduler::WeightedLeastConnections)
    };
    assert_eq!(table.services(), [(key, theirs)]);
    let state = |address, weight, forward| DestinationState {
        forward,
        ..unused(address, weight)
    };
    let expected = [
        state("10.244.1.1:80", 3, Forward::DirectRoute),
        state("10.244.1.2:80", 4, Forward::Tunnel),
        state("[fd01::1]:80", 5, Forward::Tunnel),
    ];
    assert_eq!(table.destinations(&key), expected);
    let ours = ServiceConfig {
        foreign: Foreign::default(),
        ..theirs
    };
    table.send(&[
        Command::SetService(key, ours),
        Command::SetDestination(key, destination("10.244.1.1:80", 3)),
    ]);
    assert_eq!(table.services(), [(key, ours)]);
    assert_eq!(table.destinations(&key)[0], unused("10.244.1.1:80", 3));
}
