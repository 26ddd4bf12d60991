//! `cargo xtask chart`: looks at the Helm chart with helm, and writes what it renders for those who use no helm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::go::{self, Tool};
use crate::run::{self, Step};
use crate::workspace;

const HELM: Tool = Tool {
    name: "helm",
    folder: "tests/helm",
    module: "helm.sh/helm/v4",
    package: "helm.sh/helm/v4/cmd/helm",
};

/// Where the chart is.
pub const CHART: &str = "deploy/helm/lb-agent";
/// What the manifests are rendered with, beyond the defaults.
const VALUES: &str = "deploy/values.yaml";
/// The manifests, and what each is rendered with besides: all of the chart; and alone, for agents outside of it, the rights
/// that are enough for every setting.
const MANIFESTS: [(&str, &[&str]); 2] = [
    ("deploy/lb-agent.yaml", &[]),
    (
        "deploy/rbac.yaml",
        &["--show-only=templates/rbac.yaml", "--set=socketLB=all"],
    ),
];

const LIMIT: Duration = Duration::from_secs(60);

/// The verb.
pub fn run() -> Result<()> {
    let helm = helm(&workspace::tools_dir()?)?;
    let mut lint = Command::new(&helm);
    lint.current_dir(workspace::root())
        .args(["lint", "--strict", CHART, "--values", VALUES]);
    Step::new(format!("helm lint {CHART}"), LIMIT).run(&mut lint)?;
    for (manifest, more) in MANIFESTS {
        let text = Step::new(format!("rendering {manifest}"), LIMIT).ask(&mut render(&helm, more))?;
        let path = workspace::root().join(manifest);
        fs::write(&path, without_empty_lines(&text)).with_context(|| format!("cannot write {}", path.display()))?;
        run::say(format_args!("written: {manifest}"));
    }
    Ok(())
}

/// Without those that helm leaves between documents and where a template has said nothing.
fn without_empty_lines(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The command that renders the chart.
fn render(helm: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(helm);
    command
        .current_dir(workspace::root())
        .args(["template", "lb-agent", CHART, "--namespace=kube-system"])
        .args(["--values", VALUES])
        .args(more);
    command
}

/// The program helm, built from its Go module unless it is there.
pub fn helm(tools: &Path) -> Result<PathBuf> {
    go::tool(tools, &HELM)
}
