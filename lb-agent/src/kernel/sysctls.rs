//! Looks at the kernel's settings that the data path depends on, and says what to do.
//!
//! * Forwarding has to be on: packets of outside clients go on to pods.
//! * A host that forwards no longer listens to router advertisements where `accept_ra` is 1, and
//!   forgets the default routes that it has from them. Where it lives on one, `accept_ra` has to be 2
//!   before forwarding is turned on.
//! * Strict reverse path filtering (`rp_filter`) drops packets whose way back leads through another
//!   link: on nodes whose routes are not symmetric. Pointed out only: 2 is enough. On tunnels, and on
//!   uplinks with policy routing, it is certain to drop packets of services ([`check_links`]).
//! * Clients are masqueraded to ports that sockets of the host must not draw by themselves: what `ip_local_port_range` has of
//!   them has to be in `ip_local_reserved_ports`. It is set where nobody has reserved any, and else pointed out.
//! * Bridge settings (`bridge-nf-call-*`) do not matter to the BPF plane, which translates on the pod's own link.
//!   With them on, a pod on a bridge that dials itself needs hairpin mode on its port. The IPVS plane needs them
//!   ([`check_bridges`]), and settings of IPVS itself ([`check_ipvs`]).
//!
//! What is set is written down before, and put back by [`restore`] unless somebody has changed it since.

mod ipvs;
mod record;
mod return_paths;

pub use ipvs::{check_bridges, check_ipvs};
pub use record::{End, Restored};
pub use return_paths::check_links;

use std::{
    collections::BTreeSet,
    fmt, fs, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use lb_common::config::{FIRST_SNAT_PORT, LAST_SNAT_PORT};

use self::record::RecordFile;
use crate::desired::Family;

const PROC: &str = "/proc";
/// Where this network namespace has its settings, below [`PROC`].
const SYSCTLS: &str = "sys/net";
/// Where it has its IPv6 routes.
const IPV6_ROUTES: &str = "net/ipv6_route";

const IPV6_FORWARDING: &str = "net.ipv6.conf.all.forwarding";

/// How much a setting matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Worth knowing where packets go missing.
    Note,
    /// Services do not work for some clients.
    Problem,
}

/// Whether the user has to allow that it is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consent {
    /// It is set where the user said so: others on the node depend on it too.
    Asked,
    /// It is set in any case.
    Given,
}

/// A setting that is not as the data path would have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Name, as sysctl(8) takes it.
    pub name: String,
    /// What it is now.
    pub value: String,
    /// What it should be; `None` where that is for the operator to say.
    pub wanted: Option<&'static str>,
    /// How much it matters.
    pub severity: Severity,
    /// Whether it may be set.
    pub consent: Consent,
    /// What goes wrong.
    pub reason: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: {}", self.name, self.value, self.reason)?;
        if let Some(wanted) = self.wanted {
            write!(f, "; `sysctl -w {}={wanted}`", self.name)?;
            if self.consent == Consent::Asked {
                f.write_str(", or start with --set-sysctls")?;
            }
        }
        Ok(())
    }
}

/// Looks at the settings for the families that are served.
pub fn check(families: &[Family]) -> io::Result<Vec<Finding>> {
    check_under(Path::new(PROC), families)
}

/// Sets what has a wanted value and may be set, in the order of the findings. `is_allowed`: the user lets those
/// be set that take consent. What is set is written down in `run_dir` first, for [`restore`]; what cannot be
/// written down is not set. Returns what was set, and what could not be, with the reason.
pub fn set<'a>(findings: &'a [Finding], is_allowed: bool, run_dir: &Path) -> SetOutcome<'a> {
    set_under(Path::new(PROC), findings, is_allowed, run_dir)
}

/// Puts back what [`set`] wrote down in `run_dir`, from whichever process: what still has the value that it was
/// set to gets the one that it had first, the last that was set first. Says what became of each.
///
/// # Errors
/// Where what is written down cannot be read.
pub fn restore(run_dir: &Path) -> io::Result<Vec<Restored>> {
    RecordFile::new(run_dir).restore(Path::new(PROC))
}

