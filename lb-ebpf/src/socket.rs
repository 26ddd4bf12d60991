//! Processes of the node itself: translated in the socket, before there is a packet.

use aya_ebpf::{
    EbpfContext as _,
    bindings::{BPF_ANY, bpf_sock_addr},
    helpers::{bpf_get_netns_cookie, bpf_get_prandom_u32, bpf_get_socket_cookie, bpf_set_retval},
    programs::SockAddrContext,
};
use lb_common::{
    Address, Counter, Port, Range, ServiceValue, SocketKey, SocketValue, Verdict,
    address::{HOST_NODE_PORTS, NODE_PORTS},
    net::{TCP, UDP},
    service::{NODE_IS_REFUSED, RESTRICTED},
};

use crate::{
    affinity,
    client::Client,
    config,
    counter::count,
    event,
    family::Family,
    flow,
    maps::SOCKETS,
    service::{self, NoService},
};

/// The call goes on.
const ALLOW: i32 = 1;
/// The call fails, with what `bpf_set_retval` was given, else EPERM.
const DENY: i32 = 0;
const ECONNREFUSED: i32 = 111;
/// A service may change between two reads; more than once in a row it does not.
const ATTEMPTS: u32 = 3;

/// What a process dialled.
struct Dialled {
    cookie: u64,
    address: Address,
    port: Port,
    protocol: u8,
}

/// `connect`: every call draws anew.
#[inline(always)]
pub(crate) fn connect<F: Family>(ctx: &SockAddrContext) -> i32 {
    let Some(dialled) = dialled::<F>(ctx) else {
        return ALLOW;
    };
    // SAFETY: no arguments.
    let draw = unsafe { bpf_get_prandom_u32() };
    translate::<F>(ctx, &dialled, draw)
}

/// `sendto` and `sendmsg` with an address: one socket keeps to one backend while the service does
/// not change, as it would with connection tracking.
#[inline(always)]
pub(crate) fn send<F: Family>(ctx: &SockAddrContext) -> i32 {
    let Some(dialled) = dialled::<F>(ctx) else {
        return ALLOW;
    };
    let draw = hash(&dialled);
    translate::<F>(ctx, &dialled, draw)
}

/// `recvmsg` and `getpeername`: the backend's name becomes that of the frontend again.
#[inline(always)]
pub(crate) fn name<F: Family>(ctx: &SockAddrContext) -> i32 {
    let Some(backend) = dialled::<F>(ctx) else {
        return ALLOW;
    };
    // SAFETY: the row is copied field by field right here.
    if let Some(frontend) = unsafe { SOCKETS.get(&key(&backend, &backend.address, backend.port)) } {
        let (address, port) = (frontend.address, frontend.port);
        set::<F>(ctx, &address, port);
    }
    ALLOW
}

/// The other end as the call has it, if it is one for us: of this network namespace, TCP or UDP.
#[inline(always)]
fn dialled<F: Family>(ctx: &SockAddrContext) -> Option<Dialled> {
    // SAFETY: the context is that of the running program.
    let (context, netns, cookie) = unsafe {
        (
            &*ctx.sock_addr,
            bpf_get_netns_cookie(ctx.as_ptr()),
            bpf_get_socket_cookie(ctx.as_ptr()),
        )
    };
    let protocol = context.protocol as u8;
    if netns != config::netns_cookie() || (protocol != TCP && protocol != UDP) {
        return None;
    }
    Some(Dialled {
        cookie,
        address: F::socket_address(context),
        port: Port {
            be: context.user_port as u16,
        },
        protocol,
    })
}

#[inline(always)]
fn translate<F: Family>(ctx: &SockAddrContext, dialled: &Dialled, draw: u32) -> i32 {
    let mut service = match find(dialled) {
        Ok(service) => service,
        Err(flags) => return without_service(dialled, flags),
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
                Err(flags) => return without_service(dialled, flags),
            };
            remembered = 0;
            continue;
        };
        let backend = &chosen.backend;
        let key = key(dialled, &backend.address, backend.port);
        let row = SocketValue {
            backend: chosen.number,
            generation: backend.generation,
            address: dialled.address,
            port: dialled.port,
            pad: 0,
        };
        // A datagram that goes where the one before it went is no new flow.
        if !is_there(&key, &row) {
            // Without the row the socket works all the same; only names would show the backend.
            let _ = SOCKETS.insert(&key, &row, BPF_ANY.into());
            affinity::remember(&service, client, row.backend, now);
        }
        set::<F>(ctx, &backend.address, backend.port);
        count(Counter::SocketTranslated as u32);
        return ALLOW;
    }
    refuse(dialled, Client::NODE.range(&service))
}

#[inline(always)]
fn find(dialled: &Dialled) -> Result<ServiceValue, u32> {
    let node_ports = NODE_PORTS | HOST_NODE_PORTS;
    service::find(&dialled.address, dialled.port, dialled.protocol, node_ports)
}

#[inline(always)]
fn is_there(key: &SocketKey, row: &SocketValue) -> bool {
    // SAFETY: fields are read, right here.
    unsafe { SOCKETS.get(key) }.is_some_and(|there| {
        (there.backend == row.backend)
            & (there.generation == row.generation)
            & there.address.same(&row.address)
            & (there.port.be == row.port.be)
    })
}

#[inline(always)]
fn without_service(dialled: &Dialled, flags: u32) -> i32 {
    match NoService::at(&dialled.address, flags) {
        NoService::Refuse => refuse(dialled, Range::empty(Verdict::Reject)),
        NoService::Drop => denied(dialled, Counter::DroppedUnallocated),
        NoService::Pass => ALLOW,
    }
}

#[inline(always)]
fn refuse(dialled: &Dialled, range: Range) -> i32 {
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
fn denied(dialled: &Dialled, reason: Counter) -> i32 {
    event::denied(&dialled.address, dialled.port, dialled.protocol, reason as u32);
    DENY
}

#[inline(always)]
fn key(dialled: &Dialled, address: &Address, port: Port) -> SocketKey {
    SocketKey {
        cookie: dialled.cookie,
        address: *address,
        port,
        protocol: dialled.protocol,
        pad: [0; 5],
    }
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
fn hash(dialled: &Dialled) -> u32 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let frontend = u64::from(dialled.address.words[3]) << 16 | u64::from(dialled.port.be);
    ((dialled.cookie ^ frontend.wrapping_mul(GOLDEN)).wrapping_mul(GOLDEN) >> 32) as u32
}
