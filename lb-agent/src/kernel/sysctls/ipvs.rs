//! What IPVS itself needs.
//!
//! | setting | value | why |
//! |---|---|---|
//! | `net.ipv4.vs.conntrack` | 1 | connection tracking does not see packets of IPVS otherwise, so that nothing is masqueraded |
//! | `net.ipv4.vs.conn_reuse_mode` | 1 | a client that comes again from a port of a connection which is over gets a backend anew, not the one of then, which may be gone. (Before kernel 5.9 that cost its first packet and so a second, and kube-proxy set 0: <https://github.com/kubernetes/kubernetes/issues/93297>. No kernel that is supported here is older) |
//! | `net.ipv4.vs.expire_nodest_conn` | 1 | a connection whose backend has been taken away ends with its next packet, instead of being silently dropped until it times out |
//! | `net.ipv4.vs.expire_quiescent_template` | 1 | session affinity to a backend that has the weight 0 ends: it is about to go |
//! | `net.ipv4.conf.all.arp_ignore`, `arp_announce` | 1, 2 | with `strict_arp` only: the node does not say by ARP that it has the addresses of services, which others in its network (MetalLB) tell of |
//! | `net.bridge.bridge-nf-call-iptables`, `-ip6tables` | 1 | pods on one bridge answer each other past IPVS otherwise, which translates what is routed ([`check_bridges`]) |

use std::{io, path::Path};

use super::{Consent, Finding, PROC, SYSCTLS, Severity, path, read};
use crate::{desired::Family, kernel::links::Link};

/// What the value of a setting is called that there is not.
const NOT_THERE: &str = "not there";

/// A setting that has to have a value.
struct Need {
    name: &'static str,
    wanted: &'static str,
    /// What goes wrong without.
    reason: &'static str,
    /// The same, and what brings the setting, where it is not there.
    absent: &'static str,
}

impl Need {
    const fn of_every_kernel(name: &'static str, wanted: &'static str, reason: &'static str) -> Self {
        Self {
            name,
            wanted,
            reason,
            absent: reason,
        }
    }
}

const OF_IPVS: [Need; 4] = [
    Need {
        name: "net.ipv4.vs.conntrack",
        wanted: "1",
        reason: "connection tracking does not see packets of IPVS, so that no client is masqueraded",
        absent: "the kernel is built without CONFIG_IP_VS_NFCT: connection tracking does not see packets of IPVS, so \
                 that no client is masqueraded",
    },
    Need::of_every_kernel(
        "net.ipv4.vs.conn_reuse_mode",
        "1",
        "a client that uses a port again gets the backend of the connection before, also if that is gone",
    ),
    Need::of_every_kernel(
        "net.ipv4.vs.expire_nodest_conn",
        "1",
        "packets of connections whose backend is gone are dropped without a word until they time out",
    ),
    Need::of_every_kernel(
        "net.ipv4.vs.expire_quiescent_template",
        "1",
        "session affinity goes on to backends that are about to go",
    ),
];

const STRICT_ARP: [Need; 2] = [
    Need::of_every_kernel(
        "net.ipv4.conf.all.arp_ignore",
        "1",
        "the node answers ARP requests for addresses of services by each of its links",
    ),
    Need::of_every_kernel(
        "net.ipv4.conf.all.arp_announce",
        "2",
        "the node may ask for others by ARP from an address of a service",
    ),
];

const BRIDGED_IPV4: Need = Need {
    name: "net.bridge.bridge-nf-call-iptables",
    wanted: "1",
    reason: "a pod that dials a service whose backend is on the same bridge is answered past IPVS, from the backend's \
             address, and takes that for nothing of its own",
    absent: "without br_netfilter (`modprobe br_netfilter`) a pod that dials a service whose backend is on the same \
             bridge is answered past IPVS, from the backend's address, and takes that for nothing of its own",
};

const BRIDGED_IPV6: Need = Need {
    name: "net.bridge.bridge-nf-call-ip6tables",
    reason: "a pod that dials an IPv6 service whose backend is on the same bridge is answered past IPVS, from the \
             backend's address, and takes that for nothing of its own",
    ..BRIDGED_IPV4
};

