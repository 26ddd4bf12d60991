//! From a client: the frontend becomes a backend.

use aya_ebpf::{bindings::__sk_buff, programs::sk_buff::SkBuff};
use lb_common::{
    Counter, FlowValue, Verdict,
    address::NODE_PORTS,
    flow::{CLOSING, FORWARD, MASQUERADE},
};

use crate::{
    client::{self, Client, Link},
    config,
    counter::count,
    family::{Family, V4, V6},
    flow::{self, Failure},
    icmp,
    maps::FLOWS,
    packet::Packet,
    reject,
    rewrite::{self, End},
    service::{self, NoService},
    trace,
    verdict::{DROP, PASS},
};

/// `skb->protocol`, in network byte order.
pub(crate) const IPV4: u32 = 0x0800_u16.to_be() as u32;
pub(crate) const IPV6: u32 = 0x86dd_u16.to_be() as u32;

/// What becomes of a packet.
enum Decision {
    /// It goes where the row says.
    Send,
    /// Port unreachable.
    Refuse,
    /// Nothing is answered.
    Drop,
    /// It is not ours.
    Pass,
}

/// What [`translate`] says of a packet that is neither TCP nor UDP; no verdict.
const OTHER: i32 = i32::MIN;

/// A packet from a link.
#[inline(always)]
pub(crate) fn packet<const LINK_HEADER: usize>(skb: &SkBuff, link: Link) -> i32 {
    let verdict = match link {
        Link::Pod => translate::<LINK_HEADER, true>(skb.skb),
        Link::Outside => translate::<LINK_HEADER, false>(skb.skb),
    };
    if verdict == OTHER {
        icmp_error::<LINK_HEADER>(skb.skb)
    } else {
        verdict
    }
}

/// A function of its own in the kernel's eyes, as is [`translate`]: what one has on the stack is gone when
/// the other begins.
#[inline(never)]
fn icmp_error<const LINK_HEADER: usize>(skb: *mut __sk_buff) -> i32 {
    let skb = &SkBuff { skb };
    match skb.protocol() {
        IPV4 => icmp::to_backend::<V4>(skb, LINK_HEADER),
        IPV6 => icmp::to_backend::<V6>(skb, LINK_HEADER),
        _ => PASS,
    }
}

#[inline(never)]
fn translate<const LINK_HEADER: usize, const IS_POD: bool>(skb: *mut __sk_buff) -> i32 {
    let skb = &SkBuff { skb };
    let link = if IS_POD { Link::Pod } else { Link::Outside };
    let protocol = skb.protocol();
    let mut packet = Packet::new(LINK_HEADER, FORWARD);
    let read = match protocol {
        IPV4 => packet.read::<V4>(skb),
        IPV6 => packet.read::<V6>(skb),
        _ => None,
    };
    if read.is_none() {
        return OTHER;
    }
    // One decision for both families, and filled in place: the verifier follows it once, and it stands
    // on the stack once.
    let mut row = FlowValue::EMPTY;
    let decision = decide(skb, &packet, link, &mut row);
    match (decision, protocol) {
        (Decision::Send, IPV4) => send::<V4>(skb, &packet, &row),
        (Decision::Send, _) => send::<V6>(skb, &packet, &row),
        (Decision::Refuse, IPV4) => reject::answer::<V4>(skb, &packet),
        (Decision::Refuse, _) => reject::answer::<V6>(skb, &packet),
        (Decision::Drop, _) => DROP,
        (Decision::Pass, _) => PASS,
    }
}

#[inline(always)]
fn decide(skb: &SkBuff, packet: &Packet, link: Link, row: &mut FlowValue) -> Decision {
    let now = flow::now();
    if known(packet, now, row) {
        return Decision::Send;
    }
    begin(skb, packet, link, now, row)
}

/// Whether the packet is of a flow that goes on, and the row of it.
#[inline(always)]
fn known(packet: &Packet, now: u64, copy: &mut FlowValue) -> bool {
    let Some(row) = FLOWS.get_ptr_mut(&packet.key) else {
        return false;
    };
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it;
    // two CPUs that both set the time or the bit write the same.
    let row = unsafe { &mut *row };
    if !flow::holds(row, packet, now) {
        return false;
    }
    row.last_seen = now;
    if packet.closes_tcp() {
        row.flags |= CLOSING;
        flow::close(&flow::answers(packet, row), row);
    }
    *copy = *row;
    true
}

/// The row of a flow that begins with this packet, or what becomes of the packet without one.
#[inline(always)]
fn begin(skb: &SkBuff, packet: &Packet, link: Link, now: u64, row: &mut FlowValue) -> Decision {
    let key = &packet.key;
    if key.destination.is_any() {
        // The rows of NodePorts have this address, and nobody has it on a wire.
        return Decision::Pass;
    }
    let service = match service::find(&key.destination, key.destination_port, key.protocol, NODE_PORTS) {
        Ok(service) => service,
        Err(flags) => return without_service(packet, flags, now),
    };
    if packet.continues_tcp() {
        // Not ours: the kernel may know the connection from the proxy before us.
        count(Counter::PassedTcpWithoutFlow);
        return Decision::Pass;
    }
    if !client::may_dial(&service, &key.source) {
        count(Counter::DroppedSourceRange);
        return Decision::Drop;
    }
    let client = Client::new(link, &key.source);
    let range = client.range(&service);
    if range.count == 0 {
        trace::refused(skb, packet);
        return match range.verdict() {
            Verdict::Reject => Decision::Refuse,
            Verdict::Drop => {
                count(Counter::DroppedNoLocalEndpoint);
                Decision::Drop
            }
        };
    }
    match flow::begin(packet, &service, client, now, row) {
        Ok(()) => {
            count(Counter::FlowNew);
            trace::flow_began(skb, packet, row);
            Decision::Send
        }
        Err(failure) => {
            count(match failure {
                Failure::NoBackend => Counter::DroppedNoBackend,
                Failure::Collision => Counter::DroppedFlowCollision,
                Failure::Table => Counter::DroppedFlowTable,
            });
            Decision::Drop
        }
    }
}

#[inline(always)]
fn without_service(packet: &Packet, flags: u32, now: u64) -> Decision {
    if packet.continues_tcp() {
        return Decision::Pass;
    }
    match NoService::at(&packet.key.destination, flags) {
        NoService::Refuse => Decision::Refuse,
        NoService::Drop => {
            count(Counter::DroppedUnallocated);
            Decision::Drop
        }
        NoService::Pass => {
            if packet.opens_tcp() {
                flow::forget(packet, now);
            }
            Decision::Pass
        }
    }
}

#[inline(always)]
fn send<F: Family>(skb: &SkBuff, packet: &Packet, row: &FlowValue) -> i32 {
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
