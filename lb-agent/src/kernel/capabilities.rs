//! What the process may do.

use std::fs;

use anyhow::{Context as _, anyhow, bail};

/// A capability: its number in linux/capability.h, and its name.
type Capability = (u32, &'static str);

const NET_ADMIN: Capability = (12, "CAP_NET_ADMIN");
const PERFMON: Capability = (38, "CAP_PERFMON");
const BPF: Capability = (39, "CAP_BPF");
/// Stood for those with higher numbers before kernel 5.8, which still lets it.
const SYS_ADMIN: u32 = 21;

/// What programs for links and sockets, and the masquerade rules, need.
const TO_LOAD: [Capability; 3] = [NET_ADMIN, PERFMON, BPF];
/// What virtual services, rules and addresses need.
const TO_CONFIGURE: [Capability; 1] = [NET_ADMIN];
/// What a look at pinned maps needs.
const TO_READ: [Capability; 1] = [BPF];
/// What the removal of filters and rules needs. Pins are files like others.
const TO_CLEAN_UP: [Capability; 1] = [NET_ADMIN];

/// Fails with the names of those that are missing to serve by programs.
pub(crate) fn check_to_load() -> anyhow::Result<()> {
    check("loading BPF programs", &TO_LOAD)
}

/// Fails with the names of those that are missing to serve without programs.
pub(crate) fn check_to_configure() -> anyhow::Result<()> {
    check("configuring IPVS", &TO_CONFIGURE)
}

/// Fails with the names of those that are missing to read what is pinned.
pub(crate) fn check_to_read() -> anyhow::Result<()> {
    check("reading BPF maps", &TO_READ)
}

/// Fails with the names of those that are missing to clean up.
pub(crate) fn check_to_clean_up() -> anyhow::Result<()> {
    check("removing filters and rules", &TO_CLEAN_UP)
}

fn check(what: &str, needed: &[Capability]) -> anyhow::Result<()> {
    let missing = missing(needed, effective()?);
    if !missing.is_empty() {
        bail!("{what} needs {}: run as root", missing.join(", "));
    }
    Ok(())
}

/// The capabilities of this process, a bit each.
fn effective() -> anyhow::Result<u64> {
    let path = "/proc/self/status";
    let status = fs::read_to_string(path).with_context(|| path.to_owned())?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|value| u64::from_str_radix(value.trim(), 16).ok())
        .ok_or_else(|| anyhow!("{path} has no CapEff"))
}

fn missing(needed: &[Capability], effective: u64) -> Vec<&'static str> {
    let has = |number: u32| effective & (1 << number) != 0;
    needed
        .iter()
        .filter(|(number, _)| !(has(*number) || *number > SYS_ADMIN && has(SYS_ADMIN)))
        .map(|(_, name)| *name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(missing(&TO_LOAD, u64::MAX), [] as [&str; 0]);
        assert_eq!(missing(&TO_LOAD, 0), ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF"]);
        assert_eq!(missing(&TO_LOAD, 1 << 12 | 1 << 21), [] as [&str; 0]);
        assert_eq!(missing(&TO_LOAD, 1 << 12 | 1 << 39), ["CAP_PERFMON"]);
        assert_eq!(missing(&TO_CLEAN_UP, 1 << 21), ["CAP_NET_ADMIN"]);
        assert_eq!(missing(&TO_CLEAN_UP, 1 << 12), [] as [&str; 0]);
    }
}