/// What was set, and what could not be, with the reason.
pub type SetOutcome<'a> = (Vec<&'a Finding>, Vec<(&'a Finding, io::Error)>);

fn check_under(proc: &Path, families: &[Family]) -> io::Result<Vec<Finding>> {
    let root = &proc.join(SYSCTLS);
    let mut findings = Vec::new();
    for family in families {
        let (path, name, reason) = match family {
            Family::V4 => (
                "ipv4/ip_forward",
                "net.ipv4.ip_forward",
                "IPv4 packets of outside clients, and between pods, are not forwarded",
            ),
            Family::V6 => (
                "ipv6/conf/all/forwarding",
                IPV6_FORWARDING,
                "IPv6 packets of outside clients, and between pods, are not forwarded",
            ),
        };
        // Without the family in the kernel there is no such setting, and nothing to forward.
        let Some(value) = read(&root.join(path))? else {
            continue;
        };
        if value == "0" {
            if *family == Family::V6 {
                findings.extend(router_advertisements(proc)?);
            }
            findings.push(Finding {
                name: name.to_owned(),
                value,
                wanted: Some("1"),
                severity: Severity::Problem,
                consent: Consent::Asked,
                reason,
            });
        }
    }
    if families.contains(&Family::V4) {
        // A link is filtered as strictly as the larger of its own value and that of `all` says.
        for link in ["all", "default"] {
            let path = root.join("ipv4/conf").join(link).join("rp_filter");
            if read(&path)?.as_deref() == Some("1") {
                findings.push(Finding {
                    name: format!("net.ipv4.conf.{link}.rp_filter"),
                    value: "1".to_owned(),
                    wanted: None,
                    severity: Severity::Note,
                    consent: Consent::Asked,
                    reason: "packets whose way back leads through another link are dropped; where \
                             routes are not symmetric, 2 is enough",
                });
            }
        }
    }
    findings.extend(ephemeral_ports(root)?);
    Ok(findings)
}

/// The reserved ports, in either family, if clients are masqueraded to some that sockets draw.
fn ephemeral_ports(root: &Path) -> io::Result<Option<Finding>> {
    let drawn = read(&root.join("ipv4/ip_local_port_range"))?.unwrap_or_default();
    let mut ends = drawn.split_ascii_whitespace().map(str::parse::<u16>);
    let (Some(Ok(first)), Some(Ok(last))) = (ends.next(), ends.next()) else {
        return Ok(None);
    };
    let shared = first.max(FIRST_SNAT_PORT)..=last.min(LAST_SNAT_PORT);
    let reserved = read(&root.join("ipv4/ip_local_reserved_ports"))?.unwrap_or_default();
    if shared.is_empty() || has_ports(&reserved, shared) {
        return Ok(None);
    }
    Ok(Some(Finding {
        name: "net.ipv4.ip_local_reserved_ports".to_owned(),
        wanted: reserved.is_empty().then_some(SNAT_PORTS),
        value: if reserved.is_empty() {
            "empty".to_owned()
        } else {
            reserved
        },
        severity: Severity::Note,
        consent: Consent::Asked,
        reason: "clients are masqueraded to ports 10000 to 29999, some of which sockets of this host draw as well \
                 (net.ipv4.ip_local_port_range): one that has a client's, to the same endpoint, gets no answer",
    }))
}

/// The ports that clients are masqueraded to, as the kernel takes them.
const SNAT_PORTS: &str = "10000-29999";

/// Whether a list such as `1-5,9` has all of these.
fn has_ports(list: &str, mut wanted: RangeInclusive<u16>) -> bool {
    let ranges = list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u16>().ok()?..=last.trim().parse::<u16>().ok()?)
    });
    let ranges: Vec<_> = ranges.collect();
    wanted.all(|port| ranges.iter().any(|range| range.contains(&port)))
}

/// The links that would lose the default route they have from a router's advertisements if
/// forwarding were turned on.
fn router_advertisements(proc: &Path) -> io::Result<Vec<Finding>> {
    let routes = read(&proc.join(IPV6_ROUTES))?.unwrap_or_default();
    let mut findings = Vec::new();
    for link in links_with_advertised_route(&routes) {
        let name = format!("net.ipv6.conf.{}.accept_ra", swap_separators(link));
        // Gone in the meantime, or told to listen in any case.
        let Some(value) = read(&path(proc, &name))?.filter(|value| value == "1") else {
            continue;
        };
        findings.push(Finding {
            name,
            value,
            wanted: Some("2"),
            severity: Severity::Problem,
            consent: Consent::Asked,
            reason: "the default route by this link is from a router's advertisements, and is lost as soon \
                     as IPv6 packets are forwarded (net.ipv6.conf.all.forwarding)",
        });
    }
    Ok(findings)
}

