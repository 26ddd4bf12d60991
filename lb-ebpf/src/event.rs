//! Telling of packets that go nowhere: each is counted by its reason, and shown to whoever watches.

use aya_ebpf::{bindings::__sk_buff, helpers::bpf_ktime_get_ns, programs::sk_buff::SkBuff};
use lb_common::{
    Address, Counter, Event, FlowKey, Port,
    event::{EVENTS_PER_SECOND, EventBudget, NO_LINK},
    flow::FORWARD,
};

use crate::{
    counter::count,
    family::{Family, V4, V6},
    maps::{EVENT_BUDGET, EVENTS},
    packet::{IPV4, IPV6, Packet},
    verdict::{DROP, step},
    vlan,
};

const SECOND: u64 = 1_000_000_000;

/// A packet is dropped; `because` has the reason as [`because`](crate::verdict::because) gave it. Reads the packet once
/// more: that is cheaper than to carry it here past all that are not dropped.
#[inline(never)]
pub(crate) fn dropped<const LINK_HEADER: usize>(skb: *mut __sk_buff, direction: u8, because: i32) -> i32 {
    let skb = &SkBuff { skb };
    let (network, protocol) = vlan::network::<LINK_HEADER>(skb).unwrap_or_default();
    let reason = (because - step::DROPPED) as u32;
    let mut packet = Packet::new(network, direction);
    match protocol {
        IPV4 => read::<V4>(skb, &mut packet),
        IPV6 => read::<V6>(skb, &mut packet),
        _ => (),
    }
    tell(skb, &packet.key, reason);
    DROP
}

/// As much of a packet as there is.
#[inline(always)]
fn read<F: Family>(skb: &SkBuff, packet: &mut Packet) {
    if packet.read::<F>(skb).is_none()
        && let Some(header) = F::parse(skb, packet.network)
    {
        let direction = packet.key.direction;
        let ends = ((header.source, Port::NONE), (header.destination, Port::NONE));
        packet.key = FlowKey::new(direction, header.protocol, ends.0, ends.1);
    }
}

/// Counts a packet that was met at a link, and shows it.
#[inline(always)]
pub(crate) fn tell(skb: &SkBuff, packet: &FlowKey, reason: u32) {
    count(reason);
    // SAFETY: reads the context, which belongs to this run of the program.
    show(packet, reason, unsafe { (*skb.skb).ifindex });
}

/// Counts a call of a process that was denied, and shows it. Where it calls from is not known before there is a
/// packet. A function of its own in the kernel's eyes: many places call it, none in a hurry.
#[inline(never)]
pub(crate) fn denied(address: &Address, port: Port, protocol: u8, reason: u32) {
    count(reason);
    let source = if address.is_v4() {
        Address::ANY_V4
    } else {
        Address::ANY_V6
    };
    let call = FlowKey::new(FORWARD, protocol, (source, Port::NONE), (*address, port));
    show(&call, reason, NO_LINK);
}

/// Writes an event, unless there have been too many.
#[inline(always)]
fn show(packet: &FlowKey, reason: u32, link: u32) {
    // Exactly: who watches has what happened since, and nothing is in a hurry here.
    // SAFETY: no arguments.
    let time = unsafe { bpf_ktime_get_ns() };
    if !may_write(time) {
        return count(Counter::EventsLost as u32);
    }
    let Some(mut entry) = EVENTS.reserve(0) else {
        return count(Counter::EventsLost as u32);
    };
    entry.write(Event {
        time,
        packet: *packet,
        reason,
        link,
    });
    entry.submit(0);
}

#[inline(always)]
fn may_write(time: u64) -> bool {
    let Some(budget) = EVENT_BUDGET.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: the row is this CPU's own. A hook of a socket may be interrupted by one of a link, which costs an event
    // or gives one more.
    let budget: &mut EventBudget = unsafe { &mut *budget };
    let second = time / SECOND;
    if budget.second != second {
        budget.second = second;
        budget.written = 0;
    }
    budget.written += 1;
    budget.written <= EVENTS_PER_SECOND
}
