//! The server: TCP and UDP of both families at one port, at every address.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result};
use nix::sys::socket::{self, ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, sockopt};
use socket2::{Domain, Socket, Type};

use super::{pin, wanted};

/// Arguments of `lab load serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// The port
    #[arg(long)]
    pub(crate) port: u16,
    /// How many connections of each family it answers at once
    #[arg(long, default_value_t = 40)]
    pub(crate) at_once: usize,
    /// The only processor to run on
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
}

/// Answers until it is killed. The line "ready" says that it does.
pub(super) fn run(args: &Serve) -> Result<()> {
    pin(args.cpu)?;
    listen(args.port)?.serve(args.at_once)?;
    println!("ready");
    loop {
        thread::park();
    }
}

/// Its sockets.
#[derive(Debug)]
pub(super) struct Listening {
    tcp: [Arc<TcpListener>; 2],
    udp: [Arc<Socket>; 2],
    port: u16,
}

/// Opens them at this port, or at a free one for 0.
pub(super) fn listen(port: u16) -> Result<Listening> {
    let v4 = open(Ipv4Addr::UNSPECIFIED.into(), port, Type::STREAM)?;
    let bound = v4.local_addr().context("getsockname")?.as_socket();
    let port = bound.context("a TCP socket has an address")?.port();
    let v6 = open(Ipv6Addr::UNSPECIFIED.into(), port, Type::STREAM)?;
    for listener in [&v4, &v6] {
        listener.listen(4096).context("listen")?;
    }
    let udp = [
        open(Ipv4Addr::UNSPECIFIED.into(), port, Type::DGRAM)?,
        open(Ipv6Addr::UNSPECIFIED.into(), port, Type::DGRAM)?,
    ];
    // An answer is to come from the address that was asked, which a socket at every address has to be told.
    socket::setsockopt(&udp[0], sockopt::Ipv4PacketInfo, &true).context("IP_PKTINFO")?;
    socket::setsockopt(&udp[1], sockopt::Ipv6RecvPacketInfo, &true).context("IPV6_RECVPKTINFO")?;
    Ok(Listening {
        tcp: [v4, v6].map(|socket| Arc::new(socket.into())),
        udp: udp.map(Arc::new),
        port,
    })
}

fn open(address: IpAddr, port: u16, kind: Type) -> Result<Socket> {
    let address = SocketAddr::new(address, port);
    let socket = Socket::new(Domain::for_address(address), kind, None).context("socket")?;
    if address.is_ipv6() {
        socket.set_only_v6(true).context("IPV6_V6ONLY")?;
    }
    if kind == Type::STREAM {
        socket.set_reuse_address(true).context("SO_REUSEADDR")?;
    }
    socket
        .bind(&address.into())
        .with_context(|| format!("bind to {address}"))?;
    Ok(socket)
}

impl Listening {
    /// The port.
    #[cfg(test)]
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Answers so many connections of each family at once, on threads that never end.
    pub(super) fn serve(&self, at_once: usize) -> Result<()> {
        let start = |work: Box<dyn FnOnce() + Send>| {
            let thread = thread::Builder::new().name(format!("serve-{}", self.port));
            thread.spawn(work).context("starting a thread").map(drop)
        };
        for listener in &self.tcp {
            for _ in 0..at_once {
                let listener = Arc::clone(listener);
                start(Box::new(move || accept(&listener)))?;
            }
        }
        for socket in &self.udp {
            let socket = Arc::clone(socket);
            start(Box::new(move || answer_datagrams(&socket)))?;
        }
        Ok(())
    }
}

fn accept(listener: &TcpListener) {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        // What a connection ends with is the client's to report.
        if let Ok((stream, _)) = listener.accept() {
            let _ = answer(stream, &mut buffer);
        }
    }
}

fn answer(mut stream: TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    let mut first = [0];
    if stream.read(&mut first)? == 0 {
        return Ok(());
    }
    match first[0] {
        wanted::SINK => {
            let mut received: u64 = 0;
            loop {
                match stream.read(buffer)? {
                    0 => return stream.write_all(&received.to_be_bytes()),
                    length => received += length as u64,
                }
            }
        }
        wanted::WHERE => writeln!(stream, "{}", stream.local_addr()?.ip()),
        byte => {
            // An answer is one small segment, and the client waits for it.
            stream.set_nodelay(true)?;
            stream.write_all(&[byte])?;
            while stream.read(&mut first)? > 0 {
                stream.write_all(&first)?;
            }
            Ok(())
        }
    }
}

fn answer_datagrams(socket: &Socket) {
    loop {
        // An ICMP error about an earlier answer comes out here; it is the client's business.
        let _ = answer_datagram(socket);
    }
}

fn answer_datagram(socket: &Socket) -> nix::Result<()> {
    let mut buffer = [0; 64];
    let mut space = nix::cmsg_space!(libc::in_pktinfo, libc::in6_pktinfo);
    let mut parts = [io::IoSliceMut::new(&mut buffer)];
    let fd = socket.as_raw_fd();
    let received = socket::recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut space), MsgFlags::empty())?;
    let (client, length) = (received.address, received.bytes);
    let mut asked = None;
    for message in received.cmsgs()? {
        match message {
            ControlMessageOwned::Ipv4PacketInfo(info) => asked = Some(Asked::V4(info)),
            ControlMessageOwned::Ipv6PacketInfo(info) => asked = Some(Asked::V6(info)),
            _ => {}
        }
    }
    let text = asked.as_ref().map(|asked| format!("{}\n", asked.address()));
    let answer = match (buffer[..length].first(), &text) {
        (Some(&wanted::WHERE), Some(text)) => text.as_bytes(),
        _ => &buffer[..length.min(1)],
    };
    let from = asked.as_ref().map(Asked::message);
    let messages = from.as_slice();
    socket::sendmsg(
        fd,
        &[io::IoSlice::new(answer)],
        messages,
        MsgFlags::empty(),
        client.as_ref(),
    )
    .map(drop)
}

/// Which of our addresses a datagram was for.
enum Asked {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

impl Asked {
    fn address(&self) -> IpAddr {
        match self {
            // Network byte order is the order in memory.
            Self::V4(info) => Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into(),
            Self::V6(info) => Ipv6Addr::from(info.ipi6_addr.s6_addr).into(),
        }
    }

    /// That an answer is to come from there.
    fn message(&self) -> ControlMessage<'_> {
        match self {
            Self::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Self::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }
}
