//! UDP sockets of the host, and of pods where theirs are translated, that are connected to a backend which
//! serves no more.
//!
//! The kernel runs no program when a connected socket sends, so such a socket would send to where its
//! `connect` was translated to for ever. It is ended instead: its process has an error from the next
//! call, as it has from a server that refuses, and connects anew. The map `CONNECTED` has what it dialled. A
//! socket that its process connected to the pod's own address has no row there, and is left alone, as is one
//! whose row that map had no room to keep.

use std::{
    io,
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use lb_common::{
    Address, BackendValue, Port, Range, ServiceKey, ServiceValue, Translation, backend::SERVING, net::UDP,
};
use tracing::{debug, info, warn};

use super::table::{BpfTable, Table};
use crate::kernel::{netns::Netns, sockets::Sockets};

/// A `connect` that chose its backend just before that went may have its row only after a look at the
/// sockets: after this long there is another look.
const AGAIN: Duration = Duration::from_secs(1);

/// The maps that tell which sockets to end.
pub(super) struct Maps {
    /// `SERVICES`.
    pub(super) services: BpfTable<ServiceKey, ServiceValue>,
    /// `SLOTS`.
    pub(super) slots: BpfTable<u32, u32>,
    /// `BACKENDS`.
    pub(super) backends: BpfTable<u32, BackendValue>,
    /// `CONNECTED`.
    pub(super) connected: BpfTable<u64, Translation>,
}

/// Which sockets there are to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    /// Those of the agent's own network namespace.
    Own,
    /// Those of every network namespace that a process of this machine is in.
    All,
}

/// The thread that looks at sockets, so that nothing else waits for it.
pub(super) struct HostSockets {
    /// Full while a look is asked for that has not begun.
    asked: SyncSender<()>,
}

impl HostSockets {
    /// Starts it, in the network namespace of this thread.
    pub(super) fn start(maps: Maps, scope: Scope) -> anyhow::Result<Self> {
        let own = Netns::current().context("the network namespace of the agent")?;
        let (asked, asks) = mpsc::sync_channel(1);
        thread::Builder::new()
            .name("host-sockets".to_owned())
            .spawn(move || follow(&asks, &maps, &own, scope))
            .context("no thread for the sockets of the host")?;
        Ok(Self { asked })
    }

    /// UDP backends have stopped serving. The maps say so already.
    pub(super) fn look(&self) {
        // One that is asked for and has not begun will see this change too; and where the kernel cannot
        // end sockets, nobody listens.
        let _ = self.asked.try_send(());
    }
}

/// Looks when asked, and once more a while after the last time.
fn follow(asks: &Receiver<()>, maps: &Maps, own: &Netns, scope: Scope) {
    let mut is_due = false;
    loop {
        let asked = if is_due {
            asks.recv_timeout(AGAIN)
        } else {
            asks.recv().map_err(RecvTimeoutError::from)
        };
        is_due = match asked {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        match end_all_stale(maps, own, scope) {
            Ok(()) => {}
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP | libc::ENOENT)
                ) =>
            {
                warn!(
                    "this kernel cannot end sockets (it needs CONFIG_INET_UDP_DIAG and CONFIG_INET_DIAG_DESTROY): \
                     connected UDP sockets go on sending to backends that are gone"
                );
                return;
            }
            Err(error) => warn!(%error, "cannot end UDP sockets whose backend is gone"),
        }
    }
}

/// Fails with what went wrong for the agent's own sockets, or last for others: one namespace stops no other.
fn end_all_stale(maps: &Maps, own: &Netns, scope: Scope) -> io::Result<()> {
    // New ones each time have no answers to earlier questions in them.
    let mut result = Sockets::open().and_then(|kernel| end_stale(maps, &kernel));
    if scope == Scope::All && result.is_ok() {
        for netns in own.others()? {
            let ended = netns
                .run(own, Sockets::open)
                .and_then(|kernel| end_stale(maps, &kernel));
            result = result.and(ended);
        }
    }
    result
}

fn end_stale(maps: &Maps, kernel: &Sockets) -> io::Result<()> {
    let mut ended = 0;
    for socket in kernel.connected_udp()? {
        let backend = socket.remote();
        let Some(row) = maps.connected.get(&socket.cookie())? else {
            continue;
        };
        // A row of another other end is of a `connect` that has come to nothing.
        let is_of_backend = row.backend == Address::from(backend.ip()) && row.backend_port == Port::new(backend.port());
        if is_of_backend && !leads(&maps.services, &maps.slots, &maps.backends, &row)? && kernel.destroy(&socket)? {
            debug!(%backend, "ended a UDP socket");
            ended += 1;
        }
    }
    if ended > 0 {
        info!(sockets = ended, "ended UDP sockets whose backend is gone");
    }
    Ok(())
}

/// Whether what a socket dialled still leads to the backend that it was sent to.
pub(super) fn leads(
    services: &dyn Table<ServiceKey, ServiceValue>,
    slots: &dyn Table<u32, u32>,
    backends: &dyn Table<u32, BackendValue>,
    row: &Translation,
) -> io::Result<bool> {
    let serves = |number: u32| {
        backends
            .get(&number)
            .map(|value| value.filter(|value| value.state == SERVING))
    };
    if serves(row.number)?.is_some_and(|value| value.generation == row.generation) {
        return Ok(true);
    }
    // As another generation the same endpoint may serve on: its service port has lost a frontend, which
    // need not be the one that was dialled.
    let any = if row.frontend.is_v4() {
        Address::ANY_V4
    } else {
        Address::ANY_V6
    };
    for address in [row.frontend, any] {
        let Some(service) = services.get(&ServiceKey::new(address, row.frontend_port, UDP))? else {
            continue;
        };
        let Range { base, count } = service.near;
        let end = if count == 0 { base } else { base.saturating_add(count) };
        for slot in base..end {
            let number = slots.get(&slot)?.unwrap_or(0);
            let leads =
                serves(number)?.is_some_and(|value| value.address == row.backend && value.port == row.backend_port);
            if leads {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    Ok(false)
}
