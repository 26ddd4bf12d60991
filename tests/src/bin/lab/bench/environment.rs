//! What a run ran on: all that its figures depend on and a reader cannot see in them.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use lb_tests::{agent, controlplane};
use serde::{Deserialize, Serialize};

/// It.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// When the run ended, in UTC, as RFC 3339 has it.
    pub(crate) date: String,
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) memory_mb: u64,
    /// What else ran: the load average of the last minute when the run began.
    pub(crate) load_before: f64,
    pub(crate) lb_agent: String,
    /// How it was built: `release` or `debug`. Figures of a debug build say nothing.
    pub(crate) profile: String,
    pub(crate) commit: Option<String>,
    pub(crate) kubernetes: String,
    pub(crate) nft: Option<String>,
    pub(crate) iptables: Option<String>,
    /// Of the links that packets are measured on.
    pub(crate) offloads: Vec<String>,
    /// Whether the kernel compiles BPF programs; else it interprets them.
    pub(crate) bpf_jit: bool,
    pub(crate) clocksource: Option<String>,
    /// The arguments of the run.
    pub(crate) arguments: String,
}

impl Environment {
    /// That of a run that begins now, with these arguments.
    pub(crate) fn now(arguments: String) -> Result<Self> {
        Ok(Self {
            date: today(),
            kernel: read("/proc/sys/kernel/osrelease")?,
            cpu: cpu_model(&read("/proc/cpuinfo")?),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mb: memory_mb(&read("/proc/meminfo")?).context("/proc/meminfo has no MemTotal")?,
            load_before: load(&read("/proc/loadavg")?).context("/proc/loadavg holds no number")?,
            lb_agent: said(Command::new(agent::binary()?).arg("--version")).context("lb-agent does not start")?,
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            commit: said(Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"])),
            kubernetes: controlplane::kubernetes_version().to_owned(),
            nft: said(Command::new("nft").arg("--version")),
            iptables: said(Command::new("iptables-legacy").arg("--version")),
            offloads: Vec::new(),
            bpf_jit: read("/proc/sys/net/core/bpf_jit_enable").is_ok_and(|text| text != "0"),
            clocksource: read("/sys/devices/system/clocksource/clocksource0/current_clocksource").ok(),
            arguments,
        })
    }

    /// The name of a folder for its results.
    pub(crate) fn folder(&self) -> String {
        folder(&self.date, &self.kernel)
    }

    /// What a reader wants to know, as a name and a value each.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
        vec![
            ("when", self.date.clone()),
            ("kernel", self.kernel.clone()),
            ("processor", format!("{}, {} of them", self.cpu, self.cpus)),
            ("memory", format!("{} MB", self.memory_mb)),
            ("load before", format!("{:.2}", self.load_before)),
            ("lb-agent", format!("{}, {} build", self.lb_agent, self.profile)),
            ("commit", or_unknown(&self.commit)),
            ("Kubernetes", self.kubernetes.clone()),
            ("nft", or_unknown(&self.nft)),
            ("iptables", or_unknown(&self.iptables)),
            ("offloads of links", self.offloads.join(", ")),
            ("BPF", if self.bpf_jit { "compiled" } else { "interpreted" }.to_owned()),
            ("clock", or_unknown(&self.clocksource)),
            ("arguments", self.arguments.clone()),
        ]
    }
}

fn folder(date: &str, kernel: &str) -> String {
    let day = date.split('T').next().unwrap_or(date);
    format!("{day}-{kernel}")
}

/// Now, in UTC.
pub(crate) fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn read(path: &str) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    Ok(text.trim().to_owned())
}

/// The first line that a program says, if it is there and has no fault to find.
fn said(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?.trim();
    (output.status.success() && !line.is_empty()).then(|| line.to_owned())
}

fn cpu_model(cpuinfo: &str) -> String {
    // ARM has no names, but numbers.
    let named = |name: &str| {
        let of_name = |line: &str| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        };
        cpuinfo.lines().find_map(of_name)
    };
    named("model name")
        .or_else(|| named("CPU part"))
        .unwrap_or_else(|| "unknown".to_owned())
}

fn memory_mb(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024 / 1_000_000)
}

fn load(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_known_by_its_name() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC 9R14\nflags\t: fpu\n";
        assert_eq!(cpu_model(text), "AMD EPYC 9R14");
        assert_eq!(cpu_model("CPU part\t: 0xd40\n"), "0xd40");
        assert_eq!(cpu_model(""), "unknown");
    }

    #[test]
    fn memory_and_load_are_read() {
        let text = "MemTotal:       24576000 kB\nMemFree: 1 kB\n";
        assert_eq!(memory_mb(text), Some(25_165));
        assert_eq!(load("0.44 1.05 0.76 1/234 5678"), Some(0.44));
        assert_eq!((memory_mb(""), load("")), (None, None));
    }

    #[test]
    fn a_folder_is_named_by_day_and_kernel() {
        assert_eq!(folder("2026-12-01T04:05:06Z", "6.18.44"), "2026-12-01-6.18.44");
        let today = today();
        assert!(today.len() == 20 && today.ends_with('Z'), "{today}");
    }
}