/// Looks at the settings that the IPVS plane is right with only, and at those of ARP where they are asked for.
/// All of them may be set without further consent: the first are IPVS's own, the others the user's wish.
///
/// # Errors
/// `NotFound` where IPVS is not in the kernel.
pub fn check_ipvs(strict_arp: bool) -> io::Result<Vec<Finding>> {
    check_ipvs_under(Path::new(PROC), strict_arp)
}

fn check_ipvs_under(proc: &Path, strict_arp: bool) -> io::Result<Vec<Finding>> {
    if !proc.join(SYSCTLS).join("ipv4/vs").is_dir() {
        let reason = "there are no sysctls net.ipv4.vs: IPVS is not in the kernel (`modprobe ip_vs`)";
        return Err(io::Error::new(io::ErrorKind::NotFound, reason));
    }
    let arp = STRICT_ARP.iter().filter(|_| strict_arp);
    OF_IPVS
        .iter()
        .chain(arp)
        .filter_map(|need| check_need(proc, need, Consent::Given).transpose())
        .collect()
}

/// Looks at whether what bridges carry between pods of one node passes IPVS, where pods are on bridges.
///
/// # Errors
/// Where a setting cannot be read.
pub fn check_bridges(links: &[Link], families: &[Family]) -> io::Result<Vec<Finding>> {
    check_bridges_under(Path::new(PROC), links, families)
}

fn check_bridges_under(proc: &Path, links: &[Link], families: &[Family]) -> io::Result<Vec<Finding>> {
    if links.iter().all(|link| link.bridge.is_none()) {
        return Ok(Vec::new());
    }
    let need = |family: &Family| match family {
        Family::V4 => &BRIDGED_IPV4,
        Family::V6 => &BRIDGED_IPV6,
    };
    families
        .iter()
        .filter_map(|family| check_need(proc, need(family), Consent::Asked).transpose())
        .collect()
}

