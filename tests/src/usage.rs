//! What a process has used: memory and processor time.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Memory of a process, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// What it holds now.
    pub now: u64,
    /// What it held at most.
    pub most: u64,
}

/// Memory of a process.
pub fn memory(pid: u32) -> Result<Memory> {
    let path = proc(pid, "status");
    let status = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let field = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
        let kilobytes = kilobytes.with_context(|| format!("{} has no {name}", path.display()))?;
        Ok(1024 * kilobytes.parse::<u64>()?)
    };
    Ok(Memory {
        now: field("VmRSS:")?,
        most: field("VmHWM:")?,
    })
}

/// Processor time of the threads that a process has now.
pub fn processor(pid: u32) -> Result<Duration> {
    let tasks = proc(pid, "task");
    let entries = fs::read_dir(&tasks).with_context(|| format!("reading {}", tasks.display()))?;
    let mut nanoseconds = 0;
    for entry in entries.flatten() {
        // The first number is the time on a processor. A thread may have ended since it was listed.
        let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else {
            continue;
        };
        let time = text.split_whitespace().next().context("schedstat is empty")?;
        nanoseconds += time.parse::<u64>().context("schedstat holds no number")?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

fn proc(pid: u32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let pid = std::process::id();
        let memory = memory(pid).unwrap();
        assert!(memory.now > 0 && memory.most >= memory.now);
        assert!(processor(pid).unwrap() > Duration::ZERO);
    }
}
