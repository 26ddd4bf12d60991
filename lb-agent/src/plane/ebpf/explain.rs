//! What becomes of a packet, by the word of the program on its link: a [twin](super::twin) of that is run on it.
//!
//! What a program does not tell by itself it is asked in further runs, with another row for the frontend: whether the
//! client counts as near, and what it would do with each backend that may be drawn.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use anyhow::{Context as _, bail};
use lb_common::{
    Address, AffinityKey, AffinityValue, BackendValue, Counter, FlowKey, FlowValue, Port, Range, ServiceKey,
    ServiceValue, Verdict,
    backend::LOCAL,
    flow::{GUARD, MASQUERADE, REVERSE},
    maps,
    service::RESTRICTED,
};
use serde::Serialize;

use super::{
    object, pins,
    served::ServedLink,
    table::{BpfTable, Table, Tables},
    twin::{Action, Ran, Twin},
};

/// A packet to be explained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Addresses, ports and protocol. The direction is [`FORWARD`](lb_common::flow::FORWARD).
    pub key: FlowKey,
    /// All of it: an Ethernet header, an IP header without options, what follows.
    pub frame: Vec<u8>,
}

/// What becomes of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The program that was asked.
    pub program: ProgramOnLink,
    /// The row that the packet falls under; the unspecified address is every NodePort.
    pub frontend: Option<SocketAddr>,
    /// What the frontend takes its client for.
    pub client: Option<Client>,
    /// Only clients in certain networks may begin flows.
    pub is_restricted: bool,
    /// Seconds for which a client gets the same backend again.
    pub affinity_seconds: Option<u32>,
    /// Where the packet would go now.
    pub sent: Option<Sent>,
    /// Each backend that may be drawn for a new flow of this client.
    pub possible: Vec<Possible>,
    /// What becomes of the packet.
    pub verdict: Fate,
    /// Why, where that is counted: the name of the counter.
    pub reason: Option<&'static str>,
}

/// The program on the link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramOnLink {
    /// The link.
    pub link: String,
    /// The program's name.
    pub name: String,
    /// The program's number.
    pub id: Option<u32>,
    /// The kernel's sum over its instructions, which the copy that was run has too.
    pub tag: String,
    /// Programs of others that see the packet before, and may do anything with it.
    pub before: Vec<String>,
}

/// What a frontend takes its client for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Client {
    /// One of this node, or of the cluster where the networks of pods are known: the internal policy counts.
    Near,
    /// Any other: the external policy counts.
    Far,
}

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sent {
    /// The backend.
    pub backend: SocketAddr,
    /// The client's port, if it had to be another.
    pub client_port: Option<u16>,
    /// The kernel gives the client an address of the node.
    pub masquerade: bool,
    /// The packet begins a flow; what a real one draws may be another of the possible backends. If not, it belongs to
    /// one that goes on.
    pub is_new: bool,
}

/// A backend that may be drawn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Possible {
    /// The backend.
    pub backend: SocketAddr,
    /// It is on this node.
    pub on_node: bool,
    /// The kernel would give the client an address of the node.
    pub masquerade: bool,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// It goes to a backend.
    Sent,
    /// It goes on as it is: it is not for a service.
    Untouched,
    /// It is answered: port unreachable.
    Refused,
    /// It goes nowhere, without a word.
    Dropped,
}

