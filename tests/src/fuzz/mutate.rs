//! Breaks packets where it hurts: header fields, lengths, pieces, options, quotations.

use rand::seq::IndexedRandom as _;
use rand::{Rng, RngExt as _};

use super::anatomy::{Anatomy, ETHERNET, ICMP_HEADER, protocol};
use super::build;
use super::oracle::Sent;

/// Longest packet that is made.
const LONGEST: usize = 2000;

/// Breaks it in one way or a few, and half of the time has its lengths and checksums right in the end.
pub fn packet(rng: &mut impl Rng, sent: &mut Sent) {
    let is_l2 = sent.program.has_link_header();
    for _ in 0..*[1, 1, 2, 4].choose(rng).unwrap_or(&1) {
        once(rng, &mut sent.bytes, is_l2);
    }
    match rng.random_range(0..4) {
        0 => build::repair(&mut sent.bytes, is_l2),
        1 => {
            if let Some(packet) = Anatomy::of(&sent.bytes, is_l2) {
                build::repair_checksums(&mut sent.bytes, &packet);
            }
        }
        _ => {}
    }
}

fn once(rng: &mut impl Rng, bytes: &mut Vec<u8>, is_l2: bool) {
    let packet = Anatomy::of(bytes, is_l2);
    match (rng.random_range(0..15), packet) {
        (0, _) => flip(rng, bytes, 0),
        (1, _) => {
            let length = rng.random_range(0..=bytes.len());
            bytes.truncate(length);
        }
        (2, _) => {
            let more = rng.random_range(1..32);
            if bytes.len() + more < LONGEST {
                bytes.resize(bytes.len() + more, rng.random());
            }
        }
        (3, Some(packet)) => tag(rng, bytes, is_l2, &packet),
        (4, Some(packet)) => fragment(rng, bytes, &packet),
        (5, Some(packet)) => options(rng, bytes, &packet),
        (6, Some(packet)) if packet.is_error(bytes) => {
            // In what is quoted.
            flip(rng, bytes, packet.transport + ICMP_HEADER);
        }
        (6 | 7, Some(packet)) => flip(rng, bytes, packet.transport),
        (8, Some(packet)) => lengths(rng, bytes, &packet),
        (9, Some(packet)) => swap(bytes, &packet),
        (10, Some(packet)) => {
            // No checksum, or the other zero.
            if let Some(at) = packet.transport_checksum(bytes) {
                bytes[at..at + 2].fill(*[0, 0, 0xff].choose(rng).unwrap_or(&0));
            }
            if let Some(at) = packet.sctp_checksum(bytes) {
                bytes[at..at + 4].fill(0);
            }
        }
        (11, Some(packet)) => {
            // The place of the protocol.
            let at = packet.network + if packet.is_v4() { 9 } else { 6 };
            let numbers = [protocol::TCP, protocol::UDP, protocol::SCTP, protocol::ICMP, 43, 51, 59];
            bytes[at] = *numbers.choose(rng).unwrap_or(&0);
        }
        (12, Some(packet)) => ports(rng, bytes, &packet),
        (13, Some(packet)) => special(rng, bytes, &packet),
        (_, Some(packet)) => flip(rng, bytes, packet.network),
        (_, None) => flip(rng, bytes, 0),
    }
}

/// Other bits, in one of the 64 bytes from here on.
fn flip(rng: &mut impl Rng, bytes: &mut [u8], from: usize) {
    let end = bytes.len().min(from + 64);
    if from < end {
        let at = rng.random_range(from..end);
        bytes[at] = match rng.random_range(0..4) {
            0 => bytes[at] ^ (1 << rng.random_range(0..8)),
            1 => *[0, 0xff, 0x80, 0x7f].choose(rng).unwrap_or(&0),
            _ => rng.random(),
        };
    }
}

/// A VLAN tag in the bytes.
fn tag(rng: &mut impl Rng, bytes: &mut Vec<u8>, is_l2: bool, packet: &Anatomy) {
    if is_l2 && packet.network >= ETHERNET && bytes.len() < LONGEST {
        let kind = *[[0x81, 0x00], [0x88, 0xa8]].choose(rng).unwrap_or(&[0x81, 0x00]);
        bytes.splice(12..12, [kind[0], kind[1], 0, rng.random()]);
    }
}

