//! From a client: the frontend becomes a backend.

use aya_ebpf::{bindings::__sk_buff, programs::sk_buff::SkBuff};
use lb_common::{
    Counter, FlowValue, Verdict,
    address::NODE_PORTS,
    flow::{CLOSING, FORWARD, GUARD, MASQUERADE},
    fragment::Scratch,
    net::SCTP,
    service::HASHED,
};

use crate::{
    client::{self, Client, Link},
    config,
    counter::count,
    event,
    family::{Family, V4, V6},
    flow::{self, Failure},
    fragment, icmp,
    maps::{FLOWS, SCRATCH},
    opaque::opaque,
    packet::{IPV4, IPV6, Packet},
    reject,
    rewrite::{self, End},
    sctp,
    service::{self, NoService},
    stage, trace,
    verdict::{PASS, because, step},
    vlan,
};

/// A packet from a link.
#[inline(always)]
pub(crate) fn packet<const LINK_HEADER: usize>(skb: &SkBuff, link: Link) -> i32 {
    let verdict = translate::<LINK_HEADER>(skb, link);
    let skb = skb.skb;
    let verdict = match verdict {
        step::OTHER => other::<LINK_HEADER>(skb),
        step::RELEASE => release::<LINK_HEADER>(skb),
        step::REFUSE => refuse::<LINK_HEADER>(skb),
        verdict => verdict,
    };
    if verdict < step::DROPPED + Counter::COUNT as i32 {
        event::dropped::<LINK_HEADER>(skb, FORWARD, verdict)
    } else {
        verdict
    }
}

/// What most packets need, of flows that go on and of nobody's, is done here: another function would cost them a call.
#[inline(always)]
fn translate<const LINK_HEADER: usize>(skb: &SkBuff, link: Link) -> i32 {
    let Some((network, protocol)) = vlan::network::<LINK_HEADER>(skb) else {
        return PASS;
    };
    let family = opaque(skb, protocol as usize) as u32;
    let mut packet = Packet::new(network, FORWARD);
    if packet.read_as(skb, protocol).is_none() {
        return step::OTHER;
    }
    let verdict = match known(&packet) {
        Known::Goes(row) if packet.is_first_fragment() => note(&packet, step::SEND, row),
        Known::Goes(_) if packet.key.protocol == SCTP => step::SEND,
        Known::Goes(row) => return send(skb, &packet, family, row),
        Known::IsAnswer if packet.is_first_fragment() => note(&packet, PASS, &FlowValue::EMPTY),
        Known::IsAnswer => return PASS,
        Known::Not => {
            let flags = service::flags(&packet.key.destination);
            if flags == service::NOBODYS && packet.continues() && !packet.is_first_fragment() {
                return PASS;
            }
            try_to_begin(skb, &packet, link, flags)
        }
    };
    let verdict = match verdict {
        step::FIRST => first_fragment(),
        verdict => verdict,
    };
    match verdict {
        step::SEND => send_again(skb.skb, &packet, family),
        verdict => verdict,
    }
}

#[inline(always)]
fn try_to_begin(skb: &SkBuff, packet: &Packet, link: Link, flags: u32) -> i32 {
    let mut verdict = step::AGAIN;
    // Each is a call and not a round of a loop around what is tried: the verifier would follow that anew in each.
    for attempt in 0..flow::ATTEMPTS {
        verdict = match link {
            Link::Pod => begin::<true>(skb.skb, packet, attempt, flags),
            Link::Outside => begin::<false>(skb.skb, packet, attempt, flags),
        };
        if verdict != step::AGAIN {
            break;
        }
    }
    verdict
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
        Some(header) if header.offset != 0 => fragment::to_backend::<F>(skb, network, &header),
        Some(header) => icmp::to_backend::<F>(skb, network, &header),
        None => PASS,
    }
}

#[inline(never)]
fn release<const LINK_HEADER: usize>(skb: *mut __sk_buff) -> i32 {
    let skb = &SkBuff { skb };
    match vlan::network::<LINK_HEADER>(skb) {
        Some((network, IPV4)) => fragment::release::<V4>(skb, network),
        Some((network, _)) => fragment::release::<V6>(skb, network),
        None => PASS,
    }
}

