//! Rows of flows: making them, and telling whether they still hold.

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::{bpf_get_prandom_u32, bpf_ktime_get_coarse_ns, bpf_ktime_get_ns},
};
use lb_common::{
    FlowKey, FlowValue, Port, ServiceValue,
    address::NODE_PORTS,
    backend::{FREE, SERVING},
    config::{FIRST_SNAT_PORT, LAST_SNAT_PORT},
    flow::{CLOSING, FORWARD, GUARD, MASQUERADE, MASQUERADED, REVERSE},
    fragment::Scratch,
    service::{HASHED, MASQUERADE_ALL},
    stage::SIDES,
};

use crate::{
    affinity,
    client::Client,
    config,
    maps::FLOWS,
    packet::Packet,
    service::{self, Chosen},
    stage,
};

/// How often a new flow draws a slot before it takes another source port as well.
const SLOT_ATTEMPTS: u32 = 4;
/// The same where the slot is not drawn: another port, and the backend stays.
const HASHED_ATTEMPTS: u32 = 1;
/// How often it draws in all.
pub(crate) const ATTEMPTS: u32 = 8;

/// Some servers trust a client below it (NFS does), so it keeps its port whatever that collides with.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// Nanoseconds that a backend may be in TIME-WAIT (Linux: `TCP_TIMEWAIT_LEN`).
pub(crate) const TIME_WAIT: u64 = 60_000_000_000;

/// Why a flow could not begin.
pub(crate) enum Failure {
    /// The backends of the service have just changed.
    NoBackend,
    /// The pair of backend and port belongs to a living flow.
    Collision,
    /// The map took no new row.
    Table,
}

/// Now, by the clock of [`FlowValue::last_seen`], or a few milliseconds ago: to read that costs next to nothing.
#[inline(always)]
pub(crate) fn now() -> u64 {
    if config::has_coarse_clock() {
        // SAFETY: no arguments.
        unsafe { bpf_ktime_get_coarse_ns() }
    } else {
        // SAFETY: no arguments.
        unsafe { bpf_ktime_get_ns() }
    }
}

/// Whether a forward row still says where the packet goes. A TCP flow holds to its backend to the
/// end; only its first segment may choose anew, when the connection before is over or its backend
/// takes no new ones, or when no row is left to translate the answer. A datagram chooses anew as soon as
/// its backend is not serving any more.
///
/// The row that translates the answers may have been evicted, or be another flow's by now. A datagram keeps it alive:
/// not every one is answered, and silence of one direction is not the end of a flow.
#[inline(always)]
pub(crate) fn holds(row: &FlowValue, packet: &Packet, answers: &FlowKey, now: u64) -> bool {
    if packet.continues() {
        return true;
    }
    if row.flags & MASQUERADED != 0 {
        return !expired(row, now);
    }
    if row.flags & CLOSING != 0 || service::backend_state(row.backend, row.generation) != SERVING {
        return false;
    }
    let Some(reverse) = FLOWS.get_ptr_mut(answers) else {
        return false;
    };
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it; two CPUs that both
    // set the time write the same.
    let reverse = unsafe { &mut *reverse };
    let is_ours = reverse.address.same(&packet.key.destination) & (reverse.port.be == packet.key.destination_port.be);
    if expired(reverse, now) | !is_ours {
        return false;
    }
    if !packet.is_connected() {
        reverse.last_seen = now;
    }
    true
}

/// Whether a row has been silent for too long. Another CPU may have used it after `now` was read.
#[inline(always)]
pub(crate) fn expired(row: &FlowValue, now: u64) -> bool {
    now.saturating_sub(row.last_seen) > config::udp_timeout()
}

/// The key of the reverse row that belongs to the forward row `row` of `packet`.
#[inline(always)]
pub(crate) fn answers(packet: &Packet, row: &FlowValue) -> FlowKey {
    let client_port = row.client_port.or(packet.key.source_port);
    let client = (packet.key.source, client_port);
    FlowKey::new(REVERSE, packet.key.protocol, (row.address, row.port), client)
}

