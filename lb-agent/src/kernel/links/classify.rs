//! What a link is to us: a function of what the kernel says about it.

use super::{PodLinks, Role};

/// What the kernel says about a link, as far as it matters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Kind of a virtual link (`IFLA_INFO_KIND`); a card has none.
    pub kind: Option<String>,
    /// Packets carry an Ethernet header.
    pub is_ethernet: bool,
    /// Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// Packets carry no header below IP.
    pub is_ip_only: bool,
    /// The loopback link.
    pub is_loopback: bool,
    /// Index of the bridge, bond or other link that this one is a port of.
    pub master: Option<u32>,
    /// Kind of that (`IFLA_INFO_SLAVE_KIND`), where it has ports of a kind.
    pub master_kind: Option<String>,
    /// Index of the link at the other end, or below (`IFLA_LINK`).
    pub peer: Option<u32>,
    /// That one is in another network namespace (`IFLA_LINK_NETNSID`).
    pub is_peer_elsewhere: bool,
}

impl Facts {
    /// One end of a pair of links.
    pub(super) fn is_of_pair(&self) -> bool {
        matches!(self.kind.as_deref(), Some("veth" | "netkit"))
    }

    /// The index of the bridge that it is a port of.
    pub(super) fn bridge(&self) -> Option<u32> {
        self.master.filter(|_| self.master_kind.as_deref() == Some("bridge"))
    }

    /// No packet of anybody comes in there.
    pub(super) fn leads_nowhere(&self) -> bool {
        self.is_loopback || matches!(self.kind.as_deref(), Some("dummy" | "ifb" | "nlmon" | "vrf" | "vcan"))
    }
}

/// The role of a link that no rule names, by the table in [the module's documentation](super).
/// `leads_out`: it has an address of the Node, or a default route.
#[must_use]
pub fn classify(facts: &Facts, leads_out: bool) -> Option<Role> {
    if facts.leads_nowhere() {
        return None;
    }
    let kind = facts.kind.as_deref();
    if leads_out {
        return Some(Role::Uplink);
    }
    // A vrf routes what its ports take in, and the ports stay what they are.
    let is_port = facts.master.is_some() && facts.master_kind.as_deref() != Some("vrf");
    match kind {
        Some(kind) if is_tunnel(kind) => Some(Role::Tunnel),
        Some("tun") if facts.is_ip_only => Some(Role::Tunnel),
        Some("veth" | "netkit") => facts.is_peer_elsewhere.then_some(Role::Pod),
        _ if is_port => None,
        None => (facts.is_ethernet || facts.is_ip_only).then_some(Role::Uplink),
        Some("bond" | "team" | "vlan" | "macsec") => Some(Role::Uplink),
        Some(_) => None,
    }
}

/// The role of a link that [`classify`] gives a role, or none, where pods' links are known by something
/// else than their kind. `master`: the name of what the link is a port of.
pub(super) fn tell_pods(pods: &PodLinks, facts: &Facts, master: Option<&str>, by_kind: Option<Role>) -> Option<Role> {
    let is_pod = match pods {
        PodLinks::ByKind => return by_kind,
        // A card, or a tunnel, in the bridge of the pods brings in clients from elsewhere.
        PodLinks::PortsOf(bridge) => {
            let may_be_pod = by_kind == Some(Role::Pod) || facts.kind.as_deref() == Some("tun") && by_kind.is_none();
            master == Some(bridge) && may_be_pod
        }
        PodLinks::Named { prefix } => !facts.is_loopback && facts.name.starts_with(prefix),
    };
    match by_kind {
        _ if is_pod => Some(Role::Pod),
        // Whatever is behind it, it is not known as a pod.
        Some(Role::Pod) => Some(Role::Uplink),
        other => other,
    }
}

