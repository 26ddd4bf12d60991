//! kube-proxy's chains of iptables, which its modes iptables and ipvs make.
//!
//! Chains are known by their names. The kubelet has some that begin with `KUBE-` too, and so have network policies of
//! kube-router; these stay. So does KUBE-FIREWALL of the table `filter`, which the kubelet and kube-proxy write alike. The tools are those of kube-proxy: they come in two kinds that write to different places of
//! the kernel, and neither sees what the other wrote.

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

/// Chains of one name, in any table.
const NAMES: [&str; 13] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
    "KUBE-LOAD-BALANCER",
    "KUBE-NODE-PORT",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];
/// Beginnings of the names of chains of a service or an endpoint.
const PREFIXES: [&str; 6] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-EXT-",
    "KUBE-SEP-",
    "KUBE-FW-",
    "KUBE-XLB-",
];
/// A chain that is the kubelet's in the table `filter`, and was kube-proxy's in the table `nat` in mode ipvs.
const FIREWALL: (&str, &str) = ("nat", "KUBE-FIREWALL");
/// The chains that the kernel has packets go through. What leads from them to a chain of kube-proxy's is
/// kube-proxy's.
const BUILTIN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// A transaction that takes kube-proxy's chains away.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// In the words of `iptables-restore`; empty if there is nothing to do.
    transaction: String,
    /// How many chains, a table each.
    chains: Vec<(String, usize)>,
    /// Chains that stay, since somebody else's chain leads there, and which.
    kept: Vec<(String, String)>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) removed: Vec<String>,
    pub(super) kept: Vec<String>,
    pub(super) failed: Vec<String>,
}

/// Removes the chains with each tool that there is.
pub(super) fn remove() -> Outcome {
    let mut outcome = Outcome::default();
    for family in ["iptables", "ip6tables"] {
        let mut has_tool = false;
        // The plain name is one of the two others where they are; on its own elsewhere.
        for kind in ["-legacy", "-nft", ""] {
            if kind.is_empty() && has_tool {
                continue;
            }
            let tool = format!("{family}{kind}");
            match remove_with(&tool) {
                Ok(None) => continue,
                Ok(Some(plan)) => {
                    let chains = plan.chains.iter();
                    outcome
                        .removed
                        .extend(chains.map(|(table, count)| format!("{count} chains of the table {table} of {tool}")));
                    outcome.kept.extend(plan.kept.iter().map(|(chain, user)| {
                        format!("chain {chain} of {tool}: the chain {user} of somebody else leads there")
                    }));
                }
                Err(error) => outcome.failed.push(format!("{tool}: {error:#}")),
            }
            has_tool = true;
        }
        if !has_tool {
            outcome.kept.push(format!(
                "chains of {family}, if there are any: there is no program {family}-save"
            ));
        }
    }
    outcome
}

/// What one tool has to do, which is done; `None` without it.
fn remove_with(tool: &str) -> anyhow::Result<Option<Plan>> {
    let Some(listing) = save(tool)? else {
        return Ok(None);
    };
    let plan = plan(&listing);
    if !plan.transaction.is_empty() {
        restore(tool, &plan.transaction)?;
    }
    Ok(Some(plan))
}

