//! What is known of all links, and what of it has been told.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use super::{
    Bridge, Facts, Link, LinkEvent, LinkRules, Role,
    classify::{classify, tell_pods},
};
use crate::kernel::dummy;

/// The links.
#[derive(Debug, Default)]
pub(super) struct LinkTable {
    rules: LinkRules,
    node_addresses: BTreeSet<IpAddr>,
    links: BTreeMap<u32, Facts>,
    addresses: HashMap<u32, BTreeSet<IpAddr>>,
    default_routes: BTreeSet<u32>,
    /// The addresses of the Node are known, or not waited for any more.
    knows_node: bool,
    /// What was last told of each link.
    told: BTreeMap<u32, Option<Link>>,
    /// Ports by which others than pods come into a bridge, with the bridge.
    strangers: BTreeMap<u32, u32>,
}

/// What a dump says.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// All links.
    pub(super) links: Vec<Facts>,
    /// All addresses, with the index of their link.
    pub(super) addresses: Vec<(u32, IpAddr)>,
    /// The links that default routes lead through.
    pub(super) default_routes: BTreeSet<u32>,
}

impl LinkTable {
    /// No link known yet, and the addresses of the Node as far as they are.
    pub(super) fn new(rules: LinkRules, node_addresses: Option<BTreeSet<IpAddr>>) -> Self {
        Self {
            rules,
            knows_node: node_addresses.is_some(),
            node_addresses: node_addresses.unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Whether no link waits for the addresses of the Node.
    pub(super) const fn knows_node(&self) -> bool {
        self.knows_node
    }

    /// Waits no more for the addresses of the Node.
    pub(super) fn give_up_on_node(&mut self) -> Vec<LinkEvent> {
        self.knows_node = true;
        self.tell_all()
    }

    /// Everything anew: at the start, and after messages were lost. Tells of every link, also of
    /// those that take no part and of those that have not changed: what was programmed before the
    /// start is not known here, and a lost message may have told of another link that has the index
    /// now.
    pub(super) fn reset(&mut self, snapshot: Snapshot) -> Vec<LinkEvent> {
        self.links = snapshot.links.into_iter().map(|facts| (facts.index, facts)).collect();
        self.addresses.clear();
        for (index, address) in snapshot.addresses {
            self.addresses.entry(index).or_default().insert(address);
        }
        self.default_routes = snapshot.default_routes;
        self.strangers.clear();
        let mut gone: Vec<LinkEvent> = Vec::new();
        for (index, told) in std::mem::take(&mut self.told) {
            if told.is_some() && !self.links.contains_key(&index) {
                gone.push(LinkEvent::Gone { index });
            }
        }
        let events = self.tell_all();
        gone.into_iter().chain(events).collect()
    }

    /// A link came or changed.
    pub(super) fn set_link(&mut self, facts: Facts) -> Vec<LinkEvent> {
        let index = facts.index;
        self.links.insert(index, facts);
        self.tell(index)
    }

    /// A link went.
    pub(super) fn remove_link(&mut self, index: u32) -> Vec<LinkEvent> {
        self.links.remove(&index);
        self.addresses.remove(&index);
        self.default_routes.remove(&index);
        let was_told = self.told.remove(&index).flatten();
        let gone = was_told.map(|_| LinkEvent::Gone { index });
        let others = self.tell(index);
        gone.into_iter().chain(others).collect()
    }

    /// A link has an address.
    pub(super) fn add_address(&mut self, index: u32, address: IpAddr) -> Vec<LinkEvent> {
        self.addresses.entry(index).or_default().insert(address);
        self.tell(index)
    }

    /// A link has an address no more.
    pub(super) fn remove_address(&mut self, index: u32, address: IpAddr) -> Vec<LinkEvent> {
        if let Some(addresses) = self.addresses.get_mut(&index) {
            addresses.remove(&address);
        }
        self.tell(index)
    }

    /// Default routes lead through these links.
    pub(super) fn set_default_routes(&mut self, links: BTreeSet<u32>) -> Vec<LinkEvent> {
        let changed: Vec<u32> = links.symmetric_difference(&self.default_routes).copied().collect();
        self.default_routes = links;
        changed.into_iter().flat_map(|index| self.tell(index)).collect()
    }

    /// Whether a default route leads through a link, as far as is known.
    pub(super) fn has_default_route(&self, index: u32) -> bool {
        self.default_routes.contains(&index)
    }

    /// The Node has these addresses.
    pub(super) fn set_node_addresses(&mut self, addresses: BTreeSet<IpAddr>) -> Vec<LinkEvent> {
        self.knows_node = true;
        self.node_addresses = addresses;
        self.tell_all()
    }

    /// A link of the node that may change with the coming, moving or going of `facts`: its peer. The
    /// kernel tells of the one that moves, and not of the one whose peer moves. Of a new pair, only
    /// the second is told with its peer, so both sides are looked at.
    pub(super) fn peer_to_ask(&self, facts: &Facts) -> Option<u32> {
        if !facts.is_of_pair() {
            return None;
        }
        let named = facts.peer.filter(|_| !facts.is_peer_elsewhere);
        let named = named.filter(|peer| self.links.get(peer).is_some_and(Facts::is_of_pair));
        named.or_else(|| {
            let names_it =
                |other: &&Facts| other.is_of_pair() && !other.is_peer_elsewhere && other.peer == Some(facts.index);
            self.links.values().find(names_it).map(|other| other.index)
        })
    }

    /// Whether `facts` are new to the table.
    pub(super) fn is_new(&self, facts: &Facts) -> bool {
        !self.links.contains_key(&facts.index)
    }

    /// The Ethernet addresses of all links.
    pub(super) fn macs(&self) -> BTreeSet<[u8; 6]> {
        self.links.values().filter_map(|facts| facts.mac).collect()
    }

    /// Whether a link is an uplink, as last told.
    pub(super) fn is_uplink(&self, index: u32) -> bool {
        let told = self.told.get(&index).and_then(Option::as_ref);
        told.is_some_and(|link| link.role == Role::Uplink)
    }

    /// What is known of a link.
    pub(super) fn link(&self, index: u32) -> Option<&Facts> {
        self.links.get(&index)
    }

    fn tell_all(&mut self) -> Vec<LinkEvent> {
        let indices: Vec<u32> = self.links.keys().copied().collect();
        for index in &indices {
            self.sort_port(*index);
        }
        indices.into_iter().filter_map(|index| self.tell_one(index)).collect()
    }

    /// The events of what something that happened to a link changes: of itself, and of the other ports of a
    /// bridge if it is the first by which others than pods come in there, or was the last.
    fn tell(&mut self, index: u32) -> Vec<LinkEvent> {
        let changed = self.sort_port(index);
        let mut indices = vec![index];
        if !changed.is_empty() {
            let is_concerned = |facts: &&Facts| facts.bridge().is_some_and(|bridge| changed.contains(&bridge));
            let ports = self.links.values().filter(is_concerned).map(|facts| facts.index);
            indices.extend(ports.filter(|port| *port != index));
        }
        indices.into_iter().filter_map(|index| self.tell_one(index)).collect()
    }

    /// Notes by which bridge's port others than pods come in, if by this link. Returns the bridges that have got
    /// their first such port by it, or lost their last.
    fn sort_port(&mut self, index: u32) -> Vec<u32> {
        let stranger_of = self.links.get(&index).and_then(|facts| {
            let is_pod = !self.depends_on_node(facts) && self.role_of(facts) == Some(Role::Pod);
            facts.bridge().filter(|_| !is_pod && !facts.leads_nowhere())
        });
        let before = self.strangers.remove(&index);
        let changed = [before, stranger_of].into_iter().flatten();
        let changed: Vec<u32> = changed
            .filter(|bridge| before != stranger_of && self.has_only_pods(*bridge))
            .collect();
        self.strangers.extend(stranger_of.map(|bridge| (index, bridge)));
        changed
    }

    fn has_only_pods(&self, bridge: u32) -> bool {
        !self.strangers.values().any(|other| *other == bridge)
    }

    /// The event of a link that is not as it was last told.
    fn tell_one(&mut self, index: u32) -> Option<LinkEvent> {
        let facts = self.links.get(&index)?;
        if self.depends_on_node(facts) {
            return None;
        }
        let now = self.part_of(facts);
        if self.told.get(&index) == Some(&now) {
            return None;
        }
        let event = match &now {
            Some(link) => LinkEvent::Is(link.clone()),
            None => LinkEvent::Gone { index },
        };
        self.told.insert(index, now);
        Some(event)
    }

    /// Whether the Node's addresses, not yet known, may make an uplink of a link that looks like a
    /// pod's or like none. After a restart it would be the wrong program for a moment otherwise.
    fn depends_on_node(&self, facts: &Facts) -> bool {
        !self.knows_node
            && !self.default_routes.contains(&facts.index)
            && self.rules.role(&facts.name).is_none()
            && self.unnamed_role(facts, true) != self.unnamed_role(facts, false)
            && self
                .addresses
                .get(&facts.index)
                .is_some_and(|own| own.iter().any(may_be_the_nodes))
    }

    /// The role of a link that no rule names.
    fn unnamed_role(&self, facts: &Facts, leads_out: bool) -> Option<Role> {
        let master = facts.master.and_then(|index| self.links.get(&index));
        let master = master.map(|master| master.name.as_str());
        tell_pods(self.rules.pods(), facts, master, classify(facts, leads_out))
    }

    /// The role of a link.
    fn role_of(&self, facts: &Facts) -> Option<Role> {
        if !facts.is_ethernet && !facts.is_ip_only || dummy::holds_services(&facts.name) {
            // Whatever a rule says: no program of ours would find the IP header there, or nothing comes in.
            return None;
        }
        let leads_out = self.default_routes.contains(&facts.index)
            || self
                .addresses
                .get(&facts.index)
                .is_some_and(|own| !own.is_disjoint(&self.node_addresses));
        let by_rule = self.rules.role(&facts.name);
        by_rule.unwrap_or_else(|| self.unnamed_role(facts, leads_out))
    }

    /// The part that a link takes.
    fn part_of(&self, facts: &Facts) -> Option<Link> {
        self.role_of(facts).map(|role| Link {
            index: facts.index,
            name: facts.name.clone(),
            role,
            is_ip_only: facts.is_ip_only,
            is_by_rule: self.rules.role(&facts.name).is_some(),
            bridge: facts.bridge().map(|index| Bridge {
                index,
                has_only_pods: self.has_only_pods(index),
            }),
        })
    }
}

/// Every link has a link-local address, and no Node has one.
fn may_be_the_nodes(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::links::PodLinks;

    fn veth(index: u32, peer: u32, elsewhere: bool) -> Facts {
        Facts {
            index,
            name: format!("veth{index}"),
            kind: Some("veth".to_owned()),
            is_ethernet: true,
            peer: Some(peer),
            is_peer_elsewhere: elsewhere,
            ..Facts::default()
        }
    }

    fn is(index: u32, role: Role) -> LinkEvent {
        LinkEvent::Is(Link {
            index,
            name: format!("veth{index}"),
            role,
            is_ip_only: false,
            is_by_rule: false,
            bridge: None,
        })
    }

    /// A pod's link in a bridge.
    fn port(index: u32, bridge: u32) -> Facts {
        Facts {
            master: Some(bridge),
            master_kind: Some("bridge".to_owned()),
            ..veth(index, 2, true)
        }
    }

    /// As which that is told.
    fn in_bridge(index: u32, bridge: u32, has_only_pods: bool) -> LinkEvent {
        let bridge = Some(Bridge {
            index: bridge,
            has_only_pods,
        });
        match is(index, Role::Pod) {
            LinkEvent::Is(link) => LinkEvent::Is(Link { bridge, ..link }),
            gone => gone,
        }
    }

    /// Something else in a bridge: a card, where it is of no kind.
    fn other_port(index: u32, bridge: u32, kind: Option<&str>) -> Facts {
        Facts {
            kind: kind.map(str::to_owned),
            peer: None,
            is_peer_elsewhere: false,
            ..port(index, bridge)
        }
    }

    fn by_rule(event: LinkEvent) -> LinkEvent {
        match event {
            LinkEvent::Is(link) => LinkEvent::Is(Link {
                is_by_rule: true,
                ..link
            }),
            gone => gone,
        }
    }

    fn table() -> LinkTable {
        LinkTable::new(LinkRules::default(), Some(BTreeSet::from([node_address()])))
    }

    fn node_address() -> IpAddr {
        IpAddr::from([192, 0, 2, 1])
    }

    #[test]
    fn a_link_is_told_once_and_again_only_when_its_part_changes() {
        let mut table = table();
        assert_eq!(table.set_link(veth(5, 2, true)), [is(5, Role::Pod)]);
        assert_eq!(table.set_link(veth(5, 2, true)), []);
        let in_vrf = Facts {
            master: Some(3),
            master_kind: Some("vrf".to_owned()),
            ..veth(5, 2, true)
        };
        assert_eq!(table.set_link(in_vrf), []);
        assert_eq!(table.remove_link(5), [LinkEvent::Gone { index: 5 }]);
        assert_eq!(table.remove_link(5), []);
    }

    #[test]
    fn an_address_of_the_node_makes_an_uplink_and_its_end_unmakes_it() {
        let mut table = table();
        table.set_link(veth(5, 2, true));
        assert_eq!(table.add_address(5, IpAddr::from([10, 0, 0, 1])), []);
        assert_eq!(table.add_address(5, node_address()), [is(5, Role::Uplink)]);
        assert_eq!(table.remove_address(5, node_address()), [is(5, Role::Pod)]);
        let addresses = BTreeSet::from([IpAddr::from([10, 0, 0, 1])]);
        assert_eq!(table.set_node_addresses(addresses), [is(5, Role::Uplink)]);
    }

    #[test]
    fn an_address_may_be_told_before_its_link() {
        let mut table = table();
        assert_eq!(table.add_address(5, node_address()), []);
        assert_eq!(table.set_link(veth(5, 2, true)), [is(5, Role::Uplink)]);
    }

    #[test]
    fn a_default_route_makes_an_uplink() {
        let mut table = table();
        table.set_link(veth(5, 2, true));
        table.set_link(veth(6, 2, true));
        assert_eq!(table.set_default_routes(BTreeSet::from([5])), [is(5, Role::Uplink)]);
        assert_eq!(
            table.set_default_routes(BTreeSet::from([6])),
            [is(5, Role::Pod), is(6, Role::Uplink)]
        );
    }

    #[test]
    fn at_the_start_and_after_a_loss_every_link_is_told() {
        let mut table = table();
        let snapshot = || Snapshot {
            links: vec![veth(5, 2, true), veth(6, 7, false)],
            addresses: vec![(5, node_address())],
            default_routes: BTreeSet::new(),
        };
        let all = [is(5, Role::Uplink), LinkEvent::Gone { index: 6 }];
        assert_eq!(table.reset(snapshot()), all);
        table.set_link(veth(9, 2, true));
        let events = table.reset(snapshot());
        assert_eq!(events[0], LinkEvent::Gone { index: 9 });
        assert_eq!(events[1..], all);
    }

    #[test]
    fn what_depends_on_the_nodes_addresses_waits_for_them() {
        let snapshot = || Snapshot {
            links: vec![veth(5, 2, true), veth(6, 2, true), veth(7, 2, true)],
            addresses: vec![
                (5, node_address()),
                (6, "fe80::1".parse().unwrap()),
                (7, IpAddr::from([10, 0, 0, 1])),
            ],
            default_routes: BTreeSet::new(),
        };
        let mut table = LinkTable::new(LinkRules::default(), None);
        assert_eq!(table.reset(snapshot()), [is(6, Role::Pod)]);
        let events = table.set_node_addresses(BTreeSet::from([node_address()]));
        assert_eq!(events, [is(5, Role::Uplink), is(7, Role::Pod)]);

        let mut table = LinkTable::new(LinkRules::default(), None);
        table.reset(snapshot());
        assert_eq!(table.give_up_on_node(), [is(5, Role::Pod), is(7, Role::Pod)]);
        // Known once, they stay known.
        assert_eq!(
            table.set_node_addresses(BTreeSet::from([node_address()])),
            [is(5, Role::Uplink)]
        );
        assert_eq!(table.set_node_addresses(BTreeSet::new()), [is(5, Role::Pod)]);
    }

    #[test]
    fn the_peer_of_a_link_that_moves_is_to_be_asked() {
        let mut table = table();
        let first = Facts {
            peer: None,
            ..veth(6, 0, false)
        };
        table.set_link(first.clone());
        table.set_link(veth(5, 6, false));
        assert_eq!(
            table.peer_to_ask(&first),
            Some(5),
            "the first of a pair is told without peer"
        );
        assert_eq!(table.peer_to_ask(&veth(5, 6, false)), Some(6));
        // Its peer is one of another namespace, with an index of that.
        assert_eq!(table.peer_to_ask(&veth(8, 5, true)), None);
        // Back from another namespace, where the peer knew it by another index.
        table.set_link(veth(5, 3, true));
        assert_eq!(table.peer_to_ask(&veth(9, 5, false)), Some(5));
    }

    #[test]
    fn a_rule_comes_first() {
        let rules = LinkRules::parse(&["veth5=ignore", "veth6=tunnel"]).unwrap();
        let mut table = LinkTable::new(rules, None);
        assert_eq!(table.set_link(veth(5, 2, true)), [LinkEvent::Gone { index: 5 }]);
        assert_eq!(table.set_link(veth(6, 2, true)), [by_rule(is(6, Role::Tunnel))]);
    }

    #[test]
    fn a_port_of_the_pods_bridge_is_a_pods_link_and_leaves_it_with_the_bridge() {
        let pods = PodLinks::PortsOf("cbr0".to_owned());
        let mut table = LinkTable::new(LinkRules::default().with_pods(pods), Some(BTreeSet::new()));
        let bridge = Facts {
            index: 3,
            name: "cbr0".to_owned(),
            kind: Some("bridge".to_owned()),
            is_ethernet: true,
            ..Facts::default()
        };
        table.set_link(bridge);
        assert_eq!(table.set_link(port(5, 3)), [in_bridge(5, 3, true)]);
        assert_eq!(table.set_link(veth(5, 2, true)), [is(5, Role::Uplink)]);
    }

    #[test]
    fn a_rule_comes_before_the_names_of_pods_links() {
        let rules = LinkRules::parse(&["veth5=tunnel"]).unwrap();
        let rules = rules.with_pods(PodLinks::Named {
            prefix: "veth".to_owned(),
        });
        let mut table = LinkTable::new(rules, Some(BTreeSet::new()));
        assert_eq!(table.set_link(veth(5, 2, true)), [by_rule(is(5, Role::Tunnel))]);
        assert_eq!(table.set_link(veth(6, 7, false)), [is(6, Role::Pod)]);
    }

    #[test]
    fn a_pods_link_is_told_again_when_it_joins_changes_or_leaves_a_bridge() {
        let mut table = table();
        assert_eq!(table.set_link(veth(5, 2, true)), [is(5, Role::Pod)]);
        assert_eq!(table.set_link(port(5, 3)), [in_bridge(5, 3, true)]);
        assert_eq!(table.set_link(port(5, 3)), []);
        assert_eq!(table.set_link(port(5, 4)), [in_bridge(5, 4, true)]);
        assert_eq!(table.set_link(veth(5, 2, true)), [is(5, Role::Pod)]);
    }

    #[test]
    fn a_bridge_has_only_pods_while_nobody_else_comes_in_there() {
        let mut table = table();
        table.set_link(port(5, 3));
        table.set_link(port(6, 3));
        table.set_link(port(7, 4));
        let both = |has_only_pods| [5, 6].map(|port| in_bridge(port, 3, has_only_pods));
        // Only the first stranger is news, and the going of the last. They take no part themselves.
        let first = |index| LinkEvent::Gone { index };
        let with_8 = |has_only_pods| [&[first(8)], &both(has_only_pods)[..]].concat();
        assert_eq!(table.set_link(other_port(8, 3, None)), with_8(false));
        assert_eq!(table.set_link(other_port(9, 3, Some("vlan"))), [first(9)]);
        assert_eq!(table.set_link(port(10, 3)), [in_bridge(10, 3, false)]);
        assert_eq!(table.remove_link(10), [LinkEvent::Gone { index: 10 }]);
        assert_eq!(table.remove_link(8), []);
        assert_eq!(table.remove_link(9), both(true));
        // One that moves from bridge to bridge.
        assert_eq!(table.set_link(other_port(8, 3, None)), with_8(false));
        let mut moved = table.set_link(other_port(8, 4, None));
        moved.sort_by_key(LinkEvent::index);
        assert_eq!(moved, [both(true).to_vec(), vec![in_bridge(7, 4, false)]].concat());
    }

    #[test]
    fn what_is_in_a_bridge_with_pods_is_no_pod_unless_it_is_certain() {
        for (kind, has_only_pods) in [
            (None, false),
            (Some("bond"), false),
            (Some("tun"), false),
            // Both its ends are on the node: what comes in there may have come by any link.
            (Some("veth"), false),
            // Nothing ever comes in by it.
            (Some("dummy"), true),
            (Some("ifb"), true),
        ] {
            let mut table = table();
            table.set_link(other_port(8, 3, kind));
            assert_eq!(table.set_link(port(5, 3)), [in_bridge(5, 3, has_only_pods)], "{kind:?}");
        }
    }

    #[test]
    fn a_tunnel_in_the_bridge_of_pods_brings_in_others_and_is_told_with_the_bridge() {
        let mut table = table();
        table.set_link(port(5, 3));
        let events = table.set_link(other_port(8, 3, Some("vxlan")));
        let [LinkEvent::Is(tunnel), pod] = &events[..] else {
            panic!("{events:?}")
        };
        let bridge = Bridge {
            index: 3,
            has_only_pods: false,
        };
        assert_eq!((tunnel.role, tunnel.bridge), (Role::Tunnel, Some(bridge)));
        assert_eq!(*pod, in_bridge(5, 3, false));
    }

    #[test]
    fn a_port_that_turns_out_to_be_an_uplink_is_none_of_pods() {
        let mut table = table();
        table.set_link(port(5, 3));
        table.set_link(port(6, 3));
        let events = table.add_address(6, node_address());
        assert_eq!(events.len(), 2);
        assert!(events.contains(&in_bridge(5, 3, false)), "{events:?}");
        let events = table.remove_address(6, node_address());
        assert_eq!(events, [in_bridge(6, 3, true), in_bridge(5, 3, true)]);
    }

    #[test]
    fn after_a_loss_bridges_are_known_from_what_is_there() {
        let mut table = table();
        table.set_link(port(5, 3));
        table.set_link(other_port(8, 3, None));
        let snapshot = |links: &[Facts]| Snapshot {
            links: links.to_vec(),
            ..Snapshot::default()
        };
        let events = table.reset(snapshot(&[port(5, 3)]));
        assert_eq!(events, [in_bridge(5, 3, true)]);
        let events = table.reset(snapshot(&[port(5, 3), other_port(8, 3, None)]));
        assert_eq!(events, [in_bridge(5, 3, false), LinkEvent::Gone { index: 8 }]);
    }

    #[test]
    fn the_link_that_holds_services_addresses_takes_no_part_whatever_a_rule_says() {
        for name in ["lb-ipvs0", "kube-ipvs0"] {
            let rules = LinkRules::parse(&[format!("{name}=uplink")]).unwrap();
            let rules = rules.with_pods(PodLinks::Named {
                prefix: name[..2].to_owned(),
            });
            let mut table = LinkTable::new(rules, Some(BTreeSet::from([node_address()])));
            let link = Facts {
                name: name.to_owned(),
                kind: Some("dummy".to_owned()),
                peer: None,
                is_peer_elsewhere: false,
                ..veth(7, 0, false)
            };
            assert_eq!(table.set_link(link), [LinkEvent::Gone { index: 7 }], "{name}");
            // A service may have an address of the Node, as an external one.
            assert_eq!(table.add_address(7, node_address()), [], "{name}");
        }
    }
}
