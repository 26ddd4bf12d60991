//! The command line client, pointed at one control plane.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::interrupt;
use crate::patience::patient;

use super::process::{self, Tie};
use super::tools::Tools;

/// How `kubectl` is called.
#[derive(Debug)]
pub(super) struct Kubectl {
    program: PathBuf,
    /// Its own, so that no test writes to the user's home or learns from another server's answers.
    cache: PathBuf,
    netns: Option<PathBuf>,
}

impl Kubectl {
    pub(super) fn new(tools: &Tools, dir: &Path, netns: Option<PathBuf>) -> Self {
        Self {
            program: tools.kubectl(),
            cache: dir.join("kubectl-cache"),
            netns,
        }
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Runs it and returns its stdout; an error carries all that it printed.
    pub(super) fn run(&self, kubeconfig: &Path, args: &[&str], stdin: Option<&str>) -> Result<String> {
        let mut command = Command::new(&self.program);
        command
            // No server of ours takes that long, and a test that hangs says nothing.
            .arg(format!(
                "--request-timeout={}s",
                patient(Duration::from_secs(60)).as_secs()
            ))
            .args(args)
            .env("KUBECONFIG", kubeconfig)
            .env("KUBECACHEDIR", &self.cache)
            // The user's own settings of kubectl are not for tests.
            .env("KUBERC", "off")
            .stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        process::prepare(&mut command, self.netns.as_deref(), Tie::Ours)?;
        let shown = format!("kubectl {}", args.join(" "));
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        let pipe = child.stdin.take();
        let output = std::thread::scope(|scope| {
            if let (Some(mut pipe), Some(text)) = (pipe, stdin) {
                // Written beside reading, or both sides would wait once a pipe is full. If it does not read to the end
                // it has failed, and says why itself.
                scope.spawn(move || pipe.write_all(text.as_bytes()));
            }
            child.wait_with_output()
        })
        .with_context(|| format!("waiting for {shown}"))?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("{shown}: {}: {} {}", output.status, stdout.trim(), stderr.trim());
        }
        Ok(stdout)
    }

    /// Runs it again and again until it succeeds.
    pub(super) fn until_ok(&self, kubeconfig: &Path, args: &[&str], until: Instant) -> Result<()> {
        loop {
            match self.run(kubeconfig, args, None) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= until => return Err(anyhow!("{error:#}, until the time was up")),
                Err(_) => interrupt::sleep(Duration::from_millis(50))?,
            }
        }
    }
}
