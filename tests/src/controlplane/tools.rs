//! Where the programs of the control plane lie, once `cargo xtask` has built them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The module file is the one place that says which Kubernetes is built, so the name of its folder is read from it.
const GO_MOD: &str = include_str!("../../controlplane/go.mod");

/// The programs of one version of the control plane.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    bin: PathBuf,
}

impl Tools {
    /// Finds them under a tools folder, or says what to run when one is missing.
    pub(super) fn find(tools: &Path) -> Result<Self> {
        let found = Self { bin: bin_dir(tools) };
        for program in [found.etcd(), found.apiserver(), found.kubectl()] {
            if !program.is_file() {
                bail!(
                    "{} is not there: `cargo xtask setup --controlplane` builds it, and so does `cargo xtask controlplane \
                     up` before it starts it",
                    program.display()
                );
            }
        }
        // Absolute, since the programs are started in another folder than this one.
        let bin = found
            .bin
            .canonicalize()
            .with_context(|| format!("resolving {}", found.bin.display()))?;
        Ok(Self { bin })
    }

    /// kube-proxy, which only comparisons need.
    pub(super) fn kube_proxy(tools: &Path) -> Result<PathBuf> {
        Self::other(tools, "kube-proxy")
    }

    /// A program that only some verbs need, and build.
    pub(super) fn other(tools: &Path, name: &str) -> Result<PathBuf> {
        let program = bin_dir(tools).join(name);
        if !program.is_file() {
            bail!(
                "{} is not there: the verb of `cargo xtask` that needs it builds it, and `cargo xtask setup --controlplane` \
                 builds kube-proxy",
                program.display()
            );
        }
        program
            .canonicalize()
            .with_context(|| format!("resolving {}", program.display()))
    }

    pub(super) fn etcd(&self) -> PathBuf {
        self.bin.join("etcd")
    }

    pub(super) fn apiserver(&self) -> PathBuf {
        self.bin.join("kube-apiserver")
    }

    pub(super) fn kubectl(&self) -> PathBuf {
        self.bin.join("kubectl")
    }
}

fn bin_dir(tools: &Path) -> PathBuf {
    tools.join(format!("controlplane-{}", kubernetes_version())).join("bin")
}

/// The tools folder: `$LB_TOOLS_DIR`, which `cargo xtask` sets, or the one of this source tree.
pub fn tools_dir() -> PathBuf {
    match std::env::var_os("LB_TOOLS_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(".tools"),
    }
}

/// The version of Kubernetes that the control plane is built from, such as `1.36.3`.
pub fn kubernetes_version() -> &'static str {
    GO_MOD
        .lines()
        .filter_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"))
        .find_map(|rest| rest.split_whitespace().next())
        .unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    #[test]
    fn version_is_read_from_the_module_file() {
        let version = super::kubernetes_version();
        assert!(
            version.starts_with("1.") && version.split('.').count() == 3,
            "{version}"
        );
    }
}
