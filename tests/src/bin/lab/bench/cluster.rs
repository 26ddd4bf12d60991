//! The API server of a run, with the same Services in it for all that are measured.
//!
//! It is in a network of its own, from which a relay leads into that of each target, so that it is as far from one as from
//! the other. Writing ten thousand Services takes minutes, so what etcd has then is kept, and the next run starts from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use kube::Client;
use lb_tests::controlplane::{self, ControlPlane};
use lb_tests::manifests::{self, Manifest, Service};
use lb_tests::netlink::Cidr;
use lb_tests::netns::Netns;
use lb_tests::network::{Network, plan};
use lb_tests::owner::Folder;
use lb_tests::relay::Relay;
use tokio::runtime::Runtime;

use super::objects;
use crate::progress::{Step, say};

/// The API server's port.
const PORT: u16 = 6443;
/// The folder of etcd's data in that of a control plane.
const DATA: &str = "etcd";
/// After how many more Services what has been made is kept: so much is lost at most if it is interrupted.
const AT_A_TIME: usize = 1000;
/// Changes when the objects do, so that those that are kept of older ones are of no use.
const LAYOUT: u32 = 1;

/// It. Fields are dropped in their order.
#[derive(Debug)]
pub(crate) struct Cluster {
    plane: ControlPlane,
    _folder: Folder,
    netns: Arc<Netns>,
}

impl Cluster {
    /// Starts one that has so many Services with so many endpoints each. What it takes to make them is kept in a folder.
    pub(crate) fn start(kept: &Path, services: usize, endpoints: usize) -> Result<Self> {
        let states = States {
            folder: kept.to_owned(),
            endpoints,
        };
        let mut made = states.largest_below(services + 1)?;
        let mut made_here = None;
        while made != Some(services) {
            let base = made.unwrap_or(0);
            let next = services.min(base + AT_A_TIME);
            let cluster = Self::from(made.map(|base| states.path(base)).as_deref())?;
            let missing = (base..next).map(|number| objects::exposed(number, endpoints));
            let missing: Vec<Service> = missing.collect::<Result<_>>()?;
            cluster.with_client(|runtime, client| runtime.block_on(objects::create(client, &missing)))?;
            states.keep(next, cluster)?;
            if let Some(step) = made_here.replace(next) {
                states.drop(step)?;
            }
            made = Some(next);
        }
        Self::from(Some(&states.path(services)))
    }

    /// Starts one with a copy of what etcd had, or with nothing.
    fn from(data: Option<&Path>) -> Result<Self> {
        let step = Step::start("etcd and kube-apiserver");
        let netns = Netns::new("api")?;
        let loopback = netns.netlink()?.link("lo")?;
        netns
            .netlink()?
            .add_address(loopback.index, Cidr::host(plan::SWITCH_V4))?;
        let folder = Folder::new()?;
        if let Some(data) = data {
            copy(data, &folder.path().join(DATA))?;
        }
        let options = controlplane::Options {
            netns: Some(netns.path()),
            address: plan::SWITCH_V4.into(),
            dir: Some(folder.path().to_owned()),
            ..controlplane::Options::default()
        };
        let cluster = Self {
            plane: ControlPlane::start(&options).context("starting a control plane")?,
            _folder: folder,
            netns: Arc::new(netns),
        };
        step.done();
        Ok(cluster)
    }

    /// The control plane.
    pub(crate) fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// Writes the objects of the nodes of a network, which are the same for each.
    pub(crate) fn announce(&self, network: &Network) -> Result<()> {
        let nodes = network.nodes().each_ref();
        let manifests = nodes.map(|node| Manifest::new(&manifests::node(node))?.yaml());
        let manifests: Vec<String> = manifests.into_iter().collect::<Result<_>>()?;
        self.plane.apply(&manifests.join("\n---\n"))
    }

    /// Lets both nodes of a network reach it at the switch.
    pub(crate) fn reach_from(&self, network: &Network) -> Result<Relay> {
        let at = (plan::SWITCH_V4, PORT).into();
        Relay::start(network.switch(), Arc::clone(&self.netns), at)
    }

    /// Calls a function with a client of it, on a thread from which it can be reached.
    pub(crate) fn with_client<T: Send>(
        &self,
        function: impl FnOnce(&Runtime, &Client) -> Result<T> + Send,
    ) -> Result<T> {
        let kubeconfig = self.plane.kubeconfig_admin();
        self.netns.run(|| {
            // Single-threaded, so that all its sockets are made in the namespace that the thread is in.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("making a runtime")?;
            let client = runtime.block_on(objects::client(&kubeconfig))?;
            function(&runtime, &client)
        })?
    }
}

/// What etcd had with so many Services each, all with as many endpoints.
struct States {
    folder: PathBuf,
    endpoints: usize,
}

impl States {
    fn prefix(&self) -> String {
        format!("{}-{LAYOUT}-{}-", controlplane::kubernetes_version(), self.endpoints)
    }

    fn path(&self, services: usize) -> PathBuf {
        self.folder.join(format!("{}{services}", self.prefix()))
    }

    /// The largest number of Services below this one that is kept: what is to begin with.
    fn largest_below(&self, services: usize) -> Result<Option<usize>> {
        let (prefix, mut largest) = (self.prefix(), None);
        fs::create_dir_all(&self.folder).with_context(|| format!("making {}", self.folder.display()))?;
        for entry in fs::read_dir(&self.folder).with_context(|| format!("reading {}", self.folder.display()))? {
            let name = entry.context("reading a folder of states")?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
            largest = largest.max(number.filter(|number| *number < services));
        }
        Ok(largest)
    }

    /// Removes what was kept on the way to more.
    fn drop(&self, services: usize) -> Result<()> {
        let path = self.path(services);
        fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))
    }

    /// Ends a cluster, and keeps what its etcd has.
    fn keep(&self, services: usize, cluster: Cluster) -> Result<()> {
        let Cluster { plane, _folder, .. } = cluster;
        drop(plane);
        let path = self.path(services);
        let new = path.with_extension("new");
        // An interrupted run may have left it.
        let _ = fs::remove_dir_all(&new);
        copy(&_folder.path().join(DATA), &new)?;
        fs::rename(&new, &path).with_context(|| format!("renaming {}", new.display()))?;
        say(format_args!("      kept for the next run in {}", path.display()));
        Ok(())
    }
}

/// Copies a folder with all that is in it, which are files and folders.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry.context("reading a folder")?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().context("reading a folder")?.is_dir() {
            copy(&from, &to)?;
        } else {
            fs::copy(&from, &to).with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_begins_with_the_largest_state_that_is_not_too_large() {
        let folder = Folder::new().unwrap();
        let states = States {
            folder: folder.path().to_owned(),
            endpoints: 10,
        };
        let others = States {
            folder: folder.path().to_owned(),
            endpoints: 2,
        };
        assert_eq!(states.largest_below(1000).unwrap(), None);
        for services in [1, 100, 1000] {
            fs::create_dir(states.path(services)).unwrap();
        }
        fs::create_dir(states.path(500).with_extension("new")).unwrap();
        fs::create_dir(others.path(900)).unwrap();
        assert_eq!(states.largest_below(1000).unwrap(), Some(100));
        assert_eq!(states.largest_below(5000).unwrap(), Some(1000));
        assert_eq!(others.largest_below(100).unwrap(), None);
    }

    #[test]
    fn a_copy_has_all_that_is_in_a_folder() {
        let folder = Folder::new().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("member/wal")).unwrap();
        fs::write(from.join("member/wal/0.wal"), "log").unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("member/wal/0.wal")).unwrap(), "log");
    }
}
