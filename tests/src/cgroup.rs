//! Control groups (version 2): what makes a process belong to a node for the socket programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::owner;
use crate::patience::patient;

/// A control group of our own, directly below the root. Dropping it kills what is in it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes an empty one.
    pub fn new() -> Result<Self> {
        let path = owner::make(&root()?).context("making a control group: this needs root")?;
        Ok(Self { path })
    }

    /// Makes one below it, by its path from here. It is to go first.
    pub fn below(&self, path: impl AsRef<Path>) -> Result<Self> {
        let path = self.path.join(path);
        fs::create_dir_all(&path).with_context(|| format!("making the control group {}", path.display()))?;
        Ok(Self { path })
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes a process in, and what it starts from now on.
    pub fn adopt(&self, pid: u32) -> Result<()> {
        let file = self.path.join("cgroup.procs");
        fs::write(&file, pid.to_string()).with_context(|| format!("moving the process {pid} to {}", file.display()))
    }

    /// The processor time of all processes that are or were in it.
    pub fn processor(&self) -> Result<Duration> {
        let file = self.path.join("cpu.stat");
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let microseconds = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        let microseconds = microseconds.with_context(|| format!("{} has no usage_usec", file.display()))?;
        Ok(Duration::from_micros(microseconds.trim().parse()?))
    }

    /// The pids of the processes in it.
    pub fn processes(&self) -> Result<Vec<i32>> {
        processes(&self.path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = owner::remove(&self.path) {
            eprintln!("lb-tests: {error:#}");
        }
    }
}

/// Where version 2 of control groups is mounted: alone, or beside version 1.
pub fn root() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(path))
        })
        .next()
        .context("cgroup v2 is not mounted: mount -t cgroup2 none /sys/fs/cgroup")
}

/// Kills what is in a control group and those below it, and removes them.
pub(crate) fn remove(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    let until = Instant::now() + patient(Duration::from_secs(5));
    loop {
        // One write kills them all since Linux 5.14; before, one by one, again and again, since they may fork.
        if fs::write(path.join("cgroup.kill"), "1").is_err() {
            for pid in processes(path).unwrap_or_default() {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() >= until => {
                return Err(error).with_context(|| format!("removing the control group {}", path.display()));
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn processes(path: &Path) -> Result<Vec<i32>> {
    let file = path.join("cgroup.procs");
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let mut pids = Vec::new();
    for line in text.lines() {
        match line.parse() {
            Ok(pid) => pids.push(pid),
            Err(_) => bail!("{} holds {line:?}", file.display()),
        }
    }
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_of_a_process_and_its_children_is_counted_when_they_are_gone() {
        let cgroup = Cgroup::new().unwrap();
        let mut command = std::process::Command::new("sh");
        // It waits for a line, so that it is inside before it starts anything.
        command.args([
            "-c",
            "read line; sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'",
        ]);
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        cgroup.adopt(child.id()).unwrap();
        let before = cgroup.processor().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"go\n").unwrap();
        assert!(child.wait().unwrap().success());
        assert!(cgroup.processor().unwrap() > before);
    }

    #[test]
    fn dropping_it_kills_what_is_inside() {
        let cgroup = Cgroup::new().unwrap();
        let path = cgroup.path().to_owned();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(path.join("cgroup.procs"), child.id().to_string()).unwrap();
        assert_eq!(cgroup.processes().unwrap(), [child.id().cast_signed()]);
        drop(cgroup);
        assert!(!path.exists());
        assert!(!child.wait().unwrap().success());
    }
}
