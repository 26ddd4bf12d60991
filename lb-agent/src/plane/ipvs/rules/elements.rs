//! What a [`Table`] says, as elements of sets, and the commands from one to another.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
};

use ipnet::IpNet;

use super::{
    TABLE,
    sets::{Kind, Set, suffix},
    table::{Change, Key, Mark, Members, Row, Table, Verdict},
};
use crate::desired::{Family, Masquerade, Protocol, ServedBy};

/// Elements of sets by their keys, with the values of maps, in the words of `nft`.
#[derive(Default, Clone, PartialEq, Eq, Debug)]
pub(super) struct Elements(BTreeMap<(Set, String), Option<String>>);

impl Elements {
    /// All of a table.
    pub(super) fn of(table: &Table, pod_links: &BTreeSet<u32>) -> Self {
        let mut elements = Self::default();
        for (key, row) in &table.frontends {
            elements.frontend(key, row);
        }
        table
            .own_addresses
            .iter()
            .for_each(|ip| elements.address(Kind::OwnAddresses, *ip));
        for (ip, served_by) in &table.cluster_ips {
            elements.cluster_ip(*ip, *served_by);
        }
        elements.networks(Kind::ServiceNetworks, &table.service_cidrs);
        elements.networks(Kind::PodNetworks, &table.pod_cidrs);
        table.local_endpoints.iter().for_each(|ip| elements.endpoint(*ip));
        pod_links.iter().for_each(|link| elements.pod_link(*link));
        elements
    }

    /// Those of a change: what `old` has of what changes, and what is to be in its place.
    pub(super) fn of_change(old: &Table, change: &Change) -> (Self, Self) {
        let (mut before, mut after) = (Self::default(), Self::default());
        for (key, row) in &change.frontends {
            if let Some(row) = old.frontends.get(key) {
                before.frontend(key, row);
            }
            if let Some(row) = row {
                after.frontend(key, row);
            }
        }
        for (ip, served_by) in &change.cluster_ips {
            if let Some(served_by) = old.cluster_ips.get(ip) {
                before.cluster_ip(*ip, *served_by);
            }
            if let Some(served_by) = served_by {
                after.cluster_ip(*ip, *served_by);
            }
        }
        let own = |elements: &mut Self, ip| elements.address(Kind::OwnAddresses, ip);
        members(&mut before, &mut after, &old.own_addresses, &change.own_addresses, own);
        let endpoint = Self::endpoint;
        members(
            &mut before,
            &mut after,
            &old.local_endpoints,
            &change.local_endpoints,
            endpoint,
        );
        for (kind, old, new) in [
            (Kind::ServiceNetworks, &old.service_cidrs, &change.service_cidrs),
            (Kind::PodNetworks, &old.pod_cidrs, &change.pod_cidrs),
        ] {
            if let Some(new) = new {
                before.networks(kind, old);
                after.networks(kind, new);
            }
        }
        (before, after)
    }

    /// Those of a change of the links of pods.
    pub(super) fn of_pod_links(old: &BTreeSet<u32>, change: &Members<u32>) -> (Self, Self) {
        let (mut before, mut after) = (Self::default(), Self::default());
        members(&mut before, &mut after, old, change, Self::pod_link);
        (before, after)
    }

    fn add(&mut self, kind: Kind, family: Family, key: String, value: Option<String>) {
        self.0.insert((Set::Of(kind, family), key), value);
    }

    fn address(&mut self, kind: Kind, ip: IpAddr) {
        self.add(kind, Family::of(ip), ip.to_string(), None);
    }

    fn cluster_ip(&mut self, ip: IpAddr, served_by: ServedBy) {
        let kind = match served_by {
            ServedBy::Us => Kind::ClusterIps,
            ServedBy::AnotherProxy => Kind::OfAnotherProxy,
        };
        self.address(kind, ip);
    }

    fn endpoint(&mut self, ip: IpAddr) {
        self.address(Kind::LocalEndpoints, ip);
        self.add(Kind::Hairpins, Family::of(ip), format!("{ip} . {ip}"), None);
    }

    fn pod_link(&mut self, index: u32) {
        self.0.insert((Set::PodLinks, index.to_string()), None);
    }

    /// Sets of intervals have none within another.
    fn networks(&mut self, kind: Kind, networks: &BTreeSet<IpNet>) {
        for network in IpNet::aggregate(&networks.iter().copied().collect()) {
            self.add(kind, Family::of(network.addr()), network.to_string(), None);
        }
    }

