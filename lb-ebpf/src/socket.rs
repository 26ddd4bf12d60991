//! Processes of the node itself, and where that is asked for, of pods: translated in the socket, before there
//! is a packet.
//!
//! What is not known in the socket of a pod is left to the program on its link, which sees packets: who it is
//! by its address, and how it is refused.

mod memory;

use aya_ebpf::{
    EbpfContext as _,
    bindings::bpf_sock_addr,
    helpers::{bpf_get_current_ancestor_cgroup_id, bpf_get_netns_cookie, bpf_get_prandom_u32, bpf_set_retval},
    programs::{SockAddrContext, SockContext},
};
use lb_common::{
    Address, Counter, Port, Range, ServiceValue, Translation, Verdict,
    address::{HOST_NODE_PORTS, NODE_PORTS},
    config::PODS_LEFT,
    maps::CGROUP_LEVELS,
    net::{TCP, UDP},
    service::{NODE_IS_REFUSED, RESTRICTED},
    stage::{BESIDE, DRAINS},
};

use crate::{
    affinity,
    client::Client,
    config,
    counter::count,
    event,
    family::Family,
    flow,
    maps::OPTED_OUT,
    service::{self, Chosen, NoService},
    stage,
};

/// The call goes on.
const ALLOW: i32 = 1;
/// The call fails, with what `bpf_set_retval` was given, else EPERM.
const DENY: i32 = 0;
const ECONNREFUSED: i32 = 111;
/// A service may change between two reads; more than once in a row it does not.
const ATTEMPTS: u32 = 3;

/// The other end of a socket, as the call has it.
#[derive(Clone, Copy)]
struct Peer {
    address: Address,
    port: Port,
    protocol: u8,
    /// Whether the socket is of the node's own network namespace, and not of a pod's.
    is_of_node: bool,
}

/// What makes a process dial.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    /// `connect`: every call draws anew.
    Connect,
    /// `sendto` and `sendmsg` with an address: one socket keeps to one backend while the service does
    /// not change, as it would with connection tracking.
    Send,
}

/// `connect`.
#[inline(always)]
pub(crate) fn connect<F: Family>(ctx: &SockAddrContext) -> i32 {
    dial::<F>(ctx, Call::Connect)
}

/// `sendto` and `sendmsg` with an address.
#[inline(always)]
pub(crate) fn send<F: Family>(ctx: &SockAddrContext) -> i32 {
    dial::<F>(ctx, Call::Send)
}

#[inline(always)]
fn dial<F: Family>(ctx: &SockAddrContext, call: Call) -> i32 {
    let Some(mut dialled) = peer::<F>(ctx) else {
        return ALLOW;
    };
    let stage = stage::stage();
    // What those before have just written is not to be forgotten: the maps may be the same.
    if call == Call::Connect && stage != BESIDE {
        memory::forget_connection(ctx);
    }
    if stage >= DRAINS {
        return ALLOW;
    }
    dialled.address = or_loopback(dialled.address);
    let draw = match call {
        // SAFETY: no arguments.
        Call::Connect => unsafe { bpf_get_prandom_u32() },
        Call::Send => hash(ctx, &dialled),
    };
    if dialled.is_of_node {
        translate::<F>(ctx, &dialled, call, draw)
    } else {
        if !has_opted_out() {
            translate_of_pod::<F>(ctx, &dialled, call, draw);
        }
        ALLOW
    }
}

/// `recvmsg`: a datagram of a backend comes from what was dialled.
#[inline(always)]
pub(crate) fn receive<F: Family>(ctx: &SockAddrContext) -> i32 {
    if let Some(backend) = peer::<F>(ctx)
        && let Some((address, port)) = memory::connected_to(ctx, &backend).or_else(|| memory::sent_to(ctx, &backend))
    {
        set::<F>(ctx, &address, port);
    }
    ALLOW
}

