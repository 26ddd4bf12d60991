//! To a client: the backend becomes the frontend again.

use aya_ebpf::{bindings::__sk_buff, programs::sk_buff::SkBuff};
use lb_common::{
    Address, Counter,
    flow::{CLOSING, REVERSE},
    net::SCTP,
};

use crate::{
    config, event,
    family::{Family, V4, V6},
    flow,
    forward::{IPV4, IPV6},
    fragment, icmp,
    maps::FLOWS,
    masquerade,
    packet::Packet,
    rewrite::{self, End},
    sctp, stage,
    verdict::{PASS, because, step},
    vlan,
};

/// A packet to a link.
#[inline(always)]
pub(crate) fn packet<const LINK_HEADER: usize>(skb: &SkBuff) -> i32 {
    let asked = take_mark(skb);
    let mut verdict = at::<LINK_HEADER>(skb.skb, asked);
    if verdict == step::MASQUERADE {
        verdict = masquerade::begin::<LINK_HEADER>(skb.skb);
        if verdict == step::SEND {
            // With the rows that it has now.
            verdict = at::<LINK_HEADER>(skb.skb, asked);
        }
        if verdict == step::MASQUERADE {
            verdict = because(Counter::DroppedFlowTable);
        }
    }
    if verdict < step::DROPPED + Counter::COUNT as i32 {
        event::dropped::<LINK_HEADER>(skb.skb, REVERSE, verdict)
    } else {
        verdict
    }
}

#[inline(never)]
fn at<const LINK_HEADER: usize>(skb: *mut __sk_buff, asked: u32) -> i32 {
    let skb = &SkBuff { skb };
    match vlan::network::<LINK_HEADER>(skb) {
        Some((network, IPV4)) => translate::<V4>(skb, network, asked),
        Some((network, IPV6)) => translate::<V6>(skb, network, asked),
        _ => PASS,
    }
}

#[inline(always)]
fn translate<F: Family>(skb: &SkBuff, network: usize, asked: u32) -> i32 {
    let mut packet = Packet::new(network, REVERSE);
    if packet.read::<F>(skb).is_none() {
        return without_ports::<F>(skb, network);
    }
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it;
    // two CPUs that both set the time or the bit write the same.
    let Some(row) = FLOWS.get_ptr_mut(&packet.key).map(|row| unsafe { &mut *row }) else {
        return of_no_flow(&packet, asked);
    };
    let now = flow::now();
    let is_ours = flow::stands(row, &packet, now) && !flow::is_of_another(row, &packet);
    if !is_ours || !masquerade::holds(row, &packet, asked, now) {
        return of_no_flow(&packet, asked);
    }
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
        // What was held is the other direction's business.
        let client_port = row.client_port.or(packet.key.destination_port);
        let decision = if sctp::is_cut(&packet, row.port, client_port) {
            because(Counter::DroppedRewrite)
        } else {
            step::SEND
        };
        fragment::note(&packet, decision, &row.address, false);
        let _ = fragment::first();
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
fn of_no_flow(packet: &Packet, asked: u32) -> i32 {
    // Where the kernel masquerades, it has done so before this hook. Programs that drain ask those behind them, which may
    // see to it in another way.
    if asked != 0 && (config::masquerades() || stage::drains()) {
        return step::MASQUERADE;
    }
    flow::guard(packet);
    if packet.is_first_fragment() {
        // An answer may have had the same identification a moment ago.
        fragment::note(packet, PASS, &Address::ANY_V6, false);
        let _ = fragment::first();
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

/// Takes the request to masquerade off a packet, 0 if there is none for us. Left on, it would pass to the packet that a
/// tunnel wraps around this one.
#[inline(always)]
fn take_mark(skb: &SkBuff) -> u32 {
    let mark = config::masquerade_mark();
    // SAFETY: the context belongs to this run of the program.
    let asked = unsafe { (*skb.skb).mark } & mark;
    if asked == 0 {
        return 0;
    }
    // SAFETY: as above.
    unsafe { (*skb.skb).mark &= !mark };
    asked
}