fn is_tunnel(kind: &str) -> bool {
    matches!(
        kind,
        "vxlan"
            | "geneve"
            | "gre"
            | "gretap"
            | "ip6gre"
            | "ip6gretap"
            | "erspan"
            | "ip6erspan"
            | "ipip"
            | "sit"
            | "ip6tnl"
            | "vti"
            | "vti6"
            | "xfrm"
            | "wireguard"
            | "bareudp"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(kind: &str) -> Facts {
        Facts {
            index: 7,
            name: "x".to_owned(),
            kind: (!kind.is_empty()).then(|| kind.to_owned()),
            is_ethernet: true,
            ..Facts::default()
        }
    }

    fn port_of(master: &str, kind: &str) -> Facts {
        Facts {
            master: Some(3),
            master_kind: (!master.is_empty()).then(|| master.to_owned()),
            ..link(kind)
        }
    }

    fn elsewhere(facts: Facts) -> Facts {
        Facts {
            peer: Some(2),
            is_peer_elsewhere: true,
            ..facts
        }
    }

    fn ip_only(kind: &str) -> Facts {
        Facts {
            is_ethernet: false,
            is_ip_only: true,
            ..link(kind)
        }
    }

    #[test]
    fn links_that_lead_nowhere() {
        let loopback = Facts {
            is_loopback: true,
            ..link("")
        };
        let cases = [
            ("loopback", loopback),
            ("veth within the node", link("veth")),
            ("bridge", link("bridge")),
            ("card in a bridge", port_of("bridge", "")),
            ("card in a bond", port_of("bond", "")),
            ("card in Open vSwitch", port_of("", "")),
            ("bond in a bridge", port_of("bridge", "bond")),
            ("macvlan", link("macvlan")),
            ("ipvlan", link("ipvlan")),
            ("tap", link("tun")),
            ("unknown", link("batadv")),
            (
                "CAN bus",
                Facts {
                    is_ethernet: false,
                    ..link("")
                },
            ),
        ];
        for (name, facts) in cases {
            assert_eq!(classify(&facts, false), None, "{name}");
        }
    }

    #[test]
    fn links_that_never_take_part_do_not_with_an_address_either() {
        for kind in ["dummy", "ifb", "nlmon", "vrf", "vcan"] {
            assert_eq!(classify(&link(kind), true), None, "{kind}");
        }
        let loopback = Facts {
            is_loopback: true,
            ..link("")
        };
        assert_eq!(classify(&loopback, true), None);
    }

    #[test]
    fn uplinks() {
        let cases = [
            ("card", link(""), false),
            ("card in a vrf", port_of("vrf", ""), false),
            ("bond", link("bond"), false),
            ("vlan of a card in a bridge", link("vlan"), false),
            ("modem", ip_only(""), false),
            ("bridge with the node's address", link("bridge"), true),
            ("macvlan with the node's address", link("macvlan"), true),
            ("veth of a node that is a container", elsewhere(link("veth")), true),
            ("VPN with the default route", ip_only("wireguard"), true),
            (
                "port of Open vSwitch with the node's address",
                link("openvswitch"),
                true,
            ),
        ];
        for (name, facts, leads_out) in cases {
            assert_eq!(classify(&facts, leads_out), Some(Role::Uplink), "{name}");
        }
    }

    #[test]
    fn tunnels() {
        for kind in ["vxlan", "geneve", "gretap", "ip6gretap"] {
            assert_eq!(classify(&link(kind), false), Some(Role::Tunnel), "{kind}");
        }
        for kind in [
            "gre",
            "ip6gre",
            "ipip",
            "sit",
            "ip6tnl",
            "wireguard",
            "vti",
            "xfrm",
            "tun",
        ] {
            assert_eq!(classify(&ip_only(kind), false), Some(Role::Tunnel), "{kind}");
        }
        assert_eq!(classify(&port_of("bridge", "vxlan"), false), Some(Role::Tunnel));
    }

    #[test]
    fn pods() {
        for kind in ["veth", "netkit"] {
            assert_eq!(classify(&elsewhere(link(kind)), false), Some(Role::Pod), "{kind}");
            let port = elsewhere(port_of("bridge", kind));
            assert_eq!(classify(&port, false), Some(Role::Pod), "{kind} in a bridge");
        }
    }

    #[test]
    fn where_pods_are_the_ports_of_a_bridge_others_come_from_afar() {
        let pods = PodLinks::PortsOf("cbr0".to_owned());
        let tap = link("tun");
        let table = [
            (
                "pod in the bridge",
                elsewhere(port_of("bridge", "veth")),
                Some("cbr0"),
                Some(Role::Pod),
            ),
            ("VM in the bridge", tap.clone(), Some("cbr0"), Some(Role::Pod)),
            ("VM by itself", tap, None, None),
            (
                "pod in another bridge",
                elsewhere(port_of("bridge", "veth")),
                Some("br0"),
                Some(Role::Uplink),
            ),
            ("pod in no bridge", elsewhere(link("netkit")), None, Some(Role::Uplink)),
            ("card in the bridge", port_of("bridge", ""), Some("cbr0"), None),
            (
                "tunnel in the bridge",
                port_of("bridge", "vxlan"),
                Some("cbr0"),
                Some(Role::Tunnel),
            ),
            ("card", link(""), None, Some(Role::Uplink)),
        ];
        for (name, facts, master, expected) in table {
            let by_kind = classify(&facts, false);
            assert_eq!(tell_pods(&pods, &facts, master, by_kind), expected, "{name}");
        }
    }

    #[test]
    fn where_pods_are_links_of_a_name_the_kind_does_not_matter() {
        let pods = PodLinks::Named {
            prefix: "cali".to_owned(),
        };
        let named = |name: &str, facts: Facts| Facts {
            name: name.to_owned(),
            ..facts
        };
        let table = [
            (named("cali12", elsewhere(link("veth"))), Some(Role::Pod)),
            (named("cali", link("tun")), Some(Role::Pod)),
            (named("veth12", elsewhere(link("veth"))), Some(Role::Uplink)),
            (named("mycali", link("tun")), None),
            (named("eth0", link("")), Some(Role::Uplink)),
            (named("vxlan.calico", link("vxlan")), Some(Role::Tunnel)),
        ];
        for (facts, expected) in table {
            let by_kind = classify(&facts, false);
            assert_eq!(tell_pods(&pods, &facts, None, by_kind), expected, "{}", facts.name);
        }
    }
}
