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
    let key = &packet.key;
    let ports = [source_port.or(key.source_port), new.port];
    let difference = F::difference(&key.destination, &new.address);
    checksum::<F>(skb, packet, difference, ports)?;
    F::store_ends(skb, packet, &key.source, &new.address, ports, difference)
}

/// The packet gets a new source, and a new destination port unless that is [`Port::NONE`].
#[inline(always)]
pub(crate) fn source<F: Family>(skb: &SkBuff, packet: &Packet, new: &End, destination_port: Port) -> Result<(), i64> {
    let key = &packet.key;
    let ports = [new.port, destination_port.or(key.destination_port)];
    let difference = F::difference(&key.source, &new.address);
    checksum::<F>(skb, packet, difference, ports)?;
    F::store_ends(skb, packet, &new.address, &key.destination, ports, difference)
}

/// Corrects the checksum of the transport header, in two calls: what the network card has summed, or is to sum, covers
/// ports and not the pseudo header.
#[inline(always)]
fn checksum<F: Family>(skb: &SkBuff, packet: &Packet, difference: u32, ports: [Port; 2]) -> Result<(), i64> {
    let (at, flags) = (packet.checksum(), checksum_flags(packet));
    F::correct_for_address(skb, at, difference, flags)?;
    let old = word([packet.key.source_port, packet.key.destination_port]);
    skb.l4_csum_replace(at, old.into(), word(ports).into(), flags | 4)
}

/// Both ports as they stand in a header.
#[inline(always)]
pub(crate) fn word(ports: [Port; 2]) -> u32 {
    u32::from(ports[0].be) | u32::from(ports[1].be) << 16
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
