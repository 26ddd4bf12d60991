//! VLAN tags in the bytes of a frame: those behind the first one, which the kernel keeps beside the packet, and
//! all that a link without tag offload sends.

use aya_ebpf::programs::sk_buff::SkBuff;

use crate::{opaque::opaque, packet::link_header};

/// IEEE 802.1Q and 802.1ad, as `skb->protocol` has them.
const CUSTOMER: u32 = 0x8100_u16.to_be() as u32;
const SERVICE: u32 = 0x88a8_u16.to_be() as u32;
/// How many tags are stepped over.
const TAGS: usize = 2;
const TAG: usize = 4;

/// Where the IP header starts, behind the link header and tags, and the protocol that is there, as
/// `skb->protocol` has it. `None`: there are more tags than anybody needs.
#[inline(always)]
pub(crate) fn network<const LINK_HEADER: usize>(skb: &SkBuff) -> Option<(usize, u32)> {
    let mut protocol = skb.protocol();
    let mut offset = LINK_HEADER;
    if LINK_HEADER == link_header::NONE {
        return Some((offset, protocol));
    }
    for _ in 0..TAGS {
        if !is_tag(protocol) {
            break;
        }
        protocol = skb.load::<u16>(offset + 2).ok()?.into();
        offset += TAG;
    }
    (!is_tag(protocol)).then_some((opaque(skb, offset), protocol))
}

#[inline(always)]
fn is_tag(protocol: u32) -> bool {
    matches!(protocol, CUSTOMER | SERVICE)
}
