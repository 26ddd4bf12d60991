//! `--keep`: how to look around in what is still up.

use std::process;
use std::time::Duration;

use anyhow::Result;
use lb_tests::interrupt;
use lb_tests::network::Pod;
use lb_tests::source::Source;
use lb_tests::stage::{Family, Stage};

use crate::progress::say;

/// Says how, and waits for Ctrl-C.
pub(crate) fn wait(stage: &Stage) -> Result<()> {
    say(hint(stage));
    while interrupt::sleep(Duration::from_secs(3600)).is_ok() {}
    Ok(())
}

fn hint(stage: &Stage) -> String {
    let mut lines = vec![
        "Still up. To run a command in a namespace (as root):".to_owned(),
        String::new(),
    ];
    let mut enter = |name: &str, path: std::path::PathBuf| {
        lines.push(format!("  {name:<11} nsenter --net={}", path.display()));
    };
    let network = stage.network();
    for node in network.nodes() {
        enter(node.name(), node.netns().path());
    }
    enter("outside", network.outside().netns().path());
    let pods: [&Pod; 2] = [stage.bridge_pod(), stage.veth_pod()];
    for pod in pods.into_iter().chain(stage.here()).chain(stage.there()) {
        enter(pod.name(), pod.netns().path());
    }

    let to = Stage::cluster_ip(&stage.services().here, Family::V4);
    lines.extend([
        String::new(),
        "To ask a Service from there: one line in, one line out:".into(),
        String::new(),
        format!(
            "  bash -c 'exec 3<>/dev/tcp/{}/{}; echo hello >&3; head -1 <&3'",
            to.ip(),
            to.port()
        ),
        String::new(),
        "A process counts as the node's own if it is in the node's control group as well:".into(),
        String::new(),
    ]);
    for (node, agent) in network.nodes().iter().zip(stage.agents()) {
        let cgroup = node.cgroup().path().join("cgroup.procs");
        lines.push(format!("  {:<11} echo $$ > {}", node.name(), cgroup.display()));
        lines.push(format!(
            "  {:<11} maps and links are pinned in {}",
            "",
            node.bpffs().path().display()
        ));
        lines.push(format!(
            "  {:<11} the agent has pid {} and logs to {}",
            "",
            agent.pid(),
            agent.log_path().display()
        ));
    }
    lines.push(String::new());
    lines.push(match stage.source() {
        Source::Folder(folder) => format!("The agents follow the manifests in {}", folder.path().display()),
        Source::ApiServer(cluster) => format!(
            "The agents follow the API server: nsenter --net={} kubectl --kubeconfig {} get services",
            network.switch().path().display(),
            cluster.kubeconfig_admin().display()
        ),
    });
    lines.push(format!("Ctrl-C here, or `kill {}`, removes everything.", process::id()));
    lines.join("\n")
}
