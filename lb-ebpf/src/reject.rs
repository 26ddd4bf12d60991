//! A service without an endpoint: ICMP port unreachable, back where the packet came from. That is
//! what kube-proxy answers, and what makes `connect` fail at once with "connection refused".

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
    helpers::{bpf_csum_diff, bpf_redirect, bpf_skb_change_tail},
    programs::sk_buff::SkBuff,
};
use lb_common::{Address, Counter, net::TCP};

use crate::{
    event,
    family::{Family, Ipv4Header, Ipv6Header, V4, V6},
    packet::{Packet, link_header},
    verdict::because,
};

/// TTL or hop limit of what we send.
const HOPS: u8 = 64;
/// Bytes of the transport header that an answer quotes: all of it, which is more than the eight
/// that RFC 792 asks for, and what the kernel needs to keep of a checksum that is still to be made.
const QUOTED_TCP: usize = 20;
const QUOTED_UDP: usize = 8;

/// ICMP and ICMPv6 agree on the first eight bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IcmpHeader {
    kind: u8,
    code: u8,
    checksum: u16,
    unused: u32,
}

/// How a family says "port unreachable".
pub(crate) trait Reject: Family {
    /// The headers that go between the link header and the packet that is answered.
    type Answer: Copy;
    /// Bytes of the network header without options.
    const HEADER: usize;

    /// Whether an address is that of one host elsewhere. Nobody else is ever told of an error (RFC 1122 3.2.2,
    /// RFC 4443 2.4 e.6): such a source is forged, and many would read the answer, or none.
    fn is_one_host(address: &Address) -> bool;

    /// Those headers; `quoted` is the sum over the bytes behind them, `length` their number.
    fn answer(packet: &Packet, quoted: u32, length: usize) -> Self::Answer;
}

/// IPv4 header and ICMP header.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Answer4 {
    ip: Ipv4Header,
    icmp: IcmpHeader,
}

/// IPv6 header and ICMPv6 header.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Answer6 {
    ip: Ipv6Header,
    icmp: IcmpHeader,
}

impl Reject for V4 {
    type Answer = Answer4;
    const HEADER: usize = size_of::<Ipv4Header>();

    /// Neither of this network, nor loopback, nor multicast, reserved or broadcast.
    #[inline(always)]
    fn is_one_host(address: &Address) -> bool {
        let [first, ..] = address.v4().to_ne_bytes();
        (first != 0) & (first != 127) & (first < 224)
    }

    #[inline(always)]
    fn answer(packet: &Packet, quoted: u32, length: usize) -> Answer4 {
        const ICMP: u8 = 1;
        let mut ip = Ipv4Header {
            version_length: 0x45,
            service: 0,
            total_length: ((size_of::<Answer4>() + length) as u16).to_be(),
            identification: 0,
            fragment: 0,
            ttl: HOPS,
            protocol: ICMP,
            checksum: 0,
            source: packet.key.destination.v4(),
            destination: packet.key.source.v4(),
        };
        ip.checksum = finish(sum(&ip, 0));
        // RFC 792: destination unreachable, port unreachable.
        let mut icmp = IcmpHeader {
            kind: 3,
            code: 3,
            checksum: 0,
            unused: 0,
        };
        icmp.checksum = finish(sum(&icmp, quoted));
        Answer4 { ip, icmp }
    }
}

/// What an ICMPv6 checksum covers beside the message (RFC 8200 8.1).
#[repr(C)]
#[derive(Clone, Copy)]
struct PseudoHeader {
    source: [u32; 4],
    destination: [u32; 4],
    length: u32,
    next_header: u32,
}

impl Reject for V6 {
    type Answer = Answer6;
    const HEADER: usize = size_of::<Ipv6Header>();

    /// Neither unspecified, nor loopback, nor multicast.
    #[inline(always)]
    fn is_one_host(address: &Address) -> bool {
        let [a, b, c, d] = address.words;
        let is_at_most_loopback = (a | b | c == 0) & (u32::from_be(d) <= 1);
        (a.to_ne_bytes()[0] != 0xff) & !is_at_most_loopback
    }