/// All tables that there are. None is made by looking.
fn save(tool: &str) -> anyhow::Result<Option<String>> {
    let output = match Command::new(format!("{tool}-save")).stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot run {tool}-save")),
    };
    if !output.status.success() {
        bail!("{tool}-save: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn restore(tool: &str, transaction: &str) -> anyhow::Result<()> {
    let mut child = Command::new(format!("{tool}-restore"))
        .args(["--noflush", "--wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {tool}-restore"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // What it says when it ends too early is of more use than the broken pipe.
        match stdin.write_all(transaction.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
            _ => {}
        }
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{tool}-restore: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// A rule as it is listed: `-A CHAIN …`.
struct Rule<'a> {
    chain: &'a str,
    /// What comes after the chain.
    rest: &'a str,
    target: Option<&'a str>,
}

impl<'a> Rule<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (chain, rest) = line.strip_prefix("-A ")?.split_once(' ')?;
        // The target comes after what is matched, where a comment can say anything; no name of a chain has a quote.
        let target = [" -j ", " -g "].iter().filter_map(|jump| {
            let at = format!(" {rest}").rfind(jump)?;
            Some((at, rest[at + jump.len() - 1..].split(' ').next()?))
        });
        Some(Self {
            chain,
            rest,
            target: target.max_by_key(|(at, _)| *at).map(|(_, target)| target),
        })
    }
}

/// What is to be done about a listing.
pub(super) fn plan(listing: &str) -> Plan {
    let mut plan = Plan::default();
    for (name, lines) in tables(listing) {
        let chains = lines
            .iter()
            .filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        let mut theirs: BTreeSet<&str> = chains.filter(|chain| is_theirs(name, chain)).collect();
        let rules: Vec<Rule<'_>> = lines.iter().filter_map(|line| Rule::parse(line)).collect();
        // A chain that another's leads to stays, and with it those that it leads to itself.
        while let Some(rule) = rules.iter().find(|rule| {
            rule.target.is_some_and(|target| theirs.contains(target))
                && !theirs.contains(rule.chain)
                && !BUILTIN.contains(&rule.chain)
        }) {
            if let Some(target) = rule.target {
                theirs.remove(target);
                plan.kept.push((target.to_owned(), rule.chain.to_owned()));
            }
        }
        if theirs.is_empty() {
            continue;
        }
        plan.transaction += &format!("*{name}\n");
        for chain in &theirs {
            // Empties it.
            plan.transaction += &format!(":{chain} - [0:0]\n");
        }
        for rule in &rules {
            if BUILTIN.contains(&rule.chain) && rule.target.is_some_and(|target| theirs.contains(target)) {
                plan.transaction += &format!("-D {} {}\n", rule.chain, rule.rest);
            }
        }
        for chain in &theirs {
            plan.transaction += &format!("-X {chain}\n");
        }
        plan.transaction += "COMMIT\n";
        plan.chains.push((name.to_owned(), theirs.len()));
    }
    plan
}

/// The tables of a listing with their lines.
fn tables(listing: &str) -> Vec<(&str, Vec<&str>)> {
    let mut tables: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in listing.lines() {
        if let Some(name) = line.strip_prefix('*') {
            tables.push((name, Vec::new()));
        } else if let Some((_, lines)) = tables.last_mut() {
            lines.push(line);
        }
    }
    tables
}

fn is_theirs(table: &str, chain: &str) -> bool {
    NAMES.contains(&chain) || (table, chain) == FIREWALL || PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
# Generated by iptables-save
*filter
:INPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -j KUBE-ROUTER-INPUT
-A INPUT -m comment --comment \"leads -j KUBE-FORWARD\" -j ACCEPT
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:CNI-HOSTPORT - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SEP-AAAA - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A CNI-HOSTPORT -s 10.0.0.0/8 -j KUBE-MARK-MASQ
-A KUBE-SEP-AAAA -j DNAT --to-destination 10.0.0.1:80
-A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SEP-AAAA
COMMIT
";

    #[test]
    fn chains_of_kube_proxy_go_and_those_of_others_stay() {
        let expected = "\
*filter
:KUBE-FORWARD - [0:0]
-D FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-X KUBE-FORWARD
COMMIT
*nat
:KUBE-SEP-AAAA - [0:0]
:KUBE-SERVICES - [0:0]
-D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-X KUBE-SEP-AAAA
-X KUBE-SERVICES
COMMIT
";
        let plan = plan(LISTING);
        assert_eq!(plan.transaction, expected);
        assert_eq!(plan.chains, [("filter".to_owned(), 1), ("nat".to_owned(), 2)]);
        assert_eq!(plan.kept, [("KUBE-MARK-MASQ".to_owned(), "CNI-HOSTPORT".to_owned())]);
    }

    #[test]
    fn where_there_is_nothing_nothing_is_written() {
        assert_eq!(super::plan(""), Plan::default());
        assert_eq!(super::plan("*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n"), Plan::default());
    }
}
