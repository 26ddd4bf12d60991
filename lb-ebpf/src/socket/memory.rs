//! What a socket remembers of the frontends that it dialled, for as long as it lives.
//!
//! Of a connected one that is a row of a hash, which [`end`] deletes: user space looks for sockets to end in
//! there, and the kernel shows it what is stored with a UDP socket in no other way. Of one that sends to
//! whomever it likes it is storage of the socket, which nobody has to sweep up. The kernel runs programs
//! that write there with the socket locked.

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_ANY,
    helpers::bpf_get_socket_cookie,
    programs::{SockAddrContext, SockContext},
};
use lb_common::{Address, Correspondents, Port, Translation};

use super::Peer;
use crate::maps::{CONNECTED, SENT_TO};

/// The kernel's number of the socket, which no other has after it.
#[inline(always)]
pub(super) fn cookie(ctx: &impl EbpfContext) -> u64 {
    // SAFETY: the context is that of the running program, of a type that has a socket.
    unsafe { bpf_get_socket_cookie(ctx.as_ptr()) }
}

/// A connected socket is sent there. Says that it is a new flow, as every `connect` is.
#[inline(always)]
pub(super) fn connects(ctx: &SockAddrContext, translation: &Translation) -> bool {
    // Without the row the socket works all the same; only names show the backend, and nobody ends the
    // socket when that goes.
    let _ = CONNECTED.insert(&cookie(ctx), translation, BPF_ANY.into());
    true
}

/// A `connect` begins: what the one before it came to is over.
#[inline(always)]
pub(super) fn forget_connection(ctx: &SockAddrContext) {
    // That there was nothing is no failure.
    let _ = CONNECTED.remove(&cookie(ctx));
}

/// The socket ends.
#[inline(always)]
pub(super) fn end(ctx: &SockContext) {
    let _ = CONNECTED.remove(&cookie(ctx));
}

/// The frontend by which a connected socket came to this backend.
#[inline(always)]
pub(super) fn connected_to(ctx: &SockAddrContext, backend: &Peer) -> Option<(Address, Port)> {
    // SAFETY: fields are read, right here.
    let row = unsafe { CONNECTED.get(&cookie(ctx)) }?;
    is_to(row, backend).then_some((row.frontend, row.frontend_port))
}

/// A datagram of a socket that is not connected is sent there. Says whether it is a new flow, and not one
/// that goes where the one before it went.
#[inline(always)]
pub(super) fn sends(ctx: &SockAddrContext, translation: &Translation) -> bool {
    // SAFETY: a value lives as long as its socket, which is that of the running program and locked.
    let Some(all) = (unsafe { SENT_TO.get_or_insert_ptr_mut(ctx, None).as_mut() }) else {
        return true;
    };
    let mut at = all.next as usize;
    let mut is_known = false;
    for index in 0..Correspondents::ROOM {
        let row = &all.rows[index];
        if row.backend.same(&translation.backend) & (row.backend_port.be == translation.backend_port.be) {
            at = index;
            is_known = true;
            break;
        }
    }
    let row = &mut all.rows[at % Correspondents::ROOM];
    let goes_on = is_known
        & (row.number == translation.number)
        & (row.generation == translation.generation)
        & row.frontend.same(&translation.frontend)
        & (row.frontend_port.be == translation.frontend_port.be);
    if !goes_on {
        *row = *translation;
    }
    if !is_known {
        all.next = all.next.wrapping_add(1);
    }
    !goes_on
}

/// The frontend by which a socket that is not connected last sent to this backend.
#[inline(always)]
pub(super) fn sent_to(ctx: &SockAddrContext, backend: &Peer) -> Option<(Address, Port)> {
    correspondent(ctx, backend, |row| (row.frontend, row.frontend_port))
}

/// The socket dials an address that is no service's: what comes from there has that name from now on.
#[inline(always)]
pub(super) fn forget_correspondent(ctx: &SockAddrContext, peer: &Peer) {
    correspondent(ctx, peer, |row| row.backend_port = Port::NONE);
}

#[inline(always)]
fn correspondent<T>(ctx: &SockAddrContext, backend: &Peer, then: impl FnOnce(&mut Translation) -> T) -> Option<T> {
    // SAFETY: a value lives as long as its socket, which is that of the running program and locked.
    let all = unsafe { SENT_TO.get_ptr_mut(ctx).as_mut() }?;
    all.rows.iter_mut().find(|row| is_to(row, backend)).map(then)
}

#[inline(always)]
fn is_to(row: &Translation, backend: &Peer) -> bool {
    row.backend.same(&backend.address) & (row.backend_port.be == backend.port.be)
}