/// The links by which there is a default route that the kernel made of a router's advertisement.
/// (Where a daemon listens to routers, the routes are of another kind, and `accept_ra` is 0.)
fn links_with_advertised_route(routes: &str) -> BTreeSet<&str> {
    // From linux/ipv6_route.h.
    const RTF_DEFAULT: u32 = 0x0001_0000;
    const RTF_ADDRCONF: u32 = 0x0004_0000;
    const BOTH: u32 = RTF_DEFAULT | RTF_ADDRCONF;
    let advertised = routes.lines().filter_map(|route| {
        let mut fields = route.split_ascii_whitespace().skip(8);
        let flags = u32::from_str_radix(fields.next()?, 16).ok()?;
        fields.next().filter(|_| flags & BOTH == BOTH)
    });
    advertised.collect()
}

fn set_under<'a>(proc: &Path, findings: &'a [Finding], is_allowed: bool, run_dir: &Path) -> SetOutcome<'a> {
    let record = RecordFile::new(run_dir);
    let (mut set, mut failed) = (Vec::new(), Vec::new());
    let may_be_set = |finding: &&Finding| is_allowed || finding.consent == Consent::Given;
    for finding in findings.iter().filter(may_be_set) {
        let Some(wanted) = finding.wanted else {
            continue;
        };
        let cuts_off = |failed: &(&Finding, io::Error)| failed.0.name.ends_with(".accept_ra");
        let result = if finding.name == IPV6_FORWARDING && failed.iter().any(cuts_off) {
            Err(io::Error::other("the node would lose its default route, see accept_ra"))
        } else {
            record.set(proc, &finding.name, wanted)
        };
        match result {
            Ok(()) => set.push(finding),
            Err(error) => failed.push((finding, error)),
        }
    }
    (set, failed)
}

/// The file of a setting.
fn path(proc: &Path, name: &str) -> PathBuf {
    let below = name.strip_prefix("net.").unwrap_or(name);
    proc.join(SYSCTLS).join(swap_separators(below))
}

