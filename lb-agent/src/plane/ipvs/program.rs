//! Makes the kernel hold what service ports want.
//!
//! Order of a change: rows and sets of the rules, then IPVS, then the addresses of the dummy link; what goes
//! does so the other way round. So nobody comes to IPVS whose rows are not there, and an IPVS service that an
//! agent left is known by its row to the next one.
//!
//! Whoever wants nothing any more may have connections. So what goes is refused to new clients first, and goes
//! with its last connection ([`Programmed::sweep`]).

mod addresses;
mod commands;
mod leaving;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use tracing::{debug, warn};

use self::{addresses::addresses_of_other_links, commands::forget_datagrams};
pub use addresses::addresses_of;
pub(super) use addresses::addresses_where;

use super::{
    ports::{Ports, Touched},
    rules::{Change, Key, Row, Rules, Verdict},
    servers::Servers,
};
use crate::{
    desired::{Masquerade, ServicePortName, State},
    kernel::{
        dummy::DummyLink,
        ipvs::{Ipvs, ServiceKey},
    },
    plane::PlaneError,
};

/// The kernel, and what it holds of ours.
pub(super) struct Programmed {
    pub(super) ports: Ports,
    pub(super) rules: Rules,
    pub(super) ipvs: Ipvs,
    pub(super) servers: Servers,
    pub(super) link: DummyLink,
    /// What is on the link.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Addresses that were on it before this agent.
    pub(super) stale: BTreeSet<IpAddr>,
    /// Rows that nobody wants, until their connections are gone.
    pub(super) leaving: BTreeSet<Key>,
    /// Frontends at which somebody else has a virtual service.
    pub(super) foreign: BTreeSet<Key>,
    /// Addresses of endpoints that went from this node.
    pub(super) lost_endpoints: BTreeSet<IpAddr>,
    /// Where the last round of questions ended.
    asked: Option<ServiceKey>,
}

/// What did not come about.
#[derive(Default)]
pub(super) struct Failures {
    pub(super) services: BTreeMap<ServicePortName, PlaneError>,
    pub(super) addresses: Option<PlaneError>,
    /// The rules are not as they are to be, and IPVS was left as it was.
    pub(super) is_out_of_step: bool,
}

impl Programmed {
    pub(super) fn new(rules: Rules, ipvs: Ipvs, link: DummyLink, addresses: BTreeSet<IpAddr>) -> Self {
        Self {
            ports: Ports::default(),
            rules,
            ipvs,
            servers: Servers::default(),
            link,
            stale: addresses.clone(),
            addresses,
            leaving: BTreeSet::new(),
            foreign: BTreeSet::new(),
            lost_endpoints: BTreeSet::new(),
            asked: None,
        }
    }

    /// Makes what was touched as it is wanted. `around` is the state that holds for all service ports. Returns
    /// how many writes it took.
    pub(super) fn write(&mut self, touched: &Touched, edit: Change, around: &State, failures: &mut Failures) -> usize {
        self.look_for_foreign(&touched.rows);
        let (wanted, unwanted): (Vec<Key>, Vec<Key>) = touched
            .rows
            .iter()
            .copied()
            .partition(|key| self.ports.row(*key).is_some());
        for key in &wanted {
            self.leaving.remove(key);
        }
        self.leaving.extend(unwanted);
        self.lost_endpoints.extend(&touched.endpoints);

        let mut writes = self.write_rules(touched, edit, around, failures);
        if failures.is_out_of_step {
            // Without rows nothing may follow.
            return writes;
        }
        writes += self.write_servers(touched, failures);
        writes += self.leave_foreign(touched, failures);
        writes += self.write_addresses(touched, failures);
        let draining: Vec<ServiceKey> = self
            .servers
            .draining()
            .filter(|key| touched.servers.contains(key))
            .collect();
        writes += self.drain(&draining);
        writes + self.sweep()
    }

    /// What a frontend has in the rules, if somebody wants it.
    pub(super) fn row(&self, key: Key) -> Option<&Row> {
        let row = self.ports.row(key)?;
        Some(if self.foreign.contains(&key) { &Row::LEFT } else { row })
    }

