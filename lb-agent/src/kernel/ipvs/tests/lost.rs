//! Which answer is whose, and answers that do not come.
//!
//! IPVS is not on every machine. The family that knows the others is, and has no command of the number of
//! [`Command::AddService`].

use super::*;

fn ipvs(receive_buffer: usize) -> Ipvs {
    Ipvs {
        connection: Connection::open(receive_buffer).unwrap(),
        family: uapi::CONTROL_FAMILY,
        // Numbers begin again soon.
        sequence: u32::MAX - 100,
    }
}

fn command() -> Command {
    let key = service(Protocol::Tcp, "10.96.0.1:80");
    Command::AddService(key, ServiceConfig::new(Scheduler::RoundRobin))
}

fn is_refused(answer: &Result<(), IpvsError>) -> bool {
    matches!(answer, Err(IpvsError::Refused { error, .. }) if error.raw_os_error() == Some(libc::EOPNOTSUPP))
}

#[test]
fn each_of_many_commands_has_its_answer() {
    let answers = ipvs(RECEIVE_BUFFER).send(&[command(); 600]).unwrap();
    assert_eq!(answers.len(), 600);
    for (index, answer) in answers.iter().enumerate() {
        assert!(is_refused(answer), "{index}: {answer:?}");
    }
}

#[test]
fn a_command_whose_answer_is_lost_says_so_and_the_next_has_its_own() {
    // The kernel gives room for a few answers at least.
    let mut ipvs = ipvs(0);
    let answers = ipvs.send(&[command(); 100]).unwrap();
    let (refused, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(is_refused);
    assert!(!refused.is_empty() && !lost.is_empty());
    assert_eq!(refused.len() + lost.len(), 100);
    for answer in lost {
        let error = answer.unwrap_err();
        assert!(matches!(error, IpvsError::Unanswered(_)), "{error}");
        assert!(
            error
                .to_string()
                .starts_with("adding the IPVS service 10.96.0.1:80/TCP: "),
            "{error}"
        );
    }
    let [answer] = ipvs.send(&[command()]).unwrap().try_into().unwrap();
    assert!(is_refused(&answer), "{answer:?}");
}
