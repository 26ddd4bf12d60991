//! What is said of refusals, and the names of schedulers.

use clap::ValueEnum as _;
use serde::{
    Deserialize as _,
    de::value::{Error, StringDeserializer},
};

use super::*;
use crate::kernel::ipvs::wire::Refusal;

fn refused(command: Command, errno: i32, text: Option<&str>) -> IpvsError {
    let text = text.map(str::to_owned);
    IpvsError::of_command(&command, Refusal { errno, text })
}

fn web() -> ServiceKey {
    service(Protocol::Tcp, "10.96.0.1:80")
}

#[test]
fn a_scheduler_without_its_module() {
    let config = ServiceConfig::new(Scheduler::NeverQueue);
    for (command, doing) in [
        (Command::AddService(web(), config), "adding"),
        (Command::SetService(web(), config), "changing"),
    ] {
        let error = refused(command, libc::ENOENT, None);
        let said = error.to_string();
        assert!(
            said.starts_with(&format!("{doing} the IPVS service 10.96.0.1:80/TCP: ")),
            "{said}"
        );
        assert!(said.contains("`modprobe ip_vs_nq`"), "{said}");
        assert!(!error.is_gone() && !error.is_exists());
    }
}

#[test]
fn what_is_there_and_what_is_not() {
    let address = "10.244.1.9:8080".parse().unwrap();
    let config = ServiceConfig::new(Scheduler::RoundRobin);
    let there = destination("10.244.1.9:8080", 1);
    for command in [
        Command::AddService(web(), config),
        Command::AddDestination(web(), there),
    ] {
        let error = refused(command, libc::EEXIST, None);
        assert!(error.is_exists() && !error.is_gone(), "{error}");
    }
    for command in [
        Command::SetService(web(), config),
        Command::DeleteService(web()),
        Command::AddDestination(web(), there),
        Command::DeleteDestination(web(), address),
    ] {
        let error = refused(command, libc::ESRCH, None);
        assert!(error.is_gone() && !error.is_exists(), "{error}");
    }
    for command in [
        Command::SetDestination(web(), there),
        Command::DeleteDestination(web(), address),
    ] {
        let error = refused(command, libc::ENOENT, None);
        assert!(error.is_gone(), "{error}");
        let expected = "the destination 10.244.1.9:8080 of the IPVS service 10.96.0.1:80/TCP: there is no such";
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn what_the_kernel_is_built_without_and_what_is_not_permitted() {
    let config = ServiceConfig::new(Scheduler::RoundRobin);
    let ipv6 = Command::AddService(marked(Family::V6, 7), config);
    let said = refused(ipv6, libc::EAFNOSUPPORT, None).to_string();
    assert!(
        said.contains("mark 0x7 (IPv6)") && said.contains("CONFIG_IP_VS_IPV6"),
        "{said}"
    );
    let sctp = Command::AddService(service(Protocol::Sctp, "10.96.0.1:80"), config);
    let said = refused(sctp, libc::EPROTONOSUPPORT, None).to_string();
    assert!(said.contains("CONFIG_IP_VS_PROTO_SCTP"), "{said}");
    let said = refused(Command::DeleteService(web()), libc::EPERM, None).to_string();
    assert!(said.contains("CAP_NET_ADMIN"), "{said}");
    assert!(IpvsError::Missing.to_string().contains("`modprobe ip_vs`"));
}

#[test]
fn anything_else_is_said_in_the_kernels_words_or_with_the_usual_cause() {
    let command = Command::AddDestination(web(), destination("224.0.0.1:80", 1));
    let said = refused(command, libc::EINVAL, None).to_string();
    assert!(said.contains("Invalid argument") && said.contains("unicast"), "{said}");
    let said = refused(command, libc::EINVAL, Some("nope")).to_string();
    assert!(said.ends_with(": nope"), "{said}");
    let said = refused(Command::DeleteService(web()), libc::ENOMEM, None).to_string();
    assert!(said.ends_with("(os error 12)"), "{said}");
}

#[test]
fn schedulers_have_the_names_of_the_kernel_everywhere() {
    let names = ["rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "mh"];
    assert_eq!(Scheduler::ALL.map(|scheduler| scheduler.to_string()), names);
    for (name, scheduler) in names.into_iter().zip(Scheduler::ALL) {
        assert_eq!(name.parse(), Ok(scheduler));
        assert_eq!(Scheduler::from_str(name, false), Ok(scheduler));
        let text = StringDeserializer::<Error>::new(name.to_owned());
        assert_eq!(Scheduler::deserialize(text).unwrap(), scheduler);
        assert_eq!(SchedulerName::new(name.as_bytes()), Some(scheduler.into()));
    }
    let error = "fo".parse::<Scheduler>().unwrap_err().to_string();
    assert!(error.contains("\"fo\"") && error.contains("rr, wrr, lc"), "{error}");
}

#[test]
fn a_name_is_at_most_what_the_kernel_has_room_for() {
    let longest = SchedulerName::new(b"fifteen-letters").unwrap();
    assert_eq!(longest.to_string(), "fifteen-letters");
    assert_eq!(SchedulerName::new(b"sixteen--letters"), None);
}
