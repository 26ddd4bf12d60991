//! What makes a whole cluster of a control plane: its controllers, its scheduler, and who a kubelet is to it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::certs::{CONTROLLERS, KUBELET, SCHEDULER, User};
use super::kubectl::Kubectl;
use super::process::{Daemon, ProcessId, Tie};
use super::server::tail_of;
use super::tools::{Tools, tools_dir};
use super::{ControlPlane, Options};

/// The only node, as its kubelet's certificate says.
pub const NODE: &str = "node-1";

/// A program that outlives this one.
#[derive(Debug)]
pub struct Detached {
    name: String,
    log: PathBuf,
    id: ProcessId,
}

impl Detached {
    /// Starts it, with its output in `NAME.log` of a folder.
    pub fn start(name: &str, command: Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let id = Daemon::spawn(command, &log, None, Tie::Detached)?.id().clone();
        Ok(Self {
            name: name.to_owned(),
            log,
            id,
        })
    }

    /// Fails once it has ended.
    pub fn check(&self) -> Result<()> {
        let tail = || tail_of(&self.log).unwrap_or_default();
        ensure!(
            self.id.runs(),
            "{} ended; the end of {}:\n{}",
            self.name,
            self.log.display(),
            tail()
        );
        Ok(())
    }
}

impl ControlPlane {
    /// Starts one that outlives this process, in a folder that stays.
    pub fn start_whole(address: IpAddr, port: u16, folder: &Path) -> Result<Self> {
        let options = Options {
            address,
            port: Some(port),
            dir: Some(folder.to_owned()),
            whole: true,
            ..Options::default()
        };
        let mut cluster = Self::prepare(&options, Tie::Detached)?;
        cluster.servers.start_etcd()?;
        cluster.start_apiserver()?;
        cluster.set_up(&options)?;
        cluster.servers.let_go();
        Ok(cluster)
    }

    /// Starts the controllers and the scheduler.
    pub fn start_controllers(&self) -> Result<[Detached; 2]> {
        let certs = self.servers.certs();
        let mut command = self.client("kube-controller-manager", &CONTROLLERS)?;
        command
            // Each controller has its rights by its own account.
            .arg("--use-service-account-credentials")
            .arg("--service-account-private-key-file")
            .arg(certs.key("tokens"))
            .arg("--root-ca-file")
            .arg(certs.ca());
        let controllers = Detached::start("kube-controller-manager", command, self.dir())?;
        let command = self.client("kube-scheduler", &SCHEDULER)?;
        let scheduler = Detached::start("kube-scheduler", command, self.dir())?;
        Ok([controllers, scheduler])
    }

    /// A program that is a client of this server, and there once.
    fn client(&self, name: &str, user: &User) -> Result<Command> {
        let mut command = Command::new(Tools::other(&tools_dir(), name)?);
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig(user)?)
            .arg("--leader-elect=false")
            .arg("--bind-address=127.0.0.1");
        Ok(command)
    }

    fn kubeconfig(&self, user: &User) -> Result<PathBuf> {
        let path = self.dir().join(format!("{}.kubeconfig", user.file));
        self.servers.certs().kubeconfig(user, &self.url(), &path)?;
        Ok(path)
    }

    /// What a kubelet of [`NODE`] is started with, to serve and to be served by this server.
    pub fn kubelet(&self) -> Result<Command> {
        let mut command = Command::new(Tools::other(&tools_dir(), "kubelet")?);
        command.arg("--kubeconfig").arg(self.kubeconfig(&KUBELET)?);
        command.arg(format!("--hostname-override={NODE}"));
        Ok(command)
    }

    /// The authority that signs all certificates.
    pub fn authority(&self) -> Result<PathBuf> {
        self.servers
            .certs()
            .ca()
            .canonicalize()
            .context("the authority's certificate")
    }
}

/// The administrator of a control plane that another process started, in this folder.
#[derive(Debug)]
pub struct Administrator {
    kubectl: Kubectl,
    kubeconfig: PathBuf,
}

impl Administrator {
    /// Nothing is asked of the server yet.
    pub fn of(folder: &Path) -> Result<Self> {
        Ok(Self {
            kubectl: Kubectl::new(&Tools::find(&tools_dir())?, folder, None),
            kubeconfig: folder.join("admin.kubeconfig"),
        })
    }

    /// Runs `kubectl` and returns what it prints. An error carries what it said.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl.run(&self.kubeconfig, args, None)
    }

    /// `kubectl` itself, and who the administrator is.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.kubectl.program());
        command.env("KUBECONFIG", &self.kubeconfig).env("KUBERC", "off");
        command
    }

    /// The credentials.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}
