//! UDP sockets of this network namespace: which are connected, and the end of one
//! (`NETLINK_SOCK_DIAG`, sock_diag(7)).

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_sock_diag::{
    SockDiagDestroy, SockDiagMessage,
    constants::{AF_INET, AF_INET6, IPPROTO_UDP},
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags},
};
use netlink_sys::{Socket, SocketAddr as Peer, protocols::NETLINK_SOCK_DIAG};

/// What the kernel sends in one piece at most (`NLMSG_GOODSIZE` and what it grows to for a reader
/// with room).
const ROOM: usize = 32 * 1024;

/// A connected UDP socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpSocket {
    family: u8,
    id: SocketId,
}

impl UdpSocket {
    /// The kernel's cookie of the socket, as `bpf_get_socket_cookie` gives it.
    #[must_use]
    pub const fn cookie(&self) -> u64 {
        // Two words of the machine's byte order, the low one first.
        let [a, b, c, d, e, f, g, h] = self.id.cookie;
        let (low, high) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
        (high as u64) << 32 | low as u64
    }

    /// The other end: of an IPv6 socket that is connected over IPv4, the IPv4 address.
    #[must_use]
    pub const fn remote(&self) -> SocketAddr {
        let address = match self.id.destination_address {
            IpAddr::V6(v6) => v6.to_canonical(),
            v4 @ IpAddr::V4(_) => v4,
        };
        SocketAddr::new(address, self.id.destination_port)
    }
}

/// Asks the kernel.
#[derive(Debug)]
pub struct Sockets(Socket);

impl Sockets {
    /// For the network namespace of this thread.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` from a kernel without `CONFIG_INET_DIAG`.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&Peer::new(0, 0))?;
        Ok(Self(socket))
    }

    /// The connected UDP sockets, of IPv4 and of IPv6.
    ///
    /// # Errors
    /// `ENOENT` from a kernel without `CONFIG_INET_UDP_DIAG`.
    pub fn connected_udp(&self) -> io::Result<Vec<UdpSocket>> {
        let mut sockets = Vec::new();
        for family in [AF_INET, AF_INET6] {
            self.dump(family, &mut sockets)?;
        }
        Ok(sockets)
    }

    fn dump(&self, family: u8, sockets: &mut Vec<UdpSocket>) -> io::Result<()> {
        let any = if family == AF_INET {
            SocketId::new_v4()
        } else {
            SocketId::new_v6()
        };
        let request = SockDiagMessage::InetRequest(request(family, any));
        self.send(NLM_F_REQUEST | NLM_F_DUMP, request)?;
        loop {
            for message in self.receive()? {
                match message.payload {
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                        sockets.push(UdpSocket {
                            family: response.header.family,
                            id: response.header.socket_id,
                        });
                    }
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }

    /// Ends a socket: it is not connected any more, and the process has `ECONNABORTED` where it reads,
    /// `EDESTADDRREQ` where it sends. Says whether it was still there.
    ///
    /// # Errors
    /// `EOPNOTSUPP` from a kernel without `CONFIG_INET_DIAG_DESTROY`.
    pub fn destroy(&self, socket: &UdpSocket) -> io::Result<bool> {
        let request = SockDiagMessage::InetRequest(request(socket.family, socket.id.clone()));
        self.send(NLM_F_REQUEST | NLM_F_ACK, SockDiagDestroy::new(request))?;
        loop {
            for message in self.receive()? {
                if let NetlinkPayload::Error(answer) = message.payload {
                    return match answer {
                        ErrorMessage { code: None, .. } => Ok(true),
                        error if error.to_io().raw_os_error() == Some(libc::ENOENT) => Ok(false),
                        error => Err(error.to_io()),
                    };
                }
            }
        }
    }

    fn send<M>(&self, flags: u16, message: M) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Into<NetlinkPayload<M>>,
    {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, message.into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0).map(drop)
    }

    fn receive(&self) -> io::Result<Vec<NetlinkMessage<SockDiagMessage>>> {
        let mut bytes = Vec::with_capacity(ROOM);
        self.0.recv(&mut bytes, 0)?;
        let mut rest = bytes.as_slice();
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest).map_err(io::Error::other)?;
            // Each begins at a multiple of four.
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
            messages.push(message);
        }
        Ok(messages)
    }
}

/// Connected sockets, or one of them.
fn request(family: u8, socket_id: SocketId) -> InetRequest {
    InetRequest {
        family,
        protocol: IPPROTO_UDP,
        extensions: ExtensionFlags::empty(),
        // The kernel gives TCP's name for it to UDP sockets too.
        states: StateFlags::ESTABLISHED,
        socket_id,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket as Std;

    use super::*;

    /// A pair of sockets of which the first is connected to the second.
    fn pair(bound: &str, to: &str) -> (Std, Std) {
        let server = Std::bind((to, 0)).unwrap();
        let client = Std::bind((bound, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let dialled = if bound == "::" && to == "127.0.0.1" {
            "::ffff:127.0.0.1"
        } else {
            to
        };
        client.connect((dialled, port)).unwrap();
        (client, server)
    }

    #[test]
    fn connected_sockets_are_found_under_their_other_end_and_unconnected_ones_are_not() {
        let pairs = [
            pair("127.0.0.1", "127.0.0.1"),
            pair("::1", "::1"),
            pair("::", "127.0.0.1"),
        ];
        let found: Vec<SocketAddr> = Sockets::open()
            .unwrap()
            .connected_udp()
            .unwrap()
            .iter()
            .map(UdpSocket::remote)
            .collect();
        for (client, server) in pairs {
            let to = server.local_addr().unwrap();
            assert!(found.contains(&to), "{client:?} in {found:?}");
            let from = client.local_addr().unwrap();
            assert!(
                !found.iter().any(|remote| remote.port() == from.port()),
                "{server:?} in {found:?}"
            );
        }
    }

    #[test]
    fn a_cookie_is_that_of_the_socket_option() {
        let (client, server) = pair("127.0.0.1", "127.0.0.1");
        let to = server.local_addr().unwrap();
        let sockets = Sockets::open().unwrap().connected_udp().unwrap();
        let found = sockets.iter().find(|socket| socket.remote() == to).unwrap();
        assert_eq!(found.cookie(), cookie(&client));
    }

    /// `SO_COOKIE`.
    fn cookie(socket: &Std) -> u64 {
        use std::os::fd::AsRawFd as _;
        let mut cookie = 0_u64;
        let mut length = libc::socklen_t::try_from(size_of_val(&cookie)).unwrap();
        // SAFETY: `cookie` and `length` live across the call, and `length` is that of `cookie`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_COOKIE,
                std::ptr::from_mut(&mut cookie).cast(),
                &mut length,
            )
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        cookie
    }
}
