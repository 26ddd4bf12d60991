//! The socket to generic netlink.

use std::{io, os::fd::AsFd as _, time::Duration};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use nix::sys::{
    socket::{
        setsockopt,
        sockopt::{RcvBuf, RcvBufForce, ReceiveTimeout},
    },
    time::TimeVal,
};

/// How long the kernel has for an answer. It gives it within the call that asks, but a module that it loads takes
/// its time.
const ANSWER: Duration = Duration::from_secs(10);
/// What the kernel sends in one piece at most (`NLMSG_GOODSIZE` and what it grows to for a reader with room).
const ROOM: usize = 32 * 1024;

/// A socket that only the kernel answers.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Socket,
    buffer: Vec<u8>,
}

/// What comes of waiting.
pub(super) enum Received<'a> {
    /// Messages, in one piece.
    Bytes(&'a [u8]),
    /// There was no room for some messages. Those that had some are still there.
    Overrun,
    /// Nothing came.
    Nothing,
}

impl Connection {
    /// In the network namespace of this thread, with room for so many bytes of answers. The kernel counts some hundred
    /// more to each.
    pub(super) fn open(receive_buffer: usize) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        // Other processes cannot send to it then.
        socket.connect(&SocketAddr::new(0, 0))?;
        // A refusal does not repeat the request, and has words where the kernel has some.
        socket.set_cap_ack(true)?;
        socket.set_ext_ack(true)?;
        let fd = socket.as_fd();
        // Whoever may not do that may not do anything with IPVS either, and will be told so.
        if setsockopt(&fd, RcvBufForce, &receive_buffer).is_err() {
            setsockopt(&fd, RcvBuf, &receive_buffer)?;
        }
        // Ten seconds are few.
        setsockopt(&fd, ReceiveTimeout, &TimeVal::new(ANSWER.as_secs() as i64, 0))?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(ROOM),
        })
    }

    /// Sends requests in one piece.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match unless_interrupted(|| self.socket.send(bytes, 0))? {
            sent if sent == bytes.len() => Ok(()),
            sent => Err(io::Error::other(format!("{sent} of {} bytes were sent", bytes.len()))),
        }
    }

    /// The next messages. Without `wait`, only those that are there.
    pub(super) fn receive(&mut self, wait: bool) -> io::Result<Received<'_>> {
        // What does not fit in is cut off, and its length is that of the whole.
        let flags = libc::MSG_TRUNC | if wait { 0 } else { libc::MSG_DONTWAIT };
        self.buffer.clear();
        match unless_interrupted(|| self.socket.recv(&mut self.buffer, flags)) {
            Ok(length) if length > self.buffer.len() => {
                Err(io::Error::other(format!("a piece of {length} bytes does not fit in")))
            }
            Ok(_) => Ok(Received::Bytes(&self.buffer)),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(Received::Overrun),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(error) => Err(error),
        }
    }
}

/// A signal is no reason to give up.
fn unless_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