#[inline(never)]
fn first_fragment() -> i32 {
    fragment::first()
}

/// A packet of a flow with what [`translate`] leaves to a function of its own: fragments, and sums of SCTP.
#[inline(never)]
fn send_again(skb: *mut __sk_buff, packet: &Packet, family: u32) -> i32 {
    let skb = &SkBuff { skb };
    // SAFETY: the row is read field by field; whatever becomes of it, it stays readable meanwhile.
    let Some(row) = (unsafe { FLOWS.get(&packet.key) }) else {
        return because(Counter::DroppedFlowTable);
    };
    if packet.key.protocol != SCTP {
        return send(skb, packet, family, row);
    }
    let (backend, port) = (backend(row), row.client_port);
    let rewritten = if family == IPV4 {
        sctp::destination::<V4>(skb, packet, &backend, port)
    } else {
        sctp::destination::<V6>(skb, packet, &backend, port)
    };
    sent(skb, rewritten, row)
}

/// A client that is to be told that nobody is there.
#[inline(never)]
fn refuse<const LINK_HEADER: usize>(skb: *mut __sk_buff) -> i32 {
    let skb = &SkBuff { skb };
    let Some((network, protocol)) = vlan::network::<LINK_HEADER>(skb) else {
        return PASS;
    };
    let mut packet = Packet::new(network, FORWARD);
    match protocol {
        IPV4 => reject::answer::<V4, LINK_HEADER>(skb, &mut packet),
        _ => reject::answer::<V6, LINK_HEADER>(skb, &mut packet),
    }
}

/// Takes down what was decided of a first fragment.
#[inline(always)]
fn note(packet: &Packet, decision: i32, row: &FlowValue) -> i32 {
    let client_port = row.client_port.or(packet.key.source_port);
    let decision = if decision == step::SEND && sctp::is_cut(packet, client_port, row.port) {
        because(Counter::DroppedRewrite)
    } else {
        decision
    };
    fragment::note(packet, decision, &row.address, row.flags & MASQUERADE != 0);
    step::FIRST
}

