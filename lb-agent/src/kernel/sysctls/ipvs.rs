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

/// Name, value, and what goes wrong without.
type Need = (&'static str, &'static str, &'static str);

const OF_IPVS: [Need; 4] = [
    (
        "net.ipv4.vs.conntrack",
        "1",
        "connection tracking does not see packets of IPVS, so that no client is masqueraded",
    ),
    (
        "net.ipv4.vs.conn_reuse_mode",
        "1",
        "a client that uses a port again gets the backend of the connection before, also if that is gone",
    ),
    (
        "net.ipv4.vs.expire_nodest_conn",
        "1",
        "packets of connections whose backend is gone are dropped without a word until they time out",
    ),
    (
        "net.ipv4.vs.expire_quiescent_template",
        "1",
        "session affinity goes on to backends that are about to go",
    ),
];

const STRICT_ARP: [Need; 2] = [
    (
        "net.ipv4.conf.all.arp_ignore",
        "1",
        "the node answers ARP requests for addresses of services by each of its links",
    ),
    (
        "net.ipv4.conf.all.arp_announce",
        "2",
        "the node may ask for others by ARP from an address of a service",
    ),
];

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
        Family::V4 => (
            "net.bridge.bridge-nf-call-iptables",
            "1",
            "a pod that dials a service whose backend is on the same bridge gets its answer past IPVS, from the \
             backend's address, and refuses it",
        ),
        Family::V6 => (
            "net.bridge.bridge-nf-call-ip6tables",
            "1",
            "a pod that dials an IPv6 service whose backend is on the same bridge gets its answer past IPVS, from \
             the backend's address, and refuses it",
        ),
    };
    families
        .iter()
        .filter_map(|family| check_need(proc, &need(family), Consent::Asked).transpose())
        .collect()
}

fn check_need(proc: &Path, need: &Need, consent: Consent) -> io::Result<Option<Finding>> {
    let (name, wanted, reason) = *need;
    let (value, wanted) = match read(&path(proc, name))? {
        Some(value) if value == wanted => return Ok(None),
        Some(value) => (value, Some(wanted)),
        None => (NOT_THERE.to_owned(), None),
    };
    Ok(Some(Finding {
        name: name.to_owned(),
        value,
        wanted,
        severity: Severity::Problem,
        consent,
        reason,
    }))
}
