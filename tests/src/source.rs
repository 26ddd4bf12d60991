//! Where agents have their objects from: a folder of manifests, or a real API server.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::controlplane::{self, ControlPlane};
use crate::manifests::Manifest;
use crate::network::{Network, plan};
use crate::owner::Folder;

/// A place to put objects.
#[derive(Debug)]
pub enum Source {
    /// A folder of manifests.
    Folder(Folder),
    /// An API server that both nodes reach.
    ApiServer(Box<ControlPlane>),
}

impl Source {
    /// An empty folder.
    pub fn folder() -> Result<Self> {
        Folder::new().map(Self::Folder)
    }

    /// A fresh API server at the switch of a network.
    pub fn api_server(network: &Network) -> Result<Self> {
        let options = controlplane::Options {
            netns: Some(network.switch().path()),
            address: plan::SWITCH_V4.into(),
            ..controlplane::Options::default()
        };
        let cluster = ControlPlane::start(&options).context("starting a control plane")?;
        Ok(Self::ApiServer(Box::new(cluster)))
    }

    /// Creates or changes objects.
    pub fn apply(&self, manifests: &[Manifest]) -> Result<()> {
        match self {
            Self::Folder(folder) => manifests.iter().try_for_each(|manifest| write(folder.path(), manifest)),
            Self::ApiServer(cluster) => {
                let texts: Vec<_> = manifests.iter().map(Manifest::yaml).collect::<Result<_>>()?;
                cluster.apply(&texts.join("\n---\n"))
            }
        }
    }

    /// Removes objects.
    pub fn delete(&self, manifests: &[Manifest]) -> Result<()> {
        match self {
            Self::Folder(folder) => manifests.iter().try_for_each(|manifest| {
                let path = path(folder.path(), manifest);
                fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))
            }),
            Self::ApiServer(cluster) => manifests.iter().try_for_each(|manifest| {
                let args = ["delete", "--wait=false", &manifest.kind, &manifest.name];
                cluster.kubectl(&args).map(drop)
            }),
        }
    }

    /// What tells an agent of it.
    #[must_use]
    pub fn agent_args(&self) -> [PathBuf; 2] {
        match self {
            Self::Folder(folder) => ["--source".into(), folder.path().into()],
            Self::ApiServer(cluster) => ["--kubeconfig".into(), cluster.kubeconfig_agent()],
        }
    }
}

fn path(folder: &Path, manifest: &Manifest) -> PathBuf {
    folder.join(format!("{}-{}.yaml", manifest.kind.to_lowercase(), manifest.name))
}

/// Writes a file that is never seen half written.
fn write(folder: &Path, manifest: &Manifest) -> Result<()> {
    let path = path(folder, manifest);
    let new = folder.join(".new");
    fs::write(&new, manifest.yaml()?).with_context(|| format!("writing {}", new.display()))?;
    fs::rename(&new, &path).with_context(|| format!("writing {}", path.display()))
}
