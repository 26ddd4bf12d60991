//! Whatever ends a demo or a test, and whenever: nothing of it stays.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lb_tests::network::Attachment;
use lb_tests::patience::patient;
use lb_tests::plane::{Plane, other_than};
use lb_tests::{owner, process};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::World;

/// Why these are tests of one plane only.
const OF_THE_HARNESS: &str = "it is of the harness, which no plane has a part in";

/// Longer than tidying up takes.
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_demo_that_is_stopped_leaves_nothing() {
    if other_than(Plane::Ebpf, OF_THE_HARNESS) {
        return;
    }
    // From the first namespace to connections that are running.
    for (signal, after) in [
        (Signal::SIGINT, 20),
        (Signal::SIGTERM, 150),
        (Signal::SIGINT, 600),
        (Signal::SIGTERM, 2000),
    ] {
        let mut demo = demo();
        thread::sleep(Duration::from_millis(after));
        let code = end(&mut demo, &[signal]);
        // It may have been done by then.
        assert!(
            code == Some(128 + signal as i32) || code == Some(0),
            "after {after} ms: {code:?}"
        );
        assert_eq!(
            owner::left_of(demo.id()).unwrap(),
            Vec::<String>::new(),
            "after {after} ms"
        );
    }
}

#[test]
fn a_second_signal_is_safe_too() {
    if other_than(Plane::Ebpf, OF_THE_HARNESS) {
        return;
    }
    let mut demo = demo();
    thread::sleep(Duration::from_millis(800));
    let code = end(&mut demo, &[Signal::SIGINT, Signal::SIGINT]);
    assert_eq!(code, Some(128 + Signal::SIGINT as i32));
    assert_eq!(owner::left_of(demo.id()).unwrap(), Vec::<String>::new());
}

#[test]
fn a_test_that_is_stopped_leaves_nothing() {
    if other_than(Plane::Ebpf, OF_THE_HARNESS) {
        return;
    }
    let mut standing = standing();
    assert_eq!(
        end(&mut standing, &[Signal::SIGTERM]),
        Some(128 + Signal::SIGTERM as i32)
    );
    assert_eq!(owner::left_of(standing.id()).unwrap(), Vec::<String>::new());
}

#[test]
fn what_a_killed_test_leaves_is_swept_by_the_next_one() {
    if other_than(Plane::Ebpf, OF_THE_HARNESS) {
        return;
    }
    let mut standing = standing();
    standing.kill().unwrap();
    standing.wait().unwrap();
    owner::sweep();
    assert_eq!(owner::left_of(standing.id()).unwrap(), Vec::<String>::new());
}

/// No test: what the tests above stop.
#[test]
#[ignore = "waits to be stopped by other tests"]
fn stands_until_it_is_stopped() {
    let mut world = World::new();
    let _pod = world.backend(1, "pod", Attachment::Bridge);
    let _host = world.node1().client().unwrap();
    world.start_agent(1);
    println!("{STANDING}");
    thread::sleep(Duration::from_secs(600));
}

const STANDING: &str = "standing";

/// This very program, at the point where everything stands.
fn standing() -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "interrupt::stands_until_it_is_stopped",
            "--ignored",
            "--nocapture",
        ])
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().contains(STANDING)),
        "it ended before it stood"
    );
    child
}

/// A demo that is far enough to notice signals. Before that it has made nothing, and ends as any process does.
fn demo() -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.arg("demo").stdout(Stdio::null()).stderr(Stdio::null());
    let demo = command.spawn().unwrap();
    let until = Instant::now() + patient(LIMIT);
    while !catches(demo.id(), Signal::SIGINT) {
        assert!(Instant::now() < until, "it does not begin to listen to signals");
        thread::sleep(Duration::from_millis(1));
    }
    demo
}

/// Whether a process has a handler for a signal (proc_pid_status(5), `SigCgt`).
fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (signal as i32 - 1)) != 0
}

/// Sends signals and waits for the end.
fn end(child: &mut Child, signals: &[Signal]) -> Option<i32> {
    for signal in signals {
        kill(Pid::from_raw(child.id().cast_signed()), *signal).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    let status = process::wait(child, LIMIT).unwrap();
    status.expect("it has not ended in time").code()
}
