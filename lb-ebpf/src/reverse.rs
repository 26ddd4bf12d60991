//! To a client: the backend becomes the frontend again.

use aya_ebpf::{bindings::__sk_buff, programs::sk_buff::SkBuff};
use lb_common::{
    Address, Counter, FlowValue,
    flow::{CLOSING, REVERSE},
    net::SCTP,
};

use crate::{
    config, event,
    family::{Family, V4, V6},
    flow, fragment, icmp,
    maps::FLOWS,
    masquerade,
    opaque::opaque,
    packet::{IPV4, IPV6, Packet},
    rewrite::{self, End},
    sctp, stage,
    verdict::{PASS, because, step},
    vlan,
};

/// A packet to a link.
#[inline(always)]
pub(crate) fn packet<const LINK_HEADER: usize>(skb: &SkBuff) -> i32 {
    let asked = take_mark(skb);
    let verdict = match translate::<LINK_HEADER>(skb, asked) {
        step::OTHER => other::<LINK_HEADER>(skb.skb),
        verdict => verdict,
    };
    if verdict < step::DROPPED + Counter::COUNT as i32 {
        event::dropped::<LINK_HEADER>(skb.skb, REVERSE, verdict)
    } else {
        verdict
    }
}

/// What most packets need, of flows that go on and of nobody's, is done here: another function would cost them a call.
#[inline(always)]
fn translate<const LINK_HEADER: usize>(skb: &SkBuff, asked: u32) -> i32 {
    let Some((network, protocol)) = vlan::network::<LINK_HEADER>(skb) else {
        return PASS;
    };
    let family = opaque(skb, protocol as usize) as u32;
    let mut packet = Packet::new(network, REVERSE);
    if packet.read_as(skb, protocol).is_none() {
        return step::OTHER;
    }
    let Some(row) = known(&packet, asked) else {
        return match of_no_flow(skb, &packet, asked) {
            step::SEND => send_again(skb.skb, &packet, family),
            verdict => verdict,
        };
    };
    if packet.is_first_fragment() | (packet.key.protocol == SCTP) {
        return send_again(skb.skb, &packet, family);
    }
    let (frontend, port) = (frontend(row), row.client_port);
    sent(if family == IPV4 {
        rewrite::source::<V4>(skb, &packet, &frontend, port)
    } else {
        rewrite::source::<V6>(skb, &packet, &frontend, port)
    })
}

/// The row that says from whom a packet is to come.
#[inline(always)]
fn known(packet: &Packet, asked: u32) -> Option<&'static FlowValue> {
    let row = FLOWS.get_ptr_mut(&packet.key)?;
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it;
    // two CPUs that both set the time or the bit write the same.
    let row = unsafe { &mut *row };
    let now = flow::now();
    let is_ours = flow::stands(row, packet, now) && !flow::is_of_another(row, packet);
    let asks = flow::asks(packet, row);
    if !is_ours || !masquerade::holds(row, packet, &asks, asked, now) {
        return None;
    }
    row.last_seen = now;
    if packet.closes() {
        row.flags |= CLOSING;
        flow::close(&asks, row);
    }
    Some(row)
}

#[inline(always)]
fn of_no_flow(skb: &SkBuff, packet: &Packet, asked: u32) -> i32 {
    // Where the kernel masquerades, it has done so before this hook. Programs that drain ask those behind them, which may
    // see to it in another way.
    if asked != 0 && (config::masquerades() || stage::drains()) {
        return masquerade::begin(skb.skb, packet);
    }
    flow::guard(packet);
    if packet.is_first_fragment() {
        // An answer may have had the same identification a moment ago.
        fragment::note(packet, PASS, &Address::ANY_V6, false);
        first_fragment();
    }
    PASS
}

#[inline(never)]
fn first_fragment() -> i32 {
    fragment::first()
}

#[inline(never)]
fn other<const LINK_HEADER: usize>(skb: *mut __sk_buff) -> i32 {
    let skb = &SkBuff { skb };
    match vlan::network::<LINK_HEADER>(skb) {
        Some((network, IPV4)) => without_ports::<V4>(skb, network),
        Some((network, IPV6)) => without_ports::<V6>(skb, network),
        _ => PASS,
    }
}

#[inline(always)]
fn without_ports<F: Family>(skb: &SkBuff, network: usize) -> i32 {
    match F::parse(skb, network) {
        Some(header) if header.offset != 0 => fragment::to_client::<F>(skb, network, &header),
        Some(header) => icmp::to_client::<F>(skb, network, &header),
        None => PASS,
    }
}

/// A packet of a flow with what [`translate`] leaves to a function of its own: fragments, sums of SCTP, and a flow that has just
/// begun.
#[inline(never)]
fn send_again(skb: *mut __sk_buff, packet: &Packet, family: u32) -> i32 {
    let skb = &SkBuff { skb };
    // SAFETY: the row is read field by field; whatever becomes of it, it stays readable meanwhile.
    let Some(row) = (unsafe { FLOWS.get(&packet.key) }) else {
        return because(Counter::DroppedFlowTable);
    };
    if packet.is_first_fragment() {
        // What was held is the other direction's business.
        let client_port = row.client_port.or(packet.key.destination_port);
        let decision = if sctp::is_cut(packet, row.port, client_port) {
            because(Counter::DroppedRewrite)
        } else {
            step::SEND
        };
        fragment::note(packet, decision, &row.address, false);
        let _ = fragment::first();
    }
    if family == IPV4 {
        send::<V4>(skb, packet, row)
    } else {
        send::<V6>(skb, packet, row)
    }
}

#[inline(always)]
fn send<F: Family>(skb: &SkBuff, packet: &Packet, row: &FlowValue) -> i32 {
    sent(if packet.key.protocol == SCTP {
        sctp::source::<F>(skb, packet, &frontend(row), row.client_port)
    } else {
        rewrite::source::<F>(skb, packet, &frontend(row), row.client_port)
    })
}

#[inline(always)]
fn frontend(row: &FlowValue) -> End {
    End {
        address: row.address,
        port: row.port,
    }
}

#[inline(always)]
fn sent(rewritten: Result<(), i64>) -> i32 {
    match rewritten {
        Ok(()) => PASS,
        // Never half translated.
        Err(_) => because(Counter::DroppedRewrite),
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
