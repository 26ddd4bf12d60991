//! What the pinned maps hold, in the text form of the desired state. For people and for tests: read as
//! the data path reads, from the rows of frontends through their slots to backends.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    path::Path,
    thread,
    time::Duration,
};

use ipnet::IpNet;
use lb_common::{
    BackendValue, PrefixKey, Range, ServiceKey, ServiceValue, Verdict,
    address::{CLUSTER_IP, FOREIGN, HOST_NODE_PORTS, NODE_PORTS},
    backend::{FREE, LOCAL, SERVING},
    net::{SCTP, TCP, UDP},
    prefix::{INSIDE, PODS, SERVICES},
    service::{HASHED, MASQUERADE_ALL, NODE_IS_REFUSED, RESTRICTED},
};

use super::{
    object, pins,
    prefix::network,
    table::{self, Tables},
};
use crate::{
    desired::{
        AllowedSources, Distribution, Protocol,
        text::{AddressRole, Backend, CidrRole, Destination, FrontendLine, Line},
    },
    plane::shown::Shown,
};

/// How often maps are read that seem to be wrong: an agent may be changing them meanwhile.
const ATTEMPTS: usize = 3;
/// Longer than a change takes.
const PAUSE: Duration = Duration::from_millis(100);

/// Reads the maps that an agent has pinned under a bpf filesystem, whether it runs or not. Changes
/// nothing and waits for nobody.
///
/// # Errors
/// No agent with this layout of the maps has filled any there, or they cannot be read.
pub fn inspect(bpffs: &Path) -> anyhow::Result<Vec<Shown>> {
    let folder = pins::maps_to_read(bpffs)?;
    let tables = object::tables(&folder)?;
    let mut shown = read(&tables)?;
    for _ in 1..ATTEMPTS {
        if shown.iter().all(|shown| shown.errors.is_empty()) {
            break;
        }
        thread::sleep(PAUSE);
        shown = read(&tables)?;
    }
    Ok(shown)
}

/// The lines of the maps, in order.
pub(super) fn read(tables: &Tables) -> io::Result<Vec<Shown>> {
    let mut shown = frontends(tables)?;
    let lines = addresses(tables)?.into_iter().chain(cidrs(tables)?);
    shown.extend(lines.map(|line| Shown {
        line,
        errors: BTreeSet::new(),
    }));
    shown.sort_unstable();
    Ok(shown)
}

fn frontends(tables: &Tables) -> io::Result<Vec<Shown>> {
    let rows: Vec<_> = table::rows(&*tables.services)?;
    let reader = Reader::new(tables, &rows)?;
    Ok(rows.iter().map(|(key, value)| reader.frontend(key, value)).collect())
}

/// What rows of frontends lead to.
struct Reader {
    /// As many as ranges reach.
    slots: Vec<u32>,
    /// Those whose number has ever been given.
    backends: HashMap<u32, BackendValue>,
    /// By the number of the service port.
    source_ranges: HashMap<u32, BTreeSet<IpNet>>,
}

impl Reader {
    fn new(tables: &Tables, rows: &[(ServiceKey, ServiceValue)]) -> io::Result<Self> {
        let ranges = rows.iter().flat_map(|(_, value)| [value.near, value.far]);
        let ends = ranges
            .filter(|range| range.count > 0)
            .map(|range| range.base.saturating_add(range.count));
        let used = ends.max().unwrap_or(0) as usize;
        let slots = table::first(&*tables.slots, used)?;
        let mut backends = HashMap::new();
        tables.backends.read(&mut |number, value| {
            if value != BackendValue::default() {
                backends.insert(number, value);
            }
            true
        })?;
        let mut source_ranges: HashMap<u32, BTreeSet<IpNet>> = HashMap::new();
        tables.source_ranges.read(&mut |key: PrefixKey, _| {
            source_ranges
                .entry(key.network.scope)
                .or_default()
                .extend(network(&key));
            true
        })?;
        Ok(Self {
            slots,
            backends,
            source_ranges,
        })
    }

    fn frontend(&self, key: &ServiceKey, value: &ServiceValue) -> Shown {
        let mut errors = BTreeSet::new();
        let protocol = match key.protocol {
            TCP => Protocol::Tcp,
            UDP => Protocol::Udp,
            SCTP => Protocol::Sctp,
            other => {
                errors.insert(format!("protocol {other}"));
                Protocol::Sctp
            }
        };
        let sources = (value.flags & RESTRICTED != 0).then(|| AllowedSources {
            ranges: self.source_ranges.get(&value.service).cloned().unwrap_or_default(),
            node: value.flags & NODE_IS_REFUSED == 0,
        });
        let line = FrontendLine {
            address: SocketAddr::new(IpAddr::from(key.address), key.port.get()),
            protocol,
            near: self.destination(value.service, value.near, &mut errors),
            far: self.destination(value.service, value.far, &mut errors),
            masquerade: value.flags & MASQUERADE_ALL != 0,
            affinity: NonZeroU32::new(value.affinity),
            sources,
            distribution: match value.flags & HASHED {
                0 => Distribution::Random,
                _ => Distribution::Maglev,
            },
        };
        Shown {
            line: Line::Frontend(line),
            errors,
        }
    }

    fn destination(&self, service: u32, range: Range, errors: &mut BTreeSet<String>) -> Destination {
        if range.count == 0 {
            return match range.verdict() {
                Verdict::Reject => Destination::Reject,
                Verdict::Drop => Destination::Drop,
            };
        }
        let end = range.base.saturating_add(range.count);
        let mut backends = BTreeMap::new();
        for slot in range.base..end {
            let Some(number) = self.slots.get(slot as usize) else {
                errors.insert(format!("there is no slot {slot}"));
                break;
            };
            let Some(value) = self.backends.get(number) else {
                errors.insert(format!("slot {slot} holds the number {number}, which is no backend"));
                continue;
            };
            let address = SocketAddr::new(IpAddr::from(value.address), value.port.get());
            if value.state != SERVING {
                let state = if value.state == FREE { "is free" } else { "drains" };
                errors.insert(format!("{address} in slot {slot} {state}"));
            }
            if value.service != service {
                let owner = value.service;
                errors.insert(format!(
                    "{address} in slot {slot} is of service port {owner}, not {service}"
                ));
            }
            backends.insert(address, value.flags & LOCAL != 0);
        }
        let backends = backends
            .into_iter()
            .map(|(address, on_node)| Backend { address, on_node });
        Destination::Backends(backends.collect())
    }
}

fn addresses(tables: &Tables) -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    tables.addresses.read(&mut |address, value| {
        for (flag, role) in [
            (NODE_PORTS, AddressRole::NodePorts),
            (HOST_NODE_PORTS, AddressRole::NodePortsForHost),
            (CLUSTER_IP, AddressRole::ClusterIp),
            (FOREIGN, AddressRole::OfAnotherProxy),
        ] {
            if value.flags & flag != 0 {
                lines.push(Line::Address(IpAddr::from(address), role));
            }
        }
        true
    })?;
    Ok(lines)
}

fn cidrs(tables: &Tables) -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    tables.cidrs.read(&mut |key: PrefixKey, value| {
        let role = match key.network.scope {
            PODS => Some(CidrRole::Pods),
            SERVICES => Some(CidrRole::Services),
            _ => None,
        };
        // The other values say where it is not.
        if value == INSIDE
            && let (Some(role), Some(network)) = (role, network(&key))
        {
            lines.push(Line::Cidr(network, role));
        }
        true
    })?;
    Ok(lines)
}
