//! A service port as it stands in the maps, and the translation of desired state into rows.

use std::{collections::BTreeSet, net::SocketAddr, num::NonZeroU32};

use lb_common::{
    Address, BackendValue, Port, PrefixKey, Range, ServiceKey, ServiceValue, Verdict,
    backend::{DRAINING, FREE, IN_CLUSTER_SET, IN_LOCAL_SET, LOCAL, SERVING},
    service::{FAR_IS_LOCAL, HASHED, MASQUERADE_ALL, NEAR_IS_LOCAL, NODE_IS_REFUSED, RESTRICTED},
};

use super::maglev;
use crate::desired::{
    Distribution, Endpoint, Family, Frontend, FrontendAddress, Masquerade, Protocol, Route, ServicePort, Target, Weight,
};

/// What is programmed for one service port.
#[derive(Debug, Default)]
pub(super) struct Programmed {
    /// Its number.
    pub(super) number: u32,
    /// The keys of its frontends. Their values are in [`Services::rows`](super::services::Services).
    pub(super) keys: Vec<ServiceKey>,
    /// Its backends, in order of their addresses.
    pub(super) backends: Vec<Backend>,
    /// Slots of the cluster set, if a frontend uses it.
    pub(super) cluster: Option<Range>,
    /// Slots of the local set, if a frontend uses it; the same range where the sets are equal.
    pub(super) local: Option<Range>,
    /// Its rows in the map `SOURCE_RANGES`.
    pub(super) source_ranges: BTreeSet<PrefixKey>,
    /// What decides which backend has which slot.
    pub(super) spread: Spread,
    /// After a restart, until first programmed: ranges that its rows had, and what was in them.
    pub(super) found: Vec<(Range, Vec<u32>)>,
}

/// One backend of a service port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backend {
    /// Address and port.
    pub(super) socket: SocketAddr,
    /// Its index in the map `BACKENDS`.
    pub(super) number: u32,
    /// What it is to the service: a member of those sets only that a frontend uses.
    pub(super) endpoint: Endpoint,
}

impl Backend {
    /// Whether new flows may go there.
    pub(super) const fn is_serving(&self) -> bool {
        self.endpoint.cluster || self.endpoint.local
    }

    /// Its row in the map `BACKENDS`.
    pub(super) fn value(&self, service: u32, generation: u32) -> BackendValue {
        BackendValue {
            address: Address::from(self.socket.ip()),
            port: Port::new(self.socket.port()),
            state: if self.is_serving() { SERVING } else { DRAINING },
            flags: flag(self.endpoint.on_node, LOCAL)
                | flag(self.endpoint.cluster, IN_CLUSTER_SET)
                | flag(self.endpoint.local, IN_LOCAL_SET),
            generation,
            service,
        }
    }
}

const fn flag(is_so: bool, flag: u8) -> u8 {
    if is_so { flag } else { 0 }
}

/// The row between `old` and `new` of one number: in the sets of both, so that whatever row of a service
/// leads there, it leads to a member.
pub(super) const fn between(old: BackendValue, new: BackendValue) -> BackendValue {
    BackendValue {
        state: if old.state == SERVING { old.state } else { new.state },
        flags: new.flags | old.flags & (IN_CLUSTER_SET | IN_LOCAL_SET),
        ..new
    }
}

/// The row of a number that belongs to nobody any more. Only the state is another: the kernel does not
/// write the row of an array at once, and a program that reads it meanwhile must not find a serving
/// backend with half an address. And the generation stays, so that the next owner's is another.
pub(super) const fn freed(value: BackendValue) -> BackendValue {
    BackendValue { state: FREE, ..value }
}

impl Programmed {
    /// The backend of an address.
    pub(super) fn backend(&self, socket: &SocketAddr) -> Option<&Backend> {
        let at = self
            .backends
            .binary_search_by(|backend| backend.socket.cmp(socket))
            .ok()?;
        self.backends.get(at)
    }

    /// Its ranges, and what is in the slots of each.
    pub(super) fn ranges(&self) -> Vec<(Range, Vec<u32>)> {
        let mut ranges = self.found.clone();
        if let Some(range) = self.cluster {
            ranges.push((range, self.spread.slots(&self.backends, |e| e.cluster)));
        }
        if let Some(range) = self.local
            && self.local != self.cluster
        {
            ranges.push((range, self.spread.slots(&self.backends, |e| e.local)));
        }
        ranges
    }