/// `getpeername`: the other end is what was dialled.
#[inline(always)]
pub(crate) fn peer_name<F: Family>(ctx: &SockAddrContext) -> i32 {
    if let Some(backend) = peer::<F>(ctx)
        && let Some((address, port)) = memory::connected_to(ctx, &backend)
    {
        set::<F>(ctx, &address, port);
    }
    ALLOW
}

/// `close`, of whoever has the socket last: also of one that was aborted, or whose process ends.
#[inline(always)]
pub(crate) fn release(ctx: &SockContext) -> i32 {
    memory::end(ctx);
    ALLOW
}

/// The other end, if the socket is one for us: of this network namespace, or a pod's that is to be translated;
/// TCP or UDP.
#[inline(always)]
fn peer<F: Family>(ctx: &SockAddrContext) -> Option<Peer> {
    // SAFETY: the context is that of the running program.
    let (context, netns) = unsafe { (&*ctx.sock_addr, bpf_get_netns_cookie(ctx.as_ptr())) };
    // Whole: the kernel has protocols beyond 255 for sockets, such as MPTCP, 262.
    let protocol = context.protocol;
    let is_of_node = netns == config::netns_cookie();
    if !is_of_node && config::pod_sockets() == PODS_LEFT {
        return None;
    }
    if protocol != u32::from(TCP) && protocol != u32::from(UDP) {
        return None;
    }
    Some(Peer {
        address: F::socket_address(context),
        port: Port {
            be: context.user_port as u16,
        },
        protocol: protocol as u8,
        is_of_node,
    })
}

#[inline(always)]
fn translate<F: Family>(ctx: &SockAddrContext, dialled: &Peer, call: Call, draw: u32) -> i32 {
    let mut service = match find(dialled) {
        Ok(service) => service,
        Err(flags) => return without_service(ctx, dialled, flags),
    };
    if service.flags & (RESTRICTED | NODE_IS_REFUSED) == RESTRICTED | NODE_IS_REFUSED {
        return denied(dialled, Counter::DroppedSourceRange);
    }
    let now = flow::now();
    let client = if dialled.address.is_v4() {
        Address::ANY_V4
    } else {
        Address::ANY_V6
    };
    let eligible = Client::NODE.set(&service);
    let mut remembered = affinity::remembered(&service, client, eligible, now);
    for _ in 0..ATTEMPTS {
        let range = Client::NODE.range(&service);
        if range.count == 0 {
            return refuse(dialled, range);
        }
        let Some(chosen) = service::choose(range, remembered, draw) else {
            // Changed since it was read.
            service = match find(dialled) {
                Ok(service) => service,
                Err(flags) => return without_service(ctx, dialled, flags),
            };
            remembered = 0;
            continue;
        };
        if send_to::<F>(ctx, dialled, call, &chosen) {
            affinity::remember(&service, client, chosen.number, now);
        }
        return ALLOW;
    }
    refuse(dialled, Client::NODE.range(&service))
}

/// Whether the process that dials is in the cgroup of a pod whose sockets are left alone.
#[inline(always)]
fn has_opted_out() -> bool {
    for level in 1..=CGROUP_LEVELS {
        // SAFETY: no pointer involved.
        let cgroup = unsafe { bpf_get_current_ancestor_cgroup_id(level as i32) };
        if cgroup == 0 {
            // Deeper than the process is.
            break;
        }
        // SAFETY: the value is not read.
        if unsafe { OPTED_OUT.get(&cgroup) }.is_some() {
            return true;
        }
    }
    false
}

/// A pod dials. Where it goes, if that is certain; everything else passes as it is.
#[inline(always)]
fn translate_of_pod<F: Family>(ctx: &SockAddrContext, dialled: &Peer, call: Call, draw: u32) {
    let any = if dialled.address.is_v4() {
        Address::ANY_V4
    } else {
        Address::ANY_V6
    };
    for _ in 0..ATTEMPTS {
        let Ok(service) = find(dialled) else {
            break;
        };
        let Some(client) = Client::pod_without_address(&service, &any) else {
            break;
        };
        let range = client.range(&service);
        if range.count == 0 {
            break;
        }
        // Else it has changed since it was read.
        if let Some(chosen) = service::choose(range, 0, draw) {
            send_to::<F>(ctx, dialled, call, &chosen);
            return;
        }
    }
    forget_correspondent(ctx, dialled);
}

