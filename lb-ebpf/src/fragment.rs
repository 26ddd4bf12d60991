//! Fragments: all of a datagram go the way of the first one, which has the ports.
//!
//! What becomes of the first is written down in `FRAGMENTS` ([`note`], [`first`]), and the others follow that
//! ([`follow`]). One that comes before it, since the network changed the order, is held in
//! `HELD_FRAGMENTS`; the first one sends those back to the link that it came from, behind itself
//! ([`release`]). Half a datagram is never translated.
//!
//! Towards clients nothing is held: the node puts datagrams together where they come in, for connection
//! tracking, and cuts them again in order.

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_F_INGRESS, BPF_F_INVALIDATE_HASH, BPF_F_RECOMPUTE_CSUM, BPF_NOEXIST},
    helpers::{bpf_get_smp_processor_id, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes},
    programs::sk_buff::SkBuff,
};
use lb_common::{
    Address, Counter, FragmentKey, FragmentValue,
    address::{CLUSTER_IP, EXTERNAL, NODE_PORTS},
    flow::FORWARD,
    fragment::{self, FRAGMENT_TIMEOUT, HELD_MAX, HELD_PER_CPU, HELD_PER_DATAGRAM, LOST, SEND, WAIT},
    maps::HELD_FRAGMENTS_MAX,
    net::{SCTP, TCP, UDP},
};

use crate::{
    config,
    counter::count,
    family::Family,
    flow,
    maps::{ADDRESSES, FRAGMENTS, HELD_FRAGMENTS, SCRATCH},
    opaque::opaque,
    packet::{Network, Packet},
    verdict::{DROP, PASS, because, step},
};

/// A first fragment, of which this was decided: takes down what [`first`] needs to know. For [`SEND`] that is the
/// new address too.
#[inline(always)]
pub(crate) fn note(packet: &Packet, decision: i32, address: &Address, masquerade: bool) {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else {
        return;
    };
    let from = &packet.key;
    let key = FragmentKey {
        source: from.source,
        destination: from.destination,
        identification: packet.identification,
        protocol: from.protocol,
        direction: from.direction,
        pad: 0,
    };
    // SAFETY: the row is this CPU's own, and nothing else of ours runs on it before we return. Field by field: the address
    // may be in another one of them.
    unsafe {
        (*scratch).key = key;
        (*scratch).value.address = *address;
        (*scratch).value.masquerade = masquerade.into();
        (*scratch).decision = decision;
    }
}

/// Writes down what becomes of the datagram whose first fragment was [noted](note), and says what becomes of that:
/// what was decided, unless others were there before it.
#[inline(always)]
pub(crate) fn first() -> i32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else {
        return because(Counter::DroppedFragment);
    };
    // SAFETY: the row is this CPU's own, and nothing else of ours runs on it before we return.
    let scratch = unsafe { &mut *scratch };
    let value = &mut scratch.value;
    value.since = flow::now();
    (value.held, value.count) = (0, 0);
    value.fate = match scratch.decision {
        step::SEND => SEND,
        PASS => fragment::PASS,
        _ => fragment::DROP,
    };
    let mut decision = scratch.decision;
    // SAFETY: the row is copied field by field right here.
    if let Some(row) = unsafe { FRAGMENTS.get(&scratch.key) }
        && is_fresh(row, value.since)
    {
        if row.fate == LOST && value.fate != fragment::PASS {
            value.fate = fragment::DROP;
            decision = because(Counter::DroppedFragment);
        } else if row.held != 0 {
            (value.held, value.count) = (row.held, row.count);
            decision = step::RELEASE;
        }
    } else if value.fate == fragment::PASS && !may_be_ours(&scratch.key.destination) {
        // Nobody will ask.
        return decision;
    }
    // Without the row the others are held, and forgotten: the datagram is lost as a whole.
    let _ = FRAGMENTS.insert(&scratch.key, &scratch.value, BPF_ANY.into());
    decision
}

