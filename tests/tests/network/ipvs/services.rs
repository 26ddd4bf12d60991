//! Services, as they are written and read.

use std::num::NonZeroU32;

use lb_agent::desired::{Family, Protocol};
use lb_agent::kernel::ipvs::{Command, Scheduler, ServiceConfig, ServiceFlags};

use super::{Table, marked, round_robin, service};

#[test]
fn services_of_each_kind_are_added_changed_and_deleted() {
    let Some(mut table) = Table::new() else { return };
    let keys = [
        service(Protocol::Tcp, "10.96.0.1:80"),
        service(Protocol::Tcp, "[fd00::1]:80"),
        service(Protocol::Udp, "10.96.0.1:80"),
        service(Protocol::Udp, "[fd00::1]:80"),
        service(Protocol::Sctp, "10.96.0.1:80"),
        service(Protocol::Sctp, "[fd00::1]:80"),
        marked(Family::V4, 0x6c62_0001),
        marked(Family::V6, 0x6c62_0001),
    ];
    assert_eq!(table.services(), []);
    table.send(&keys.map(|key| Command::AddService(key, round_robin())));
    assert_eq!(table.services(), keys.map(|key| (key, round_robin())));
    table.assert_is_made_by(&[
        "-A -t 10.96.0.1:80 -s rr",
        "-A -t [fd00::1]:80 -s rr",
        "-A -u 10.96.0.1:80 -s rr",
        "-A -u [fd00::1]:80 -s rr",
        "-A --sctp-service 10.96.0.1:80 -s rr",
        "-A --sctp-service [fd00::1]:80 -s rr",
        "-A -f 1818361857 -s rr",
        "-A -f 1818361857 -6 -s rr",
    ]);
    let changed = ServiceConfig::new(Scheduler::WeightedLeastConnections);
    table.send(&keys.map(|key| Command::SetService(key, changed)));
    assert_eq!(table.services(), keys.map(|key| (key, changed)));
    table.send(&keys.map(Command::DeleteService));
    assert_eq!(table.services(), []);
    table.assert_is_made_by(&[]);
}

#[test]
fn a_service_has_each_scheduler() {
    let Some(mut table) = Table::new() else { return };
    let key = service(Protocol::Tcp, "10.96.0.1:80");
    table.send(&[Command::AddService(key, round_robin())]);
    for scheduler in Scheduler::ALL {
        let config = ServiceConfig::new(scheduler);
        table.send(&[Command::SetService(key, config)]);
        assert_eq!(table.services(), [(key, config)]);
        table.assert_is_made_by(&[&format!("-A -t 10.96.0.1:80 -s {scheduler}")]);
    }
}

#[test]
fn a_service_has_persistence_and_flags_until_they_are_taken_away() {
    let Some(mut table) = Table::new() else { return };
    let flags = |[port, fallback, one_packet]: [bool; 3]| ServiceFlags {
        port,
        fallback,
        one_packet,
    };
    let seconds = NonZeroU32::new;
    for (key, scheduler, persistence, flags, arguments) in [
        (
            service(Protocol::Tcp, "10.96.0.1:80"),
            Scheduler::SourceHash,
            seconds(10_800),
            flags([true, true, false]),
            "-t 10.96.0.1:80 -s sh -p 10800 -b sh-fallback,sh-port",
        ),
        (
            service(Protocol::Tcp, "[fd00::1]:80"),
            Scheduler::Maglev,
            seconds(86_400),
            flags([true, false, false]),
            "-t [fd00::1]:80 -s mh -p 86400 -b mh-port",
        ),
        (
            service(Protocol::Udp, "[fd00::1]:53"),
            Scheduler::Maglev,
            None,
            flags([false, true, true]),
            "-u [fd00::1]:53 -s mh -o -b mh-fallback",
        ),
        (
            marked(Family::V4, 7),
            Scheduler::RoundRobin,
            seconds(1),
            flags([false; 3]),
            "-f 7 -s rr -p 1",
        ),
    ] {
        let config = ServiceConfig {
            persistence,
            flags,
            ..ServiceConfig::new(scheduler)
        };
        table.send(&[Command::AddService(key, config)]);
        assert_eq!(table.services(), [(key, config)]);
        table.assert_is_made_by(&[&format!("-A {arguments}")]);
        table.send(&[Command::SetService(key, round_robin())]);
        assert_eq!(table.services(), [(key, round_robin())]);
        table.send(&[Command::DeleteService(key)]);
    }
}