/// Asks the program on a link. Nothing of it stays, and no real packet meets it.
///
/// # Errors
/// There is no program of ours on the link, or it is another build's, or the kernel does not run a copy.
pub fn explain(bpffs: &Path, link: &ServedLink, packet: &Packet) -> anyhow::Result<Explanation> {
    let folder = pins::maps_to_read(bpffs)?;
    let attached = link.ingress.program.as_ref().with_context(|| {
        format!(
            "link {} has no program of lb-agent's for what comes in there",
            link.name
        )
    })?;
    let live = Live::open(&folder)?;
    let mut twin = Twin::of(attached, &folder)?;
    let mut explanation = Explanation {
        program: ProgramOnLink {
            link: link.name.clone(),
            name: twin.stands_for.to_owned(),
            id: attached.id,
            tag: twin.tag.iter().map(|byte| format!("{byte:02x}")).collect(),
            before: link.ingress.before.clone(),
        },
        frontend: None,
        client: None,
        is_restricted: false,
        affinity_seconds: None,
        sent: None,
        possible: Vec::new(),
        verdict: Fate::Untouched,
        reason: None,
    };

    let rows = live.frontends(&packet.key)?;
    twin.set_services(&rows)?;
    twin.set_flows(&live.flows(&packet.key, &rows)?)?;
    twin.set_affinity(&live.affinity(&packet.key, &rows)?)?;
    explanation.judge(&mut twin, packet)?;

    if let Some((key, row, client)) = frontend(&mut twin, packet, &rows)? {
        explanation.frontend = Some(SocketAddr::new(key.address.into(), key.port.get()));
        explanation.client = client;
        explanation.is_restricted = row.flags & RESTRICTED != 0;
        explanation.affinity_seconds = (row.affinity != 0).then_some(row.affinity);
        let range = match client {
            Some(Client::Near) => Some(row.near),
            Some(Client::Far) => Some(row.far),
            None => None,
        };
        explanation.possible = possible(&mut twin, &live, packet, (key, row), range)?;
    }
    Ok(explanation)
}

impl Explanation {
    /// Runs the packet as it is.
    fn judge(&mut self, twin: &mut Twin, packet: &Packet) -> anyhow::Result<()> {
        let Ran {
            action, frame, counted, ..
        } = twin.run(&packet.frame)?;
        self.reason = counted
            .iter()
            .copied()
            .find(|counter| *counter != Counter::FlowNew && *counter != Counter::EventsLost)
            .map(Counter::name);
        self.verdict = match action {
            Action::Drop => Fate::Dropped,
            Action::Answer => Fate::Refused,
            Action::Pass => Fate::Untouched,
        };
        let is_new = counted.contains(&Counter::FlowNew);
        if action == Action::Pass && (is_new || frame != packet.frame) {
            self.verdict = Fate::Sent;
            let row = twin
                .flow(&packet.key)?
                .context("the program sent the packet on and kept no flow of it")?;
            self.sent = Some(Sent {
                backend: SocketAddr::new(row.address.into(), row.port.get()),
                client_port: (row.client_port != Port::NONE).then(|| row.client_port.get()),
                masquerade: row.flags & MASQUERADE != 0,
                is_new,
            });
        }
        Ok(())
    }
}

/// The row that the packet falls under, and what that takes its client for: nothing, where it is refused as somebody
/// who cannot be one.
fn frontend(
    twin: &mut Twin,
    packet: &Packet,
    rows: &[(ServiceKey, ServiceValue)],
) -> anyhow::Result<Option<(ServiceKey, ServiceValue, Option<Client>)>> {
    // The row of the address comes first.
    for &(key, row) in rows {
        let mut ask = |near, far| {
            let row = ServiceValue {
                near: Range::empty(near),
                far: Range::empty(far),
                flags: 0,
                affinity: 0,
                ..row
            };
            twin.set_services(&[(key, row)])?;
            twin.set_flows(&[])?;
            let counted = twin.run(&packet.frame)?.counted;
            anyhow::Ok(if counted.contains(&Counter::DroppedSpoofedSource) {
                Told::Nobody
            } else if counted.contains(&Counter::DroppedNoLocalEndpoint) {
                Told::Drop
            } else {
                Told::Other
            })
        };
        let client = match (
            ask(Verdict::Drop, Verdict::Reject)?,
            ask(Verdict::Reject, Verdict::Drop)?,
        ) {
            (Told::Drop, Told::Other) => Some(Client::Near),
            (Told::Other, Told::Drop) => Some(Client::Far),
            (Told::Nobody, Told::Nobody) => None,
            // Whatever the row says, it is the same: the packet does not fall under it.
            _ => continue,
        };
        return Ok(Some((key, row, client)));
    }
    Ok(None)
}

/// What a run told of the row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// The client is refused before the row counts.
    Nobody,
    /// The verdict of the row was to drop.
    Drop,
    /// Something else.
    Other,
}

