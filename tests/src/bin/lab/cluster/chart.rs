//! The chart, as its users install and upgrade it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use lb_tests::cgroup;
use lb_tests::controlplane::Administrator;

use super::network::NODE_V4;
use super::node::from_xtask;

/// The port of the API server.
pub(super) const API_PORT: u16 = 6443;
/// The namespace that the chart is in.
pub(super) const NAMESPACE: &str = "kube-system";

/// Installs it with this tag of the image and these values, or upgrades it to them, and waits until the agent is ready.
pub(super) fn install(administrator: &Administrator, folder: &Path, tag: &str, values: &[&str]) -> Result<()> {
    let mut command = Command::new(from_xtask("LB_HELM")?);
    command.args(["upgrade", "--install", "lb-agent"]);
    command.arg(from_xtask("LB_CHART")?);
    command.args(["--namespace", NAMESPACE, "--wait", "--timeout=120s"]);
    for value in [
        format!("apiServer.host={NODE_V4}"),
        format!("apiServer.port={API_PORT}"),
        format!("image.tag={tag}"),
        "image.pullPolicy=Never".to_owned(),
        format!("hostPaths.cgroup={}", cgroup::root()?.display()),
    ] {
        command.arg("--set").arg(value);
    }
    for value in values {
        command.args(["--set", value]);
    }
    command.env("KUBECONFIG", administrator.kubeconfig());
    for (variable, name) in [
        ("HELM_CACHE_HOME", "cache"),
        ("HELM_CONFIG_HOME", "config"),
        ("HELM_DATA_HOME", "data"),
    ] {
        command.env(variable, folder.join("helm").join(name));
    }
    let output = command.output().context("starting helm")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm upgrade --install: {}", said.trim());
    Ok(())
}
