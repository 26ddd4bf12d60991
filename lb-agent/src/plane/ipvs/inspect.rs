//! What the kernel holds of the plane, in the text form of the desired state. For people and for tests: read
//! as packets are treated, from the rows of the rules to IPVS. NodePorts are shown at each address of the node
//! that has them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    num::NonZeroU32,
};

use super::rules::{Key, Mark, Row, Rules, Table, Verdict};
use crate::{
    desired::{
        Distribution, Masquerade, ServedBy,
        text::{AddressRole, Backend, CidrRole, Destination, FrontendLine, Line},
    },
    kernel::ipvs::{Ipvs, Scheduler, ServiceConfig, ServiceKey},
    plane::shown::Shown,
};

/// The virtual services of IPVS, with the destinations that take new connections.
pub(super) type Held = BTreeMap<ServiceKey, (ServiceConfig, BTreeSet<SocketAddr>)>;

/// Reads what an agent has programmed, whether it runs or not; `None` where there is nothing. Changes nothing.
///
/// # Errors
/// The kernel does not tell.
pub fn inspect() -> anyhow::Result<Option<Vec<Shown>>> {
    let Some((table, _)) = Rules::read()? else {
        return Ok(None);
    };
    let mut ipvs = Ipvs::open()?;
    let mut held = Held::new();
    for (key, config) in ipvs.services()? {
        let is_ours = match key {
            ServiceKey::Address { protocol, address } => table
                .frontends
                .get(&Key { protocol, address })
                .is_some_and(Row::is_ours),
            ServiceKey::Mark { mark, .. } => Mark::of(mark.get()).is_some(),
        };
        if !is_ours {
            continue;
        }
        let destinations = ipvs.destinations(&key)?.into_iter().map(|state| state.destination);
        let serving = destinations.filter(|destination| destination.weight > 0);
        held.insert(key, (config, serving.map(|destination| destination.address).collect()));
    }
    Ok(Some(lines(&table, &held)))
}

/// The lines of rules and virtual services, in order.
pub(super) fn lines(table: &Table, held: &Held) -> Vec<Shown> {
    let frontends = table
        .frontends
        .iter()
        .map(|(key, row)| frontend(*key, row, table, held));
    let cluster_ips = table.cluster_ips.iter().map(|(ip, served_by)| {
        let role = match served_by {
            ServedBy::Us => AddressRole::ClusterIp,
            ServedBy::AnotherProxy => AddressRole::OfAnotherProxy,
        };
        Line::Address(*ip, role)
    });
    let services = table
        .service_cidrs
        .iter()
        .map(|cidr| Line::Cidr(*cidr, CidrRole::Services));
    let pods = table.pod_cidrs.iter().map(|cidr| Line::Cidr(*cidr, CidrRole::Pods));
    let others = cluster_ips.chain(services).chain(pods).map(|line| Shown {
        line,
        errors: BTreeSet::new(),
    });
    let mut shown: Vec<Shown> = frontends.chain(others).collect();
    shown.sort_unstable();
    shown
}

fn frontend(key: Key, row: &Row, table: &Table, held: &Held) -> Shown {
    let mut errors = BTreeSet::new();
    let by_address = ServiceKey::Address {
        protocol: key.protocol,
        address: key.address,
    };
    let mut destination = |verdict: &Verdict| {
        let server = match *verdict {
            Verdict::Reject => return Destination::Reject,
            Verdict::Drop => return Destination::Drop,
            Verdict::Leave => {
                errors.insert(format!("IPVS service {by_address} is held by somebody else"));
                return Destination::Backends(BTreeSet::new());
            }
            Verdict::Serve => by_address,
            Verdict::Select(mark) => match NonZeroU32::new(mark.plain()) {
                Some(mark) => ServiceKey::Mark {
                    family: by_address.family(),
                    mark,
                },
                None => return Destination::Reject,
            },
        };
        let addresses = match held.get(&server) {
            Some((_, destinations)) => destinations.clone(),
            None => {
                errors.insert(format!("IPVS has no service {server}"));
                BTreeSet::new()
            }
        };
        let backends = addresses.into_iter().map(|address| Backend {
            address,
            on_node: table.local_endpoints.contains(&address.ip()),
        });
        Destination::Backends(backends.collect())
    };
    let is_served = [row.near, row.far].contains(&Verdict::Serve);
    let server = held.get(&by_address).filter(|_| is_served);
    let is_maglev = server.is_some_and(|(config, _)| config.scheduler == Scheduler::Maglev.into());
    let line = FrontendLine {
        address: key.address,
        protocol: key.protocol,
        near: destination(&row.near),
        far: destination(&row.far),
        masquerade: row.masquerade == Masquerade::Always,
        affinity: server.and_then(|(config, _)| config.persistence),
        sources: row.allowed.as_deref().cloned(),
        distribution: if is_maglev {
            Distribution::Maglev
        } else {
            Distribution::Random
        },
    };
    Shown {
        line: Line::Frontend(line),
        errors,
    }
}