/// The key of the forward row that belongs to the reverse row `row` of `packet`.
#[inline(always)]
pub(crate) fn asks(packet: &Packet, row: &FlowValue) -> FlowKey {
    let client_port = row.client_port.or(packet.key.destination_port);
    let client = (packet.key.destination, client_port);
    FlowKey::new(FORWARD, packet.key.protocol, client, (row.address, row.port))
}

/// Marks the other row of the TCP flow of `row` as closing, unless it is that of a later flow by now: the last
/// segment of a backend may come when its client has another.
#[inline(always)]
pub(crate) fn close(key: &FlowKey, row: &FlowValue) {
    if let Some(other) = FLOWS.get_ptr_mut(key) {
        // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it.
        let other = unsafe { &mut *other };
        if (other.backend ^ row.backend) | (other.generation ^ row.generation) == 0 {
            other.flags |= CLOSING;
        }
    }
}

/// Begins a flow: draws a backend, writes both rows, gives the forward one. Reverse first, so that
/// an answer never comes before the row that translates it. `attempt` counts from 0.
#[inline(always)]
pub(crate) fn begin(
    packet: &Packet,
    service: &ServiceValue,
    client: Client,
    attempt: u32,
    now: u64,
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    let remembered = affinity::remembered(service, packet.key.source, client.set(service), now);
    let is_hashed = service.flags & HASHED != 0;
    let (draw, slot_attempts) = if is_hashed {
        (packet.key.hash(), HASHED_ATTEMPTS)
    } else {
        (random(), SLOT_ATTEMPTS)
    };
    let Some(chosen) = service::choose(client.range(service), remembered, draw) else {
        return Err(Failure::NoBackend);
    };
    let may_keep_port = !stage::is_beside() | (packet.key.source_port.get() < FIRST_UNPRIVILEGED_PORT);
    let client_port = if (attempt < slot_attempts) & may_keep_port {
        Port::NONE
    } else {
        other_port(stage::ports())
    };
    let row = &mut scratch.forward;
    *row = forward_row(packet, service, &chosen, client, client_port, now);
    // As long as there are others. What is taken at the end is better than nothing.
    let rest = if attempt + 1 < ATTEMPTS { TIME_WAIT } else { 0 };
    if !claim(packet, row, &mut scratch.reverse, rest) {
        return Err(Failure::Collision);
    }
    affinity::remember(service, packet.key.source, row.backend, now);
    FLOWS
        .insert(&packet.key, &*row, BPF_ANY.into())
        .map_err(|_| Failure::Table)
}

/// A connection opens that is not to a service. What is left of an earlier one between the same
/// ends, through a frontend to this very backend, or to a frontend that was here, must not touch it.
#[inline(always)]
pub(crate) fn forget(packet: &Packet, now: u64) {
    if FLOWS.get_ptr(&packet.key).is_some() {
        let _ = FLOWS.remove(&packet.key);
    }
    let reverse = FlowKey::new(
        REVERSE,
        packet.key.protocol,
        (packet.key.destination, packet.key.destination_port),
        (packet.key.source, packet.key.source_port),
    );
    // A fresh row is that of this very connection, translated on a link that it has passed already.
    // SAFETY: two fields are read, right here.
    if unsafe { FLOWS.get(&reverse) }.is_some_and(|row| row.flags & CLOSING != 0 || expired(row, now)) {
        let _ = FLOWS.remove(&reverse);
    }
}

/// Whether a packet is of another connection than that of its row, which then goes. The first answer of one that has opened
/// since comes to rows that have ended only where somebody else has its rows and gave it its port: programs before or
/// behind these, or the kernel.
#[inline(always)]
pub(crate) fn is_of_another(row: &FlowValue, packet: &Packet) -> bool {
    let is_so = packet.accepts() & (row.flags & CLOSING != 0);
    if is_so {
        let _ = FLOWS.remove(&packet.key);
    }
    is_so
}

/// Whether a reverse row still stands for a flow. An answer to a datagram may come late, but not
/// after both directions have been silent for too long: the ports may be another flow's by then.
#[inline(always)]
pub(crate) fn stands(row: &FlowValue, packet: &Packet, now: u64) -> bool {
    packet.is_connected() || !expired(row, now)
}

/// A packet of no flow goes out. If it is a datagram from a NodePort, what answers it must not be taken for a client of that: see
/// [`GUARD`].
#[inline(always)]
pub(crate) fn guard(packet: &Packet) {
    if !packet.is_connected() && service::flags(&packet.key.source) & NODE_PORTS != 0 {
        guard_node_port(packet);
    }
}