fn check_need(proc: &Path, need: &Need, consent: Consent) -> io::Result<Option<Finding>> {
    let (value, wanted, reason) = match read(&path(proc, need.name))? {
        Some(value) if value == need.wanted => return Ok(None),
        Some(value) => (value, Some(need.wanted), need.reason),
        None => (NOT_THERE.to_owned(), None, need.absent),
    };
    Ok(Some(Finding {
        name: need.name.to_owned(),
        value,
        wanted,
        severity: Severity::Problem,
        consent,
        reason,
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::kernel::{
        links::{Bridge, Role},
        sysctls::set_under,
    };

    const BOTH: [Family; 2] = [Family::V4, Family::V6];

    fn proc(settings: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in settings {
            let path = path(root.path(), name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        root
    }

    /// As a kernel has them that nobody has touched.
    const FRESH: [(&str, &str); 6] = [
        ("net.ipv4.vs.conntrack", "0"),
        ("net.ipv4.vs.conn_reuse_mode", "1"),
        ("net.ipv4.vs.expire_nodest_conn", "0"),
        ("net.ipv4.vs.expire_quiescent_template", "0"),
        ("net.ipv4.conf.all.arp_ignore", "0"),
        ("net.ipv4.conf.all.arp_announce", "0"),
    ];

    fn names(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.name.as_str()).collect()
    }

    #[test]
    fn settings_of_ipvs_are_set_without_being_asked_for_and_those_of_arp_where_the_user_wants_them() {
        let of_ipvs = [
            "net.ipv4.vs.conntrack",
            "net.ipv4.vs.expire_nodest_conn",
            "net.ipv4.vs.expire_quiescent_template",
        ];
        let of_arp = ["net.ipv4.conf.all.arp_ignore", "net.ipv4.conf.all.arp_announce"];
        for (strict_arp, expected) in [(false, of_ipvs.to_vec()), (true, [&of_ipvs[..], &of_arp].concat())] {
            let proc = proc(&FRESH);
            let findings = check_ipvs_under(proc.path(), strict_arp).unwrap();
            assert_eq!(names(&findings), expected);
            let (set, failed) = set_under(proc.path(), &findings, false, &proc.path().join("run"));
            assert_eq!((set.len(), failed.len()), (expected.len(), 0));
            assert_eq!(check_ipvs_under(proc.path(), strict_arp).unwrap(), []);
        }
    }

    #[test]
    fn strict_arp_answers_for_the_links_own_addresses_and_asks_from_the_best() {
        let proc = proc(&FRESH);
        let findings = check_ipvs_under(proc.path(), true).unwrap();
        set_under(proc.path(), &findings, false, &proc.path().join("run"));
        // Of ip-sysctl in the kernel's documentation.
        for (name, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
            let path = path(proc.path(), &format!("net.ipv4.conf.all.{name}"));
            assert_eq!(read(&path).unwrap().as_deref(), Some(value), "{name}");
        }
    }

    #[test]
    fn a_kernel_without_ipvs_is_told_what_to_load() {
        let error = check_ipvs_under(proc(&[("net.ipv4.ip_forward", "1")]).path(), false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("modprobe ip_vs"), "{error}");
    }

    #[test]
    fn a_setting_that_the_kernel_was_built_without_is_named() {
        // Without CONFIG_IP_VS_NFCT.
        let proc = proc(&FRESH[1..]);
        let findings = check_ipvs_under(proc.path(), false).unwrap();
        let said = findings[0].to_string();
        assert!(said.starts_with("net.ipv4.vs.conntrack is not there: "), "{said}");
        let (set, _) = set_under(proc.path(), &findings[..1], true, &proc.path().join("run"));
        assert_eq!(set, [] as [&Finding; 0]);
    }

    fn pods_link(bridge: Option<Bridge>) -> Link {
        Link {
            index: 5,
            name: "veth5".to_owned(),
            role: Role::Pod,
            is_ip_only: false,
            is_by_rule: false,
            bridge,
        }
    }

    #[test]
    fn bridges_matter_where_there_are_some_and_are_set_where_the_user_allows() {
        let settings = [
            ("net.bridge.bridge-nf-call-iptables", "0"),
            ("net.bridge.bridge-nf-call-ip6tables", "0"),
        ];
        let proc = proc(&settings);
        let bridge = Bridge {
            index: 3,
            has_only_pods: true,
        };
        let links = [pods_link(None), pods_link(Some(bridge))];
        assert_eq!(check_bridges_under(proc.path(), &links[..1], &BOTH).unwrap(), []);
        let findings = check_bridges_under(proc.path(), &links, &[Family::V6]).unwrap();
        assert_eq!(names(&findings), ["net.bridge.bridge-nf-call-ip6tables"]);
        let findings = check_bridges_under(proc.path(), &links, &BOTH).unwrap();
        assert_eq!(names(&findings), settings.map(|(name, _)| name));
        let said = findings[0].to_string();
        let todo = "`sysctl -w net.bridge.bridge-nf-call-iptables=1`, or start with --set-sysctls";
        assert!(said.contains(todo), "{said}");

        let run_dir = proc.path().join("run");
        let (set, failed) = set_under(proc.path(), &findings, false, &run_dir);
        assert_eq!((set.len(), failed.len()), (0, 0));
        let (set, failed) = set_under(proc.path(), &findings, true, &run_dir);
        assert_eq!((set.len(), failed.len()), (2, 0));
        assert_eq!(check_bridges_under(proc.path(), &links, &BOTH).unwrap(), []);
    }

    #[test]
    fn bridges_without_their_module_are_told_what_to_load() {
        let bridge = Bridge {
            index: 3,
            has_only_pods: false,
        };
        let proc = proc(&FRESH);
        let findings = check_bridges_under(proc.path(), &[pods_link(Some(bridge))], &[Family::V4]).unwrap();
        let said = findings[0].to_string();
        assert!(
            said.contains("is not there") && said.contains("`modprobe br_netfilter`"),
            "{said}"
        );
    }
}
