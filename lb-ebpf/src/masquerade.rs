//! The node speaks for a client: what its link asked for ([`MASQUERADE`](lb_common::flow::MASQUERADE)) is done where the
//! packet goes out, once the kernel has decided where that is.
//!
//! The two rows of it are found like those of any flow. So answers are translated where they come in, before the kernel
//! could take them for its own, and errors, fragments and checksums need nothing more.

use aya_ebpf::bindings::{__sk_buff, BPF_ANY, BPF_NOEXIST};
use lb_common::{
    Address, Counter, FlowKey, FlowValue, Port, SourceKey,
    flow::{CLOSING, FORWARD, MASQUERADED},
    source::ANY_LINK,
    stage::SIDES,
};

use crate::{
    config, flow,
    maps::{FLOWS, SCRATCH, SOURCES},
    packet::Packet,
    stage,
    verdict::{PASS, because, step},
};

/// How many ports are tried.
const ATTEMPTS: u32 = 16;
/// How many of these leave a connection alone that has just ended: its backend may be in TIME-WAIT.
const CAREFUL_ATTEMPTS: u32 = 12;
/// Nanoseconds that a TCP connection may be silent (RFC 5382, REQ-5: no less than 2 hours and 4 minutes).
const TCP_IDLE: u64 = 7_440_000_000_000;

/// Whether a reverse row is about this packet: one of a masqueraded client is about packets alone that ask for it. Those
/// that may begin something see whether the answers have their row too, by the key `asks`, and those without a connection
/// keep it alive.
#[inline(always)]
pub(crate) fn holds(row: &FlowValue, packet: &Packet, asks: &FlowKey, asked: u32, now: u64) -> bool {
    if row.flags & MASQUERADED == 0 {
        return true;
    }
    if asked == 0 || (packet.opens() && row.flags & CLOSING != 0) {
        return false;
    }
    if packet.continues() {
        return true;
    }
    let Some(answers) = FLOWS.get_ptr_mut(asks) else {
        return false;
    };
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it; two CPUs that both
    // set the time write the same.
    let answers = unsafe { &mut *answers };
    let is_ours = answers.address.same(&packet.key.source) & (answers.port.be == packet.key.source_port.be);
    if is_ours {
        answers.last_seen = now;
    }
    is_ours
}

/// Writes both rows for a packet that has none: that of the answers first, so that none comes before it.
#[inline(never)]
pub(crate) fn begin(skb: *mut __sk_buff, packet: &Packet) -> i32 {
    if stage::drains() {
        // The flow is of those behind, who are to be asked too.
        // SAFETY: the context belongs to this run of the program.
        unsafe { (*skb).mark |= config::masquerade_mark() };
        return PASS;
    }
    // SAFETY: reads the context, which belongs to this run of the program.
    let link = unsafe { (*skb).ifindex };
    let Some(source) = source(link, &packet.key.source) else {
        return because(Counter::DroppedNoSource);
    };
    if source.same(&packet.key.source) {
        // Another has done it: a rule of the network plugin, or of the proxy before us.
        return PASS;
    }
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else {
        return because(Counter::DroppedFlowTable);
    };
    // SAFETY: the row is this CPU's own, and nothing else of ours runs on it before we return.
    let row = unsafe { &mut (*scratch).reverse };
    *row = FlowValue {
        last_seen: flow::now(),
        address: packet.key.source,
        port: packet.key.source_port,
        generation: flow::random(),
        flags: MASQUERADED,
        ..FlowValue::EMPTY
    };
    let Some(port) = claim(packet, &source, row) else {
        return because(Counter::DroppedNoSourcePort);
    };
    (row.address, row.port) = (source, port);
    match FLOWS.insert(&packet.key, &*row, BPF_ANY.into()) {
        Ok(()) => step::SEND,
        Err(_) => because(Counter::DroppedFlowTable),
    }
}

/// The address by which the node speaks on a link, to whom it speaks for `client`.
#[inline(always)]
fn source(link: u32, client: &Address) -> Option<Address> {
    let mut key = SourceKey::new(link, client);
    // SAFETY: the row is copied at once; a concurrent update replaces it by another one.
    if let Some(address) = unsafe { SOURCES.get(&key) } {
        return Some(*address);
    }
    key.link = ANY_LINK;
    // SAFETY: as above.
    unsafe { SOURCES.get(&key) }.copied()
}

/// Takes a port of `source` that no other client has towards the destination of `packet`, by writing the row of its
/// answers.
#[inline(always)]
fn claim(packet: &Packet, source: &Address, row: &FlowValue) -> Option<Port> {
    let backend = (packet.key.destination, packet.key.destination_port);
    let mut key = FlowKey::new(FORWARD, packet.key.protocol, backend, (*source, Port::NONE));
    let own = stage::ports();
    for attempt in 0..ATTEMPTS {
        // Where there are not enough of them, the others are better than none.
        let kind = if attempt < CAREFUL_ATTEMPTS {
            own
        } else {
            flow::random() as u16 % SIDES as u16
        };
        key.destination_port = flow::other_port(kind);
        if FLOWS.insert(&key, row, BPF_NOEXIST.into()).is_ok() {
            return Some(key.destination_port);
        }
        let rest = if attempt < CAREFUL_ATTEMPTS { flow::TIME_WAIT } else { 0 };
        if is_over(&key, packet.is_connected(), row.last_seen, rest) && FLOWS.insert(&key, row, BPF_ANY.into()).is_ok()
        {
            return Some(key.destination_port);
        }
    }
    None
}

/// Whether the row of the answers is nobody's any more. `rest` is how long a connection has to have ended.
#[inline(always)]
fn is_over(key: &FlowKey, is_connected: bool, now: u64, rest: u64) -> bool {
    // SAFETY: two fields are read, right here.
    let Some(row) = (unsafe { FLOWS.get(key) }) else {
        return false;
    };
    let silent = now.saturating_sub(row.last_seen);
    let has_ended = (row.flags & CLOSING != 0) & (silent >= rest);
    let is_forgotten = silent > if is_connected { TCP_IDLE } else { config::udp_timeout() };
    has_ended | is_forgotten
}
