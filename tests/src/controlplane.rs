//! The real control plane, for tests: etcd and kube-apiserver as child processes, with a certificate authority of their
//! own, RBAC, and kubeconfigs for an administrator and for the agent.
//!
//! Nothing is simulated and nothing else runs: no controller makes EndpointSlices or Nodes, so a test writes the very
//! objects it wants. The programs are built by `cargo xtask setup --controlplane`, and by the verbs that need them.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use lb_tests::controlplane::{ControlPlane, Options};
//!
//! let cluster = ControlPlane::start(&Options::default())?;
//! cluster.apply("{apiVersion: v1, kind: Namespace, metadata: {name: web}}")?;
//! println!("{}", cluster.kubectl(&["get", "namespaces"])?);
//! # Ok(())
//! # }
//! ```

mod certs;
mod detached;
mod kube_proxy;
mod kubectl;
mod process;
mod server;
mod tools;
mod whole;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

pub use detached::{DownOptions, UpOptions, down, up};
pub use kube_proxy::{IptablesTools, KubeProxy, KubeProxyOptions, Mode, output as kube_proxy_output};
pub(crate) use process::ProcessId;
pub use tools::{kubernetes_version, tools_dir};
pub use whole::{Administrator, Detached, NODE};

use crate::patience::patient;
use crate::{interrupt, owner};
use certs::{ADMIN, AGENT, Certs, KUBE_PROXY};
use kubectl::Kubectl;
use process::Tie;
use server::Servers;
use tools::Tools;

/// `deploy/rbac.yaml`: the agent's ServiceAccount, and what it may do.
const AGENT_RBAC: &str = include_str!("../../deploy/rbac.yaml");

/// How a control plane is started. The default is one on loopback, at a free port, in a folder that goes away with it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network namespace of the API server and of `kubectl`, such as [`crate::netns::Netns::path`] or a file under
    /// `/run/netns`; none means this process's own. Its `lo` must be up, since the server also talks to itself.
    pub netns: Option<PathBuf>,
    /// The address that the API server listens at and, unless it is loopback, advertises as the endpoint of the
    /// `kubernetes` Service.
    pub address: IpAddr,
    /// The port that the API server listens at; none means a free one, or 6443 in a network namespace.
    pub port: Option<u16>,
    /// A folder to keep everything in. It stays, and starting in it again goes on with the objects of the last time.
    /// None means a temporary folder.
    pub dir: Option<PathBuf>,
    /// Where `cargo xtask` puts programs, see [`tools_dir`].
    pub tools: PathBuf,
    /// Added to the API server's command line, such as `--min-request-timeout=5`.
    pub apiserver_args: Vec<String>,
    /// Whether it is for a whole cluster, with controllers: pods get accounts then, and the agent's rights come with the agent.
    pub whole: bool,
    /// How long etcd and the API server together may take until they are ready, however slow the machine is.
    pub ready_within: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            netns: None,
            address: Ipv4Addr::LOCALHOST.into(),
            port: None,
            dir: None,
            tools: tools_dir(),
            apiserver_args: Vec::new(),
            whole: false,
            // Four seconds on a quiet machine; test machines build and test at the same time.
            ready_within: patient(Duration::from_secs(120)),
        }
    }
}

/// A running etcd and kube-apiserver. Dropping it ends both and removes their temporary folder; a killed test takes
/// them along, and the next start removes what it left on disk.
#[derive(Debug)]
pub struct ControlPlane {
    // Fields are dropped in this order: the processes end before their folder is removed.
    servers: Servers,
    kubectl: Kubectl,
    folder: Folder,
}

impl ControlPlane {
    /// Starts both, waits until they are ready, and lets the agent's user do what `deploy/rbac.yaml` says.
    pub fn start(options: &Options) -> Result<Self> {
        let mut cluster = Self::prepare(options, Tie::Ours)?;
        cluster.servers.start_etcd()?;
        cluster.start_apiserver()?;
        cluster.set_up(options)?;
        Ok(cluster)
    }

    /// Makes folder, certificates and kubeconfigs; starts nothing.
    fn prepare(options: &Options, tie: Tie) -> Result<Self> {
        let tools = Tools::find(&options.tools)?;
        let folder = Folder::make(options.dir.as_deref())?;
        let certs = Certs::make(&folder.path().join("certs"), options.address)?;
        let servers = Servers::new(&tools, folder.path(), certs, options, tie)?;
        let kubectl = Kubectl::new(&tools, folder.path(), options.netns.clone());
        let cluster = Self {
            servers,
            kubectl,
            folder,
        };
        cluster.write_kubeconfigs()?;
        Ok(cluster)
    }

    fn write_kubeconfigs(&self) -> Result<()> {
        for (user, path) in [
            (&ADMIN, self.kubeconfig_admin()),
            (&AGENT, self.kubeconfig_agent()),
            (&KUBE_PROXY, self.kubeconfig_kube_proxy()),
        ] {
            self.servers.certs().kubeconfig(user, &self.url(), &path)?;
        }
        Ok(())
    }

    /// What a fresh API server needs beyond being ready.
    fn set_up(&self, options: &Options) -> Result<()> {
        let until = Instant::now() + options.ready_within;
        // It makes its own namespaces after it has become ready, and objects can be in none of them before.
        self.kubectl.until_ok(
            &self.kubeconfig_admin(),
            &["get", "namespace", "default", "kube-system"],
            until,
        )?;
        if options.whole {
            return Ok(());
        }
        self.apply(AGENT_RBAC).context("applying deploy/rbac.yaml")?;
        // Authorisation follows its own watches: what was just written is not what it decides by, for a moment.
        let may = ["auth", "can-i", "watch", "services", "--all-namespaces"];
        self.kubectl
            .until_ok(&self.kubeconfig_agent(), &may, until)
            .context("the agent's user does not get the rights of deploy/rbac.yaml")
    }

