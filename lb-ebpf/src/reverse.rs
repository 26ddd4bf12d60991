//! To a client: the backend becomes the frontend again.

use aya_ebpf::programs::sk_buff::SkBuff;
use lb_common::{
    Counter,
    flow::{CLOSING, REVERSE},
};

use crate::{
    config,
    counter::count,
    family::{Family, V4, V6},
    flow,
    forward::{IPV4, IPV6},
    icmp,
    maps::FLOWS,
    packet::Packet,
    rewrite::{self, End},
    verdict::{DROP, PASS},
};

/// A packet to a link.
#[inline(always)]
pub(crate) fn packet(skb: &SkBuff, link_header: usize) -> i32 {
    clear_mark(skb);
    match skb.protocol() {
        IPV4 => translate::<V4>(skb, link_header),
        IPV6 => translate::<V6>(skb, link_header),
        _ => PASS,
    }
}

#[inline(always)]
fn translate<F: Family>(skb: &SkBuff, link_header: usize) -> i32 {
    let mut packet = Packet::new(link_header, REVERSE);
    if packet.read::<F>(skb).is_none() {
        return icmp::to_client::<F>(skb, link_header);
    }
    let Some(row) = FLOWS.get_ptr_mut(&packet.key) else {
        return PASS;
    };
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it;
    // two CPUs that both set the time or the bit write the same.
    let row = unsafe { &mut *row };
    let now = flow::now();
    if !flow::stands(row, &packet, now) {
        return PASS;
    }
    row.last_seen = now;
    if packet.closes_tcp() {
        row.flags |= CLOSING;
        flow::close(&flow::asks(&packet, row), row);
    }
    let frontend = End {
        address: row.address,
        port: row.port,
    };
    if rewrite::source::<F>(skb, &packet, &frontend, row.client_port).is_err() {
        count(Counter::DroppedRewrite);
        return DROP;
    }
    PASS
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
