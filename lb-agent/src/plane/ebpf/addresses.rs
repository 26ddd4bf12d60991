//! The map `ADDRESSES`: addresses of the node that serve NodePorts, ClusterIPs, ours and another proxy's, and
//! those of load balancers and externalIPs.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::IpAddr,
};

use lb_common::{
    Address, AddressValue,
    address::{CLUSTER_IP, EXTERNAL, FOREIGN, HOST_NODE_PORTS, NODE_PORTS},
    maps,
};

use super::{
    batch::refused,
    table::{Table, rows},
};
use crate::{
    desired::{Change, FrontendAddress, ServedBy, ServicePort, ServicePortName, State},
    plane::PlaneError,
};

/// What the map is to hold and what it holds. One address may be several things.
#[derive(Default)]
pub(super) struct Addresses {
    node_ports: HashMap<Address, u32>,
    cluster_ips: HashMap<Address, u32>,
    /// Addresses of each service port's frontends, NodePorts aside, and how many service ports have one.
    of_frontends: HashMap<ServicePortName, BTreeSet<Address>>,
    frontends: HashMap<Address, usize>,
    /// What is in the map.
    there: HashMap<Address, AddressValue>,
    /// Those where the map may not be as it should: a change costs what it changes.
    behind: BTreeSet<Address>,
}

/// Which writes are to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    /// Only those by which nothing is claimed for us that was not before.
    Losses,
    /// All.
    All,
}

impl Addresses {
    /// Reads what is in the map.
    pub(super) fn open(table: &dyn Table<Address, AddressValue>) -> io::Result<Self> {
        Ok(Self {
            there: rows(table)?,
            ..Self::default()
        })
    }

    /// How many rows the map has.
    pub(super) fn rows(&self) -> usize {
        self.there.len()
    }

    /// The map is to hold what `state` says and nothing else.
    pub(super) fn replace(&mut self, state: &State) {
        self.behind.extend(self.there.keys());
        self.set_node_ports(&state.node_port_addresses);
        let cluster_ips = state.cluster_ips.iter();
        self.cluster_ips = cluster_ips
            .map(|(ip, served_by)| (Address::from(*ip), cluster_ip_flag(*served_by)))
            .collect();
        self.behind.extend(self.cluster_ips.keys());
        self.of_frontends.clear();
        self.frontends.clear();
        for (name, service) in &state.services {
            self.set_frontends(name, Some(service));
        }
    }

    /// The map is to follow.
    pub(super) fn change(&mut self, change: &Change) {
        if let Some(addresses) = &change.node_port_addresses {
            self.set_node_ports(addresses);
        }
        for (ip, served_by) in &change.cluster_ips {
            let address = Address::from(*ip);
            let flag = served_by.map(cluster_ip_flag);
            let before = match flag {
                Some(flag) => self.cluster_ips.insert(address, flag),
                None => self.cluster_ips.remove(&address),
            };
            if before != flag {
                self.behind.insert(address);
            }
        }
        for (name, service) in &change.services {
            self.set_frontends(name, service.as_ref());
        }
    }

    fn set_frontends(&mut self, name: &ServicePortName, service: Option<&ServicePort>) {
        let addresses = service.map(addresses_of).unwrap_or_default();
        let before = self.of_frontends.get(name);
        if before.unwrap_or(&BTreeSet::new()) == &addresses {
            return;
        }
        for address in &addresses {
            *self.frontends.entry(*address).or_default() += 1;
            self.behind.insert(*address);
        }
        let before = if addresses.is_empty() {
            self.of_frontends.remove(name)
        } else {
            self.of_frontends.insert(name.clone(), addresses)
        };
        for address in before.into_iter().flatten() {
            if let Some(count) = self.frontends.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    self.frontends.remove(&address);
                }
            }
            self.behind.insert(address);
        }
    }

    fn set_node_ports(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.behind.extend(self.node_ports.keys());
        self.node_ports = addresses
            .iter()
            .map(|ip| (Address::from(*ip), node_port_flag(*ip)))
            .collect();
        self.behind.extend(self.node_ports.keys());
    }

    fn wanted(&self, address: &Address) -> u32 {
        let flag = |flags: &HashMap<Address, u32>| flags.get(address).copied().unwrap_or(0);
        let cluster_ip = flag(&self.cluster_ips);
        let is_external = cluster_ip == 0 && self.frontends.contains_key(address);
        flag(&self.node_ports) | cluster_ip | if is_external { EXTERNAL } else { 0 }
    }

    /// Writes what is different. What fails stays behind, to be tried with the next call. Adds to
    /// `writes` how many were made.
    pub(super) fn write(
        &mut self,
        table: &mut dyn Table<Address, AddressValue>,
        extent: Extent,
        writes: &mut usize,
    ) -> Result<(), PlaneError> {
        let mut gone = Vec::new();
        let mut keys = Vec::new();
        let mut values = Vec::new();
        let mut behind = BTreeSet::new();
        for address in std::mem::take(&mut self.behind) {
            let wanted = self.wanted(&address);
            let there = self.there.get(&address).map(|value| value.flags);
            if there.unwrap_or(0) == wanted && (there.is_none() || wanted != 0) {
                continue;
            }
            behind.insert(address);
            let claimed = wanted & !there.unwrap_or(0) & !FOREIGN;
            if extent == Extent::Losses && claimed != 0 {
                continue;
            }
            if wanted == 0 {
                gone.push(address);
            } else {
                keys.push(address);
                values.push(AddressValue { flags: wanted });
            }
        }

        let removed = table.remove(&gone);
        let done = removed.as_ref().map_or_else(|partial| partial.done, |()| gone.len());
        *writes += done;
        for address in &gone[..done] {
            self.there.remove(address);
            behind.remove(address);
        }
        let set = table.set(&keys, &values);
        let done = set.as_ref().map_or_else(|partial| partial.done, |()| keys.len());
        *writes += done;
        for (address, value) in keys.iter().zip(&values).take(done) {
            self.there.insert(*address, *value);
            behind.remove(address);
        }
        self.behind = behind;
        removed
            .and(set)
            .map_err(|partial| refused(maps::ADDRESSES, table.capacity(), partial.error))
    }
}

fn addresses_of(service: &ServicePort) -> BTreeSet<Address> {
    let ip = |address| match address {
        FrontendAddress::Ip(ip) => Some(Address::from(ip)),
        FrontendAddress::NodePort(_) => None,
    };
    service
        .frontends
        .keys()
        .filter_map(|frontend| ip(frontend.address))
        .collect()
}

/// On a loopback address NodePorts are for processes of the node.
fn node_port_flag(ip: IpAddr) -> u32 {
    if ip.is_loopback() { HOST_NODE_PORTS } else { NODE_PORTS }
}

/// What another proxy serves is none of ours, and none of nobody's either.
fn cluster_ip_flag(served_by: ServedBy) -> u32 {
    match served_by {
        ServedBy::Us => CLUSTER_IP,
        ServedBy::AnotherProxy => FOREIGN,
    }
}