/// What the flow table says of a packet.
enum Known {
    /// It is of a flow that goes on, by this row.
    Goes(&'static FlowValue),
    /// It answers what was sent from here, and begins no flow.
    IsAnswer,
    /// Nothing.
    Not,
}

/// Looks for the flow of a packet.
#[inline(always)]
fn known(packet: &Packet) -> Known {
    let Some(row) = FLOWS.get_ptr_mut(&packet.key) else {
        return Known::Not;
    };
    // SAFETY: a row stays readable and writable while the program runs, whatever becomes of it;
    // two CPUs that both set the time or the bit write the same.
    let row = unsafe { &mut *row };
    let now = flow::now();
    if row.flags & GUARD != 0 {
        return if flow::expired(row, now) {
            Known::Not
        } else {
            Known::IsAnswer
        };
    }
    // Made once: it takes its room on a stack that [`begin`] needs too.
    let answers = flow::answers(packet, row);
    if !flow::holds(row, packet, &answers, now) || flow::is_of_another(row, packet) {
        return Known::Not;
    }
    row.last_seen = now;
    if packet.closes() {
        row.flags |= CLOSING;
        flow::close(&answers, row);
    }
    Known::Goes(row)
}

/// A packet of no flow that goes on, to an address with these flags.
#[inline(never)]
fn begin<const IS_POD: bool>(skb: *mut __sk_buff, packet: &Packet, attempt: u32, flags: u32) -> i32 {
    let skb = &SkBuff { skb };
    let link = if IS_POD { Link::Pod } else { Link::Outside };
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else {
        return because(Counter::DroppedFlowTable);
    };
    // SAFETY: the row is this CPU's own, and nothing else of ours runs on it before we return.
    let scratch = unsafe { &mut *scratch };
    scratch.forward = FlowValue::EMPTY;
    let decision = decide(skb, packet, link, attempt, flags, scratch);
    let row = &scratch.forward;
    if decision != step::AGAIN && packet.is_first_fragment() {
        note(packet, decision, row)
    } else if decision == step::SEND && packet.key.protocol != SCTP {
        let family = if packet.key.source.is_v4() { IPV4 } else { IPV6 };
        send(skb, packet, family, row)
    } else {
        decision
    }
}

/// The row of a flow that begins with this packet, or what becomes of the packet without one.
#[inline(always)]
fn decide(skb: &SkBuff, packet: &Packet, link: Link, attempt: u32, flags: u32, scratch: &mut Scratch) -> i32 {
    let key = &packet.key;
    let service = match service::at(flags, &key.destination, key.destination_port, key.protocol, NODE_PORTS) {
        Ok(_) if stage::drains() => return pass(packet),
        Ok(service) => service,
        Err(flags) => return without_service(packet, flags),
    };
    if packet.continues() && (service.flags & HASHED == 0 || stage::is_beside()) {
        // Not ours: the kernel may know the connection from the proxy before us. (By a hash it leads where it did, unless
        // flows that begin get other ports.)
        count(Counter::PassedWithoutFlow as u32);
        return PASS;
    }
    if service::is_nobodys_client(&key.source) {
        return because(Counter::DroppedSpoofedSource);
    }
    if !client::may_dial(&service, &key.source) {
        return because(Counter::DroppedSourceRange);
    }
    let client = Client::new(link, &key.source);
    let range = client.range(&service);
    if range.count == 0 {
        trace::refused(skb, packet);
        return match range.verdict() {
            Verdict::Reject => step::REFUSE,
            Verdict::Drop => because(Counter::DroppedNoLocalEndpoint),
        };
    }
    match flow::begin(packet, &service, client, attempt, flow::now(), scratch) {
        Ok(()) => {
            count(Counter::FlowNew as u32);
            trace::flow_began(skb, packet, &scratch.forward);
            step::SEND
        }
        Err(Failure::Table) => because(Counter::DroppedFlowTable),
        Err(_) if attempt + 1 < flow::ATTEMPTS => step::AGAIN,
        Err(Failure::NoBackend) => because(Counter::DroppedNoBackend),
        Err(Failure::Collision) => because(Counter::DroppedFlowCollision),
    }
}

#[inline(always)]
fn without_service(packet: &Packet, flags: u32) -> i32 {
    if packet.continues() {
        return PASS;
    }
    match NoService::at(&packet.key.destination, flags) {
        NoService::Pass => pass(packet),
        _ if stage::drains() => pass(packet),
        NoService::Refuse => step::REFUSE,
        NoService::Drop => because(Counter::DroppedUnallocated),
    }
}

/// A packet that begins nothing of ours.
#[inline(always)]
fn pass(packet: &Packet) -> i32 {
    if packet.opens() {
        flow::forget(packet, flow::now());
    }
    PASS
}

/// Sends a packet of TCP or UDP where its row says.
#[inline(always)]
fn send(skb: &SkBuff, packet: &Packet, family: u32, row: &FlowValue) -> i32 {
    let (backend, port) = (backend(row), row.client_port);
    let rewritten = if family == IPV4 {
        rewrite::destination::<V4>(skb, packet, &backend, port)
    } else {
        rewrite::destination::<V6>(skb, packet, &backend, port)
    };
    sent(skb, rewritten, row)
}

#[inline(always)]
fn backend(row: &FlowValue) -> End {
    End {
        address: row.address,
        port: row.port,
    }
}

#[inline(always)]
fn sent(skb: &SkBuff, rewritten: Result<(), i64>, row: &FlowValue) -> i32 {
    if rewritten.is_err() {
        // Never half translated.
        return because(Counter::DroppedRewrite);
    }
    if row.flags & MASQUERADE != 0 {
        // SAFETY: the context belongs to this run of the program.
        unsafe { (*skb.skb).mark |= config::masquerade_mark() };
    }
    PASS
}
