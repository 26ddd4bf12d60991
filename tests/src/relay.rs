//! Passes TCP connections from one network to another, which have nothing to do with each other otherwise.
//!
//! Two networks with the same addresses cannot be connected by a link. A server of one is reached from the other
//! through this process, at the very address it has in its own.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use socket2::{Domain, Socket, Type};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::netns::Netns;
use crate::runtime::runtime;

/// A listener in one namespace whose connections go on to the same address in another. Dropping it ends both.
#[derive(Debug)]
pub struct Relay {
    task: AbortHandle,
}

impl Relay {
    /// Listens at an address of `here`, and connects to the same one from within `there`.
    pub fn start(here: &Netns, there: Arc<Netns>, at: SocketAddr) -> Result<Self> {
        let listener = here
            .run(|| std::net::TcpListener::bind(at))?
            .with_context(|| format!("listening at {at} in {}", here.name()))?;
        listener.set_nonblocking(true).context("O_NONBLOCK")?;
        let guard = runtime().enter();
        let listener = TcpListener::from_std(listener).context("handing a socket to the runtime")?;
        drop(guard);
        let task = runtime().spawn(accept(listener, there, at)).abort_handle();
        Ok(Self { task })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, there: Arc<Netns>, to: SocketAddr) {
    // Connections end with this task, since the set is dropped with it.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(pass_on(stream, Arc::clone(&there), to));
        }
    }
}

/// Whoever is cut off tries again: both ends are used to networks that fail.
async fn pass_on(mut from: TcpStream, there: Arc<Netns>, to: SocketAddr) -> Result<()> {
    let socket = there.run(|| Socket::new(Domain::for_address(to), Type::STREAM, None))??;
    socket.set_nonblocking(true)?;
    let mut onward = TcpSocket::from_std_stream(socket.into()).connect(to).await?;
    copy_bidirectional(&mut from, &mut onward).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_server_is_reached_from_a_network_that_has_no_way_to_it() {
        let (here, there) = (Netns::new("here").unwrap(), Arc::new(Netns::new("there").unwrap()));
        let at = "127.0.0.1:6443".parse().unwrap();
        let server = there.run(|| std::net::TcpListener::bind(at)).unwrap().unwrap();
        let relay = Relay::start(&here, Arc::clone(&there), at).unwrap();

        let mut client = here.run(|| TcpStream::connect(at)).unwrap().unwrap();
        let (mut accepted, _) = server.accept().unwrap();
        client.write_all(b"question").unwrap();
        let mut question = [0; 8];
        accepted.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"question");

        drop(relay);
        let mut rest = Vec::new();
        assert!(matches!(client.read_to_end(&mut rest), Ok(0) | Err(_)));
    }
}
