//! What the kernel's IPVS holds on a node, as `ipvsadm` shows it: somebody else's eyes on what the agent has programmed,
//! and somebody else's hands.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::network::Node;
use crate::process;

/// How often the kernel sums up what its processors have counted.
const COUNTED_EVERY: Duration = Duration::from_secs(2);

/// What a virtual service is known by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Virtual {
    /// Protocol as `ipvsadm` writes it, such as `TCP`, and what is dialled.
    Address(Protocol, SocketAddr),
    /// A mark on packets, of one family.
    Mark {
        /// The mark.
        mark: u32,
        /// Whether it is for IPv6.
        is_v6: bool,
    },
}

/// A protocol of IPVS.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// How a virtual service is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    /// Its scheduler, such as `rr`.
    pub scheduler: String,
    /// Seconds of its persistence.
    pub persistent: Option<u32>,
    /// Weights of its destinations.
    pub destinations: BTreeMap<SocketAddr, u32>,
}

/// All virtual services of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table(pub BTreeMap<Virtual, Served>);

impl Table {
    /// Asks for it.
    pub fn of(node: &Node) -> Result<Self> {
        Self::parse(&ipvsadm(node, "--list --numeric", "")?)
    }

    /// Reads what `ipvsadm --list --numeric` prints.
    pub fn parse(text: &str) -> Result<Self> {
        let mut table = Self::default();
        let mut last = None;
        // The first three lines are headings.
        for line in text.lines().skip(3) {
            let words: Vec<_> = line.split_whitespace().collect();
            let reading = || format!("{line:?} of ipvsadm");
            if let ["->", address, "Masq", weight, ..] = words[..] {
                let served = last.as_ref().and_then(|key| table.0.get_mut(key));
                let served: &mut Served = served.with_context(reading)?;
                let address = address.parse().with_context(reading)?;
                served
                    .destinations
                    .insert(address, weight.parse().with_context(reading)?);
                continue;
            }
            let (key, rest) = key(&words).with_context(reading)?;
            let [scheduler, flags @ ..] = rest else {
                bail!("{}: no scheduler", reading());
            };
            let persistent = match flags.iter().position(|flag| *flag == "persistent") {
                Some(at) => Some(flags.get(at + 1).with_context(reading)?.parse().with_context(reading)?),
                None => None,
            };
            let served = Served {
                scheduler: (*scheduler).to_owned(),
                persistent,
                destinations: BTreeMap::new(),
            };
            table.0.insert(key, served);
            last = Some(key);
        }
        Ok(table)
    }

    /// Destinations of a virtual service that take new connections.
    #[must_use]
    pub fn taking(&self, key: Virtual) -> Option<BTreeSet<SocketAddr>> {
        let takes = |(address, weight): (&SocketAddr, &u32)| (*weight > 0).then_some(*address);
        Some(self.0.get(&key)?.destinations.iter().filter_map(takes).collect())
    }
}

/// Has `ipvsadm` carry out rules, a line each, as somebody else on the node would.
pub fn restore(node: &Node, rules: &str) -> Result<()> {
    ipvsadm(node, "--restore", rules).map(drop)
}