    fn frontend(&mut self, key: &Key, row: &Row) {
        let family = Family::of(key.address.ip());
        let at = element(key);
        let near = goto(row.near, row.masquerade, "near", family);
        let far = goto(row.far, row.masquerade, "far", family);
        let mark = |verdict| match verdict {
            Verdict::Select(mark) => Some(mark),
            _ => None,
        };
        if let Some(mark) = mark(row.near) {
            let value = of_near(mark, row.masquerade);
            self.add(Kind::NearMarks, family, at.clone(), Some(format!("{value:#x}")));
        }
        if let Some(mark) = mark(row.far) {
            let value = of_far(mark, row.masquerade);
            self.add(Kind::FarMarks, family, at.clone(), Some(format!("{value:#x}")));
        }
        if far != near {
            self.add(Kind::FarFrontends, family, at.clone(), Some(far));
        }
        if let Some(allowed) = &row.allowed {
            self.add(Kind::Restricted, family, at.clone(), None);
            if !allowed.node {
                self.add(Kind::NodeRefused, family, at.clone(), None);
            }
            // One of the other family would have `nft` refuse all of the transaction, and is nobody's here.
            let of_family = allowed.ranges.iter().filter(|range| Family::of(range.addr()) == family);
            for range in IpNet::aggregate(&of_family.copied().collect()) {
                let kind = Kind::AllowedSources(key.protocol);
                let key = format!("{} . {} . {range}", key.address.ip(), key.address.port());
                self.add(kind, family, key, None);
            }
        }
        self.add(Kind::Frontends, family, at, Some(near));
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// How many commands for single elements [`Elements::commands_from`] would take.
    pub(super) fn differences(&self, before: &Self) -> usize {
        let one_sided = |a: &Self, b: &Self| a.0.iter().filter(|(key, value)| b.0.get(key) != Some(value)).count();
        one_sided(self, before) + one_sided(before, self)
    }

    /// The commands from `before` to `self`, for what differs. A map's element with another value is another one.
    pub(super) fn commands_from(&self, before: &Self) -> String {
        let mut commands = String::new();
        let gone = before.0.iter().filter(|(key, value)| self.0.get(key) != Some(value));
        write(&mut commands, "delete", gone.map(|((set, key), _)| (*set, key.clone())));
        let new = self.0.iter().filter(|(key, value)| before.0.get(key) != Some(value));
        let with_value = |((set, key), value): (&(Set, String), &Option<String>)| match value {
            Some(value) => (*set, format!("{key} : {value}")),
            None => (*set, key.clone()),
        };
        write(&mut commands, "add", new.map(with_value));
        commands
    }

    /// Commands that take one element of each set that has any and put it back, and so fail where it is not there.
    /// `nft` would fetch all elements of all sets before it looks for one. Sets of networks are left out: the
    /// kernel copies those for a change.
    pub(super) fn probes(&self) -> String {
        let mut last = None;
        let first_of_each = self.0.iter().filter(|((set, _), _)| {
            let has_networks = matches!(set, Set::Of(kind, _) if kind.has_networks());
            last.replace(*set) != Some(*set) && !has_networks
        });
        let some = Self(first_of_each.map(|(key, value)| (key.clone(), value.clone())).collect());
        let (none, mut commands) = (Self::default(), String::new());
        for (from, to) in [(&some, &none), (&none, &some)] {
            commands.push_str(&to.commands_from(from));
        }
        commands
    }
}

/// Of the members of a set that change: those that are there, and those that are to be.
fn members<T: Ord + Copy>(
    before: &mut Elements,
    after: &mut Elements,
    old: &BTreeSet<T>,
    change: &Members<T>,
    element: fn(&mut Elements, T),
) {
    for member in change.removed.union(&change.added) {
        if old.contains(member) {
            element(before, *member);
        }
    }
    for member in &change.added {
        element(after, *member);
    }
}

/// A command for each set.
fn write(commands: &mut String, verb: &str, elements: impl Iterator<Item = (Set, String)>) {
    let mut last = None;
    for (set, element) in elements {
        if last == Some(set) {
            commands.push_str(", ");
        } else {
            if last.is_some() {
                commands.push_str(" }\n");
            }
            // Writing to a string cannot fail.
            let _ = write!(commands, "{verb} element {TABLE} {} {{ ", set.name());
            last = Some(set);
        }
        commands.push_str(&element);
    }
    if last.is_some() {
        commands.push_str(" }\n");
    }
}

/// A frontend as the key of a map.
fn element(key: &Key) -> String {
    // Words of the language of nft, which need no `/etc/protocols`.
    let protocol = match key.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    format!("{} . {protocol} . {}", key.address.ip(), key.address.port())
}

fn goto(verdict: Verdict, masquerade: Masquerade, client: &str, family: Family) -> String {
    match (verdict, masquerade) {
        (Verdict::Serve, Masquerade::WhereNeeded) => format!("goto serve_{}", suffix(family)),
        (Verdict::Serve, Masquerade::Always) => "goto serve_masqueraded".to_owned(),
        (Verdict::Select(_), _) => format!("goto select_{client}_{}", suffix(family)),
        (Verdict::Reject, _) => "goto refuse".to_owned(),
        (Verdict::Drop, _) => "drop".to_owned(),
        (Verdict::Leave, _) => "accept".to_owned(),
    }
}

const fn of_near(mark: Mark, masquerade: Masquerade) -> u32 {
    match masquerade {
        Masquerade::WhereNeeded => mark.plain(),
        Masquerade::Always => mark.masquerade_always(),
    }
}

const fn of_far(mark: Mark, masquerade: Masquerade) -> u32 {
    match masquerade {
        Masquerade::WhereNeeded => mark.masquerade(),
        Masquerade::Always => mark.masquerade_always(),
    }
}
