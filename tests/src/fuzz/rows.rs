//! Whether the flow table agrees with the flows that were seen.

use std::net::SocketAddr;

use anyhow::Result;
use lb_common::flow::{FORWARD, GUARD, REVERSE};
use lb_common::{Address, FlowKey, FlowValue, Port};

use super::oracle::Fault;
use super::programs::{Programs, UDP_TIMEOUT};
use super::shadow::{Ends, Flow, Shadow};

/// The key of packets between two ends.
fn key(direction: u8, (protocol, from, to): Ends) -> FlowKey {
    let end = |end: SocketAddr| (Address::from(end.ip()), Port::new(end.port()));
    FlowKey::new(direction, protocol, end(from), end(to))
}

/// Where a row sends packets, the other end being `own`.
fn ends(row: &FlowValue, own: SocketAddr) -> (SocketAddr, SocketAddr) {
    let port = row.client_port.or(Port::new(own.port())).get();
    (
        SocketAddr::new(own.ip(), port),
        SocketAddr::new(row.address.into(), row.port.get()),
    )
}

/// Fails unless a flow whose request has just passed has both its rows, and each tells of the other.
pub fn pair(programs: &mut Programs, flow: &Flow) -> Result<Result<(), Fault>> {
    let forward = programs.flow(&key(FORWARD, flow.request()))?;
    let reverse = programs.flow(&key(REVERSE, flow.answer()))?;
    let (Some(forward), Some(reverse)) = (forward, reverse) else {
        return Ok(Err(format!(
            "of {flow:?} the forward row is {forward:?}, the reverse row {reverse:?}"
        )));
    };
    let agree = ends(&forward, flow.client) == (flow.sent_as, flow.backend)
        && ends(&reverse, flow.sent_as) == (flow.answered(), flow.frontend)
        && (forward.backend, forward.generation, forward.service)
            == (reverse.backend, reverse.generation, reverse.service);
    if agree {
        return Ok(Ok(()));
    }
    Ok(Err(format!(
        "the rows of {flow:?} do not belong together: {forward:?} and {reverse:?}"
    )))
}

/// The requests of the flow whose row of answers this is, which go to `to`.
fn requests(protocol: u8, row: &FlowValue, to: SocketAddr) -> Ends {
    let (client, frontend) = ends(row, to);
    (protocol, client, frontend)
}

/// Whether a guard says nothing else.
fn is_bare(row: &FlowValue) -> bool {
    let flags = GUARD;
    *row == FlowValue {
        last_seen: row.last_seen,
        flags,
        ..FlowValue::EMPTY
    }
}

/// Fails if the table has a row of a flow that nobody has seen: what is refused or dropped leaves nothing behind. A
/// guard has no other row, and is there for nothing but what has left from a NodePort.
pub fn all(programs: &mut Programs, shadow: &Shadow) -> Result<Result<(), Fault>> {
    for (key, row) in programs.flows()? {
        let from = SocketAddr::new(key.source.into(), key.source_port.get());
        let to = SocketAddr::new(key.destination.into(), key.destination_port.get());
        let packet = (key.protocol, from, to);
        let is_known = match key.direction {
            FORWARD if row.flags & GUARD != 0 => shadow.guarded(&packet).is_some() && is_bare(&row),
            FORWARD => shadow.by_request(&packet).is_some() || shadow.is_unseen(&packet),
            _ => shadow.by_answer(&packet).is_some() || shadow.is_unseen(&requests(key.protocol, &row, to)),
        };
        if !is_known {
            return Ok(Err(format!("{packet:?} has a row of no flow: {row:?}")));
        }
    }
    Ok(Ok(()))
}

/// Makes every row so old that its flow is over, if it is one that can be.
pub fn expire(programs: &mut Programs) -> Result<()> {
    for (key, row) in programs.flows()? {
        let last_seen = row.last_seen.saturating_sub(2 * UDP_TIMEOUT);
        programs.set_flow(key, FlowValue { last_seen, ..row })?;
    }
    Ok(())
}

/// Deletes a row.
pub fn evict(programs: &mut Programs, nth: usize) -> Result<()> {
    let mut keys: Vec<FlowKey> = programs.flows()?.into_iter().map(|(key, _)| key).collect();
    keys.sort_by_key(|key| {
        let ends = (key.source, key.source_port, key.destination, key.destination_port);
        (key.direction, key.protocol, ends)
    });
    if let Some(key) = keys.get(nth % keys.len().max(1)) {
        programs.remove_flow(key)?;
    }
    Ok(())
}
