//! Writes packets, and puts right again what a mutation left wrong.

use std::net::{IpAddr, SocketAddr};

use super::anatomy::{Anatomy, ETHERNET, ICMP_HEADER, protocol};

/// Ethernet addresses of whoever sends and of the node.
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

/// A frame with an IP packet that carries `payload`.
#[must_use]
pub fn ip(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = MACS.to_vec();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            bytes.extend([0x08, 0x00, 0x45, 0, 0, 0, 0, 7, 0, 0, 63, protocol, 0, 0]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, protocol, 63]);
            bytes.extend(from.octets());
            bytes.extend(to.octets());
        }
        // Nobody can send that: it is no IP then.
        _ => bytes.extend([0x88, 0xb5]),
    }
    bytes.extend(payload);
    repair(&mut bytes, true);
    bytes
}

/// A frame with a datagram, a segment with these flags, or an SCTP packet whose first chunk is of this type.
#[must_use]
pub fn transport(protocol: u8, from: SocketAddr, to: SocketAddr, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    match protocol {
        protocol::TCP => bytes.extend([0, 0, 3, 232, 0, 0, 0, 0, 0x50, flags, 250, 0, 0, 0, 0, 0]),
        protocol::UDP => bytes.extend([0; 4]),
        // The verification tag, the checksum, and the chunk's header.
        _ => {
            bytes.extend([1, 2, 3, 4, 0, 0, 0, 1, flags, 0]);
            bytes.extend(u16::try_from(4 + payload.len()).unwrap_or(u16::MAX).to_be_bytes());
        }
    }
    bytes.extend(payload);
    ip(from.ip(), to.ip(), protocol, &bytes)
}

/// A frame with an error that quotes the first `length` bytes of the packet in another frame.
#[must_use]
pub fn error(from: IpAddr, to: IpAddr, (kind, code): (u8, u8), quoted: &[u8], length: usize) -> Vec<u8> {
    let quoted = quoted.get(ETHERNET..).unwrap_or_default();
    let protocol = if from.is_ipv4() {
        protocol::ICMP
    } else {
        protocol::ICMPV6
    };
    let mut message = vec![kind, code, 0, 0, 0, 0, 5, 120];
    debug_assert_eq!(message.len(), ICMP_HEADER);
    message.extend(&quoted[..length.min(quoted.len())]);
    ip(from, to, protocol, &message)
}

/// Makes lengths and checksums right, as far as the packet has them.
pub fn repair(bytes: &mut [u8], has_link_header: bool) {
    let Some(packet) = Anatomy::of(bytes, has_link_header) else {
        return;
    };
    let rest = bytes.len() - packet.network;
    if packet.is_v4() {
        put(bytes, packet.network + 2, rest);
    } else {
        put(bytes, packet.network + 4, rest - 40);
    }
    if packet.protocol == protocol::UDP && packet.fragment.is_none() && bytes.len() >= packet.transport + 8 {
        put(bytes, packet.transport + 4, bytes.len() - packet.transport);
    }
    repair_checksums(bytes, &packet);
}

/// Makes checksums right, as far as the packet has them.
pub fn repair_checksums(bytes: &mut [u8], packet: &Anatomy) {
    if let Some(at) = packet.header_checksum() {
        put(bytes, at, 0);
        let right = packet.header_error(bytes);
        put(bytes, at, right.into());
    }
    if let Some(at) = packet.transport_checksum(bytes) {
        put(bytes, at, 0);
        let right = match packet.transport_error(bytes) {
            // RFC 768: none at all is something else.
            0 if packet.protocol == protocol::UDP => 0xffff,
            right => right,
        };
        put(bytes, at, right.into());
    }
    if let Some(at) = packet.sctp_checksum(bytes) {
        bytes[at..at + 4].fill(0);
        let right = packet.sctp_error(bytes).unwrap_or_default();
        bytes[at..at + 4].copy_from_slice(&right.to_le_bytes());
    }
}

fn put(bytes: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).unwrap_or(u16::MAX);
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
