//! Whether an answer "port unreachable" is one.

use std::net::IpAddr;

use super::anatomy::{Anatomy, ETHERNET, ICMP_HEADER, protocol};
use super::oracle::{Fault, Sent};

/// Whether the programs can and may answer such a packet: what has options, a VLAN tag in its bytes, or is to be cut into
/// segments, they drop, as what no single host can have sent.
#[must_use]
pub fn can_be_made(sent: &Sent, packet: &Anatomy) -> bool {
    let header = if packet.is_v4() { 20 } else { 40 };
    sent.gso_size == 0 && packet.tags == 0 && packet.transport == packet.network + header && is_one_host(packet.source)
}

/// RFC 1122 3.2.2, RFC 4443 2.4 e.6: whether errors may be told there.
fn is_one_host(address: IpAddr) -> bool {
    let is_reserved = match address {
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.octets()[0] >= 240,
        IpAddr::V6(_) => false,
    };
    !(is_reserved || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// Fails unless `out` goes back to where the packet came from, says "port unreachable", and quotes its headers.
pub fn verify(sent: &Sent, packet: &Anatomy, out: &[u8]) -> Result<(), Fault> {
    if !is_one_host(packet.source) {
        return Err(format!("{} was answered, which is no host", packet.source));
    }
    let is_l2 = sent.program.has_link_header();
    if is_l2 && (out.get(..6) != sent.bytes.get(6..12) || out.get(6..12) != sent.bytes.get(..6)) {
        return Err("the answer does not go back on the link".into());
    }
    // Without link header, the answer's own source is the frontend, whose bytes tell the protocol as well.
    let answer = Anatomy::of(out, is_l2).ok_or("the answer is no IP")?;
    if (answer.source, answer.destination) != (packet.destination, packet.source) {
        return Err(format!(
            "the answer goes from {} to {}",
            answer.source, answer.destination
        ));
    }
    if !answer.is_plain(out) || answer.transport_error(out) != 0 {
        return Err("lengths or checksums of the answer are wrong".into());
    }
    let says = out.get(answer.transport..answer.transport + 2);
    let should = match answer.protocol {
        protocol::ICMP => [3, 3],
        protocol::ICMPV6 => [1, 4],
        other => return Err(format!("the answer is of protocol {other}")),
    };
    if says != Some(&should) {
        return Err(format!("the answer says {says:?}"));
    }
    let quoted = &out[answer.transport + ICMP_HEADER..];
    let original = &sent.bytes[if is_l2 { ETHERNET } else { 0 }..];
    let headers = packet.transport - packet.network + 8;
    if quoted.len() < headers || !original.starts_with(quoted) {
        return Err(format!(
            "the answer quotes {} bytes that are not the packet's",
            quoted.len()
        ));
    }
    Ok(())
}
