//! Packets that the kernel makes itself and takes for received ones, as many as it can (`BPF_F_TEST_XDP_LIVE_FRAMES`).
//!
//! No sender and no wire is in the way: they begin where a driver would hand them over. Each has another source port, and
//! another source address if that is wanted; a field beside each makes up for it, so that one checksum is right for all.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aya::programs::xdp::XdpMode;
use aya::programs::{TestRunAttrs, Xdp};
use aya::{TestRun as _, TestRunOptions};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::bpffs::Bpffs;
use crate::netlink::Link;
use crate::netns::Netns;
use crate::packet::{self, Macs};
use crate::raw_bpf::{self, Instruction, Use};

/// How many packets the kernel makes before it hands them over.
const BATCH: u32 = 64;
/// The length of a context (`struct xdp_md`), and where the packet's end and its link stand in it.
const CONTEXT: usize = 24;
const DATA_END: std::ops::Range<usize> = 4..8;
const INGRESS: std::ops::Range<usize> = 12..16;
/// The helper that gives a random number, from linux/bpf.h.
const GET_PRANDOM_U32: i32 = 7;
/// `XDP_DROP` and `XDP_PASS`
const DROP: i32 = 1;
const PASS: i32 = 2;

// Where things are behind an Ethernet header of 14 bytes and an IPv4 header of 20.
const IDENTIFICATION: i16 = 18;
/// The lower half of the source address.
const SOURCE: i16 = 28;
const SOURCE_PORT: i16 = 34;

/// The length of all headers of a TCP packet; one of UDP is longer than that.
const HEADERS: i16 = 54;

/// What the packets are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// TCP connections that begin.
    Syn,
    /// UDP datagrams.
    Datagram,
}

impl Kind {
    /// Two fields that are in the checksum and say nothing to anybody: the lower half of the sequence number and the urgent
    /// pointer, or the begin of the payload.
    const fn fields(self) -> [i16; 2] {
        match self {
            Self::Syn => [40, 52],
            Self::Datagram => [42, 44],
        }
    }
}

/// How many clients there seem to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clients {
    /// 32,768 ports of one address.
    One,
    /// As many ports of 65,536 addresses.
    Many,
}

/// Packets onto a link. Dropping it takes from the link what lets the kernel take packets for the link's.
#[derive(Debug)]
pub struct Flood {
    netns: Arc<Netns>,
    link: Link,
    pass: Option<Xdp>,
}

impl Flood {
    /// Onto a link of a namespace, whose driver has to know XDP.
    pub fn onto(netns: &Arc<Netns>, link: &Link) -> Result<Self> {
        // Only where a program is can the kernel be told that packets are from there.
        let mut pass = taken_over(raw_bpf::load(
            "pass",
            Use::Driver,
            &[(0xb7, 0, 0, 0, PASS), (0x95, 0, 0, 0, 0)],
        )?)?;
        netns
            .run(|| pass.attach(&link.name, XdpMode::Driver))?
            .with_context(|| format!("attaching to {} in {}", link.name, netns.name()))?;
        Ok(Self {
            netns: Arc::clone(netns),
            link: link.clone(),
            pass: Some(pass),
        })
    }

    /// Has the kernel receive so many packets to an address, from addresses that begin like this one, and says how long
    /// that took: up to where the last of them goes, or waits for another thread. All on one processor, if one is named.
    pub fn run(
        &self,
        kind: Kind,
        clients: Clients,
        from: Ipv4Addr,
        to: SocketAddrV4,
        count: u32,
        cpu: Option<usize>,
    ) -> Result<Duration> {
        let frame = frame(kind, self.link.mac, from, to)?;
        let program = taken_over(raw_bpf::load(
            "flood",
            Use::Driver,
            &instructions(kind, clients, &frame),
        )?)?;
        let mut context = [0; CONTEXT];
        context[DATA_END].copy_from_slice(&u32::try_from(frame.len())?.to_ne_bytes());
        context[INGRESS].copy_from_slice(&self.link.index.to_ne_bytes());
        self.netns.run(|| {
            cpu.map_or(Ok(()), stay_on)?;
            let begun = Instant::now();
            program
                .test_run(TestRunOptions {
                    data_in: Some(&frame),
                    ctx_in: Some(&context),
                    repeat: count,
                    attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                    ..Default::default()
                })
                .context("the kernel makes no packets")?;
            Ok(begun.elapsed())
        })?
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let pass = self.pass.take();
        // Where there are no BPF links, it is taken off over netlink, which is the namespace's.
        if let Err(error) = self.netns.run(move || drop(pass)) {
            eprintln!("lb-tests: taking off a program: {error:#}");
        }
    }
}

/// Keeps the calling thread on a processor.
fn stay_on(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    let set_to = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    set_to.with_context(|| format!("staying on processor {cpu}"))
}

fn taken_over(program: OwnedFd) -> Result<Xdp> {
    // Pinned only for the moment in which aya takes it over.
    let bpffs = Bpffs::new()?;
    let path = bpffs.path().join("flood");
    raw_bpf::pin(&program, &path).context("pinning a program")?;
    Xdp::from_pin(&path, aya_obj::programs::XdpAttachType::Interface).context("taking a program over")
}