/// The first fragment, as it came, and all that were held for it are sent back to the link, the first in
/// front, to be read again.
#[inline(always)]
pub(crate) fn release<F: Family>(skb: &SkBuff, network: usize) -> i32 {
    let Some(key) = F::parse(skb, network).map(|network| key(FORWARD, &network)) else {
        return lost();
    };
    let Some(row) = FRAGMENTS.get_ptr_mut(&key) else {
        return lost();
    };
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it.
    let row = unsafe { &mut *row };
    let mut place = row.held;
    (row.held, row.count) = (0, 0);
    // SAFETY: reads the context, which belongs to this run of the program.
    let link = unsafe { (*skb.skb).ifindex };
    let ingress = u64::from(BPF_F_INGRESS);
    if skb.clone_redirect(link, ingress).is_err() {
        return because(Counter::DroppedFragment);
    }
    for _ in 0..=HELD_PER_DATAGRAM {
        if place == 0 {
            return DROP;
        }
        let Some(before) = become_held(skb, place - 1, &key) else {
            break;
        };
        place = before;
        if skb.clone_redirect(link, ingress).is_err() {
            break;
        }
    }
    // One of them is not there any more.
    because(Counter::DroppedFragment)
}

/// The packet becomes the fragment that is held at `place`, if that is of the datagram `key`. Gives the place
/// of the one before.
#[inline(always)]
fn become_held(skb: &SkBuff, place: u32, key: &FragmentKey) -> Option<u32> {
    // SAFETY: as in `hold`, whose CPU may be another: it finds the place free or fills it anew.
    let held = unsafe { &mut *HELD_FRAGMENTS.get_ptr_mut(place)? };
    let length = held.length;
    if !same(&held.key, key) || length == 0 || length > HELD_MAX as u32 {
        return None;
    }
    let length = in_bounds(skb, length);
    let flags = u64::from(BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH);
    held.length = 0;
    let frame = held.frame.as_mut_ptr().cast();
    // SAFETY: the context belongs to this run of the program, and no packet pointer is held; the frame is that
    // many readable bytes.
    let failed = unsafe {
        bpf_skb_change_tail(skb.skb, length, 0) != 0 || bpf_skb_store_bytes(skb.skb, 0, frame, length, flags) != 0
    };
    (!failed).then_some(held.before)
}

/// A fragment behind the first, from a link.
#[inline(always)]
pub(crate) fn to_backend<F: Family>(skb: &SkBuff, network: usize, fragment: &Network) -> i32 {
    if !has_ports(fragment) {
        return PASS;
    }
    let key = key(FORWARD, fragment);
    if let Some(verdict) = follow::<F>(skb, network, &key) {
        return verdict;
    }
    let is_held = hold(skb, &key);
    // The first one may have come in the meantime, too early to see that this one is held. If it has seen it,
    // there are two of this fragment now, which harms nobody.
    match follow::<F>(skb, network, &key) {
        Some(verdict) => verdict,
        // It goes on when it is sent again.
        None if is_held => DROP,
        None => lost(),
    }
}

/// A fragment behind the first, to a link.
#[inline(always)]
pub(crate) fn to_client<F: Family>(skb: &SkBuff, network: usize, fragment: &Network) -> i32 {
    let key = key(lb_common::flow::REVERSE, fragment);
    let Some(row) = known(&key) else {
        return PASS;
    };
    match row.fate {
        SEND => translate::<F>(skb, network, F::SOURCE, &key.source, row),
        fragment::DROP => lost(),
        _ => PASS,
    }
}

/// What becomes of a fragment because of what became of the first; `None`: it is to be held.
#[inline(always)]
fn follow<F: Family>(skb: &SkBuff, network: usize, key: &FragmentKey) -> Option<i32> {
    let Some(row) = known(key) else {
        return (!may_be_ours(&key.destination)).then_some(PASS);
    };
    match row.fate {
        SEND => Some(translate::<F>(skb, network, F::DESTINATION, &key.destination, row)),
        WAIT => None,
        fragment::DROP => Some(lost()),
        // Where every port is a service's, the first one will be dropped too.
        LOST if flags(&key.destination) & CLUSTER_IP != 0 => Some(lost()),
        _ => Some(PASS),
    }
}

#[inline(always)]
fn translate<F: Family>(skb: &SkBuff, network: usize, field: usize, old: &Address, row: &FragmentValue) -> i32 {
    let new = row.address;
    let masquerade = row.masquerade != 0;
    if F::replace_bare_address(skb, network, field, old, &new).is_err() {
        return because(Counter::DroppedRewrite);
    }
    if masquerade {
        // SAFETY: the context belongs to this run of the program.
        unsafe { (*skb.skb).mark |= config::masquerade_mark() };
    }
    PASS
}