    /// Finds out which of these frontends somebody else has let go of.
    pub(super) fn look_for_foreign<'a>(&mut self, keys: impl IntoIterator<Item = &'a Key>) {
        let known: Vec<Key> = keys
            .into_iter()
            .filter(|key| self.foreign.contains(key))
            .copied()
            .collect();
        if known.is_empty() {
            return;
        }
        let there: BTreeSet<ServiceKey> = match self.ipvs.services() {
            Ok(services) => services.into_iter().map(|(key, _)| key).collect(),
            Err(error) => {
                debug!("IPVS does not say what it holds: {error}");
                return;
            }
        };
        for key in known {
            if self.ports.row(key).is_none() || !there.contains(&by_address(key)) {
                self.foreign.remove(&key);
            }
        }
    }

    /// Notes in the rules which of these frontends turned out to be somebody else's, so that no agent takes them for
    /// ours.
    fn leave_foreign(&mut self, touched: &Touched, failures: &mut Failures) -> usize {
        let rows = touched.servers.iter().filter_map(|key| match *key {
            ServiceKey::Address { protocol, address } => Some(Key { protocol, address }),
            ServiceKey::Mark { .. } => None,
        });
        let rows = rows.filter(|key| self.foreign.contains(key) && self.ports.row(*key).is_some());
        let edit = Change {
            frontends: rows.map(|key| (key, Some(Row::LEFT))).collect(),
            ..Change::default()
        };
        match self.rules.apply(edit) {
            Ok(writes) => writes,
            Err(error) => {
                failures.addresses = Some(PlaneError::kernel("the rules beside IPVS", error));
                failures.is_out_of_step = true;
                0
            }
        }
    }

    fn write_rules(&mut self, touched: &Touched, mut edit: Change, around: &State, failures: &mut Failures) -> usize {
        for key in &touched.rows {
            match self.row(*key) {
                Some(row) => {
                    edit.frontends.insert(*key, Some(row.clone()));
                }
                // Its connections go on; nobody begins one.
                None if self.is_held(*key) => {
                    edit.frontends.insert(*key, Some(closed(key, around)));
                }
                None => {}
            }
        }
        let endpoints = touched.endpoints.iter().copied();
        edit.local_endpoints
            .added
            .extend(endpoints.filter(|ip| self.ports.has_endpoint(*ip)));
        // Of those that are on the link it is known, unless a ClusterIP has changed; the others are looked for among
        // all addresses of the node.
        let is_known = |ip: &&IpAddr| self.addresses.contains(*ip) && !edit.cluster_ips.contains_key(*ip);
        let unknown = touched.addresses.iter().filter(|ip| !is_known(ip)).copied().collect();
        edit.own_addresses.added = self.own_addresses(&unknown, around);
        match self.rules.apply(edit) {
            Ok(writes) => writes,
            Err(error) => {
                failures.addresses = Some(PlaneError::kernel("the rules beside IPVS", error));
                failures.is_out_of_step = true;
                0
            }
        }
    }

    /// Those of these addresses whose other ports are refused. The node may have one of them for itself, and
    /// processes that listen there.
    pub(super) fn own_addresses(&self, of: &BTreeSet<IpAddr>, around: &State) -> BTreeSet<IpAddr> {
        let is_own = |ip: &&IpAddr| self.ports.wants_address(**ip) && !around.cluster_ips.contains_key(*ip);
        let own: BTreeSet<IpAddr> = of.iter().filter(is_own).copied().collect();
        if own.is_empty() {
            return own;
        }
        let of_node = addresses_of_other_links();
        own.difference(&of_node).copied().collect()
    }

    fn write_servers(&mut self, touched: &Touched, failures: &mut Failures) -> usize {
        let mut commands = Vec::new();
        for key in &touched.servers {
            let wanted = self.ports.server(*key);
            if let ServiceKey::Address { protocol, address } = *key
                && self.foreign.contains(&Key { protocol, address })
            {
                if let Some(name) = self.ports.owner_of_server(*key) {
                    failures.services.entry(name.clone()).or_insert(foreign(*key));
                }
                continue;
            }
            self.servers.want(*key, wanted.is_some());
            commands.extend(self.servers.commands(*key, wanted));
        }
        let failed = self.send(&commands);
        forget_datagrams(&commands);
        for (key, error) in failed {
            match self.ports.owner_of_server(key) {
                Some(name) => {
                    failures.services.entry(name.clone()).or_insert(error);
                }
                // It is tried again with the next round.
                None => warn!("a virtual service that nobody wants stays for now: {error}"),
            }
        }
        commands.len()
    }

    /// Whether there is, or may be, a connection by this frontend.
    fn is_held(&self, key: Key) -> bool {
        self.servers.contains(by_address(key))
    }

    fn write_addresses(&mut self, touched: &Touched, failures: &mut Failures) -> usize {
        let missing = touched.addresses.iter().copied();
        let missing = missing.filter(|ip| self.ports.wants_address(*ip) && !self.addresses.contains(ip));
        self.change_addresses(&missing.collect(), &BTreeSet::new(), failures)
    }

    fn change_addresses(
        &mut self,
        add: &BTreeSet<IpAddr>,
        remove: &BTreeSet<IpAddr>,
        failures: &mut Failures,
    ) -> usize {
        if add.is_empty() && remove.is_empty() {
            return 0;
        }
        let failed = self.link.change(add, remove);
        let has_changed = |ip: &&IpAddr| !failed.contains_key(*ip);
        self.addresses.extend(add.iter().filter(has_changed));
        for ip in remove.iter().filter(has_changed) {
            self.addresses.remove(ip);
        }
        if let Some((ip, error)) = failed.into_iter().next() {
            failures.addresses = Some(PlaneError::kernel(format!("address {ip} of a service"), error));
        }
        add.len() + remove.len()
    }
}

const fn by_address(key: Key) -> ServiceKey {
    let Key { protocol, address } = key;
    ServiceKey::Address { protocol, address }
}

fn foreign(key: ServiceKey) -> PlaneError {
    PlaneError::Foreign {
        what: format!("IPVS service {key}"),
    }
}

/// For a frontend that goes while it has connections.
pub(super) fn closed(key: &Key, around: &State) -> Row {
    let ip = key.address.ip();
    // As an address that is nobody's is treated.
    let verdict = if around.service_cidrs.iter().any(|cidr| cidr.contains(&ip)) {
        Verdict::Drop
    } else {
        Verdict::Reject
    };
    Row {
        near: verdict,
        far: verdict,
        masquerade: Masquerade::WhereNeeded,
        allowed: None,
    }
}