/// Each backend of a range, and what the program does with it.
fn possible(
    twin: &mut Twin,
    live: &Live,
    packet: &Packet,
    (key, row): (ServiceKey, ServiceValue),
    range: Option<Range>,
) -> anyhow::Result<Vec<Possible>> {
    let mut possible = Vec::new();
    for (slot, backend) in live.backends(range)? {
        let one = Range { base: slot, count: 1 };
        let row = ServiceValue {
            near: one,
            far: one,
            flags: row.flags & !RESTRICTED,
            affinity: 0,
            ..row
        };
        twin.set_services(&[(key, row)])?;
        twin.set_flows(&[])?;
        let ran = twin.run(&packet.frame)?;
        // One that has gone in the meantime cannot be drawn.
        if ran.action != Action::Pass {
            continue;
        }
        let flow = twin.flow(&packet.key)?;
        possible.push(Possible {
            backend: SocketAddr::new(backend.address.into(), backend.port.get()),
            on_node: backend.flags & LOCAL != 0,
            masquerade: flow.is_some_and(|flow| flow.flags & MASQUERADE != 0),
        });
    }
    possible.sort_unstable();
    possible.dedup();
    Ok(possible)
}

/// The maps of the data path, to be read.
struct Live {
    tables: Tables,
    flows: BpfTable<FlowKey, FlowValue>,
    affinity: BpfTable<AffinityKey, AffinityValue>,
}

impl Live {
    fn open(folder: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            tables: object::tables(folder)?,
            flows: object::table(folder, maps::FLOWS)?,
            affinity: object::table(folder, maps::AFFINITY)?,
        })
    }

    /// The rows that a packet may fall under: that of its destination, and that of every NodePort.
    fn frontends(&self, key: &FlowKey) -> anyhow::Result<Vec<(ServiceKey, ServiceValue)>> {
        let any = if key.destination.is_v4() {
            Address::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
        } else {
            Address::from(IpAddr::V6(Ipv6Addr::UNSPECIFIED))
        };
        let mut rows = Vec::new();
        for address in [key.destination, any] {
            let key = ServiceKey::new(address, key.destination_port, key.protocol);
            rows.extend(self.tables.services.get(&key)?.map(|row| (key, row)));
        }
        Ok(rows)
    }

    /// The flows that the packet may meet: its own, and those of the same client with the backends that it may draw.
    fn flows(&self, key: &FlowKey, rows: &[(ServiceKey, ServiceValue)]) -> anyhow::Result<Vec<(FlowKey, FlowValue)>> {
        let client = (key.source, key.source_port);
        let mut keys = vec![
            *key,
            FlowKey::new(REVERSE, key.protocol, (key.destination, key.destination_port), client),
        ];
        if let Some(own) = self.flows.get(key)?.filter(|row| row.flags & GUARD == 0) {
            let client = (key.source, own.client_port.or(key.source_port));
            keys.push(FlowKey::new(REVERSE, key.protocol, (own.address, own.port), client));
        }
        for (_, row) in rows {
            for range in [row.near, row.far] {
                for (_, backend) in self.backends(Some(range))? {
                    keys.push(FlowKey::new(
                        REVERSE,
                        key.protocol,
                        (backend.address, backend.port),
                        client,
                    ));
                }
            }
        }
        let mut found = HashMap::new();
        for key in keys {
            if let Some(row) = self.flows.get(&key)? {
                found.insert(key, row);
            }
        }
        Ok(found.into_iter().collect())
    }

    fn affinity(
        &self,
        key: &FlowKey,
        rows: &[(ServiceKey, ServiceValue)],
    ) -> anyhow::Result<Vec<(AffinityKey, AffinityValue)>> {
        let mut found = Vec::new();
        for (_, row) in rows {
            let key = AffinityKey {
                service: row.service,
                client: key.source,
            };
            found.extend(self.affinity.get(&key)?.map(|row| (key, row)));
        }
        Ok(found)
    }

    /// The backends in the slots of a range, each with its slot.
    fn backends(&self, range: Option<Range>) -> anyhow::Result<Vec<(u32, BackendValue)>> {
        let Some(range) = range else {
            return Ok(Vec::new());
        };
        if range.count == 0 {
            return Ok(Vec::new());
        }
        let slots = range.base..range.base.saturating_add(range.count);
        if slots.end > self.tables.slots.capacity() {
            bail!("a frontend has slots that there are not: `lb-agent services` says which");
        }
        let mut backends = Vec::new();
        for slot in slots {
            let number = self.tables.slots.get(&slot)?;
            let backend = number
                .map(|number| self.tables.backends.get(&number))
                .transpose()?
                .flatten();
            backends.extend(backend.map(|backend| (slot, backend)));
        }
        Ok(backends)
    }
}
