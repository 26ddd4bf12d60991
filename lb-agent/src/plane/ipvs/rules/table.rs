//! What the table is to hold, and what changes of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;

use crate::desired::{AllowedSources, Masquerade, Protocol, ServedBy};

/// What a client dials: one address, NodePorts too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Protocol.
    pub protocol: Protocol,
    /// Address and port.
    pub address: SocketAddr,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.protocol)
    }
}

/// The mark by which IPVS knows a service that is no address: upper half `0x6c62`, which says that it is ours.
///
/// There are three of each number, and each is an IPVS service with the same endpoints. The lowest bit asks to
/// masquerade where the endpoint is on another node, bit 15 to masquerade wherever it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Mark(u16);

impl Mark {
    /// The bits of a mark that say that it is ours.
    pub const OURS_MASK: u32 = 0xffff_0000;
    /// What is in these bits.
    pub const OURS: u32 = 0x6c62_0000;
    /// The bit that asks to masquerade where the endpoint is on another node.
    pub const MASQUERADE: u32 = 1;
    /// The bit that asks to masquerade wherever the endpoint is.
    pub const MASQUERADE_ALWAYS: u32 = 1 << 15;
    /// Number of no service: with [`Mark::MASQUERADE_ALWAYS`], of packets that IPVS finds by their address.
    pub const NONE: u16 = 0;
    /// The largest number.
    pub const LAST: u16 = (1 << 14) - 1;

    /// The mark of this number, which is 1 to [`Mark::LAST`].
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number != Self::NONE && number <= Self::LAST {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The mark that a packet or an IPVS service has, whichever of the three of a number it is.
    #[must_use]
    pub const fn of(value: u32) -> Option<Self> {
        if value & Self::OURS_MASK == Self::OURS {
            // Fifteen bits, without the one that the shift drops.
            Self::new(((value & 0x7fff) >> 1) as u16)
        } else {
            None
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Of clients whose answers come back by this node, wherever the endpoint is.
    #[must_use]
    pub const fn plain(self) -> u32 {
        Self::OURS | (self.0 as u32) << 1
    }

    /// Of clients whose answers come back by this node only if the endpoint is on it.
    #[must_use]
    pub const fn masquerade(self) -> u32 {
        self.plain() | Self::MASQUERADE
    }

    /// Of every client of a frontend with [`Masquerade::Always`].
    #[must_use]
    pub const fn masquerade_always(self) -> u32 {
        self.masquerade() | Self::MASQUERADE_ALWAYS
    }
}

/// What becomes of a class of clients of a frontend.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// IPVS finds the service by address.
    Serve,
    /// IPVS finds the service by mark.
    Select(Mark),
    /// Refused: ICMP port unreachable.
    Reject,
    /// Nothing is answered.
    Drop,
    /// Somebody else has a service of IPVS at the frontend: its packets are none of ours.
    Leave,
}

/// A frontend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Of near clients, see [`Route::near`](crate::desired::Route::near).
    pub near: Verdict,
    /// Of everybody else.
    pub far: Verdict,
    /// Masquerade.
    pub masquerade: Masquerade,
    /// Who may begin a flow; `None` is everybody.
    pub allowed: Option<Arc<AllowedSources>>,
}

impl Row {
    /// Of a frontend at which somebody else has a service of IPVS.
    pub const LEFT: Self = Self {
        near: Verdict::Leave,
        far: Verdict::Leave,
        masquerade: Masquerade::WhereNeeded,
        allowed: None,
    };

    /// Whether a service of IPVS at the frontend is ours.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.near != Verdict::Leave
    }
}

