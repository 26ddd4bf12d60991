//! Clients: what a connection from some place to some address comes to.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use socket2::{Domain, Socket, Type};

use crate::patience::patient;
use crate::place::Place;
use crate::server::Reply;

/// How long a client waits for each step unless told otherwise. Everything is on one machine; it may be a busy one.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// A transport protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The name of the server.
    pub server: String,
    /// Where the server saw the client.
    pub seen: SocketAddr,
    /// Where the client is in truth.
    pub local: SocketAddr,
}

/// Why there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// ECONNREFUSED: a reset in answer to a SYN, or port unreachable.
    Refused,
    /// Nothing came in time.
    Timeout,
    /// EHOSTUNREACH or ENETUNREACH.
    Unreachable,
    /// EPERM: the client's own machine does not let it connect there.
    Denied,
    /// The connection was there and broke off.
    Reset,
    /// An answer came from an address that had not been asked.
    Stranger(SocketAddr),
    /// The answer does not fit the question.
    Garbled(String),
    /// Anything else.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("refused"),
            Self::Timeout => f.write_str("no answer"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Denied => f.write_str("denied"),
            Self::Reset => f.write_str("broken off"),
            Self::Stranger(address) => write!(f, "answered by {address}, which was not asked"),
            Self::Garbled(text) => write!(f, "garbled answer {text:?}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused => Self::Refused,
            Kind::TimedOut | Kind::WouldBlock => Self::Timeout,
            Kind::PermissionDenied => Self::Denied,
            Kind::HostUnreachable | Kind::NetworkUnreachable => Self::Unreachable,
            Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::UnexpectedEof => Self::Reset,
            _ => Self::Other(error.to_string()),
        }
    }
}

/// What came of a question.
pub type Outcome = Result<Answer, Failure>;

/// Asks from one place.
#[derive(Clone, Debug)]
pub struct Client {
    place: Arc<dyn Place>,
    timeout: Duration,
}

impl Client {
    /// A client at this place.
    pub fn new(place: Arc<dyn Place>) -> Self {
        Self {
            place,
            timeout: patient(TIMEOUT),
        }
    }

    /// The same, waiting this long for each step.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self {
            place: Arc::clone(&self.place),
            timeout: patient(timeout),
        }
    }

    /// One question over a connection of its own. For UDP the socket is a connected one, which hears of ICMP errors.
    pub fn ask(&self, protocol: Protocol, to: SocketAddr) -> Outcome {
        self.connect(protocol, to)?.ask("?")
    }

    /// One question by UDP from a socket that is not connected, as resolvers do.
    pub fn ask_unconnected(&self, to: SocketAddr) -> Outcome {
        let socket = self.socket(Protocol::Udp, to)?;
        socket.send_to(b"?", &to.into())?;
        let mut buffer = vec![0; MAX_DATAGRAM];
        // `recv_from` of socket2 wants uninitialised memory; the standard library's is simpler.
        let socket = std::net::UdpSocket::from(socket);
        let (length, from) = socket.recv_from(&mut buffer)?;
        if from != to {
            return Err(Failure::Stranger(from));
        }
        answer(&buffer[..length], "?", socket.local_addr()?)
    }

    /// A UDP socket of the family of `to`, bound and connected to nothing.
    pub fn datagrams(&self, to: SocketAddr) -> Result<std::net::UdpSocket, Failure> {
        Ok(self.socket(Protocol::Udp, to)?.into())
    }

    /// A connection that stays.
    pub fn connect(&self, protocol: Protocol, to: SocketAddr) -> Result<Connection, Failure> {
        self.connect_with(protocol, to, |_| Ok(()))
    }

    /// The same, of a socket that is first prepared: bound to an address or a link, say.
    pub fn connect_with(
        &self,
        protocol: Protocol,
        to: SocketAddr,
        prepare: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> Result<Connection, Failure> {
        let socket = self.socket(protocol, to)?;
        prepare(&socket)?;
        socket.connect_timeout(&to.into(), self.timeout)?;
        if protocol == Protocol::Tcp {
            socket.set_tcp_nodelay(true)?;
        }
        Ok(Connection { socket, protocol })
    }

    /// A socket of the family of `to`, bound and connected to nothing, that waits as long as the client does.
    pub fn socket(&self, protocol: Protocol, to: SocketAddr) -> Result<Socket, Failure> {
        let kind = match protocol {
            Protocol::Tcp => Type::STREAM,
            Protocol::Udp => Type::DGRAM,
        };
        let socket = self
            .place
            .socket(Domain::for_address(to), kind)
            .map_err(|error| Failure::Other(format!("{error:#}")))?;
        socket.set_read_timeout(Some(self.timeout))?;
        socket.set_write_timeout(Some(self.timeout))?;
        Ok(socket)
    }
}