/// Holds a fragment, or notes that it could not be, where there is a row for that. Says whether it is held.
#[inline(always)]
fn hold(skb: &SkBuff, key: &FragmentKey) -> bool {
    let Some(row) = waiting(key) else {
        return false;
    };
    let length = skb.len();
    let Some(place) = place() else {
        return false;
    };
    let Some(held) = HELD_FRAGMENTS.get_ptr_mut(place) else {
        return false;
    };
    // SAFETY: this place is this CPU's, see `HELD_PER_CPU`; whoever reads it meanwhile finds another key.
    let held = unsafe { &mut *held };
    if length == 0 || length > HELD_MAX as u32 || row.count >= HELD_PER_DATAGRAM {
        row.fate = LOST;
        return false;
    }
    if held.length != 0 {
        // What was held there waited in vain for its first fragment. Nothing else tells of its end.
        count(Counter::DroppedFragment as u32);
    }
    held.length = 0;
    held.key = *key;
    held.before = row.held;
    let length = in_bounds(skb, length);
    // SAFETY: the frame has room for that many bytes.
    if unsafe { bpf_skb_load_bytes(skb.skb.cast(), 0, held.frame.as_mut_ptr().cast(), length) } != 0 {
        row.fate = LOST;
        return false;
    }
    held.length = length;
    row.held = place + 1;
    row.count += 1;
    true
}

/// The same length, which is of 1 to `HELD_MAX` bytes, in a form that shows it to the verifiers of old kernels: they
/// learn nothing from a comparison with zero.
#[inline(always)]
fn in_bounds(skb: &SkBuff, length: u32) -> u32 {
    (opaque(skb, length as usize - 1) & (HELD_MAX - 1)) as u32 + 1
}

/// The row of a datagram that waits for its first fragment.
#[inline(always)]
fn waiting(key: &FragmentKey) -> Option<&'static mut FragmentValue> {
    if known(key).is_none() {
        let row = FragmentValue {
            since: flow::now(),
            address: Address::ANY_V6,
            held: 0,
            count: 0,
            fate: WAIT,
            masquerade: 0,
        };
        let how = if FRAGMENTS.get_ptr(key).is_some() {
            BPF_ANY
        } else {
            BPF_NOEXIST
        };
        let _ = FRAGMENTS.insert(key, &row, how.into());
    }
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it.
    let row = unsafe { &mut *FRAGMENTS.get_ptr_mut(key)? };
    (row.fate == WAIT).then_some(row)
}

/// The next place of this CPU in the ring.
#[inline(always)]
fn place() -> Option<u32> {
    let scratch = SCRATCH.get_ptr_mut(0)?;
    // SAFETY: the row is this CPU's own, and nothing else of ours runs on it before we return.
    let number = unsafe {
        (*scratch).held += 1;
        (*scratch).held
    };
    // SAFETY: no arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    Some((cpu * HELD_PER_CPU + number % HELD_PER_CPU) % HELD_FRAGMENTS_MAX)
}

/// The row of a datagram, unless it is that of an earlier one with the same identification.
#[inline(always)]
fn known(key: &FragmentKey) -> Option<&'static FragmentValue> {
    // SAFETY: a row stays readable while the program runs, whatever becomes of it.
    let row = unsafe { FRAGMENTS.get(key) }?;
    is_fresh(row, flow::now()).then_some(row)
}

#[inline(always)]
fn is_fresh(row: &FragmentValue, now: u64) -> bool {
    now.saturating_sub(row.since) <= FRAGMENT_TIMEOUT
}

/// Whether datagrams to that address may be for a service.
#[inline(always)]
fn may_be_ours(address: &Address) -> bool {
    flags(address) & (NODE_PORTS | CLUSTER_IP | EXTERNAL) != 0
}

#[inline(always)]
fn flags(address: &Address) -> u32 {
    // SAFETY: the row is copied at once; a concurrent update replaces it by another one.
    unsafe { ADDRESSES.get(address) }.map_or(0, |address| address.flags)
}

#[inline(always)]
fn has_ports(fragment: &Network) -> bool {
    matches!(fragment.protocol, TCP | UDP | SCTP)
}

#[inline(always)]
fn key(direction: u8, fragment: &Network) -> FragmentKey {
    FragmentKey {
        source: fragment.source,
        destination: fragment.destination,
        identification: fragment.identification,
        protocol: fragment.protocol,
        direction,
        pad: 0,
    }
}

#[inline(always)]
fn same(a: &FragmentKey, b: &FragmentKey) -> bool {
    a.source.same(&b.source)
        & a.destination.same(&b.destination)
        & (a.identification == b.identification)
        & (a.protocol == b.protocol)
}

#[inline(always)]
fn lost() -> i32 {
    because(Counter::DroppedFragment)
}
