//! What the kernel does not do.

use std::net::SocketAddr;

use lb_agent::desired::Protocol;
use lb_agent::kernel::ipvs::{Command, Ipvs, SchedulerName, ServiceConfig};
use lb_tests::kernel::{Feature, has};

use super::{Table, destination, round_robin, service, unused};

#[test]
fn a_bad_command_in_the_middle_of_six_hundred_stops_no_other() {
    let Some(mut table) = Table::new() else { return };
    let key = |index: u16| service(Protocol::Tcp, &format!("10.96.0.1:{}", index + 1));
    let mut commands: Vec<_> = (0..300)
        .flat_map(|index| {
            let destination = destination("10.244.1.1:80", u32::from(index));
            [
                Command::AddService(key(index), round_robin()),
                Command::AddDestination(key(index), destination),
            ]
        })
        .collect();
    let bad = 301;
    commands[bad] = Command::AddDestination(key(150), destination("224.0.0.1:80", 1));
    let answers = table.ipvs.send(&commands).unwrap();
    assert_eq!(answers.len(), 600);
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!(answer.is_err(), index == bad, "{index}: {answer:?}");
    }
    let expected: Vec<_> = (0..300).map(|index| (key(index), round_robin())).collect();
    assert_eq!(table.services(), expected);
    for index in [0, 149, 151, 299] {
        let expected = [unused("10.244.1.1:80", u32::from(index))];
        assert_eq!(table.destinations(&key(index)), expected, "{index}");
    }
    assert_eq!(table.destinations(&key(150)), []);
}

#[test]
fn refusals_say_what_is_wrong_and_what_to_do() {
    let Some(mut table) = Table::new() else { return };
    let key = service(Protocol::Tcp, "10.96.0.1:80");
    let absent = service(Protocol::Tcp, "10.96.0.2:80");
    let there = destination("10.244.1.1:80", 1);
    let address: SocketAddr = "10.244.1.2:80".parse().unwrap();
    table.send(&[
        Command::AddService(key, round_robin()),
        Command::AddDestination(key, there),
    ]);
    for command in [
        Command::AddService(key, round_robin()),
        Command::AddDestination(key, there),
    ] {
        let error = table.refusal(command);
        assert!(error.is_exists(), "{error}");
    }
    for command in [
        Command::SetService(absent, round_robin()),
        Command::DeleteService(absent),
        Command::AddDestination(absent, there),
        Command::SetDestination(key, destination("10.244.1.2:80", 1)),
        Command::DeleteDestination(key, address),
        Command::DeleteDestination(absent, address),
    ] {
        let error = table.refusal(command);
        assert!(error.is_gone(), "{command:?}: {error}");
    }
    let unknown = ServiceConfig::new(SchedulerName::new(b"absent").unwrap());
    for (command, expected) in [
        (Command::AddService(absent, unknown), "`modprobe ip_vs_absent`"),
        (Command::SetService(key, unknown), "`modprobe ip_vs_absent`"),
        (Command::AddDestination(key, destination("224.0.0.1:80", 1)), "unicast"),
        (Command::AddDestination(key, destination("[fd01::1]:80", 1)), "family"),
        (
            Command::AddDestination(key, destination("10.244.1.2:80", 1 << 31)),
            "at most 2147483647",
        ),
    ] {
        let said = table.refusal(command).to_string();
        assert!(said.contains(expected), "{command:?}: {said}");
    }
    assert_eq!(table.services(), [(key, round_robin())]);
    assert_eq!(table.destinations(&key), [unused("10.244.1.1:80", 1)]);
}

#[test]
fn a_kernel_without_ipvs_is_told_so_with_what_to_do() {
    if has(Feature::Ipvs) {
        return;
    }
    let error = Ipvs::open().unwrap_err();
    assert_eq!(error.to_string(), Feature::Ipvs.without());
}
