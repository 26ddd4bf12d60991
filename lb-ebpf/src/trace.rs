//! A message a decision, with the crate feature `log`; nothing at all without it.

use aya_ebpf::programs::sk_buff::SkBuff;
use lb_common::FlowValue;

use crate::packet::Packet;

/// A flow began.
#[inline(always)]
pub(crate) fn flow_began(skb: &SkBuff, packet: &Packet, row: &FlowValue) {
    #[cfg(feature = "log")]
    aya_log_ebpf::debug!(
        &aya_ebpf::programs::TcContext::new(skb.skb),
        "protocol {} from port {} to port {}: flow of service {} to backend {} port {}",
        packet.key.protocol,
        packet.key.source_port.get(),
        packet.key.destination_port.get(),
        row.service,
        row.backend,
        row.port.get()
    );
    let _ = (skb, packet, row);
}

/// A packet found no backend.
#[inline(always)]
pub(crate) fn refused(skb: &SkBuff, packet: &Packet) {
    #[cfg(feature = "log")]
    aya_log_ebpf::debug!(
        &aya_ebpf::programs::TcContext::new(skb.skb),
        "protocol {} from port {} to port {}: no backend",
        packet.key.protocol,
        packet.key.source_port.get(),
        packet.key.destination_port.get()
    );
    let _ = (skb, packet);
}
