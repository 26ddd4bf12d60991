//! What passes a link, as the link's own namespace sees it.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use crate::netlink::Link;
use crate::netns::Netns;
use crate::packet::Packet;
use crate::patience::patient;

// From linux/if_packet.h.
const PACKET_AUXDATA: libc::c_int = 8;
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const TP_STATUS_CSUMNOTREADY: u32 = 1 << 3;
const PACKET_OUTGOING: u8 = 4;

/// Longer than any frame, also of those that are cut up later.
const LONGEST: usize = 1 << 17;
/// Holds what passes until somebody looks.
const BUFFER: usize = 8 << 20;

/// `struct tpacket_auxdata`
#[repr(C)]
#[derive(Clone, Copy)]
struct Auxdata {
    status: u32,
    length: u32,
    captured: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

/// A frame that passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The frame, from its Ethernet header on.
    pub bytes: Vec<u8>,
    /// Whether it left by this link; else it came in.
    pub outgoing: bool,
    /// Whether its checksum is still to be computed, by the link. Then what it carries as one is no checksum.
    pub checksum_pending: bool,
}

impl Frame {
    /// The IP packet in it, if there is one.
    pub fn packet(&self) -> Result<Option<Packet>> {
        Packet::parse(&self.bytes)
    }

    /// The same, once its checksums have been found to be right. `None` also for what the kernel says to everybody by
    /// itself, which leaves through links without regard to their settings. Fails on a packet whose checksum is left to
    /// the link, since nothing can be said of it.
    pub fn verified(&self) -> Result<Option<Packet>> {
        let packet = self.packet()?;
        let Some(packet) = packet.filter(|packet| !packet.destination().is_multicast()) else {
            return Ok(None);
        };
        if self.checksum_pending {
            bail!("the checksum is left to the link: {packet}");
        }
        packet.verify().with_context(|| packet.to_string())?;
        Ok(Some(packet))
    }
}

/// Listens at a link, and can send there. What passes from the moment it is made waits until it is fetched.
#[derive(Debug)]
pub struct Capture {
    socket: Socket,
    link: u32,
}

impl Capture {
    /// Begins.
    pub fn start(netns: &Netns, link: &Link) -> Result<Self> {
        let socket = netns
            .run(|| open(link.index))?
            .with_context(|| format!("listening at {} in {}: this needs root", link.name, netns.name()))?;
        Ok(Self {
            socket,
            link: link.index,
        })
    }

    /// Hears no more of what leaves by the link.
    pub(crate) fn ignore_outgoing(&self) -> Result<()> {
        set_option(&self.socket, PACKET_IGNORE_OUTGOING, 1).context("PACKET_IGNORE_OUTGOING")
    }

    /// Sends a frame by the link.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let sent = self
            .socket
            .send(frame)
            .with_context(|| format!("sending a frame of {} bytes by link {}", frame.len(), self.link))?;
        ensure!(
            sent == frame.len(),
            "only {sent} bytes of a frame of {} were sent",
            frame.len()
        );
        Ok(())
    }

    /// The next frame, if one is there or comes in time.
    pub fn next(&self, within: Duration) -> Result<Option<Frame>> {
        // Zero would mean "for ever".
        let timeout = within.max(Duration::from_micros(1));
        self.socket.set_read_timeout(Some(timeout)).context("SO_RCVTIMEO")?;
        match receive(&self.socket) {
            Ok(frame) => Ok(Some(frame)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("receiving a frame"),
        }
    }

    /// The first packet that fits, if it is there or comes in time. Those before it are lost.
    pub fn find(&self, within: Duration, mut fits: impl FnMut(&Packet) -> bool) -> Result<Option<Packet>> {
        let until = Instant::now() + patient(within);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.next(left)? {
                None => return Ok(None),
                Some(frame) => {
                    if let Some(packet) = frame.packet()?.filter(&mut fits) {
                        return Ok(Some(packet));
                    }
                }
            }
        }
    }

    /// All frames that have passed so far and are not fetched yet.
    pub fn frames(&self) -> Result<Vec<Frame>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next(Duration::ZERO)? {
            frames.push(frame);
        }
        let lost = lost(&self.socket).context("PACKET_STATISTICS")?;
        ensure!(
            lost == 0,
            "{lost} frames were lost: they came faster than they were fetched"
        );
        Ok(frames)
    }

    /// All packets so far, each of which is whole and has right checksums. Fails on the first that does not, and on one
    /// whose checksum is left to the link, since nothing can be said of it.
    pub fn verified(&self) -> Result<Vec<Packet>> {
        let verified = self.frames()?.into_iter().map(|frame| frame.verified());
        verified.filter_map(Result::transpose).collect()
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn open(link: u32) -> io::Result<Socket> {
    // With protocol 0 it hears nothing, in particular nothing from other links, until it is bound.
    let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
    // Above what the kernel lets anybody have.
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).map_err(io::Error::from)?;
    set_option(&socket, PACKET_AUXDATA, 1)?;
    bind(&socket, link)?;
    Ok(socket)
}

fn bind(socket: &Socket, link: u32) -> io::Result<()> {
    // SAFETY: all fields of the structure may be zero.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = link.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: a whole structure of the family it names.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}

fn set_option(socket: &Socket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option takes an integer.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const value).cast(),
            length,
        )
    })
}

/// How many frames found no room since the last time this was asked.
fn lost(socket: &Socket) -> io::Result<u32> {
    let mut statistics = [0_u32; 2];
    let mut length = size_of_val(&statistics) as libc::socklen_t;
    // SAFETY: the option gives two integers, packets and drops.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut length,
        )
    })?;
    Ok(statistics[1])
}

fn receive(socket: &Socket) -> io::Result<Frame> {
    let mut bytes = vec![0; LONGEST];
    // Room for the one control message, aligned as its header wants.
    let mut control = [0_u64; 8];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all fields of both structures may be zero.
    let (mut message, mut from): (libc::msghdr, libc::sockaddr_ll) = unsafe { (zeroed(), zeroed()) };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: each pointer is to a buffer of the length beside it, and all of them live through the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::other("a frame is longer than the buffer"));
    }
    bytes.truncate(length);
    let status = auxdata(&message).map_or(0, |auxdata| auxdata.status);
    Ok(Frame {
        bytes,
        outgoing: from.sll_pkttype == PACKET_OUTGOING,
        checksum_pending: status & TP_STATUS_CSUMNOTREADY != 0,
    })
}

fn auxdata(message: &libc::msghdr) -> Option<Auxdata> {
    // SAFETY: the kernel has filled the control buffer and set its length; the macros stay inside.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if (control.cmsg_level, control.cmsg_type) == (libc::SOL_PACKET, PACKET_AUXDATA) {
                return Some(libc::CMSG_DATA(header).cast::<Auxdata>().read_unaligned());
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
