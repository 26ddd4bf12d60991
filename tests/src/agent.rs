//! The real agent, on a node of the network.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::interrupt::{Interrupted, eventually};
use crate::network::Node;
use crate::owner::Folder;
use crate::place::program;
use crate::plane::{self, Plane};
use crate::process;
use crate::source::Source;

/// How long it may take to load its programs and to program what it has read. Two cores may be building and testing.
const READY: Duration = Duration::from_secs(60);
/// How long it may take to end.
const STOP: Duration = Duration::from_secs(5);
/// How much of its log an error shows.
const SHOWN: usize = 40;

/// How big the agent's maps are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Maps {
    /// Big enough for a test. Maps of the default size would be most of its memory.
    #[default]
    Small,
    /// Small too, but of other sizes, bigger or smaller.
    Resized,
    /// Too small for more than a few endpoints.
    Tiny,
    /// As the agent makes them when nobody says anything.
    Default,
}

/// Which agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Build {
    /// The one that is tested.
    #[default]
    Usual,
    /// One that keeps its flows in another layout, as a version to come may.
    NextLayout,
}

/// How an agent is started, beyond what the node and the source say.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The sizes of its maps.
    pub maps: Maps,
    /// More arguments of `lb-agent run`. Without `--socket-lb`, it is off on a kernel that cannot do it; without
    /// `--plane`, it is the one under test.
    pub args: Vec<OsString>,
    /// Variables of its environment.
    pub env: Vec<(OsString, OsString)>,
    /// Which agent it is.
    pub build: Build,
    /// A program that starts it, and the arguments before its own.
    pub launcher: Vec<OsString>,
}

/// A running agent. Dropping it ends it as a service manager would; what it has programmed stays, until the node goes.
/// If a test is failing then, the end of the log is printed.
#[derive(Debug)]
pub struct Agent {
    node: String,
    child: Child,
    log: Log,
}

#[derive(Debug)]
struct Log {
    folder: Folder,
}

impl Agent {
    /// Starts `lb-agent run` on a node and waits until its first state is programmed.
    pub fn start(node: &Node, source: &Source, options: &Options) -> Result<Self> {
        let mut agent = Self::spawn(node, source, options)?;
        agent.wait_ready()?;
        Ok(agent)
    }

    /// Starts it without waiting.
    pub fn spawn(node: &Node, source: &Source, options: &Options) -> Result<Self> {
        Self::spawn_reading(node, source.agent_args(), options)
    }

    /// The same with the objects of whatever these arguments say.
    pub fn spawn_reading(
        node: &Node,
        source: impl IntoIterator<Item = impl AsRef<OsStr>>,
        options: &Options,
    ) -> Result<Self> {
        let log = Log { folder: Folder::new()? };
        let file = File::create(log.path()).context("making the agent's log")?;
        let is_plane_said = is_said(options, "--plane");
        let mut command = launched(on_node(node, options.build, "run", is_plane_said)?, &options.launcher);
        command
            .arg("--cgroup")
            .arg(node.cgroup().path())
            .args(source)
            .args(["--node-name", node.name()])
            .args(sizes(options.maps))
            .args(socket_lb(options))
            .args(&options.args)
            .envs(options.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("duplicating a descriptor")?)
            .stderr(file);
        let child = process::spawn(command, node.netns(), Some(node.cgroup()))?;
        Ok(Self {
            node: node.name().to_owned(),
            child,
            log,
        })
    }

    /// Waits until its first state is programmed.
    pub fn wait_ready(&mut self) -> Result<()> {
        match self.wait_for_log(READY, "ready") {
            Ok(_) => Ok(()),
            // Its log is no answer to Ctrl-C.
            Err(error) if error.is::<Interrupted>() => Err(error),
            Err(error) => {
                let what = format!("the agent on {} is not ready; its log:\n{}", self.node, self.log.tail());
                Err(error.context(what))
            }
        }
    }

    /// Waits for a line in its log that holds this text.
    pub fn wait_for_log(&mut self, within: Duration, text: &str) -> Result<String> {
        eventually(within, &format!("a line with {text:?} in the log"), || {
            let found = self
                .log
                .text()?
                .lines()
                .find(|line| line.contains(text))
                .map(str::to_owned);
            if found.is_none()
                && let Some(status) = self.child.try_wait().context("waiting for the agent")?
            {
                bail!("it has ended: {}", process::ended(status));
            }
            Ok(found)
        })
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it logs to, as long as it runs.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.log.path()
    }

    /// What it has logged so far.
    pub fn log(&self) -> Result<String> {
        self.log.text()
    }

    /// Ends it as a service manager would, and fails if it does not end well.
    pub fn stop(mut self) -> Result<()> {
        let status = process::stop(&mut self.child, STOP).context("stopping the agent")?;
        self.check(status.success(), status)
    }

