//! Single questions over connections, as tasks: those that wait for an answer take no thread.

use std::time::Duration;

use lb_tests::client::{Failure, Protocol};
use lb_tests::patience::patient;
use lb_tests::server::Reply;
use socket2::Socket;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::lane::{Dialler, Lane};

/// How long a connection may take to open or to be answered. The kernel sends a SYN again after 1, 3, 7 and 15 seconds, and
/// the machine may be a busy one: what is only slow has not failed.
const TCP_LIMIT: Duration = Duration::from_secs(30);
/// How long an answer to a datagram may take, which nobody sends again.
const UDP_LIMIT: Duration = Duration::from_secs(10);

/// The longest answer to a question of ours.
const MAX_DATAGRAM: usize = 4096;

/// A connection or flow that is open.
#[derive(Debug)]
pub(super) enum Talk {
    Tcp(BufReader<TcpStream>),
    Udp(UdpSocket),
}

/// How long to wait for what goes by this protocol.
pub(super) fn limit(protocol: Protocol) -> Duration {
    patient(match protocol {
        Protocol::Tcp => TCP_LIMIT,
        Protocol::Udp => UDP_LIMIT,
    })
}

/// Opens one.
pub(super) async fn open(dialler: &Dialler, lane: &Lane) -> Result<Talk, Failure> {
    Talk::connect(dialler.client.socket(lane.protocol, lane.to)?, lane).await
}

impl Talk {
    /// Opens one with this socket.
    pub(super) async fn connect(socket: Socket, lane: &Lane) -> Result<Self, Failure> {
        socket.set_nonblocking(true)?;
        match lane.protocol {
            Protocol::Tcp => {
                socket.set_tcp_nodelay(true)?;
                let connecting = TcpSocket::from_std_stream(socket.into()).connect(lane.to);
                Ok(Self::Tcp(BufReader::new(
                    within(limit(lane.protocol), connecting).await??,
                )))
            }
            Protocol::Udp => {
                socket.connect(&lane.to.into())?;
                Ok(Self::Udp(UdpSocket::from_std(socket.into())?))
            }
        }
    }

    /// One question. Says who answered it.
    pub(super) async fn ask(&mut self, question: &str) -> Result<String, Failure> {
        match self {
            Self::Tcp(stream) => within(limit(Protocol::Tcp), ask_by_line(stream, question)).await?,
            Self::Udp(socket) => within(limit(Protocol::Udp), ask_by_datagram(socket, question)).await?,
        }
    }
}

async fn within<T>(limit: Duration, what: impl Future<Output = T>) -> Result<T, Failure> {
    timeout(limit, what).await.map_err(|_| Failure::Timeout)
}

async fn ask_by_line(stream: &mut BufReader<TcpStream>, question: &str) -> Result<String, Failure> {
    stream.write_all(format!("{question}\n").as_bytes()).await?;
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Err(Failure::Reset);
    }
    match serde_json::from_str::<Reply>(&line) {
        Ok(reply) if reply.request == question => Ok(reply.server),
        _ => Err(Failure::Garbled(line)),
    }
}

async fn ask_by_datagram(socket: &mut UdpSocket, question: &str) -> Result<String, Failure> {
    socket.send(question.as_bytes()).await?;
    let mut buffer = [0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match serde_json::from_slice::<Reply>(&buffer[..length]) {
            Ok(reply) if reply.request == question => return Ok(reply.server),
            // To a question that was given up.
            Ok(_) => {}
            Err(_) => {
                return Err(Failure::Garbled(
                    String::from_utf8_lossy(&buffer[..length]).into_owned(),
                ));
            }
        }
    }
}
