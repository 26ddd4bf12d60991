//! A control plane that outlives the command which started it: `cargo xtask controlplane up` and `down`.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::process::{ProcessId, Tie};
use super::server::Servers;
use super::tools::{kubernetes_version, tools_dir};
use super::{ControlPlane, Options};

/// How [`up`] starts the control plane.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// Where `cargo xtask` puts programs; the control plane lives in `controlplane-run` below it.
    pub tools: PathBuf,
    /// The port on loopback; none means a free one.
    pub port: Option<u16>,
}

impl Default for UpOptions {
    fn default() -> Self {
        Self {
            tools: tools_dir(),
            port: None,
        }
    }
}

/// Which control plane [`down`] ends.
#[derive(Clone, Debug)]
pub struct DownOptions {
    /// The folder that [`up`] was given.
    pub tools: PathBuf,
}

impl Default for DownOptions {
    fn default() -> Self {
        Self { tools: tools_dir() }
    }
}

/// What is remembered of a control plane that was started.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    version: String,
    url: String,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    /// False until it is fit for use: an `up` that was interrupted leaves it so.
    ready: bool,
    etcd: Option<ProcessId>,
    apiserver: Option<ProcessId>,
}

impl State {
    /// The control plane of this version in a folder, of which nothing runs yet.
    fn new(cluster: &ControlPlane) -> Self {
        Self {
            version: kubernetes_version().to_owned(),
            url: cluster.url(),
            kubectl: cluster.kubectl.program().to_owned(),
            kubeconfig: cluster.kubeconfig_admin(),
            ready: false,
            etcd: None,
            apiserver: None,
        }
    }

    /// Takes in what runs by now. The address may have changed, if somebody else took the port.
    fn note(&mut self, servers: &Servers) {
        self.url = servers.url();
        self.etcd = servers.etcd().cloned();
        self.apiserver = servers.apiserver().cloned();
    }

    /// The processes that still run, the API server first, as they are to be ended.
    fn running(&self) -> Vec<(&'static str, &ProcessId)> {
        [("kube-apiserver", &self.apiserver), ("etcd", &self.etcd)]
            .into_iter()
            .filter_map(|(name, id)| Some((name, id.as_ref().filter(|id| id.runs())?)))
            .collect()
    }

    /// How to use it.
    fn usage(&self) -> String {
        let (kubectl, kubeconfig) = (self.kubectl.display(), self.kubeconfig.display());
        format!(
            "kubeconfig: {kubeconfig}\ntry: {kubectl} --kubeconfig {kubeconfig} get services -A\nend it: cargo xtask \
             controlplane down"
        )
    }

    /// Ends what runs and names it.
    fn stop(&self) -> Result<Vec<String>> {
        let mut stopped = Vec::new();
        for (name, id) in self.running() {
            id.stop().with_context(|| format!("stopping {name}"))?;
            stopped.push(format!("{name} (pid {})", id.pid()));
        }
        Ok(stopped)
    }
}

/// The folder of the detached control plane.
struct Run {
    dir: PathBuf,
    _lock: fs::File,
}

impl Run {
    /// None if there is no tools folder, so that nothing can be running.
    fn open(tools: &Path) -> Result<Option<Self>> {
        let tools = match tools.canonicalize() {
            Ok(tools) => tools,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("resolving {}", tools.display())),
        };
        // Beside the folder, which goes away.
        let path = tools.join("controlplane-run.lock");
        let lock = fs::File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        lock.lock().with_context(|| format!("locking {}", path.display()))?;
        Ok(Some(Self {
            dir: tools.join("controlplane-run"),
            _lock: lock,
        }))
    }

    fn state_file(&self) -> PathBuf {
        self.dir.join("state.json")
    }

    fn state(&self) -> Result<Option<State>> {
        let path = self.state_file();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        serde_json::from_str(&text).map(Some).with_context(|| {
            format!(
                "{} is not what `controlplane up` wrote: end what it started by hand and remove the file",
                path.display()
            )
        })
    }

    fn write(&self, state: &State) -> Result<()> {
        let (new, path) = (self.dir.join("state.json.new"), self.state_file());
        fs::write(&new, serde_json::to_string_pretty(state)?)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("writing {}", path.display()))
    }

    fn remove(&self) -> Result<()> {
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", self.dir.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Starts etcd and kube-apiserver in the background and prints how to use them. If they run already it says so; if one
/// of them has died, both are started again with the objects they had.
pub fn up(options: &UpOptions) -> Result<()> {
    let started = Instant::now();
    fs::create_dir_all(&options.tools).with_context(|| format!("creating {}", options.tools.display()))?;
    let run = Run::open(&options.tools)?.context("the tools folder has just gone away")?;
    if let Some(state) = run.state()? {
        if state.ready && state.running().len() == 2 {
            let at = format!("kube-apiserver {} at {}", state.version, state.url);
            return print(&format!("the control plane is up already: {at}\n{}", state.usage()));
        }
        for stopped in state.stop()? {
            print(&format!(
                "stopped {stopped}, left over from an `up` that was interrupted or lost the other half"
            ))?;
        }
    }

    let start = Options {
        dir: Some(run.dir.clone()),
        tools: options.tools.clone(),
        port: options.port,
        ..Options::default()
    };
    let mut cluster = ControlPlane::prepare(&start, Tie::Detached)?;
    let mut state = State::new(&cluster);
    // Written down as they appear: what an interrupted `up` leaves behind is what the next `down` ends.
    cluster.servers.start_etcd()?;
    state.note(&cluster.servers);
    run.write(&state)?;
    cluster.start_apiserver_and(|servers| {
        state.note(servers);
        run.write(&state)
    })?;
    cluster.set_up(&start)?;
    state.ready = true;
    run.write(&state)?;
    cluster.servers.let_go();
    print(&format!(
        "the control plane is up: kube-apiserver {} at {}, ready after {:.1} s\n{}",
        state.version,
        state.url,
        started.elapsed().as_secs_f32(),
        state.usage()
    ))
}

/// Ends what [`up`] started, exactly those two processes, and removes their folder. Says so if nothing runs.
pub fn down(options: &DownOptions) -> Result<()> {
    let stopped = match Run::open(&options.tools)? {
        Some(run) => {
            let stopped = run.state()?.map(|state| state.stop()).transpose()?.unwrap_or_default();
            run.remove()?;
            stopped
        }
        None => Vec::new(),
    };
    if stopped.is_empty() {
        print("no control plane is running")
    } else {
        print(&format!("stopped {}; its objects are gone", stopped.join(" and ")))
    }
}

/// Prints lines. Nobody reading on, as with `| head`, is no failure of what was done.
fn print(lines: &str) -> Result<()> {
    match writeln!(io::stdout(), "{lines}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("writing to stdout"),
        _ => Ok(()),
    }
}