/// A name as sysctl(8) takes it from a path below /proc/sys, or the other way round: `eth0.5` is
/// `eth0/5` in a name with dots.
fn swap_separators(text: &str) -> String {
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    text.chars().map(swap).collect()
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(value) => Ok(Some(value.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(values: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, value) in values {
            let path = root.path().join(SYSCTLS).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        root
    }

    const BOTH: [Family; 2] = [Family::V4, Family::V6];

    #[test]
    fn nothing_is_said_of_a_node_that_is_right() {
        let root = settings(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/rp_filter", "2"),
        ]);
        assert_eq!(check_under(root.path(), &BOTH).unwrap(), []);
    }

    #[test]
    fn ports_that_clients_and_sockets_of_the_host_share_are_to_be_reserved() {
        for (drawn, reserved, is_shared) in [
            ("32768\t60999", "", false),
            ("30000\t60999", "", false),
            ("1024\t9999", "", false),
            ("29999\t60999", "", true),
            ("1024\t10000", "", true),
            ("1024\t65535", "", true),
            ("12000\t13000", "", true),
            ("12000\t13000", "12000-13000", false),
            ("12000\t13000", "80,12000-12499,12500-13000", false),
            ("12000\t13000", "12001-13000", true),
            ("1024\t65535", SNAT_PORTS, false),
            ("1024\t65535", "10000-29998", true),
        ] {
            let root = settings(&[
                ("ipv4/ip_local_port_range", drawn),
                ("ipv4/ip_local_reserved_ports", reserved),
            ]);
            let findings = check_under(root.path(), &BOTH).unwrap();
            let names: Vec<_> = findings.iter().map(|finding| finding.name.as_str()).collect();
            let expected: &[&str] = if is_shared {
                &["net.ipv4.ip_local_reserved_ports"]
            } else {
                &[]
            };
            assert_eq!(names, expected, "{drawn}, {reserved}");
            // What others have reserved is theirs.
            for finding in findings {
                assert_eq!(finding.wanted.is_some(), reserved.is_empty());
            }
        }
    }

    #[test]
    fn the_ports_that_are_named_are_those_of_the_programs() {
        assert_eq!(SNAT_PORTS, format!("{FIRST_SNAT_PORT}-{LAST_SNAT_PORT}"));
        let named = format!("{FIRST_SNAT_PORT} to {LAST_SNAT_PORT}");
        let root = settings(&[("ipv4/ip_local_port_range", "1 65535")]);
        let [finding] = &check_under(root.path(), &BOTH).unwrap()[..] else {
            panic!("one finding")
        };
        assert!(finding.reason.contains(&named), "{named}");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_do_and_can_be_set() {
        let root = settings(&[
            ("ipv4/ip_forward", "0"),
            ("ipv6/conf/all/forwarding", "0"),
            ("ipv4/conf/all/rp_filter", "1"),
        ]);
        let findings = check_under(root.path(), &BOTH).unwrap();
        let names: Vec<_> = findings.iter().map(|finding| finding.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "net.ipv4.ip_forward",
                "net.ipv6.conf.all.forwarding",
                "net.ipv4.conf.all.rp_filter"
            ]
        );
        assert!(findings[0].to_string().contains("`sysctl -w net.ipv4.ip_forward=1`"));

        let (set, failed) = set_under(root.path(), &findings, true, &root.path().join("run"));
        assert_eq!((set.len(), failed.len()), (2, 0));
        let left = check_under(root.path(), &BOTH).unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].severity, Severity::Note);
    }

    /// `/proc/net/ipv6_route` with a default route each by these links, with these flags.
    fn routes(root: &tempfile::TempDir, routes: &[(&str, &str)]) {
        let zeros = "0".repeat(32);
        let router = "fe80000000000000000000000000000a";
        let lines = routes.iter().map(|(link, flags)| {
            format!("{zeros} 00 {zeros} 00 {router} 00000400 00000001 00000000 {flags} {link:>8}\n")
        });
        let path = root.path().join(IPV6_ROUTES);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, lines.collect::<String>()).unwrap();
    }

    #[test]
    fn a_default_route_of_a_routers_is_kept_before_forwarding_is_turned_on() {
        let root = settings(&[
            ("ipv6/conf/all/forwarding", "0"),
            ("ipv6/conf/eth0/accept_ra", "1"),
            ("ipv6/conf/eth1.5/accept_ra", "1"),
            ("ipv6/conf/eth2/accept_ra", "2"),
            ("ipv6/conf/eth3/accept_ra", "1"),
            ("ipv6/conf/eth4/accept_ra", "1"),
        ]);
        // eth3 has one that somebody set by hand, eth4 has none.
        routes(
            &root,
            &[
                ("eth0", "00450003"),
                ("eth1.5", "00450003"),
                ("eth2", "00450003"),
                ("eth3", "00000003"),
                ("gone", "00450003"),
            ],
        );
        let findings = check_under(root.path(), &[Family::V6]).unwrap();
        let names: Vec<_> = findings.iter().map(|finding| finding.name.as_str()).collect();
        let expected = [
            "net.ipv6.conf.eth0.accept_ra",
            "net.ipv6.conf.eth1/5.accept_ra",
            "net.ipv6.conf.all.forwarding",
        ];
        assert_eq!(names, expected);
        let told = findings[1].to_string();
        assert!(told.contains("`sysctl -w net.ipv6.conf.eth1/5.accept_ra=2`"), "{told}");

        let (set, failed) = set_under(root.path(), &findings, true, &root.path().join("run"));
        assert_eq!((set.len(), failed.len()), (3, 0));
        let value = |path: &str| fs::read_to_string(root.path().join(SYSCTLS).join(path)).unwrap();
        assert_eq!(value("ipv6/conf/eth0/accept_ra"), "2");
        assert_eq!(value("ipv6/conf/eth1.5/accept_ra"), "2");
        assert_eq!(check_under(root.path(), &[Family::V6]).unwrap(), []);
    }

    #[test]
    fn forwarding_stays_off_where_it_would_cost_the_default_route() {
        let root = settings(&[("ipv6/conf/all/forwarding", "0"), ("ipv6/conf/eth0/accept_ra", "1")]);
        routes(&root, &[("eth0", "00450003")]);
        let findings = check_under(root.path(), &[Family::V6]).unwrap();
        fs::remove_dir_all(root.path().join(SYSCTLS).join("ipv6/conf/eth0")).unwrap();
        let (set, failed) = set_under(root.path(), &findings, true, &root.path().join("run"));
        assert_eq!(set, [] as [&Finding; 0]);
        let failed: Vec<_> = failed.iter().map(|(finding, _)| finding.name.as_str()).collect();
        assert_eq!(failed, ["net.ipv6.conf.eth0.accept_ra", IPV6_FORWARDING]);
    }

    #[test]
    fn only_served_families_count() {
        let root = settings(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "0")]);
        assert_eq!(check_under(root.path(), &[Family::V4]).unwrap(), []);
    }
}
