//! `lab chaos` in a short form: that it plays what it says, finds nothing where nothing is wrong, and leaves nothing.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lb_tests::owner::{self, Folder};
use lb_tests::patience::patient;
use lb_tests::process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longer than it takes to tidy up, and to begin.
const LIMIT: Duration = Duration::from_secs(240);

fn chaos() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    // Few connections: this is about the command, and the machine may be a busy one.
    command.args("chaos --rate 40 --long 16 --pause 0.5 --seed 1 --to sockets --interruptions 2".split(' '));
    command
}

#[test]
fn no_connection_fails_in_a_few_events_and_each_of_them_had_some() {
    let folder = Folder::new().unwrap();
    let json = folder.path().join("chaos.json");
    let output = chaos().arg("--json").arg(&json).output().unwrap();
    let (said, told) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{told}\n{said}");
    assert!(told.contains("seed 1"), "{told}");
    assert_eq!(
        said.lines().last(),
        Some("0 failed connections, 0 resets, 0 lost datagrams of live flows")
    );

    let report: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let events = report["events"].as_array().unwrap();
    let names: Vec<&str> = events.iter().map(|event| event["name"].as_str().unwrap()).collect();
    for (name, begin) in names.iter().zip([
        "before",
        "killed, and started",
        "stopped, and started",
        "upgraded to one with all sockets",
        "downgraded from one with all sockets",
        "API server cut, and a start meanwhile",
        "start 1",
        "start 2",
        "after",
    ]) {
        assert!(name.starts_with(begin), "{names:?}");
    }
    assert_eq!(names.len(), 9, "{names:?}");
    for event in &events[..8] {
        for what in ["tcp", "udp", "asked"] {
            assert!(event["counts"][what].as_u64().unwrap() > 0, "{what} of {event}");
        }
    }
    assert_eq!(report["failed_connections"], 0);
    assert_eq!(report["faults"], Value::Array(Vec::new()));
}

#[test]
fn one_that_is_interrupted_in_the_middle_of_its_connections_leaves_nothing() {
    let folder = Folder::new().unwrap();
    let said = folder.path().join("stderr");
    let mut chaos = chaos()
        .arg("--folder")
        .stdout(Stdio::null())
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let until = Instant::now() + patient(LIMIT);
    while !fs::read_to_string(&said).unwrap().contains("done  killed, and started") {
        assert!(chaos.try_wait().unwrap().is_none(), "it ended before anything happened");
        assert!(Instant::now() < until, "it takes too long over the first event");
        thread::sleep(Duration::from_millis(20));
    }
    kill(Pid::from_raw(chaos.id().cast_signed()), Signal::SIGINT).unwrap();
    let status = process::wait(&mut chaos, LIMIT).unwrap();
    assert_eq!(
        status.and_then(|status| status.code()),
        Some(128 + Signal::SIGINT as i32)
    );
    assert_eq!(owner::left_of(chaos.id()).unwrap(), Vec::<String>::new());
}
