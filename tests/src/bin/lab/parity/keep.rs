//! `--keep`: how to look around in what is still up.

use std::time::Duration;

use anyhow::Result;
use lb_tests::interrupt;

use super::sides::{Ours, Theirs};
use crate::progress::say;

/// Says how, and waits for Ctrl-C.
pub(crate) fn wait(theirs: &Theirs, ours: &Ours) -> Result<()> {
    for (whose, twin) in [("kube-proxy's", &theirs.twin), ("lb-agent's", &ours.twin)] {
        say(format_args!("Namespaces of {whose} copy:"));
        for (name, path) in twin.namespaces() {
            say(format_args!("  {name:<17} nsenter --net={}", path.display()));
        }
    }
    say(format_args!(
        "kube-proxy has pid {} and logs to {}",
        theirs.proxy.pid(),
        theirs.proxy.log_path().display()
    ));
    say(format_args!(
        "lb-agent has pid {}, logs to {} and pins its maps in {}",
        ours.agent.pid(),
        ours.agent.log_path().display(),
        ours.twin.network().node1().bpffs().path().display()
    ));
    say(format_args!(
        "objects: nsenter --net={} kubectl --kubeconfig {} get services",
        ours.twin.network().switch().path().display(),
        ours.cluster()?.kubeconfig_admin().display()
    ));
    say("Ctrl-C removes everything.");
    while interrupt::sleep(Duration::from_secs(3600)).is_ok() {}
    Ok(())
}
