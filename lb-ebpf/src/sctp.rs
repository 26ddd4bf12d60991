//! Ports of SCTP, whose checksum is a CRC32c over the whole packet (RFC 9260 6.8, appendix A).
//!
//! A CRC is linear: what a change of the first four bytes does to it depends on how many bytes follow, and on
//! nothing in them. It is the difference, as a polynomial, times x to the power of the bits of the packet.

use aya_ebpf::programs::sk_buff::SkBuff;
use lb_common::{Port, net::SCTP};

use crate::{
    family::Family,
    packet::Packet,
    rewrite::{End, word},
};

/// Where the checksum stands in the header.
const CHECKSUM: usize = 8;
/// The polynomial of CRC32c, lowest power in the highest bit, as all of them here.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// x to the power of eight times the index, and of 2,048 times the index.
static BYTES: [u32; 256] = powers(8);
static BLOCKS: [u32; 256] = powers(8 * 256);

const fn powers(step: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut i = 1;
    while i < powers.len() {
        let mut power = powers[i - 1];
        let mut bit = 0;
        while bit < step {
            power = times_x(power);
            bit += 1;
        }
        powers[i] = power;
        i += 1;
    }
    powers
}

#[inline(always)]
const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(a & 1))
}

/// The packet gets a new destination, and a new source port unless that is [`Port::NONE`].
#[inline(always)]
pub(crate) fn destination<F: Family>(skb: &SkBuff, packet: &Packet, new: &End, source_port: Port) -> Result<(), i64> {
    let key = &packet.key;
    F::replace_bare_address(skb, packet.network, F::DESTINATION, &key.destination, &new.address)?;
    ports::<F>(skb, packet, source_port.or(key.source_port), new.port)
}

/// The packet gets a new source, and a new destination port unless that is [`Port::NONE`].
#[inline(always)]
pub(crate) fn source<F: Family>(skb: &SkBuff, packet: &Packet, new: &End, destination_port: Port) -> Result<(), i64> {
    let key = &packet.key;
    F::replace_bare_address(skb, packet.network, F::SOURCE, &key.source, &new.address)?;
    ports::<F>(skb, packet, new.port, destination_port.or(key.destination_port))
}

/// Whether a packet cannot get these ports: the checksum of a fragment covers what is in the others, and how long the
/// whole is, nobody knows yet.
#[inline(always)]
pub(crate) fn is_cut(packet: &Packet, source: Port, destination: Port) -> bool {
    let key = &packet.key;
    let is_sctp = key.protocol == SCTP;
    is_sctp
        & packet.is_first_fragment()
        & (word([source, destination]) != word([key.source_port, key.destination_port]))
}

/// Writes both ports and corrects the checksum for them.
#[inline(always)]
fn ports<F: Family>(skb: &SkBuff, packet: &Packet, source: Port, destination: Port) -> Result<(), i64> {
    let key = &packet.key;
    let old = word([key.source_port, key.destination_port]);
    let new = word([source, destination]);
    if old == new {
        return Ok(());
    }
    if is_cut(packet, source, destination) {
        return Err(-1);
    }
    let at = packet.transport + CHECKSUM;
    let checksum: u32 = skb.load(at)?;
    // Zero: the network card is still to make it (CHECKSUM_PARTIAL), and sums what stands here.
    if checksum != 0 {
        let length = F::length(skb, packet.network).ok_or(-1)? - (packet.transport - packet.network);
        let power = product(BYTES[length & 0xff], BLOCKS[(length >> 8) & 0xff]);
        skb.store(at, &(checksum ^ product(old ^ new, power)), 0)?;
    }
    skb.store(packet.transport, &new, 0)
}

/// The product of two polynomials modulo that of CRC32c. A function of its own in the kernel's eyes: it is
/// verified where it is called and not on every road that leads there.
#[inline(never)]
fn product(a: u32, b: u32) -> u32 {
    let (mut sum, mut power) = (0, b);
    for bit in (0..32).rev() {
        // A mask and not a branch, of which there would be two to the 32nd roads.
        sum ^= power & 0_u32.wrapping_sub((a >> bit) & 1);
        power = times_x(power);
    }
    sum
}
