//! Numbers that the verifier is to know nothing of.
//!
//! It follows each known number through all that comes after: a header of 14 bytes, and one of 18, a packet of
//! IPv4, and one of IPv6, are each a walk of their own, although what is decided does not depend on it. Of
//! numbers made opaque it sees one.

use aya_ebpf::programs::sk_buff::SkBuff;

/// The same number, as long as it has no more than 16 bits. `skb->protocol` has as many in a field of 32, which
/// the verifier takes to be any.
#[inline(always)]
pub(crate) fn opaque(skb: &SkBuff, number: usize) -> usize {
    number.wrapping_add(skb.protocol() as usize >> 16) & 0xffff
}
