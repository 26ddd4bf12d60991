//! rtnetlink, for what follows something of this process's network namespace.
//!
//! Two sockets: one that only listens, one that only asks. A notification carries the sequence number
//! of whatever request of another process caused it; on one socket it could pass for the answer to
//! ours and end a dump early.

mod requests;

pub(crate) use requests::Requests;

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    time::Duration,
};

use futures::channel::mpsc::UnboundedReceiver;
use netlink_packet_route::RouteNetlinkMessage;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use rtnetlink::{
    Handle, MulticastGroup, new_connection, new_multicast_connection, packet_core::NetlinkMessage, sys::SocketAddr,
};
use tokio::{task::JoinHandle, time::timeout};

/// Bytes of notifications that the kernel keeps for us: some thousand links coming at once.
const RECEIVE_BUFFER: usize = 8 << 20;
/// How long the kernel has for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The two sockets, each with the task that serves it.
pub(super) struct Connection {
    /// Asks.
    pub(super) handle: Handle,
    /// What the kernel tells by itself. After an overrun, what waits here is older than what was lost:
    /// open another connection and ask for everything.
    pub(super) notifications: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Connection {
    /// Listens to these groups from now on.
    pub(super) fn open(groups: &[MulticastGroup]) -> io::Result<Self> {
        let (mut listening, _, notifications) = new_multicast_connection(groups)?;
        // SAFETY: the socket lives as long as `listening`, which outlives this borrow.
        let socket = unsafe { BorrowedFd::borrow_raw(listening.socket_mut().as_raw_fd()) };
        if let Err(error) = setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER) {
            // What is lost is asked for again, only at a higher price.
            tracing::debug!(%error, "the buffer for notifications stays small");
        }
        let (asking, handle, _) = new_connection()?;
        Ok(Self {
            handle,
            notifications,
            tasks: [tokio::spawn(listening), tokio::spawn(asking)],
        })
    }
}

/// The answer, unless it takes for ever.
pub(super) async fn within<T>(answer: impl Future<Output = Result<T, rtnetlink::Error>>) -> io::Result<T> {
    match timeout(ANSWER, answer).await {
        Ok(answer) => answer.map_err(io::Error::other),
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
    }
}
