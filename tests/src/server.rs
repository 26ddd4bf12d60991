//! Servers that say who they are and whom they saw.
//!
//! One line of request, one line of answer, for as long as the client likes (TCP); one datagram, one answer (UDP). The
//! answer is [`Reply`] as JSON, with the request in it, so that long requests make long answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::AbortHandle;

use crate::netns::Netns;
use crate::runtime::runtime;

/// What a server answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// The name of the server.
    pub server: String,
    /// Where it saw the client.
    pub client: SocketAddr,
    /// The request.
    pub request: String,
}

/// How many requests a server has had.
#[derive(Debug, Default)]
pub struct Counts {
    tcp: AtomicU64,
    udp: AtomicU64,
}

impl Counts {
    /// Lines over TCP.
    #[must_use]
    pub fn tcp(&self) -> u64 {
        self.tcp.load(Ordering::Relaxed)
    }

    /// Datagrams.
    #[must_use]
    pub fn udp(&self) -> u64 {
        self.udp.load(Ordering::Relaxed)
    }
}

/// TCP and UDP servers of both families at one port of a namespace. Dropping it ends them and their connections.
#[derive(Debug)]
pub struct Server {
    name: String,
    port: u16,
    counts: Arc<Counts>,
    tasks: Vec<AbortHandle>,
}

impl Server {
    /// Starts them, at every address.
    pub fn start(netns: &Netns, name: impl Into<String>, port: u16) -> Result<Self> {
        let any = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        Self::start_at(netns, name, any, port)
    }

    /// Starts them at one address of each family. Where there are several, a UDP socket that is at every address
    /// answers from the one that the way back suggests, which need not be the one that was asked.
    pub fn start_at(netns: &Netns, name: impl Into<String>, addresses: [IpAddr; 2], port: u16) -> Result<Self> {
        let name = name.into();
        let sockets = netns
            .run(|| Sockets::bind(addresses, port))?
            .with_context(|| format!("listening at port {port} in {}", netns.name()))?;
        let who = Arc::new(Who {
            name: name.clone(),
            counts: Arc::default(),
        });
        let counts = Arc::clone(&who.counts);
        let guard = runtime().enter();
        let mut tasks = Vec::new();
        for socket in sockets.tcp {
            let listener = TcpListener::from_std(socket.into()).context("handing a socket to the runtime")?;
            tasks.push(runtime().spawn(accept(listener, Arc::clone(&who))).abort_handle());
        }
        for socket in sockets.udp {
            let socket = UdpSocket::from_std(socket.into()).context("handing a socket to the runtime")?;
            tasks.push(
                runtime()
                    .spawn(answer_datagrams(socket, Arc::clone(&who)))
                    .abort_handle(),
            );
        }
        drop(guard);
        Ok(Self {
            name,
            port,
            counts,
            tasks,
        })
    }

    /// What it says its name is.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many requests it has had.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The sockets of one server, one a family, so that each sees addresses of its own family only.
struct Sockets {
    tcp: Vec<Socket>,
    udp: Vec<Socket>,
}

impl Sockets {
    fn bind(addresses: [IpAddr; 2], port: u16) -> Result<Self> {
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        for address in addresses.map(|ip| SocketAddr::new(ip, port)) {
            let listener = open(address, Type::STREAM, Protocol::TCP)?;
            listener.listen(1024).context("listen")?;
            tcp.push(listener);
            udp.push(open(address, Type::DGRAM, Protocol::UDP)?);
        }
        Ok(Self { tcp, udp })
    }
}

fn open(address: SocketAddr, kind: Type, protocol: Protocol) -> Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, kind, Some(protocol)).context("socket")?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(true).context("IPV6_V6ONLY")?;
    }
    if kind == Type::STREAM {
        socket.set_reuse_address(true).context("SO_REUSEADDR")?;
    }
    socket.set_nonblocking(true).context("O_NONBLOCK")?;
    // An address of a link that has just been set up is not there yet in the eyes of bind.
    match domain {
        Domain::IPV6 => socket.set_freebind_v6(true).context("IPV6_FREEBIND")?,
        _ => socket.set_freebind_v4(true).context("IP_FREEBIND")?,
    }
    socket
        .bind(&address.into())
        .with_context(|| format!("bind to {address}"))?;
    Ok(socket)
}

/// What the tasks of one server share.
struct Who {
    name: String,
    counts: Arc<Counts>,
}

impl Who {
    fn reply(&self, client: SocketAddr, request: &str) -> Vec<u8> {
        let reply = Reply {
            server: self.name.clone(),
            client,
            request: request.to_owned(),
        };
        // Strings and an address always have a JSON form.
        serde_json::to_vec(&reply).unwrap_or_default()
    }
}

async fn accept(listener: TcpListener, who: Arc<Who>) {
    // Connections end with the listener's task, since the set is dropped with it.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if let Ok((stream, client)) = listener.accept().await {
            connections.spawn(answer_lines(stream, client, Arc::clone(&who)));
        }
    }
}

async fn answer_lines(mut stream: TcpStream, client: SocketAddr, who: Arc<Who>) {
    // An answer is one small segment, and a client waits for it.
    let _ = stream.set_nodelay(true);
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        who.counts.tcp.fetch_add(1, Ordering::Relaxed);
        let mut reply = who.reply(client, &line);
        reply.push(b'\n');
        if write.write_all(&reply).await.is_err() {
            break;
        }
    }
}

async fn answer_datagrams(socket: UdpSocket, who: Arc<Who>) {
    let mut buffer = vec![0; 65536];
    loop {
        // An ICMP error about an earlier answer comes out here; it is the client's business.
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        who.counts.udp.fetch_add(1, Ordering::Relaxed);
        let reply = who.reply(client, &String::from_utf8_lossy(&buffer[..length]));
        let _ = socket.send_to(&reply, client).await;
    }
}
