//! `lab takeover` in a short form: no new TCP connection fails from kube-proxy to lb-agent, nor on the way back.

use std::fs;
use std::process::Command;

use lb_tests::owner::Folder;
use serde_json::Value;

fn is_in_passing(fault: &Value) -> bool {
    let way = fault["way"].as_str().unwrap();
    way.starts_with("UDP from outside client") && way.ends_with("(endpoints on the other node)")
}

#[track_caller]
fn no_new_connection_fails(mode: &str) {
    let folder = Folder::new().unwrap();
    let json = folder.path().join("takeover.json");
    let mut takeover = Command::new(env!("CARGO_BIN_EXE_lab"));
    // Few connections: this is about the command, and the machine may be a busy one.
    takeover.args("takeover --rate 40 --long 32 --pause 1".split(' '));
    let output = takeover.args(["--from", mode, "--json"]).arg(&json).output().unwrap();
    let (said, told) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(json.is_file(), "{told}\n{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("failed new connections: "), "{last}");
    assert!(
        last.contains(&format!("from kube-proxy ({mode}) to lb-agent, ")),
        "{last}"
    );

    let report: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let mut all = 0;
    for way in ["there", "back"] {
        assert!(report[way]["new_connections"].as_u64().unwrap() > 40, "{report}");
        all += report[way]["failed_connections"].as_u64().unwrap();
    }
    let faults = report["faults"].as_array().unwrap().iter();
    let failed: Vec<&Value> = faults.filter(|fault| fault["kind"] == "failed_connection").collect();
    assert_eq!(failed.len() as u64, all);
    // While programs come to one link after the other, a question to another node may be translated and not masqueraded.
    // Of TCP it is asked again.
    let unknown: Vec<_> = failed.iter().filter(|fault| !is_in_passing(fault)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert_eq!(output.status.success(), all == 0, "{told}");
    let groups = report["open_before"].as_array().unwrap();
    let broken = |group| {
        let found = groups.iter().find(|open| open["group"] == group);
        found.unwrap()["tcp_broken"].as_u64().unwrap()
    };
    assert_eq!(
        broken("opened through kube-proxy"),
        0,
        "the kernel goes on with those: {report}"
    );
    // Those of pods and clients outside that lb-agent has translated end with its programs: that they do is how one knows
    // that the command sees what breaks.
    assert!(broken("opened through lb-agent") > 0, "{report}");
}

#[test]
fn no_new_connection_fails_when_kube_proxy_in_nftables_mode_is_replaced_and_put_back() {
    no_new_connection_fails("nftables");
}

#[test]
fn no_new_connection_fails_when_kube_proxy_in_iptables_mode_is_replaced_and_put_back() {
    no_new_connection_fails("iptables");
}
