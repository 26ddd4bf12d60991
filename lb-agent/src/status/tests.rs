use serde_json::json;

use super::*;
use crate::{
    objects::kube::Outage,
    plane::{
        PlaneName,
        choice::{Choice, Reason},
    },
    run_dir::RunDir,
};

fn at(time: &str) -> Timestamp {
    format!("2026-11-30T{time}Z").parse().unwrap()
}

fn status() -> Status {
    Status {
        version: "1.2.3".to_owned(),
        pid: 42,
        node: "worker-1".to_owned(),
        since: at("12:00:00"),
        plane: Some(Choice {
            plane: PlaneName::Ebpf,
            reason: Reason::Preferred,
        }),
        progress: Progress {
            ready: true,
            services: 3,
            service_ports: 8,
            frontends: 21,
            last_sync: Some(at("12:59:00")),
            ..Progress::default()
        },
        outage: None,
        failed: None,
    }
}

fn remark(service: Option<&str>, what: &str) -> Remark {
    Remark {
        service: service.map(str::to_owned),
        what: what.to_owned(),
    }
}

fn outage() -> Outage {
    Outage {
        since: at("13:00:00"),
        kinds: vec!["Node".to_owned(), "Service".to_owned()],
        reason: "connection refused".to_owned(),
    }
}

fn text(state: State, status: Option<Status>) -> String {
    let seen = Seen {
        state,
        status,
        draining_since: None,
    };
    seen.text(at("13:01:05")).to_string()
}

#[test]
fn whether_an_agent_runs_is_told_by_its_lock_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    assert_eq!(
        Seen::at(&path).unwrap(),
        Seen {
            state: State::NotRunning,
            status: None,
            draining_since: None,
        }
    );
    let run_dir = RunDir::take(&path).unwrap();
    assert_eq!(Seen::at(&path).unwrap().state, State::Degraded, "nothing is known yet");

    let file = StatusFile::create(&path, "worker-1");
    assert_eq!(Seen::at(&path).unwrap().state, State::Degraded, "it has just begun");
    file.update(|status| status.progress.ready = true);
    assert_eq!(Seen::at(&path).unwrap().state, State::Ready);
    file.update(|status| status.progress.failures.push(remark(None, "addresses")));
    assert_eq!(Seen::at(&path).unwrap().state, State::Degraded);
    file.update(|status| status.progress.failures.clear());
    file.update(|status| status.progress.unsupported.push(remark(None, "that")));
    assert_eq!(
        Seen::at(&path).unwrap().state,
        State::Ready,
        "what is declared is no failure"
    );

    file.update(|status| status.outage = Some(outage()));
    assert_eq!(Seen::at(&path).unwrap().state, State::Degraded, "it follows nothing");
    file.update(|status| status.outage = None);
    assert_eq!(Seen::at(&path).unwrap().state, State::Ready);

    // The number of this process in the file goes on to be one that runs.
    drop(run_dir);
    let seen = Seen::at(&path).unwrap();
    assert_eq!(seen.state, State::NotRunning);
    assert_eq!(seen.status.unwrap().pid, std::process::id());
}

#[test]
fn what_is_written_is_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let full = Status {
        failed: Some("two\nlines".to_owned()),
        outage: Some(outage()),
        progress: Progress {
            failures: vec![remark(Some("shop/web TCP IPv4"), "map SERVICES is full")],
            unsupported: vec![remark(None, "that")],
            ..status().progress
        },
        ..status()
    };
    for status in [full, status()] {
        let file = StatusFile::create(folder.path(), "other");
        file.update(|written| *written = status.clone());
        assert_eq!(Seen::at(folder.path()).unwrap().status, Some(status));
    }
    fs::write(folder.path().join(FILE), "{").unwrap();
    let error = format!("{:#}", Seen::at(folder.path()).unwrap_err());
    assert!(
        error.contains("cannot read") && error.contains("status.json"),
        "{error}"
    );
}

#[test]
fn people_read_a_line_a_fact() {
    assert_eq!(
        text(State::Ready, Some(status())),
        "\
Agent:      ready, v1.2.3 on worker-1, pid 42, up 1h1m
Plane:      ebpf (this node can do all that it needs)
Services:   3, with 8 service ports and 21 frontends in the kernel
Last sync:  2m5s ago
"
    );
    let unheard = Status {
        outage: Some(outage()),
        ..status()
    };
    assert!(text(State::Degraded, Some(unheard)).ends_with(
        "\nAPI server: not watched for 1m5s (Node, Service), its last word stays in force: connection refused\n"
    ));
    assert_eq!(
        text(State::NotRunning, None),
        "Agent:      not running, and none has been here\n"
    );
    let failed = Status {
        failed: Some("this node cannot serve\nebpf cannot be run".to_owned()),
        plane: None,
        progress: Progress::default(),
        ..status()
    };
    assert_eq!(
        text(State::NotRunning, Some(failed)),
        "\
Agent:      not running; the last was v1.2.3 on worker-1, what it programmed serves on
Ended:      this node cannot serve
            ebpf cannot be run
Plane:      none yet
Services:   0, with 0 service ports and 0 frontends in the kernel
Not ready:  the kernel has not been given a complete state
"
    );
}

#[test]
fn what_is_wrong_is_named_up_to_ten_times() {
    let mut wrong = status();
    wrong.progress.failures = (1..=12)
        .map(|number| remark(Some(&format!("shop/web-{number} TCP IPv4")), "no room"))
        .collect();
    wrong.progress.unsupported = vec![remark(Some("shop/sctp SCTP IPv6"), "not in pieces")];
    let text = text(State::Degraded, Some(wrong));
    assert!(
        text.contains("\nFailures:   shop/web-1 TCP IPv4: no room\n            shop/web-2"),
        "{text}"
    );
    assert!(text.contains("web-10 ") && !text.contains("web-11 "), "{text}");
    assert!(text.contains("and 2 more"), "{text}");
    assert!(
        text.ends_with("Not done:   shop/sctp SCTP IPv6: not in pieces\n"),
        "{text}"
    );
}

#[test]
fn that_an_earlier_agent_goes_on_with_its_connections_is_said() {
    let seen = Seen {
        state: State::Ready,
        status: Some(status()),
        draining_since: Some(at("13:00:05")),
    };
    let text = seen.text(at("13:01:05")).to_string();
    assert!(text.contains("Draining:   programs of an earlier agent"), "{text}");
    assert!(text.contains("for 1m0s now"), "{text}");
}

#[test]
fn programs_read_one_object() {
    let seen = Seen {
        state: State::NotRunning,
        status: Some(status()),
        draining_since: None,
    };
    assert_eq!(
        serde_json::to_value(seen).unwrap(),
        json!({
            "state": "notRunning",
            "version": "1.2.3",
            "pid": 42,
            "node": "worker-1",
            "since": "2026-11-30T12:00:00Z",
            "plane": { "plane": "ebpf", "reason": "preferred" },
            "ready": true,
            "services": 3,
            "servicePorts": 8,
            "frontends": 21,
            "lastSync": "2026-11-30T12:59:00Z",
            "failures": [],
            "unsupported": [],
        })
    );
}