    /// The row of a frontend.
    pub(super) fn row(&self, route: &Route, service: &ServicePort) -> ServiceValue {
        ServiceValue {
            service: self.number,
            near: self.range(route.near),
            far: self.range(route.far),
            flags: flags(route, service, self.spread),
            affinity: service.affinity.map_or(0, NonZeroU32::get),
        }
    }

    /// Where a route sends its clients.
    fn range(&self, target: Target) -> Range {
        match target {
            // The model promises that the set of such a target has members. Were it wrong, to refuse
            // is what a service without endpoints does.
            Target::Cluster => self.cluster.unwrap_or(Range::empty(Verdict::Reject)),
            Target::Local => self.local.unwrap_or(Range::empty(Verdict::Reject)),
            Target::Reject => Range::empty(Verdict::Reject),
            Target::Drop => Range::empty(Verdict::Drop),
        }
    }
}

/// How the slots of a set are given to its backends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Spread {
    /// In the order of their addresses, as many to each as it weighs: a flow draws one.
    #[default]
    Random,
    /// By Maglev's table of this size.
    Maglev(u32),
}

impl Spread {
    /// Of a service port, where tables have `table_size` slots.
    pub(super) const fn of(service: &ServicePort, table_size: u32) -> Self {
        match service.distribution {
            Distribution::Random => Self::Random,
            Distribution::Maglev => Self::Maglev(table_size),
        }
    }

    /// The numbers in the slots of a set.
    pub(super) fn slots(self, backends: &[Backend], is_in: impl Fn(&Endpoint) -> bool) -> Vec<u32> {
        let members: Vec<&Backend> = backends.iter().filter(|backend| is_in(&backend.endpoint)).collect();
        match self {
            Self::Random => {
                let weights = members.iter().map(|backend| backend.endpoint.weight.get());
                let unit = weights.fold(0, common_divisor);
                let each = members.iter().flat_map(|backend| {
                    let count = backend.endpoint.weight.get() / unit;
                    std::iter::repeat_n(backend.number, count.into())
                });
                each.collect()
            }
            Self::Maglev(size) => {
                let weighted: Vec<(SocketAddr, Weight)> = members
                    .iter()
                    .map(|backend| (backend.socket, backend.endpoint.weight))
                    .collect();
                let table = maglev::table(size, &weighted);
                table.into_iter().map(|index| members[index].number).collect()
            }
        }
    }
}

/// The greatest (Euclid); of 0 and another, the other.
const fn common_divisor(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Whether any frontend sends clients to `target`.
pub(super) fn uses(service: &ServicePort, target: Target) -> bool {
    service
        .frontends
        .values()
        .any(|route| route.near == target || route.far == target)
}

/// The row key of a frontend.
pub(super) fn key(frontend: &Frontend) -> ServiceKey {
    let address = match frontend.address {
        FrontendAddress::Ip(ip) => Address::from(ip),
        FrontendAddress::NodePort(Family::V4) => Address::ANY_V4,
        FrontendAddress::NodePort(Family::V6) => Address::ANY_V6,
    };
    let port = Port::new(frontend.port.get());
    ServiceKey::new(address, port, protocol(frontend.protocol))
}

/// The IANA number.
const fn protocol(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => lb_common::net::TCP,
        Protocol::Udp => lb_common::net::UDP,
        Protocol::Sctp => lb_common::net::SCTP,
    }
}

/// The flags of a frontend's row.
fn flags(route: &Route, service: &ServicePort, spread: Spread) -> u32 {
    let is_local = |target| target == Target::Local;
    let has_endpoints = [route.near, route.far]
        .into_iter()
        .any(|target| matches!(target, Target::Cluster | Target::Local));
    let node_is_refused = route.restricted && !service.allowed_sources.node;
    [
        (route.masquerade == Masquerade::Always, MASQUERADE_ALL),
        (is_local(route.near), NEAR_IS_LOCAL),
        (is_local(route.far), FAR_IS_LOCAL),
        (route.restricted, RESTRICTED),
        (node_is_refused, NODE_IS_REFUSED),
        (spread != Spread::Random && has_endpoints, HASHED),
    ]
    .into_iter()
    .filter(|(is_so, _)| *is_so)
    .fold(0, |flags, (_, flag)| flags | flag)
}