/// The source address has NodePorts.
#[inline(never)]
fn guard_node_port(packet: &Packet) {
    let key = &packet.key;
    // Beside other programs it may be the answer to a client of theirs, which is not to be shut out.
    if !service::is_node_port(&key.source, key.source_port, key.protocol) || stage::is_beside() {
        return;
    }
    let now = now();
    let answer = FlowKey::new(
        FORWARD,
        key.protocol,
        (key.destination, key.destination_port),
        (key.source, key.source_port),
    );
    let guard = FlowValue {
        last_seen: now,
        flags: GUARD,
        ..FlowValue::EMPTY
    };
    if FLOWS.insert(&answer, &guard, BPF_NOEXIST.into()).is_ok() {
        return;
    }
    if let Some(row) = FLOWS.get_ptr_mut(&answer) {
        // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it.
        let row = unsafe { &mut *row };
        // A client's flow, whose answer this is on its second link, stays one.
        if row.flags & GUARD != 0 {
            row.last_seen = now;
        }
    }
}

#[inline(always)]
fn forward_row(
    packet: &Packet,
    service: &ServiceValue,
    chosen: &Chosen,
    client: Client,
    client_port: Port,
    now: u64,
) -> FlowValue {
    let backend = &chosen.backend;
    let hairpin = backend.address.same(&packet.key.source);
    let masquerade = hairpin | client.is_passed_by(backend) | (service.flags & MASQUERADE_ALL != 0);
    FlowValue {
        last_seen: now,
        address: backend.address,
        port: backend.port,
        client_port,
        backend: chosen.number,
        generation: backend.generation,
        service: service.service,
        flags: MASQUERADE * u8::from(masquerade),
        pad: [0; 7],
    }
}

/// Writes the reverse row of `row`. False where a living flow of another frontend has it, or one that has ended less than
/// `rest` ago: its backend may be in TIME-WAIT, and take a SYN of other sequence numbers and timestamps for an old one.
#[inline(always)]
fn claim(packet: &Packet, row: &FlowValue, reverse: &mut FlowValue, rest: u64) -> bool {
    let key = answers(packet, row);
    *reverse = FlowValue {
        address: packet.key.destination,
        port: packet.key.destination_port,
        client_port: if row.client_port == Port::NONE {
            Port::NONE
        } else {
            packet.key.source_port
        },
        flags: 0,
        ..*row
    };
    if FLOWS.insert(&key, &*reverse, BPF_NOEXIST.into()).is_ok() {
        return true;
    }
    let Some(held) = FLOWS.get_ptr_mut(&key) else {
        return false;
    };
    // SAFETY: a row stays readable while the program runs, whatever becomes of it.
    let held = unsafe { &*held };
    let same_frontend =
        held.address == reverse.address && held.port == reverse.port && held.client_port == reverse.client_port;
    let since = row.last_seen.saturating_sub(held.last_seen);
    let silent = since > config::udp_timeout();
    let gone = service::backend_state(held.backend, held.generation) == FREE;
    let closing = (held.flags & CLOSING != 0) & (since >= rest);
    // A TCP connection may outlive its endpoint, and be quiet: it takes both to give it up.
    // One branch for all of it: the verifier follows each on every attempt.
    let over = closing | (silent & gone) | (!packet.is_connected() & (silent | gone));
    (same_frontend | over) && FLOWS.insert(&key, &*reverse, BPF_ANY.into()).is_ok()
}

#[inline(always)]
pub(crate) fn random() -> u32 {
    // SAFETY: no arguments.
    unsafe { bpf_get_prandom_u32() }
}

/// A source port for a client that cannot have its own, of one of both [kinds](lb_common::stage::PORTS).
#[inline(always)]
pub(crate) fn other_port(kind: u16) -> Port {
    let span = (u64::from(LAST_SNAT_PORT - FIRST_SNAT_PORT) + 1) / u64::from(SIDES);
    let place = ((u64::from(random()) * span) >> 32) as u16;
    Port::new(FIRST_SNAT_PORT + place * SIDES as u16 + kind)
}
