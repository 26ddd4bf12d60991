//! From a client: the frontend becomes a backend.

use aya_ebpf::programs::sk_buff::SkBuff;
use lb_common::{
    Counter, FlowValue, Verdict,
    flow::{CLOSING, FORWARD, MASQUERADE},
    net::TCP,
};

use crate::{
    config,
    counter::count,
    family::{V4, V6},
    flow::{self, Failure},
    maps::FLOWS,
    packet::Packet,
    reject::{self, Reject},
    rewrite::{self, End},
    service::{self, Client},
    trace,
    verdict::{DROP, PASS},
};

/// `skb->protocol`, in network byte order.
pub(crate) const IPV4: u32 = 0x0800_u16.to_be() as u32;
pub(crate) const IPV6: u32 = 0x86dd_u16.to_be() as u32;

/// A packet from a link.
#[inline(always)]
pub(crate) fn packet(skb: &SkBuff, link_header: usize, client: Client) -> i32 {
    match skb.protocol() {
        IPV4 => translate::<V4>(skb, link_header, client),
        IPV6 => translate::<V6>(skb, link_header, client),
        _ => PASS,
    }
}

#[inline(always)]
fn translate<F: Reject>(skb: &SkBuff, link_header: usize, client: Client) -> i32 {
    let Some(packet) = Packet::parse::<F>(skb, link_header, FORWARD) else {
        return PASS;
    };
    let now = flow::now();
    let row = match known(&packet, now) {
        Some(row) => row,
        None => match begin::<F>(skb, &packet, client, now) {
            Ok(row) => row,
            Err(verdict) => return verdict,
        },
    };
    send::<F>(skb, &packet, &row)
}

/// The row of a flow that goes on.
#[inline(always)]
fn known(packet: &Packet, now: u64) -> Option<FlowValue> {
    let row = FLOWS.get_ptr_mut(&packet.key)?;
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it;
    // two CPUs that both set the time or the bit write the same.
    let row = unsafe { &mut *row };
    if !flow::holds(row, packet, now) {
        return None;
    }
    row.last_seen = now;
    if packet.closes_tcp() {
        row.flags |= CLOSING;
        flow::close(&flow::answers(packet, row));
    }
    Some(*row)
}

/// The row of a flow that begins with this packet, or what becomes of the packet without one.
#[inline(always)]
fn begin<F: Reject>(skb: &SkBuff, packet: &Packet, client: Client, now: u64) -> Result<FlowValue, i32> {
    let Some(service) = service::find(&packet.key.destination, packet.key.destination_port, packet.key.protocol) else {
        if packet.opens_tcp() {
            flow::forget(packet, now);
        }
        return Err(PASS);
    };
    if packet.key.protocol == TCP && !packet.opens_tcp() {
        // Not ours: the kernel may know the connection from the proxy before us.
        count(Counter::PassedTcpWithoutFlow);
        return Err(PASS);
    }
    let range = client.range(&service);
    if range.count == 0 {
        trace::refused(skb, packet);
        return Err(match range.verdict() {
            Verdict::Reject => reject::answer::<F>(skb, packet),
            Verdict::Drop => {
                count(Counter::DroppedNoLocalEndpoint);
                DROP
            }
        });
    }
    match flow::begin(packet, &service, client, now) {
        Ok(row) => {
            count(Counter::FlowNew);
            trace::flow_began(skb, packet, &row);
            Ok(row)
        }
        Err(failure) => {
            count(match failure {
                Failure::NoBackend => Counter::DroppedNoBackend,
                Failure::Collision => Counter::DroppedFlowCollision,
                Failure::Table => Counter::DroppedFlowTable,
            });
            Err(DROP)
        }
    }
}

#[inline(always)]
fn send<F: Reject>(skb: &SkBuff, packet: &Packet, row: &FlowValue) -> i32 {
    let backend = End {
        address: row.address,
        port: row.port,
    };
    if rewrite::destination::<F>(skb, packet, &backend, row.client_port).is_err() {
        // Never half translated.
        count(Counter::DroppedRewrite);
        return DROP;
    }
    if row.flags & MASQUERADE != 0 {
        // SAFETY: the context belongs to this run of the program.
        unsafe { (*skb.skb).mark |= config::masquerade_mark() };
    }
    PASS
}
