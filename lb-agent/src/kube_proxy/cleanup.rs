//! Takes away what kube-proxy has left in the kernel, in each of its modes.

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    process::{Command as Program, Stdio},
};

use anyhow::{Context as _, bail};

use super::iptables;
use crate::{
    desired::Protocol,
    kernel::{
        dummy::{self, DummyLink},
        ipvs::{Command, Ipvs, IpvsError, ServiceKey},
        nft::program,
    },
    plane,
};

/// The tables of its mode nftables.
const TABLES: [&str; 2] = ["ip kube-proxy", "ip6 kube-proxy"];

/// Its sets of ipset, of which those for IPv6 have a 6 in their names.
const SETS: [&str; 17] = [
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-SOURCE-IP",
    "LOAD-BALANCER-SOURCE-CIDR",
    "NODE-PORT-TCP",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
];

/// There if the kernel can have sets of ipset, and has its module loaded if it is one.
const IP_SET: &str = "/sys/module/ip_set";

/// What came of the removal.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// What is gone.
    pub removed: Vec<String>,
    /// What stays, and why.
    pub kept: Vec<String>,
    /// What could not be done.
    pub failed: Vec<String>,
}

/// Removes everything of kube-proxy's from the network namespace of this thread. Nothing stops the rest.
#[must_use]
pub fn remove() -> Leftovers {
    let mut leftovers = Leftovers::default();
    for table in TABLES {
        match program::remove(table) {
            Ok(true) => leftovers.removed.push(format!("nft table {table}")),
            Ok(false) => {}
            Err(error) => leftovers.failed.push(format!("nft table {table}: {error}")),
        }
    }
    // Services before the link, whose addresses tell which are kube-proxy's; sets after the chains that use them, but
    // their ports tell of services too.
    if let Err(error) = remove_ipvs(&mut leftovers) {
        leftovers.failed.push(format!("IPVS: {error:#}"));
    }
    let outcome = iptables::remove();
    leftovers.removed.extend(outcome.removed);
    leftovers.kept.extend(outcome.kept);
    leftovers.failed.extend(outcome.failed);
    if let Err(error) = remove_sets(&mut leftovers) {
        leftovers.failed.push(format!("ipset: {error:#}"));
    }
    leftovers
}

/// The virtual services of mode ipvs, and the link that has their addresses.
fn remove_ipvs(leftovers: &mut Leftovers) -> anyhow::Result<()> {
    if nix::net::if_::if_nametoindex(dummy::KUBE_PROXYS).is_err() {
        return Ok(());
    }
    let addresses = plane::ipvs::addresses_of(dummy::KUBE_PROXYS);
    match Ipvs::open() {
        Ok(mut ipvs) => {
            let ports = node_ports()?;
            let is_ours = plane::ipvs::owned_services()?;
            let mut theirs = Vec::new();
            for (key, _) in ipvs.services().context("cannot list the services of IPVS")? {
                match key {
                    _ if is_ours(&key) => {}
                    ServiceKey::Address { protocol, address }
                        if addresses.contains(&address.ip()) || ports.contains(&(protocol, address.port())) =>
                    {
                        theirs.push(key);
                    }
                    ServiceKey::Address { .. } | ServiceKey::Mark { .. } => leftovers.kept.push(format!(
                        "IPVS service {key}: its address is not on {}, and its port in no ipset of kube-proxy's",
                        dummy::KUBE_PROXYS
                    )),
                }
            }
            let commands: Vec<Command> = theirs.iter().map(|key| Command::DeleteService(*key)).collect();
            for (key, answer) in theirs.iter().zip(ipvs.send(&commands)?) {
                match answer {
                    Ok(()) => leftovers.removed.push(format!("IPVS service {key}")),
                    Err(error) if error.is_gone() => {}
                    Err(error) => leftovers.failed.push(format!("IPVS service {key}: {error}")),
                }
            }
        }
        // Without IPVS there are none.
        Err(IpvsError::Missing) => {}
        Err(error) => return Err(error.into()),
    }
    if DummyLink::remove(dummy::KUBE_PROXYS)? {
        leftovers.removed.push(format!("link {}", dummy::KUBE_PROXYS));
    }
    Ok(())
}

/// The ports that kube-proxy has on addresses of the node, as far as its sets tell.
fn node_ports() -> anyhow::Result<BTreeSet<(Protocol, u16)>> {
    let mut ports = BTreeSet::new();
    for (set, protocol) in [
        ("KUBE-NODE-PORT-TCP", Protocol::Tcp),
        ("KUBE-NODE-PORT-UDP", Protocol::Udp),
    ] {
        let listing = ipset(&["save", set]);
        // One that is not there has no ports.
        let Ok(Some(listing)) = listing else { continue };
        ports.extend(members(&listing).map(|port| (protocol, port)));
    }
    Ok(ports)
}

/// The ports of a set as `ipset save` has it.
fn members(listing: &str) -> impl Iterator<Item = u16> {
    let entries = listing.lines().filter(|line| line.starts_with("add "));
    entries.filter_map(|line| line.split(' ').nth(2)?.parse().ok())
}

fn remove_sets(leftovers: &mut Leftovers) -> anyhow::Result<()> {
    let Some(names) = ipset(&["list", "-name"])? else {
        if Path::new(IP_SET).exists() {
            let kept = "sets of ipset, if there are any: there is no program ipset";
            leftovers.kept.push(kept.to_owned());
        }
        return Ok(());
    };
    for name in names.lines().filter(|name| is_set(name)) {
        match ipset(&["destroy", name]) {
            Ok(_) => leftovers.removed.push(format!("ipset {name}")),
            Err(error) => leftovers.failed.push(format!("ipset {name}: {error:#}")),
        }
    }
    Ok(())
}

fn is_set(name: &str) -> bool {
    let Some(name) = name.strip_prefix("KUBE-") else {
        return false;
    };
    SETS.contains(&name.strip_prefix("6-").unwrap_or(name))
}

/// What `ipset` answers; `None` without it, although a kube-proxy in a container had one of its own.
fn ipset(arguments: &[&str]) -> anyhow::Result<Option<String>> {
    let output = match Program::new("ipset").args(arguments).stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("cannot run ipset"),
    };
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_kube_proxys_by_its_whole_name() {
        for name in [
            "KUBE-CLUSTER-IP",
            "KUBE-6-CLUSTER-IP",
            "KUBE-6-LOAD-BALANCER-SOURCE-CIDR",
        ] {
            assert!(is_set(name), "{name}");
        }
        for name in ["KUBE-SRC-ABCDEF", "CLUSTER-IP", "KUBE-CLUSTER-IP-2", "kube-router-pod"] {
            assert!(!is_set(name), "{name}");
        }
    }

    #[test]
    fn ports_of_a_set_are_read() {
        let listing = "create KUBE-NODE-PORT-TCP bitmap:port range 0-65535\nadd KUBE-NODE-PORT-TCP 30001\n\
                       add KUBE-NODE-PORT-TCP 32767\n";
        assert_eq!(members(listing).collect::<Vec<_>>(), [30_001, 32_767]);
    }
}
