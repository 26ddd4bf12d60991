//! Strict filters of source addresses (`rp_filter`) on links where packets of services come in by another
//! way than the kernel would answer them.
//!
//! The kernel asks of each packet by which link it would answer it. When it does, the packet has been
//! translated already: it is one from a client to a pod.

use std::{collections::BTreeSet, io, path::Path};

use futures::TryStreamExt as _;
use netlink_packet_route::rule::{RuleAction, RuleAttribute};
use rtnetlink::IpVersion;

use super::{Consent, Finding, PROC, SYSCTLS, Severity, read, swap_separators};
use crate::kernel::{
    links::{Link, Role},
    netlink::{Connection, within},
};

/// Where this network namespace has its IPv4 routes of the table `main`.
const IPV4_ROUTES: &str = "net/route";

/// What of the node's IPv4 routing decides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Routing {
    /// Pods of other nodes are behind a tunnel.
    has_tunnel: bool,
    /// Rules lead to other tables than the kernel's own.
    has_rules: bool,
    /// The links by which the table `main` has default routes.
    default_links: BTreeSet<String>,
}

/// Looks at the filters of these links, which are all uplinks and tunnels, where IPv4 is served.
pub async fn check_links(links: &[Link]) -> io::Result<Vec<Finding>> {
    let proc = Path::new(PROC);
    let routing = Routing {
        has_tunnel: links.iter().any(|link| link.role == Role::Tunnel),
        has_rules: has_rules().await?,
        default_links: default_links(&read(&proc.join(IPV4_ROUTES))?.unwrap_or_default()),
    };
    links
        .iter()
        .filter_map(|link| check_link(proc, link, &routing).transpose())
        .collect()
}

/// The tables that there are without anybody's rules: default, main, local.
fn is_of_the_kernel(table: u32) -> bool {
    matches!(table, 253..=255)
}

async fn has_rules() -> io::Result<bool> {
    let connection = Connection::open(&[])?;
    let request = connection.handle.rule().get(IpVersion::V4);
    let rules: Vec<_> = within(request.execute().try_collect()).await?;
    Ok(rules.iter().any(|rule| {
        let table = rule.attributes.iter().find_map(|attribute| match attribute {
            RuleAttribute::Table(table) => Some(*table),
            _ => None,
        });
        let table = table.unwrap_or_else(|| rule.header.table.into());
        rule.header.action == RuleAction::ToTable && !is_of_the_kernel(table)
    }))
}

/// The links of default routes in `/proc/net/route`.
fn default_links(routes: &str) -> BTreeSet<String> {
    let links = routes.lines().skip(1).filter_map(|route| {
        let fields: Vec<&str> = route.split_ascii_whitespace().collect();
        let [link, "00000000", _, _, _, _, _, "00000000", ..] = fields[..] else {
            return None;
        };
        Some(link.to_owned())
    });
    links.collect()
}