const MAX_DATAGRAM: usize = 65536;

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    protocol: Protocol,
}

impl Connection {
    /// One question. For TCP it must hold no newline.
    pub fn ask(&mut self, request: &str) -> Outcome {
        let local = self.local()?;
        match self.protocol {
            Protocol::Tcp => {
                self.socket.write_all(format!("{request}\n").as_bytes())?;
                answer(&self.read_line()?, request, local)
            }
            Protocol::Udp => {
                // A packet filter on the way out that drops says so at once, and one that refuses says it here as well;
                // what tells the two apart comes in as it does to anybody else.
                match self.socket.send(request.as_bytes()) {
                    Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error.into()),
                    _ => {}
                }
                let mut buffer = vec![0; MAX_DATAGRAM];
                let length = self.socket.read(&mut buffer)?;
                answer(&buffer[..length], request, local)
            }
        }
    }

    /// Connects the same socket elsewhere, which UDP alone lets it.
    pub fn connect_again(&mut self, to: SocketAddr) -> Result<(), Failure> {
        Ok(self.socket.connect(&to.into())?)
    }

    /// The client's own address.
    pub fn local(&self) -> Result<SocketAddr, Failure> {
        Ok(inet(&self.socket.local_addr()?))
    }

    /// The address of the server, as the kernel tells the client.
    pub fn peer(&self) -> Result<SocketAddr, Failure> {
        Ok(inet(&self.socket.peer_addr()?))
    }

    /// The largest packet that the kernel takes to be possible on the way to the other end, in bytes.
    pub fn path_mtu(&self) -> Result<u32, Failure> {
        let (level, option) = match self.peer()? {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let mut mtu = 0_u32;
        let mut length = libc::socklen_t::try_from(size_of_val(&mtu)).unwrap_or_default();
        // SAFETY: `mtu` and `length` live across the call, and `length` is that of `mtu`.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                std::ptr::from_mut(&mut mtu).cast(),
                &mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(mtu)
    }

    fn read_line(&mut self) -> Result<Vec<u8>, Failure> {
        let until = Instant::now() + self.socket.read_timeout()?.unwrap_or(patient(TIMEOUT));
        let mut line = Vec::new();
        let mut buffer = [0; 4096];
        while line.last() != Some(&b'\n') {
            if Instant::now() >= until {
                return Err(Failure::Timeout);
            }
            match self.socket.read(&mut buffer)? {
                0 => return Err(Failure::Reset),
                length => line.extend_from_slice(&buffer[..length]),
            }
        }
        line.pop();
        Ok(line)
    }
}

/// Sockets here are made for IPv4 and IPv6 only, and have addresses of these.
fn inet(address: &socket2::SockAddr) -> SocketAddr {
    address.as_socket().unwrap_or_else(|| SocketAddr::from(([0; 4], 0)))
}

fn answer(bytes: &[u8], request: &str, local: SocketAddr) -> Outcome {
    match serde_json::from_slice::<Reply>(bytes) {
        Ok(reply) if reply.request == request => Ok(Answer {
            server: reply.server,
            seen: reply.client,
            local,
        }),
        _ => Err(Failure::Garbled(
            String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned(),
        )),
    }
}
