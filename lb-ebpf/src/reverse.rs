//! To a client: the backend becomes the frontend again.

use aya_ebpf::{bindings::__sk_buff, programs::sk_buff::SkBuff};
use lb_common::{
    Address, Counter,
    flow::{CLOSING, REVERSE},
    fragment::{self as fate, DROP, SEND},
    net::SCTP,
};

use crate::{
    config, event,
    family::{Family, V4, V6},
    flow,
    forward::{IPV4, IPV6},
    fragment, icmp,
    maps::FLOWS,
    packet::Packet,
    rewrite::{self, End},
    sctp,
    verdict::{PASS, because, step},
    vlan,
};

/// A packet to a link.
#[inline(always)]
pub(crate) fn packet<const LINK_HEADER: usize>(skb: &SkBuff) -> i32 {
    clear_mark(skb);
    let Some((network, protocol)) = vlan::network::<LINK_HEADER>(skb) else {
        return PASS;
    };
    let verdict = at(skb.skb, network, protocol);
    if verdict < step::DROPPED + Counter::COUNT as i32 {
        event::dropped(skb.skb, network, protocol, REVERSE, verdict)
    } else {
        verdict
    }
}

/// A packet whose IP header, of the family `protocol`, starts at `network`.
#[inline(never)]
fn at(skb: *mut __sk_buff, network: usize, protocol: u32) -> i32 {
    let skb = &SkBuff { skb };
    match protocol {
        IPV4 => translate::<V4>(skb, network),
        IPV6 => translate::<V6>(skb, network),
        _ => PASS,
    }
}

#[inline(always)]
fn translate<F: Family>(skb: &SkBuff, network: usize) -> i32 {
    let mut packet = Packet::new(network, REVERSE);
    if packet.read::<F>(skb).is_none() {
        return without_ports::<F>(skb, network);
    }
    let now = flow::now();
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it;
    // two CPUs that both set the time or the bit write the same.
    let row = FLOWS.get_ptr_mut(&packet.key).map(|row| unsafe { &mut *row });
    let Some(row) = row.filter(|row| flow::stands(row, &packet, now)) else {
        return of_no_flow(&packet, now);
    };
    row.last_seen = now;
    if packet.closes() {
        row.flags |= CLOSING;
        flow::close(&flow::asks(&packet, row), row);
    }
    let frontend = End {
        address: row.address,
        port: row.port,
    };
    if packet.is_first_fragment() {
        let is_cut = sctp::is_cut(&packet, row.port, row.client_port.or(packet.key.destination_port));
        let becomes = if is_cut { DROP } else { SEND };
        // What was held is the other direction's business.
        let _ = fragment::first(&packet, becomes, &row.address, false);
    }
    let rewritten = if packet.key.protocol == SCTP {
        sctp::source::<F>(skb, &packet, &frontend, row.client_port)
    } else {
        rewrite::source::<F>(skb, &packet, &frontend, row.client_port)
    };
    if rewritten.is_err() {
        return because(Counter::DroppedRewrite);
    }
    PASS
}

#[inline(always)]
fn of_no_flow(packet: &Packet, now: u64) -> i32 {
    flow::guard(packet, now);
    if packet.is_first_fragment() {
        // An answer may have had the same identification a moment ago.
        let _ = fragment::first(packet, fate::PASS, &Address::ANY_V6, false);
    }
    PASS
}

#[inline(always)]
fn without_ports<F: Family>(skb: &SkBuff, network: usize) -> i32 {
    match F::parse(skb, network) {
        Some(header) if header.offset != 0 => fragment::to_client::<F>(skb, network, &header),
        Some(header) => icmp::to_client::<F>(skb, network, &header),
        None => PASS,
    }
}

/// Routing is done, so the request to masquerade is too. Left on, it would pass to the packet that
/// a tunnel wraps around this one.
#[inline(always)]
fn clear_mark(skb: &SkBuff) {
    let mark = config::masquerade_mark();
    // SAFETY: the context belongs to this run of the program.
    unsafe {
        if (*skb.skb).mark & mark != 0 {
            (*skb.skb).mark &= !mark;
        }
    }
}