fn check_link(proc: &Path, link: &Link, routing: &Routing) -> io::Result<Option<Finding>> {
    let settings = proc.join(SYSCTLS).join("ipv4/conf");
    let of = |link: &str, name: &str| read(&settings.join(link).join(name));
    // The larger of the two counts; what has no number is no setting of these.
    let larger = |name| -> io::Result<u32> {
        let values = [of("all", name)?, of(&link.name, name)?];
        Ok(values
            .into_iter()
            .flatten()
            .filter_map(|value| value.parse().ok())
            .max()
            .unwrap_or(0))
    };
    if larger("rp_filter")? != 1 {
        return Ok(None);
    }
    let found = |wanted, reason| {
        Some(Finding {
            name: format!("net.ipv4.conf.{}.rp_filter", swap_separators(&link.name)),
            value: "1".to_owned(),
            wanted,
            severity: Severity::Problem,
            consent: Consent::Asked,
            reason,
        })
    };
    let is_default = routing.default_links.contains(&link.name);
    Ok(match link.role {
        Role::Tunnel => found(
            Some("2"),
            "unless what pods send to nodes is masqueraded, a pod that dials another node's NodePort is answered \
             by this tunnel from that node's address, which is not behind it, and the answer is dropped",
        ),
        Role::Uplink if is_default && routing.has_tunnel => found(
            Some("2"),
            "unless what pods send to nodes is masqueraded, a pod of another node that dials a NodePort here comes \
             by this uplink from an address that is behind a tunnel, and is dropped",
        ),
        // With marks that count for the filter too, whoever sets them has seen to it.
        Role::Uplink if routing.has_rules && !is_default && larger("src_valid_mark")? == 0 => found(
            None,
            "the table main has no default route by this uplink, and rules that choose another table by the \
             node's address do not apply to what is on its way to a pod: clients of services from beyond \
             this link's own network are dropped. Have rules choose by a mark of the connection, and set \
             src_valid_mark of this link to 1; or 2 lets clients in, whose answers leave by the table main",
        ),
        Role::Pod | Role::Uplink => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn settings(values: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, value) in values {
            let path = root.path().join(SYSCTLS).join("ipv4/conf").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        root
    }

    fn link(name: &str, role: Role) -> Link {
        Link {
            index: 7,
            name: name.to_owned(),
            role,
            is_ip_only: false,
            is_by_rule: false,
            bridge: None,
        }
    }

    fn routing(has_rules: bool, default_links: &[&str]) -> Routing {
        Routing {
            has_tunnel: false,
            has_rules,
            default_links: default_links.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn a_strict_tunnel_is_named_with_what_to_do() {
        for (all, own, is_named) in [
            ("0", "1", true),
            ("1", "0", true),
            ("1", "2", false),
            ("2", "1", false),
            ("0", "0", false),
        ] {
            let root = settings(&[("all/rp_filter", all), ("vx0.1/rp_filter", own)]);
            let found = check_link(root.path(), &link("vx0.1", Role::Tunnel), &routing(false, &[])).unwrap();
            assert_eq!(found.is_some(), is_named, "all {all}, its own {own}");
            if let Some(finding) = found {
                let text = finding.to_string();
                assert!(text.contains("`sysctl -w net.ipv4.conf.vx0/1.rp_filter=2`"), "{text}");
            }
        }
    }

    #[test]
    fn an_uplink_is_named_where_rules_for_the_nodes_address_do_not_help() {
        let eth1 = link("eth1", Role::Uplink);
        let named = |values: &[(&str, &str)], routing: &Routing| {
            let root = settings(values);
            check_link(root.path(), &eth1, routing)
                .unwrap()
                .map(|finding| finding.name)
        };
        let strict = [("all/rp_filter", "1"), ("eth1/src_valid_mark", "0")];
        let name = Some("net.ipv4.conf.eth1.rp_filter".to_owned());
        assert_eq!(named(&strict, &routing(true, &["eth0"])), name);
        assert_eq!(
            named(&strict, &routing(true, &["eth0", "eth1"])),
            None,
            "main leads there"
        );
        assert_eq!(
            named(&strict, &routing(false, &["eth0"])),
            None,
            "nobody is to be answered there"
        );
        let by_mark = [("all/rp_filter", "1"), ("eth1/src_valid_mark", "1")];
        assert_eq!(named(&by_mark, &routing(true, &["eth0"])), None);
        assert_eq!(named(&[("eth1/rp_filter", "2")], &routing(true, &["eth0"])), None);
    }

    #[test]
    fn the_uplink_that_other_nodes_are_behind_is_named_where_their_pods_are_behind_a_tunnel() {
        let root = settings(&[("all/rp_filter", "1")]);
        let beside_a_tunnel = Routing {
            has_tunnel: true,
            ..routing(false, &["eth0"])
        };
        let is_named = |name: &str, routing: &Routing| {
            let found = check_link(root.path(), &link(name, Role::Uplink), routing).unwrap();
            found.is_some_and(|finding| finding.wanted == Some("2"))
        };
        assert!(is_named("eth0", &beside_a_tunnel));
        assert!(!is_named("eth1", &beside_a_tunnel));
        assert!(!is_named("eth0", &routing(false, &["eth0"])));
    }

    #[test]
    fn default_routes_are_told_from_others() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t010012AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth1\t000013AC\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            eth2\t00000000\t010012AC\t0003\t0\t0\t0\t00000080\t0\t0\t0\n";
        assert_eq!(default_links(routes), BTreeSet::from(["eth0".to_owned()]));
    }
}
