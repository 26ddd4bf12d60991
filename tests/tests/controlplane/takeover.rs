//! `lab takeover` in a short form: no new connection fails from kube-proxy to lb-agent, nor on the way back.

use std::fs;
use std::process::Command;

use lb_tests::owner::Folder;
use serde_json::Value;

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
    assert!(output.status.success(), "{told}\n{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("failed new connections: 0 of "), "{last}");
    assert!(
        last.contains(&format!("from kube-proxy ({mode}) to lb-agent, 0 of ")),
        "{last}"
    );

    let report: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    for way in ["there", "back"] {
        assert!(report[way]["new_connections"].as_u64().unwrap() > 40, "{report}");
        assert_eq!(report[way]["failed_connections"], 0, "{report}");
    }
    let [through_kube_proxy, through_agent] = ["opened through kube-proxy", "opened through lb-agent"].map(|group| {
        let groups = report["open_before"].as_array().unwrap();
        groups.iter().find(|open| open["group"] == group).unwrap().clone()
    });
    // Those of kube-proxy live on in the kernel's connection tracking. Those of pods and clients outside that lb-agent
    // has translated end with its programs: that they do is how one knows that the command sees what breaks.
    assert_eq!(through_kube_proxy["tcp_broken"], 0, "{report}");
    assert!(through_agent["tcp_broken"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn no_new_connection_fails_when_kube_proxy_in_nftables_mode_is_replaced_and_put_back() {
    no_new_connection_fails("nftables");
}

#[test]
fn no_new_connection_fails_when_kube_proxy_in_iptables_mode_is_replaced_and_put_back() {
    no_new_connection_fails("iptables");
}
