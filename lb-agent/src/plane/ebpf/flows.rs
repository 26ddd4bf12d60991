//! The translations in use, read from the map that is pinned, whether an agent runs or not.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::Context as _;
use lb_common::{
    FlowKey, FlowValue, Port,
    flow::{CLOSING, FORWARD, GUARD, MASQUERADE, MASQUERADED},
    maps,
};
use nix::time::{ClockId, clock_gettime};

use super::{
    object, pins,
    table::{BpfTable, Table as _},
};

/// A flow, as its client began it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// IANA protocol number.
    pub protocol: u8,
    /// Who sent the first packet.
    pub client: SocketAddr,
    /// What it dialled.
    pub frontend: SocketAddr,
    /// Where it goes.
    pub backend: SocketAddr,
    /// The client's port on the way to the backend, where that had to be another.
    pub client_port: Option<u16>,
    /// The client has an address of the node on the way to the backend.
    pub is_masqueraded: bool,
    /// A FIN or RST of it was seen.
    pub is_closing: bool,
    /// How long no packet of the client has come.
    pub silent: Duration,
}

/// The flows that are `wanted`, the one that was used last first.
///
/// # Errors
/// No agent with this layout of the maps has filled any under `bpffs`, or they cannot be read.
pub fn flows(bpffs: &Path, wanted: impl Fn(&Flow) -> bool) -> anyhow::Result<Vec<Flow>> {
    let folder = pins::maps_to_read(bpffs)?;
    let table: BpfTable<FlowKey, FlowValue> = object::table(&folder, maps::FLOWS)?;
    let now = now().context("cannot read the clock")?;
    let mut flows = Vec::new();
    table
        .read(&mut |key, value| {
            flows.extend(Flow::new(&key, &value, now).filter(&wanted));
            true
        })
        .with_context(|| format!("map {}", maps::FLOWS))?;
    flows.sort_by_key(|flow| (flow.silent, flow.client, flow.frontend, flow.protocol));
    Ok(flows)
}

impl Flow {
    /// Of a forward row. The reverse one says the same from the other end, and those of a masqueraded client what becomes of
    /// it on the way.
    pub(super) fn new(key: &FlowKey, value: &FlowValue, now: u64) -> Option<Self> {
        if key.direction != FORWARD || value.flags & (GUARD | MASQUERADED) != 0 {
            return None;
        }
        let end = |address, port: Port| SocketAddr::new(IpAddr::from(address), port.get());
        Some(Self {
            protocol: key.protocol,
            client: end(key.source, key.source_port),
            frontend: end(key.destination, key.destination_port),
            backend: end(value.address, value.port),
            client_port: (value.client_port != Port::NONE).then(|| value.client_port.get()),
            is_masqueraded: value.flags & MASQUERADE != 0,
            is_closing: value.flags & CLOSING != 0,
            // One that was used after the clock was read is not silent.
            silent: Duration::from_nanos(now.saturating_sub(value.last_seen)),
        })
    }
}

/// Now, by the clock of the rows, in nanoseconds.
pub(super) fn now() -> io::Result<u64> {
    let time = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    u64::try_from(time.as_nanos()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use lb_common::flow::REVERSE;

    use super::*;

    fn end(text: &str) -> (lb_common::Address, Port) {
        let end: SocketAddr = text.parse().unwrap();
        (end.ip().into(), Port::new(end.port()))
    }

    fn row(direction: u8, flags: u8) -> (FlowKey, FlowValue) {
        let key = FlowKey::new(direction, 17, end("10.0.0.9:40000"), end("10.96.0.1:53"));
        let (address, port) = end("10.244.1.2:5353");
        let value = FlowValue {
            last_seen: 5_000_000_000,
            address,
            port,
            client_port: Port::new(12_345),
            flags,
            ..FlowValue::EMPTY
        };
        (key, value)
    }

    #[test]
    fn a_forward_row_is_a_flow() {
        let (key, value) = row(FORWARD, MASQUERADE);
        let expected = Flow {
            protocol: 17,
            client: "10.0.0.9:40000".parse().unwrap(),
            frontend: "10.96.0.1:53".parse().unwrap(),
            backend: "10.244.1.2:5353".parse().unwrap(),
            client_port: Some(12_345),
            is_masqueraded: true,
            is_closing: false,
            silent: Duration::from_secs(2),
        };
        assert_eq!(Flow::new(&key, &value, 7_000_000_000), Some(expected));
        let used_since = Flow::new(&key, &value, 4_000_000_000).unwrap();
        assert_eq!(used_since.silent, Duration::ZERO);
    }

    #[test]
    fn the_rows_of_the_other_end_of_a_masqueraded_client_and_a_guard_are_none() {
        for (direction, flags) in [(REVERSE, 0), (FORWARD, GUARD), (FORWARD, MASQUERADED)] {
            let (key, value) = row(direction, flags);
            assert_eq!(Flow::new(&key, &value, 0), None);
        }
    }
}