/// What the table is to hold, but for the links of pods.
#[derive(Default, Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// What clients dial, and what becomes of them.
    pub frontends: BTreeMap<Key, Row>,
    /// Other addresses that are ours with all their ports: those of load balancers and external ones that are on
    /// our link.
    pub own_addresses: BTreeSet<IpAddr>,
    /// ClusterIPs.
    pub cluster_ips: BTreeMap<IpAddr, ServedBy>,
    /// See [`State::service_cidrs`](crate::desired::State::service_cidrs).
    pub service_cidrs: BTreeSet<IpNet>,
    /// See [`State::pod_cidrs`](crate::desired::State::pod_cidrs).
    pub pod_cidrs: BTreeSet<IpNet>,
    /// Addresses of endpoints on this node.
    pub local_endpoints: BTreeSet<IpAddr>,
}

/// What comes to a set and what goes from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Members<T> {
    /// What comes. What is there already stays.
    pub added: BTreeSet<T>,
    /// What goes. What is not there is passed over.
    pub removed: BTreeSet<T>,
}

impl<T> Default for Members<T> {
    fn default() -> Self {
        Self {
            added: BTreeSet::new(),
            removed: BTreeSet::new(),
        }
    }
}

impl<T: Ord + Copy> Members<T> {
    /// From one set to another.
    #[must_use]
    pub fn between(old: &BTreeSet<T>, new: &BTreeSet<T>) -> Self {
        Self {
            added: new.difference(old).copied().collect(),
            removed: old.difference(new).copied().collect(),
        }
    }

    /// Brings a set up to date.
    pub fn apply(&self, set: &mut BTreeSet<T>) {
        for member in &self.removed {
            set.remove(member);
        }
        set.extend(&self.added);
    }
}

/// A difference to the table before.
#[derive(Default, Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Frontends that are new or different, and with `None` those that are gone.
    pub frontends: BTreeMap<Key, Option<Row>>,
    /// Of [`Table::own_addresses`].
    pub own_addresses: Members<IpAddr>,
    /// ClusterIPs that are new or change hands, and with `None` those that are gone.
    pub cluster_ips: BTreeMap<IpAddr, Option<ServedBy>>,
    /// The new set, where it differs.
    pub service_cidrs: Option<BTreeSet<IpNet>>,
    /// The new set, where it differs.
    pub pod_cidrs: Option<BTreeSet<IpNet>>,
    /// Of [`Table::local_endpoints`].
    pub local_endpoints: Members<IpAddr>,
}

impl Change {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Table {
    /// Brings it up to date.
    pub fn apply(&mut self, change: Change) {
        for (key, row) in change.frontends {
            match row {
                Some(row) => self.frontends.insert(key, row),
                None => self.frontends.remove(&key),
            };
        }
        for (ip, served_by) in change.cluster_ips {
            match served_by {
                Some(served_by) => self.cluster_ips.insert(ip, served_by),
                None => self.cluster_ips.remove(&ip),
            };
        }
        change.own_addresses.apply(&mut self.own_addresses);
        change.local_endpoints.apply(&mut self.local_endpoints);
        if let Some(cidrs) = change.service_cidrs {
            self.service_cidrs = cidrs;
        }
        if let Some(cidrs) = change.pod_cidrs {
            self.pod_cidrs = cidrs;
        }
    }

    /// The difference to another table.
    #[must_use]
    pub fn change_to(&self, new: &Self) -> Change {
        Change {
            frontends: difference(&self.frontends, &new.frontends),
            own_addresses: Members::between(&self.own_addresses, &new.own_addresses),
            cluster_ips: difference(&self.cluster_ips, &new.cluster_ips),
            service_cidrs: (self.service_cidrs != new.service_cidrs).then(|| new.service_cidrs.clone()),
            pod_cidrs: (self.pod_cidrs != new.pod_cidrs).then(|| new.pod_cidrs.clone()),
            local_endpoints: Members::between(&self.local_endpoints, &new.local_endpoints),
        }
    }
}

fn difference<K: Ord + Copy, V: PartialEq + Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
) -> BTreeMap<K, Option<V>> {
    let gone = old.keys().filter(|key| !new.contains_key(key)).map(|key| (*key, None));
    let changed = new.iter().filter(|(key, value)| old.get(key) != Some(value));
    gone.chain(changed.map(|(key, value)| (*key, Some(value.clone()))))
        .collect()
}
