//! Builds the programs of the real control plane from their Go modules, once, into the tools folder.
//!
//! What is built and from which versions is said by `tests/controlplane/go.mod` and nowhere else.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::go::{Go, Module};
use crate::workspace::Lock;

/// Where the module is.
const FOLDER: &str = "tests/controlplane";

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The store.
    Etcd,
    /// The API server.
    ApiServer,
    /// The command line client.
    Kubectl,
    /// The proxy that lb-agent replaces, for comparisons.
    KubeProxy,
    /// What makes pods of Deployments and EndpointSlices of pods.
    ControllerManager,
    /// What gives pods a node.
    Scheduler,
    /// What has a node's pods run.
    Kubelet,
}

impl Component {
    /// What the tests and `cargo xtask controlplane` need.
    pub const FOR_TESTS: &[Self] = &[Self::Etcd, Self::ApiServer, Self::Kubectl];

    /// What a comparison with kube-proxy needs.
    pub const FOR_PARITY: &[Self] = &[Self::Etcd, Self::ApiServer, Self::Kubectl, Self::KubeProxy];

    /// What a whole cluster needs.
    pub const FOR_CLUSTER: &[Self] = &[
        Self::Etcd,
        Self::ApiServer,
        Self::Kubectl,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kubelet,
    ];

    /// The name of its program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::Kubectl => "kubectl",
            Self::KubeProxy => "kube-proxy",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::ApiServer => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::KubeProxy => "k8s.io/kubernetes/cmd/kube-proxy",
            Self::ControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
            Self::Scheduler => "k8s.io/kubernetes/cmd/kube-scheduler",
            Self::Kubelet => "k8s.io/kubernetes/cmd/kubelet",
        }
    }

    fn module(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::ApiServer
            | Self::Kubectl
            | Self::KubeProxy
            | Self::ControllerManager
            | Self::Scheduler
            | Self::Kubelet => KUBERNETES,
        }
    }
}

const KUBERNETES: &str = "k8s.io/kubernetes";

/// Builds those of the wanted programs that are not there yet, into [`bin_dir`]. Does nothing if all are.
pub fn build(tools: &Path, want: &[Component]) -> Result<()> {
    let bin = bin_dir(tools)?;
    if missing(&bin, want).is_empty() {
        return Ok(());
    }
    let module = Module::read(FOLDER)?;
    let go = Go::find(&module)?;
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let _lock = Lock::take(&bin)?;
    // Another command may have built them while this one waited.
    for component in missing(&bin, want) {
        let title = format!("{} {}", component.program(), module.version(component.module())?);
        let ldflags = ldflags(module.version(KUBERNETES)?);
        go.build(
            &module,
            &title,
            component.package(),
            &ldflags,
            &bin.join(component.program()),
        )
        .with_context(|| format!("{} could not be built", component.program()))?;
    }
    Ok(())
}

/// The folder of the programs, whether they are built or not: one for each version of Kubernetes.
pub fn bin_dir(tools: &Path) -> Result<PathBuf> {
    let module = Module::read(FOLDER)?;
    Ok(tools
        .join(format!("controlplane-{}", module.version(KUBERNETES)?))
        .join("bin"))
}

fn missing(bin: &Path, want: &[Component]) -> Vec<Component> {
    want.iter()
        .copied()
        .filter(|component| !bin.join(component.program()).is_file())
        .collect()
}

/// Without these variables the server says that it is v0.0.0, and clients complain.
fn ldflags(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let mut flags = String::from("-s -w");
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [
            ("gitVersion", &*format!("v{version}")),
            ("gitMajor", major),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
        ] {
            flags.push_str(&format!(" -X {package}.{name}={value}"));
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::go::numbers;

    #[test]
    fn the_module_names_every_program() {
        let module = Module::read(FOLDER).unwrap();
        for &component in Component::FOR_PARITY.iter().chain(Component::FOR_CLUSTER) {
            assert!(
                module.lines().any(|line| line.trim() == component.package()),
                "no tool line for {component:?}"
            );
            assert!(numbers(module.version(component.module()).unwrap()).len() == 3);
        }
        assert!(numbers(module.go().unwrap()) >= vec![1, 26]);
    }

    #[test]
    fn the_kubernetes_version_is_the_staging_modules_version() {
        // k8s.io/kubernetes 1.x.y goes with k8s.io/api 0.x.y and so on; a half-done update would build something nobody ships.
        let module = Module::read(FOLDER).unwrap();
        let staging = module.version(KUBERNETES).unwrap().replacen('1', "0", 1);
        let replaced: Vec<_> = module.lines().filter(|line| line.contains("=>")).collect();
        assert!(replaced.len() > 20);
        for line in replaced {
            assert!(line.ends_with(&format!(" v{staging}")), "{line}");
        }
    }

    #[test]
    fn the_server_is_told_its_version() {
        let flags = ldflags("1.36.3");
        assert!(
            flags.contains("-X k8s.io/component-base/version.gitVersion=v1.36.3 "),
            "{flags}"
        );
        assert!(
            flags.contains("-X k8s.io/component-base/version.gitMinor=36 "),
            "{flags}"
        );
    }
}