    /// Starts the API server, after [`Self::stop_apiserver`], and waits until it is ready. Does nothing if it runs.
    pub fn start_apiserver(&mut self) -> Result<()> {
        self.start_apiserver_and(|_| Ok(()))
    }

    /// The same, and calls a function once the process is there, before waiting for it.
    fn start_apiserver_and(&mut self, mut started: impl FnMut(&Servers) -> Result<()>) -> Result<()> {
        let until = Instant::now() + self.servers.ready_within();
        loop {
            self.servers.wait_for_etcd(until)?;
            self.servers.start_apiserver()?;
            started(&self.servers)?;
            let waited = self.wait_ready(until);
            // Between choosing a free port and listening at it, somebody else may have taken it.
            if waited.is_err() && self.servers.lost_its_port()? {
                self.write_kubeconfigs()?;
                continue;
            }
            return waited;
        }
    }

    fn wait_ready(&mut self, until: Instant) -> Result<()> {
        loop {
            self.servers.check()?;
            // A TCP handshake costs nothing; kubectl is a big program to start every now and then.
            let error = match self.servers.accepts() {
                Ok(()) => match self
                    .kubectl
                    .run(&self.kubeconfig_admin(), &["get", "--raw=/readyz"], None)
                {
                    Ok(_) => return Ok(()),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if Instant::now() >= until {
                return Err(error).with_context(|| {
                    let limit = self.servers.ready_within().as_secs();
                    format!(
                        "kube-apiserver is not ready after {limit} s; {}",
                        self.servers.log_tail()
                    )
                });
            }
            interrupt::sleep(Duration::from_millis(100))?;
        }
    }

    /// Ends the API server, as an outage would; etcd keeps its objects. Does nothing if it does not run.
    pub fn stop_apiserver(&mut self) -> Result<()> {
        self.servers.stop_apiserver()
    }

    /// Runs `kubectl` as the administrator and returns what it prints. An error carries what it said.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl.run(&self.kubeconfig_admin(), args, None)
    }

    /// Runs `kubectl` as the agent's user, who may do what `deploy/rbac.yaml` says.
    pub fn kubectl_as_agent(&self, args: &[&str]) -> Result<String> {
        self.kubectl.run(&self.kubeconfig_agent(), args, None)
    }

    /// Creates or changes the objects of a manifest, as the administrator.
    pub fn apply(&self, yaml: &str) -> Result<()> {
        self.kubectl
            .run(&self.kubeconfig_admin(), &["apply", "-f", "-"], Some(yaml))
            .map(drop)
    }

    /// Has the server say what it makes of a manifest, down to fields that it does not know, as the administrator. Changes
    /// nothing.
    pub fn try_apply(&self, yaml: &str) -> Result<()> {
        let args = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
        self.kubectl.run(&self.kubeconfig_admin(), &args, Some(yaml)).map(drop)
    }

    /// Makes objects that are there exactly what a manifest says, as the administrator.
    pub fn replace(&self, yaml: &str) -> Result<()> {
        self.kubectl
            .run(&self.kubeconfig_admin(), &["replace", "-f", "-"], Some(yaml))
            .map(drop)
    }

    /// Writes the status of objects that are there, as a controller would: `apply` leaves it alone.
    pub fn apply_status(&self, yaml: &str) -> Result<()> {
        let args = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--subresource=status",
            "-f",
            "-",
        ];
        self.kubectl.run(&self.kubeconfig_admin(), &args, Some(yaml)).map(drop)
    }

    /// The kubeconfig of a user who may do everything.
    pub fn kubeconfig_admin(&self) -> PathBuf {
        self.folder.path().join("admin.kubeconfig")
    }

    /// The kubeconfig of the user whom the shipped ClusterRole is for.
    pub fn kubeconfig_agent(&self) -> PathBuf {
        self.folder.path().join("lb-agent.kubeconfig")
    }

    /// The kubeconfig of a user with a proxy's rights.
    pub fn kubeconfig_kube_proxy(&self) -> PathBuf {
        self.folder.path().join("kube-proxy.kubeconfig")
    }

    /// Where the API server listens, such as `https://127.0.0.1:20443`.
    pub fn url(&self) -> String {
        self.servers.url()
    }

    /// The pid of the API server, if it runs: for tests that measure it.
    pub fn apiserver_pid(&self) -> Option<i32> {
        self.servers.apiserver().map(process::ProcessId::pid)
    }

    /// The pid of etcd.
    pub fn etcd_pid(&self) -> Option<i32> {
        self.servers.etcd().map(process::ProcessId::pid)
    }

    /// The folder of data, logs, certificates and kubeconfigs.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }
}

/// The folder of one control plane.
#[derive(Debug)]
enum Folder {
    /// Somebody else's.
    Given(PathBuf),
    /// Removed when dropped, or by the next process if this one is killed.
    Temporary(owner::Folder),
}

impl Folder {
    fn make(given: Option<&Path>) -> Result<Self> {
        let Some(dir) = given else {
            return Ok(Self::Temporary(owner::Folder::new()?));
        };
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let dir = dir
            .canonicalize()
            .with_context(|| format!("resolving {}", dir.display()))?;
        Ok(Self::Given(dir))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Given(dir) => dir,
            Self::Temporary(folder) => folder.path(),
        }
    }
}
