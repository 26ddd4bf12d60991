//! The benchmark: that it measures what it says, and that a run can be interrupted. What it measures is no test's business.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lb_tests::owner::{self, Folder};
use lb_tests::patience::patient;
use lb_tests::process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longer than a round takes.
const LIMIT: Duration = Duration::from_secs(240);

fn bench(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command
        .args([
            "bench",
            "connect",
            "--quick",
            "--services",
            "1",
            "--rounds",
            "3",
            "--against",
            "none",
        ])
        .arg("--json")
        .arg(folder.join("rows.json"))
        .arg("--report")
        .arg(folder.join("report"))
        .env("LB_BENCH_DIR", folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

#[test]
fn an_interrupted_run_leaves_nothing_but_what_it_has_measured_and_the_next_goes_on_with_it() {
    let folder = Folder::new().unwrap();
    let journal = folder.path().join("journal");
    let mut first = bench(folder.path()).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + patient(LIMIT);
    let is_measured = || fs::read_to_string(&journal).is_ok_and(|text| text.contains("{\"done\""));
    while !is_measured() {
        assert!(
            first.try_wait().unwrap().is_none(),
            "it ended before it had measured a round"
        );
        assert!(Instant::now() < until, "it takes too long over a round");
        thread::sleep(Duration::from_millis(20));
    }
    kill(Pid::from_raw(first.id().cast_signed()), Signal::SIGINT).unwrap();
    let status = process::wait(&mut first, LIMIT).unwrap();
    assert_eq!(
        status.and_then(|status| status.code()),
        Some(128 + Signal::SIGINT as i32)
    );
    assert_eq!(owner::left_of(first.id()).unwrap(), Vec::<String>::new());
    assert!(!folder.path().join("rows.json").exists());

    let second = bench(folder.path()).spawn().unwrap();
    let pid = second.id();
    let output = second.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("going on where the last run was interrupted"), "{said}");
    assert_eq!(owner::left_of(pid).unwrap(), Vec::<String>::new());
    assert!(!journal.exists(), "the run is over");
    assert!(folder.path().join("report/README.md").is_file());

    let text = fs::read_to_string(folder.path().join("rows.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    let connections = rows.iter().filter(|row| row["metric"] == "connections");
    let mut measured = BTreeSet::new();
    for row in connections {
        assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(
            (
                &row["scenario"],
                &row["services"],
                &row["endpoints"],
                &row["unit"],
                &row["rounds"]
            ),
            (&"connect".into(), &1.into(), &10.into(), &"1/s".into(), &3.into()),
            "{row}"
        );
        measured.insert((row["case"].as_str().unwrap(), row["target"].as_str().unwrap()));
    }
    let cases = ["pod-last", "host-last", "outside-last"];
    let targets = ["lb-agent", "lb-agent-socket-all", "none"];
    let all = cases.iter().flat_map(|case| targets.map(|target| (*case, target)));
    assert_eq!(measured, all.collect());
}