    #[inline(always)]
    fn answer(packet: &Packet, quoted: u32, length: usize) -> Answer6 {
        const ICMPV6: u8 = 58;
        let payload = size_of::<IcmpHeader>() + length;
        let ip = Ipv6Header {
            version_class_label: 0x6000_0000_u32.to_be(),
            payload_length: (payload as u16).to_be(),
            next_header: ICMPV6,
            hop_limit: HOPS,
            source: packet.key.destination.words,
            destination: packet.key.source.words,
        };
        let pseudo = PseudoHeader {
            source: ip.source,
            destination: ip.destination,
            length: (payload as u32).to_be(),
            next_header: u32::from(ICMPV6).to_be(),
        };
        // RFC 4443 3.1: destination unreachable, port unreachable.
        let mut icmp = IcmpHeader {
            kind: 1,
            code: 4,
            checksum: 0,
            unused: 0,
        };
        icmp.checksum = finish(sum(&icmp, sum(&pseudo, quoted)));
        Answer6 { ip, icmp }
    }
}

/// Turns a packet, yet to be read, into its answer and sends that back out of the link.
#[inline(always)]
pub(crate) fn answer<F: Reject, const LINK_HEADER: usize>(skb: &SkBuff, packet: &mut Packet) -> i32 {
    if packet.read::<F>(skb).is_none() {
        return because(Counter::DroppedRejectFailed);
    }
    // One call a length, so that each is a constant to the verifier.
    let made = match packet.key.protocol {
        TCP => turn::<F, LINK_HEADER, QUOTED_TCP>(skb, packet),
        _ => turn::<F, LINK_HEADER, QUOTED_UDP>(skb, packet),
    };
    if made.is_none() {
        return because(Counter::DroppedRejectFailed);
    }
    event::tell(skb, &packet.key, Counter::Rejected as u32);
    // SAFETY: reads the context, which belongs to this run of the program.
    unsafe { bpf_redirect((*skb.skb).ifindex, 0) as i32 }
}

#[inline(always)]
fn turn<F: Reject, const LINK_HEADER: usize, const QUOTED: usize>(skb: &SkBuff, packet: &Packet) -> Option<()> {
    let length = F::HEADER + QUOTED;
    if packet.transport != packet.network + F::HEADER {
        // Options: the quotation would be longer than the constant that the verifier was shown.
        return None;
    }
    if !F::is_one_host(&packet.key.source) {
        return None;
    }
    if (skb.len() as usize) < packet.network + length {
        // Cut short: it would be made longer, and the answer quote what nobody has sent.
        return None;
    }
    // SAFETY: the context belongs to this run of the program; no packet pointer is held.
    if unsafe { bpf_skb_change_tail(skb.skb, (packet.network + length) as u32, 0) } != 0 {
        return None;
    }
    let quoted = quoted_sum::<F, QUOTED>(skb, packet.network)?;
    skb.adjust_room(size_of::<F::Answer>() as i32, BPF_ADJ_ROOM_MAC, 0)
        .ok()?;
    skb.store(packet.network, &F::answer(packet, quoted, length), 0).ok()?;
    if LINK_HEADER == link_header::NONE {
        return Some(());
    }
    let link: [[u16; 3]; 2] = skb.load(0).ok()?;
    skb.store(0, &[link[1], link[0]], 0).ok()
}

/// The sum over the headers that are quoted.
#[inline(always)]
fn quoted_sum<F: Reject, const QUOTED: usize>(skb: &SkBuff, offset: usize) -> Option<u32> {
    // Two loads: the sum of both lengths is no constant that Rust would take for an array.
    if F::HEADER == size_of::<Ipv4Header>() {
        let header: [u32; 5] = skb.load(offset).ok()?;
        rest::<QUOTED>(skb, offset + F::HEADER, sum(&header, 0))
    } else {
        let header: [u32; 10] = skb.load(offset).ok()?;
        rest::<QUOTED>(skb, offset + F::HEADER, sum(&header, 0))
    }
}

#[inline(always)]
fn rest<const QUOTED: usize>(skb: &SkBuff, offset: usize, seed: u32) -> Option<u32> {
    let bytes: [u8; QUOTED] = skb.load(offset).ok()?;
    Some(sum(&bytes, seed))
}

/// Ones' complement sum over `value`, whose size is a multiple of four, on top of `seed`.
#[inline(always)]
fn sum<T>(value: &T, seed: u32) -> u32 {
    // SAFETY: `value` is that many readable bytes; nothing is read from the null pointer.
    unsafe {
        bpf_csum_diff(
            core::ptr::null_mut(),
            0,
            core::ptr::from_ref(value).cast_mut().cast(),
            size_of::<MaybeUninit<T>>() as u32,
            seed,
        ) as u32
    }
}

/// Folds a sum to the sixteen bits that stand in a header.
#[inline(always)]
fn finish(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}