/// Sends the socket there instead. Says whether that is a new flow.
#[inline(always)]
fn send_to<F: Family>(ctx: &SockAddrContext, dialled: &Peer, call: Call, chosen: &Chosen) -> bool {
    let backend = &chosen.backend;
    let translation = Translation {
        frontend: dialled.address,
        backend: backend.address,
        frontend_port: dialled.port,
        backend_port: backend.port,
        number: chosen.number,
        generation: backend.generation,
    };
    let is_new = match call {
        Call::Connect => memory::connects(ctx, &translation),
        Call::Send => memory::sends(ctx, &translation),
    };
    set::<F>(ctx, &backend.address, backend.port);
    count(Counter::SocketTranslated as u32);
    is_new
}

#[inline(always)]
fn find(dialled: &Peer) -> Result<ServiceValue, u32> {
    // A loopback address of a pod is its own.
    let node_ports = if dialled.is_of_node {
        NODE_PORTS | HOST_NODE_PORTS
    } else {
        NODE_PORTS
    };
    service::find(&dialled.address, dialled.port, dialled.protocol, node_ports)
}

#[inline(always)]
fn without_service(ctx: &SockAddrContext, dialled: &Peer, flags: u32) -> i32 {
    match NoService::at(&dialled.address, flags) {
        NoService::Refuse => refuse(dialled, Range::empty(Verdict::Reject)),
        NoService::Drop => denied(dialled, Counter::DroppedUnallocated),
        NoService::Pass => {
            // It may be a backend that the socket reached by a service before.
            forget_correspondent(ctx, dialled);
            ALLOW
        }
    }
}

/// What is no service's may be what programs before these have made of one.
#[inline(always)]
fn forget_correspondent(ctx: &SockAddrContext, dialled: &Peer) {
    if !stage::is_beside() {
        memory::forget_correspondent(ctx, dialled);
    }
}

/// Who dials the unspecified address means the loopback one, for the kernel and for us: as a key of the map
/// `SERVICES` it would be every NodePort.
#[inline(always)]
fn or_loopback(address: Address) -> Address {
    if address.same(&Address::ANY_V4) {
        Address::LOOPBACK_V4
    } else if address.same(&Address::ANY_V6) {
        Address::LOOPBACK_V6
    } else {
        address
    }
}

#[inline(always)]
fn refuse(dialled: &Peer, range: Range) -> i32 {
    if range.count == 0 && range.verdict() == Verdict::Drop {
        return denied(dialled, Counter::DroppedNoLocalEndpoint);
    }
    if config::has_set_retval() {
        // SAFETY: no pointer involved.
        unsafe { bpf_set_retval(-ECONNREFUSED) };
    }
    denied(dialled, Counter::Rejected)
}

#[inline(always)]
fn denied(dialled: &Peer, reason: Counter) -> i32 {
    event::denied(&dialled.address, dialled.port, dialled.protocol, reason as u32);
    DENY
}

#[inline(always)]
fn set<F: Family>(ctx: &SockAddrContext, address: &Address, port: Port) {
    // SAFETY: the context is that of the running program, and no reference to it is held.
    let context: &mut bpf_sock_addr = unsafe { &mut *ctx.sock_addr };
    F::set_socket_address(context, address);
    context.user_port = port.be.into();
}

/// Spreads sockets and frontends over 32 bits: multiplication by the golden ratio, high half.
#[inline(always)]
fn hash(ctx: &SockAddrContext, dialled: &Peer) -> u32 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let frontend = u64::from(dialled.address.words[3]) << 16 | u64::from(dialled.port.be);
    ((memory::cookie(ctx) ^ frontend.wrapping_mul(GOLDEN)).wrapping_mul(GOLDEN) >> 32) as u32
}
