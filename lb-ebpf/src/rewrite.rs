//! Changing addresses and ports of a packet with TCP or UDP, with every checksum that covers them. For SCTP
//! see [`sctp`](crate::sctp).

use aya_ebpf::{bindings::BPF_F_MARK_MANGLED_0, programs::sk_buff::SkBuff};
use lb_common::{Address, Port, net::UDP};

use crate::{family::Family, packet::Packet};

/// The new source or destination of a packet.
pub(crate) struct End {
    pub(crate) address: Address,
    pub(crate) port: Port,
}

/// The packet gets a new destination, and a new source port unless that is [`Port::NONE`].
#[inline(always)]
pub(crate) fn destination<F: Family>(skb: &SkBuff, packet: &Packet, new: &End, source_port: Port) -> Result<(), i64> {
    address::<F>(skb, packet, F::DESTINATION, &packet.key.destination, &new.address)?;
    port(skb, packet, packet.transport + 2, packet.key.destination_port, new.port)?;
    if source_port == Port::NONE {
        return Ok(());
    }
    port(skb, packet, packet.transport, packet.key.source_port, source_port)
}

/// The packet gets a new source, and a new destination port unless that is [`Port::NONE`].
#[inline(always)]
pub(crate) fn source<F: Family>(skb: &SkBuff, packet: &Packet, new: &End, destination_port: Port) -> Result<(), i64> {
    address::<F>(skb, packet, F::SOURCE, &packet.key.source, &new.address)?;
    port(skb, packet, packet.transport, packet.key.source_port, new.port)?;
    if destination_port == Port::NONE {
        return Ok(());
    }
    port(
        skb,
        packet,
        packet.transport + 2,
        packet.key.destination_port,
        destination_port,
    )
}

#[inline(always)]
fn address<F: Family>(skb: &SkBuff, packet: &Packet, field: usize, old: &Address, new: &Address) -> Result<(), i64> {
    F::replace_address(skb, packet, field, old, new, checksum_flags(packet))
}

#[inline(always)]
fn port(skb: &SkBuff, packet: &Packet, offset: usize, old: Port, new: Port) -> Result<(), i64> {
    skb.l4_csum_replace(
        packet.checksum(),
        old.be.into(),
        new.be.into(),
        checksum_flags(packet) | 2,
    )?;
    skb.store(offset, &new, 0)
}

/// A UDP checksum of zero says that there is none (RFC 768): it stays, and none becomes it.
#[inline(always)]
fn checksum_flags(packet: &Packet) -> u64 {
    if packet.key.protocol == UDP {
        BPF_F_MARK_MANGLED_0.into()
    } else {
        0
    }
}