/// The packet with zeros in all fields that differ, and the checksums that are right for all.
fn frame(kind: Kind, mac: [u8; 6], from: Ipv4Addr, to: SocketAddrV4) -> Result<Vec<u8>> {
    let macs = Macs {
        from: [2, 0, 0, 0, 0, 1],
        to: mac,
    };
    let [a, b, ..] = from.octets();
    let from = (Ipv4Addr::new(a, b, 0, 0), 0).into();
    let mut frame = match kind {
        Kind::Syn => packet::tcp(
            macs,
            from,
            to.into(),
            |tcp| (tcp.syn, tcp.sequence_number) = (true, 0),
            b"",
        )?,
        Kind::Datagram => packet::udp(macs, from, to.into(), &[0; 18])?,
    };
    // A number and its complement add up to the other zero of ones' complement.
    frame[IDENTIFICATION.unsigned_abs().into()..][..2].fill(0);
    Ok(frame)
}

/// Writes the headers of a packet, gives it a port, and maybe an address, and their complements in the fields for that.
///
/// All of the headers, since the kernel uses the memory of a packet again, with what became of the last one on its way.
fn instructions(kind: Kind, clients: Clients, frame: &[u8]) -> Vec<Instruction> {
    let [first, second] = kind.fields();
    let address: &[Instruction] = match clients {
        Clients::One => &[],
        Clients::Many => &[
            (0x85, 0, 0, 0, GET_PRANDOM_U32), // r0 = get_prandom_u32()
            (0x6b, 6, 0, SOURCE, 0),          // the address's lower half = r0
            (0xa7, 0, 0, 0, 0xffff),          // r0 ^= 0xffff
            (0x6b, 6, 0, IDENTIFICATION, 0),  // for the checksum of the header
            (0x6b, 6, 0, first, 0),           // for that of the packet
        ],
    };
    let headers = (0..HEADERS).step_by(2).zip(frame.chunks_exact(2));
    let headers: Vec<Instruction> = headers
        .map(|(at, pair)| (0x6a, 6, 0, at, u16::from_ne_bytes([pair[0], pair[1]]).into())) // the two bytes there = pair
        .collect();
    // Over the rest, to where it is dropped.
    let rest = i16::try_from(headers.len() + address.len() + 7).unwrap_or(i16::MAX);
    let begin: &[Instruction] = &[
        (0x61, 6, 1, 0, 0),              // r6 = context->data
        (0x61, 7, 1, 4, 0),              // r7 = context->data_end
        (0xbf, 8, 6, 0, 0),              // r8 = r6
        (0x07, 8, 0, 0, HEADERS.into()), // r8 += their length
        (0x2d, 8, 7, rest, 0),           // if r8 > r7 go to where it is dropped
    ];
    let port: &[Instruction] = &[
        (0x85, 0, 0, 0, GET_PRANDOM_U32), // r0 = get_prandom_u32()
        (0x47, 0, 0, 0, 0x80),            // r0 |= 0x80: a port from 32768 on
        (0x6b, 6, 0, SOURCE_PORT, 0),     // the port = r0
        (0xa7, 0, 0, 0, 0xffff),          // r0 ^= 0xffff
        (0x6b, 6, 0, second, 0),          // for the checksum of the packet
        (0xb7, 0, 0, 0, PASS),            // r0 = XDP_PASS
        (0x95, 0, 0, 0, 0),               // exit
        (0xb7, 0, 0, 0, DROP),            // r0 = XDP_DROP
        (0x95, 0, 0, 0, 0),               // exit
    ];
    [begin, &headers, address, port].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::packet::Packet;

    #[test]
    fn every_packet_of_a_flood_has_right_checksums_and_is_its_own() {
        for kind in [Kind::Syn, Kind::Datagram] {
            for clients in [Clients::One, Clients::Many] {
                let to = "192.0.2.1:80".parse().unwrap();
                let frame = frame(kind, [2, 0, 0, 0, 0, 2], Ipv4Addr::new(198, 18, 0, 0), to).unwrap();
                let loaded = raw_bpf::load("flood", Use::Driver, &instructions(kind, clients, &frame)).unwrap();
                let program = taken_over(loaded).unwrap();
                let mut seen = BTreeSet::new();
                // As a router leaves it: with another sender, time to live and checksum.
                let mut used = frame.clone();
                used[..26].fill(0xee);
                for _ in 0..200 {
                    let mut out = vec![0; 200];
                    let result = program.test_run(TestRunOptions {
                        data_in: Some(&used),
                        data_out: Some(&mut out),
                        ..Default::default()
                    });
                    let result = result.unwrap();
                    assert_eq!(result.return_value, PASS.unsigned_abs());
                    out.truncate(result.data_size_out as usize);
                    let packet = Packet::parse(&out).unwrap().unwrap();
                    packet.verify().unwrap();
                    let (from, dialled) = packet.ends().unwrap();
                    assert_eq!(dialled, to.into());
                    assert!(from.port() >= 32_768, "{from}");
                    seen.insert(from);
                }
                assert!(
                    seen.len() > 190,
                    "{kind:?} of {clients:?}: {} of 200 differ",
                    seen.len()
                );
                let addresses: BTreeSet<_> = seen.iter().map(|from| from.ip()).collect();
                assert_eq!(addresses.len() == 1, clients == Clients::One);
            }
        }
    }
}
