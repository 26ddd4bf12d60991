//! `cargo xtask chart`: looks at the Helm chart with helm, and writes what it renders for those who use no helm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::go::{Go, Module};
use crate::run::{self, Step};
use crate::workspace::{self, Lock};

/// Where the module is that says which helm is built.
const FOLDER: &str = "tests/helm";
const HELM: &str = "helm.sh/helm/v4";
const PACKAGE: &str = "helm.sh/helm/v4/cmd/helm";

const CHART: &str = "deploy/chart/lb-agent";
/// What the manifests are rendered with, beyond the defaults.
const VALUES: &str = "deploy/values.yaml";
/// The manifests, the template of each, and a value of its own. The rights are those that are enough for every setting.
const MANIFESTS: [(&str, &str, &[&str]); 2] = [
    ("deploy/rbac.yaml", "templates/rbac.yaml", &["--set=socketLB=all"]),
    ("deploy/daemonset.yaml", "templates/daemonset.yaml", &[]),
];

const LIMIT: Duration = Duration::from_secs(60);

/// The verb.
pub fn run() -> Result<()> {
    let helm = helm(&workspace::tools_dir()?)?;
    let mut lint = Command::new(&helm);
    lint.current_dir(workspace::root())
        .args(["lint", "--strict", CHART, "--values", VALUES]);
    Step::new(format!("helm lint {CHART}"), LIMIT).run(&mut lint)?;
    for (manifest, template, more) in MANIFESTS {
        let text = Step::new(format!("rendering {template}"), LIMIT).ask(&mut render(&helm, template, more))?;
        let path = workspace::root().join(manifest);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        run::say(format_args!("written: {manifest}"));
    }
    Ok(())
}

/// The command that renders a template.
fn render(helm: &Path, template: &str, more: &[&str]) -> Command {
    let mut command = Command::new(helm);
    command
        .current_dir(workspace::root())
        .args(["template", "lb-agent", CHART, "--namespace=kube-system"])
        .args(["--values", VALUES, "--show-only", template])
        .args(more);
    command
}

/// The program helm, built from its Go module unless it is there.
pub fn helm(tools: &Path) -> Result<PathBuf> {
    let module = Module::read(FOLDER)?;
    let version = module.version(HELM)?;
    let bin = tools.join(format!("helm-{version}"));
    let program = bin.join("helm");
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let _lock = Lock::take(&bin)?;
    if !program.is_file() {
        let go = Go::find(&module)?;
        go.build(&module, &format!("helm {version}"), PACKAGE, "-s -w", &program)
            .context("helm could not be built")?;
    }
    Ok(program)
}