/// Runs `ipvsadm` on a node with these arguments and this input, and returns what it prints.
pub fn ipvsadm(node: &Node, args: &str, input: &str) -> Result<String> {
    let mut command = Command::new("ipvsadm");
    command.args(args.split(' ')).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = process::spawn(command, node.netns(), None)?;
    let mut stdin = child.stdin.take().context("a child has no pipe")?;
    stdin.write_all(input.as_bytes()).context("writing to ipvsadm")?;
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!(
            "ipvsadm {args}: {}\n{input}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).context("what ipvsadm prints")
}

/// How many connections each destination has been given since it was added: with it gone and added anew, none.
pub fn given(node: &Node) -> Result<BTreeMap<(Virtual, SocketAddr), u64>> {
    thread::sleep(COUNTED_EVERY + Duration::from_secs(1));
    parse_given(&ipvsadm(node, "--list --numeric --stats --exact", "")?)
}

/// Reads what `ipvsadm --list --numeric --stats --exact` prints.
fn parse_given(text: &str) -> Result<BTreeMap<(Virtual, SocketAddr), u64>> {
    let mut given = BTreeMap::new();
    let mut last = None;
    for line in text.lines().skip(3) {
        let words: Vec<_> = line.split_whitespace().collect();
        let reading = || format!("{line:?} of ipvsadm");
        if let ["->", address, connections, ..] = words[..] {
            let key = last.with_context(reading)?;
            let address = address.parse().with_context(reading)?;
            given.insert((key, address), connections.parse().with_context(reading)?);
        } else {
            last = Some(key(&words).with_context(reading)?.0);
        }
    }
    Ok(given)
}

/// What a line of a virtual service begins with, and what follows.
fn key<'a, 'b>(words: &'a [&'b str]) -> Result<(Virtual, &'a [&'b str])> {
    let protocol = match words.first() {
        Some(&"TCP") => Protocol::Tcp,
        Some(&"UDP") => Protocol::Udp,
        Some(&"SCTP") => Protocol::Sctp,
        Some(&"FWM") => {
            let mark = words.get(1).context("no mark")?.parse()?;
            let is_v6 = words.get(2) == Some(&"IPv6");
            let rest = if is_v6 { &words[3..] } else { &words[2..] };
            return Ok((Virtual::Mark { mark, is_v6 }, rest));
        }
        _ => bail!("neither a virtual service nor a destination that is translated to"),
    };
    let address = words.get(1).context("no address")?.parse()?;
    Ok((Virtual::Address(protocol, address), &words[2..]))
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(key, served)| {
            match key {
                Virtual::Address(protocol, address) => write!(f, "{address}/{protocol}")?,
                Virtual::Mark { mark, is_v6 } => write!(f, "{mark:#x}/{}", if *is_v6 { "v6" } else { "v4" })?,
            }
            writeln!(f, " {} {:?}", served.scheduler, served.destinations)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  10.96.0.1:443 rr persistent 10800
  -> 172.18.0.2:6443              Masq    1      0          0
  -> 172.18.0.3:6443              Masq    0      2          0
UDP  [fd00:96::a]:53 rr
FWM  1818361857 IPv6 sh
  -> [fd00:244:1::2]:8080         Masq    1      0          0
FWM  3 rr
";

    #[test]
    fn what_ipvsadm_prints_is_read() {
        let table = Table::parse(TEXT).unwrap();
        assert_eq!(table.0.len(), 4);
        let api = Virtual::Address(Protocol::Tcp, "10.96.0.1:443".parse().unwrap());
        assert_eq!(table.0[&api].persistent, Some(10_800));
        assert_eq!(table.0[&api].destinations.len(), 2);
        assert_eq!(
            table.taking(api).unwrap(),
            BTreeSet::from(["172.18.0.2:6443".parse().unwrap()])
        );
        let dns = Virtual::Address(Protocol::Udp, "[fd00:96::a]:53".parse().unwrap());
        assert!(table.0[&dns].destinations.is_empty());
        let near = Virtual::Mark {
            mark: 0x6c62_0001,
            is_v6: true,
        };
        assert_eq!(table.0[&near].scheduler, "sh");
    }

    #[test]
    fn what_each_was_given_is_read() {
        let text = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes
  -> RemoteAddress:Port
TCP  10.96.0.1:443                       3       18        9     1000      800
  -> 172.18.0.2:6443                     3       18        9     1000      800
FWM  7 IPv6                              1        5        0      400        0
  -> [fd00:244:1::2]:8080                1        5        0      400        0
";
        let given = parse_given(text).unwrap();
        let api = Virtual::Address(Protocol::Tcp, "10.96.0.1:443".parse().unwrap());
        assert_eq!(given[&(api, "172.18.0.2:6443".parse().unwrap())], 3);
        let marked = Virtual::Mark { mark: 7, is_v6: true };
        assert_eq!(given[&(marked, "[fd00:244:1::2]:8080".parse().unwrap())], 1);
    }

    #[test]
    fn what_it_does_not_print_is_an_error() {
        let with = |line: &str| Table::parse(&format!("a\nb\nc\n{line}\n"));
        assert!(with("  -> 172.18.0.2:6443  Masq 1 0 0").is_err());
        assert!(with("TCP  10.96.0.1:443").is_err());
        assert!(with("ICMP  10.96.0.1:443 rr").is_err());
    }
}