/// A piece: the first, one in the middle, the last.
fn fragment(rng: &mut impl Rng, bytes: &mut Vec<u8>, packet: &Anatomy) {
    let offset: u16 = *[0, 0, 1, 0x10, 0x1fff].choose(rng).unwrap_or(&0);
    let more = u16::from(offset == 0 || rng.random_bool(0.5));
    let id: u16 = rng.random_range(0..4);
    if packet.is_v4() {
        let at = packet.network + 4;
        bytes[at..at + 2].copy_from_slice(&id.to_be_bytes());
        bytes[at + 2..at + 4].copy_from_slice(&(more << 13 | offset).to_be_bytes());
    } else if bytes.len() < LONGEST {
        let at = packet.network + 40;
        let next = std::mem::replace(&mut bytes[packet.network + 6], protocol::FRAGMENT);
        let [high, low] = (offset << 3 | more).to_be_bytes();
        bytes.splice(at..at, [next, 0, high, low, 0, 0, 0, id as u8]);
    }
}

/// IPv4 options, or IPv6 extension headers: of options, of routing, of anything.
fn options(rng: &mut impl Rng, bytes: &mut Vec<u8>, packet: &Anatomy) {
    let words = rng.random_range(1..4_usize);
    if bytes.len() + words * 8 > LONGEST {
        return;
    }
    let at = packet.network + if packet.is_v4() { 20 } else { 40 };
    if packet.is_v4() {
        let length = bytes[packet.network] & 0x0f;
        if usize::from(length) + words <= 15 {
            bytes[packet.network] += words as u8;
            bytes.splice(at..at, vec![1; words * 4]);
        }
        return;
    }
    let kind: u8 = *[0, 60, 60, 43, 51, 135].choose(rng).unwrap_or(&60);
    let next = std::mem::replace(&mut bytes[packet.network + 6], kind);
    let mut header = vec![0; words * 8];
    (header[0], header[1], header[2]) = (next, words as u8 - 1, 1);
    header[3] = (words * 8 - 4) as u8;
    bytes.splice(at..at, header);
}

/// A length that lies.
fn lengths(rng: &mut impl Rng, bytes: &mut [u8], packet: &Anatomy) {
    let places = [
        packet.network,
        packet.network + if packet.is_v4() { 2 } else { 4 },
        packet.transport + 4,
        packet.transport + 12,
    ];
    let at = *places.choose(rng).unwrap_or(&packet.network);
    if at + 1 < bytes.len() {
        bytes[at] = if at == packet.network {
            bytes[at] & 0xf0 | rng.random_range(0..16)
        } else {
            rng.random()
        };
        bytes[at + 1] = rng.random();
    }
}

/// Source and destination the other way round.
fn swap(bytes: &mut [u8], packet: &Anatomy) {
    let (at, length) = (packet.addresses(), packet.address_length());
    let source = bytes[at..at + length].to_vec();
    bytes.copy_within(at + length..at + 2 * length, at);
    bytes[at + length..at + 2 * length].copy_from_slice(&source);
}

/// A source or destination that no host has: all, none, this one, many.
fn special(rng: &mut impl Rng, bytes: &mut [u8], packet: &Anatomy) {
    let length = packet.address_length();
    let at = packet.addresses() + *[0, 0, length].choose(rng).unwrap_or(&0);
    let address: [u8; 16] = match (packet.is_v4(), rng.random_range(0..4)) {
        (_, 0) => [0; 16],
        (_, 1) => [0xff; 16],
        (true, 2) => [127; 16],
        (true, _) => [224; 16],
        (false, 2) => 1_u128.to_be_bytes(),
        (false, _) => (0xff02_u128 << 112 | 1).to_be_bytes(),
    };
    bytes[at..at + length].copy_from_slice(&address[..length]);
}

/// Another port.
fn ports(rng: &mut impl Rng, bytes: &mut [u8], packet: &Anatomy) {
    let at = packet.transport + *[0, 2].choose(rng).unwrap_or(&0);
    if at + 2 <= bytes.len() {
        let port: u16 = *[0, 0, 80, 8080, 30_080, u16::MAX].choose(rng).unwrap_or(&0);
        bytes[at..at + 2].copy_from_slice(&port.to_be_bytes());
    }
}