    /// The same at any point of its start: one that has just begun has not said yet what the signal is to do, and ends by
    /// it. And it may take longer than usual, since a program that is being loaded cannot be interrupted.
    pub fn stop_in_its_start(mut self, within: Duration) -> Result<()> {
        let status = process::stop(&mut self.child, within).context("stopping the agent")?;
        self.check(status.success() || status.signal() == Some(libc::SIGTERM), status)
    }

    fn check(&self, is_right: bool, status: ExitStatus) -> Result<()> {
        ensure!(
            is_right,
            "the agent on {} ended with {}",
            self.node,
            process::ended(status)
        );
        Ok(())
    }

    /// Ends it without giving it a chance to do anything, like a crash.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("killing the agent")?;
        self.child.wait().context("waiting for the agent")?;
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let stopped = process::stop(&mut self.child, STOP);
        if thread::panicking() {
            eprintln!(
                "--- the log of the agent on {} ends with:\n{}",
                self.node,
                self.log.tail()
            );
        }
        if let Err(error) = stopped {
            eprintln!("lb-tests: stopping the agent on {}: {error}", self.node);
        }
    }
}

impl Log {
    fn path(&self) -> PathBuf {
        self.folder.path().join("agent.log")
    }

    fn text(&self) -> Result<String> {
        let bytes = fs::read(self.path()).context("reading the agent's log")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn tail(&self) -> String {
        let text = self.text().unwrap_or_else(|error| format!("{error:#}"));
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN)..].join("\n")
    }
}

/// Runs `lb-agent cleanup` on a node.
pub fn cleanup(node: &Node) -> Result<Output> {
    offline(node, "cleanup", &[])
}

/// Runs one of the agent's commands that end by themselves on a node.
pub fn offline(node: &Node, verb: &str, args: &[&str]) -> Result<Output> {
    let mut command = on_node(node, Build::Usual, verb, true)?;
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = process::spawn(command, node.netns(), Some(node.cgroup()))?;
    child
        .wait_with_output()
        .with_context(|| format!("running lb-agent {verb}"))
}

fn sizes(maps: Maps) -> &'static [&'static str] {
    match maps {
        Maps::Small => &[
            "--max-services=4096",
            "--max-slots=16384",
            "--max-backends=4096",
            "--max-flows=16384",
            "--max-sockets=4096",
        ],
        Maps::Resized => &[
            "--max-services=8192",
            "--max-slots=8192",
            "--max-backends=8192",
            "--max-flows=32768",
            "--max-sockets=8192",
        ],
        Maps::Tiny => &[
            "--max-services=4096",
            "--max-slots=16384",
            "--max-backends=2",
            "--max-flows=16384",
            "--max-sockets=4096",
        ],
        Maps::Default => &[],
    }
}

/// What an operator has to say on a kernel where processes of the host cannot be told from others.
fn socket_lb(options: &Options) -> &'static [&'static str] {
    let is_said = is_said(options, "--socket-lb");
    let can_serve = is_said || plane::serves_host();
    if can_serve { &[] } else { &["--socket-lb", "off"] }
}

/// Whether the arguments hold a flag, with its value beside it or behind it.
fn is_said(options: &Options, flag: &str) -> bool {
    let args = options.args.iter().map(|arg| arg.to_string_lossy());
    args.into_iter()
        .any(|arg| arg.split_once('=').map_or(&*arg, |(name, _)| name) == flag)
}

/// The same command, started by a launcher if there is one.
fn launched(command: Command, launcher: &[OsString]) -> Command {
    let [program, args @ ..] = launcher else {
        return command;
    };
    let mut launched = Command::new(program);
    launched.args(args).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            launched.env(name, value);
        }
    }
    launched
}

/// The command `lb-agent VERB` with what every verb needs to know of the node, and with its plane unless that is said.
fn on_node(node: &Node, build: Build, verb: &str, is_plane_said: bool) -> Result<Command> {
    let mut command = Command::new(match build {
        Build::Usual => binary()?,
        Build::NextLayout => binary_of_next_layout()?,
    });
    command.arg(verb).arg("--bpffs").arg(node.bpffs().path());
    // In the environment, since not every verb has use for it.
    command.env("LB_AGENT_RUN_DIR", node.run_dir());
    if verb == "run" && !is_plane_said {
        command.arg("--plane").arg(Plane::under_test().word());
    }
    Ok(command)
}

/// The agent's program: the one that `LB_AGENT` names, else the one that cargo built beside this program.
pub fn binary() -> Result<PathBuf> {
    program("lb-agent", "LB_AGENT").map(|path| path.canonicalize().unwrap_or(path))
}

/// The program of [`Build::NextLayout`], which xtask builds where tests need it.
pub fn binary_of_next_layout() -> Result<PathBuf> {
    let path = std::env::var_os("LB_AGENT_NEXT_LAYOUT").map(PathBuf::from);
    path.context("LB_AGENT_NEXT_LAYOUT names no program: `cargo xtask` builds one and sets it")
}
