//! The map `CIDRS`: where pods are, and where ClusterIPs come from.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;
use lb_common::{
    PrefixKey, maps,
    prefix::{BY_LINK, INSIDE, OUTSIDE, PODS, SERVICES},
};

use super::{
    batch::refused,
    prefix::key,
    table::{self, Table},
};
use crate::{
    desired::{Change, Family, State},
    plane::PlaneError,
};

/// What the map is to hold and what it holds.
#[derive(Default)]
pub(super) struct Networks {
    services: BTreeSet<IpNet>,
    pods: BTreeSet<IpNet>,
    /// What is in the map.
    there: BTreeMap<PrefixKey, u32>,
    /// Whether the map may not be as it should.
    is_behind: bool,
}

impl Networks {
    /// Reads what is in the map.
    pub(super) fn open(table: &dyn Table<PrefixKey, u32>) -> io::Result<Self> {
        Ok(Self {
            there: table::rows(table)?,
            ..Self::default()
        })
    }

    /// How many rows the map has.
    pub(super) fn rows(&self) -> usize {
        self.there.len()
    }

    /// The map is to hold what `state` says and nothing else.
    pub(super) fn replace(&mut self, state: &State) {
        self.services.clone_from(&state.service_cidrs);
        self.pods.clone_from(&state.pod_cidrs);
        self.is_behind = true;
    }

    /// The map is to follow.
    pub(super) fn change(&mut self, change: &Change) {
        if let Some(services) = &change.service_cidrs {
            self.services.clone_from(services);
            self.is_behind = true;
        }
        if let Some(pods) = &change.pod_cidrs {
            self.pods.clone_from(pods);
            self.is_behind = true;
        }
    }

    /// Writes what is different, in an order in which no client is taken for one outside that is
    /// inside before and after. Where something fails, all of it is tried with the next call. Adds to
    /// `writes` how many were made.
    pub(super) fn write(
        &mut self,
        table: &mut dyn Table<PrefixKey, u32>,
        writes: &mut usize,
    ) -> Result<(), PlaneError> {
        if !self.is_behind {
            return Ok(());
        }
        let wanted = rows(&self.services, &self.pods);
        let mut new: Vec<(PrefixKey, u32)> = wanted
            .iter()
            .filter(|(key, value)| self.there.get(key) != Some(value))
            .map(|(key, value)| (*key, *value))
            .collect();
        const { assert!(BY_LINK < INSIDE && INSIDE < OUTSIDE) };
        new.sort_by_key(|(_, value)| *value);
        let mut gone: Vec<(PrefixKey, u32)> = self
            .there
            .iter()
            .filter(|(key, _)| !wanted.contains_key(key))
            .map(|(key, value)| (*key, *value))
            .collect();
        gone.sort_by_key(|(_, value)| std::cmp::Reverse(*value));

        let (keys, values): (Vec<_>, Vec<_>) = new.iter().copied().unzip();
        let set = table.set(&keys, &values);
        let done = set.as_ref().map_or_else(|partial| partial.done, |()| new.len());
        *writes += done;
        self.there.extend(new[..done].iter().copied());
        let keys: Vec<_> = gone.iter().map(|(key, _)| *key).collect();
        let removed = set.and_then(|()| {
            let removed = table.remove(&keys);
            let done = removed.as_ref().map_or_else(|partial| partial.done, |()| keys.len());
            *writes += done;
            for key in &keys[..done] {
                self.there.remove(key);
            }
            removed
        });
        self.is_behind = removed.is_err();
        removed.map_err(|partial| refused(maps::CIDRS, table.capacity(), partial.error))
    }
}

/// The rows of the map.
fn rows(services: &BTreeSet<IpNet>, pods: &BTreeSet<IpNet>) -> BTreeMap<PrefixKey, u32> {
    let mut rows = BTreeMap::new();
    for (scope, networks) in [(PODS, pods), (SERVICES, services)] {
        for network in networks {
            rows.insert(key(scope, network), INSIDE);
        }
    }
    for family in [Family::V4, Family::V6] {
        if pods.iter().any(|network| Family::of(network.addr()) == family) {
            rows.entry(key(PODS, &all(family))).or_insert(OUTSIDE);
        }
    }
    // IPv4 addresses stand among those of IPv6 (`Address`): a network of IPv6 that has them in it is not
    // meant to say anything of them.
    let mapped = IpAddr::V6(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped());
    for scope in [PODS, SERVICES] {
        let networks = rows.keys().filter(|key| key.network.scope == scope);
        if networks
            .filter_map(super::prefix::network)
            .any(|network| network.contains(&mapped))
        {
            rows.entry(key(scope, &all(Family::V4))).or_insert(BY_LINK);
        }
    }
    rows
}

/// Every address of a family.
fn all(family: Family) -> IpNet {
    IpNet::new_assert(family.unspecified(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn described(services: &[&str], pods: &[&str]) -> BTreeSet<(u32, String, u32)> {
        rows(&nets(services), &nets(pods))
            .into_iter()
            .map(|(key, value)| {
                let network = super::super::prefix::network(&key).unwrap();
                (key.network.scope, network.to_string(), value)
            })
            .collect()
    }

    fn expected(rows: &[(u32, &str, u32)]) -> BTreeSet<(u32, String, u32)> {
        rows.iter()
            .map(|(s, net, value)| (*s, (*net).to_owned(), *value))
            .collect()
    }

    #[test]
    fn where_a_family_has_pods_all_others_of_it_are_outside() {
        assert_eq!(
            described(&["10.96.0.0/16"], &["10.0.1.0/24", "10.0.2.0/24"]),
            expected(&[
                (SERVICES, "10.96.0.0/16", INSIDE),
                (PODS, "10.0.1.0/24", INSIDE),
                (PODS, "10.0.2.0/24", INSIDE),
                (PODS, "0.0.0.0/0", OUTSIDE),
            ])
        );
    }

    #[test]
    fn a_pod_network_of_all_addresses_leaves_nobody_outside() {
        assert_eq!(described(&[], &["0.0.0.0/0"]), expected(&[(PODS, "0.0.0.0/0", INSIDE)]));
    }

    #[test]
    fn pods_of_ipv6_say_nothing_of_clients_of_ipv4() {
        assert_eq!(
            described(&["fd00:96::/112"], &["fd00:10::/64"]),
            expected(&[
                (SERVICES, "fd00:96::/112", INSIDE),
                (PODS, "fd00:10::/64", INSIDE),
                (PODS, "::/0", OUTSIDE),
                (PODS, "0.0.0.0/0", BY_LINK),
            ])
        );
    }
}
