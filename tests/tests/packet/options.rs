//! Packets with more headers than most: IPv4 options, IPv6 extension headers that hold options.

use etherparse::Ipv4Header;

use crate::{
    Family, backend, client,
    datapath::{Hook, PASS, each},
    frame::{ACK, SYN, frame, packet_of, read},
    frontend,
};

const ETHERNET: usize = 14;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;

/// The frame with IPv4 options: four times "no operation".
fn with_v4_options(frame: &[u8]) -> Vec<u8> {
    let (header, rest) = Ipv4Header::from_slice(packet_of(frame)).unwrap();
    let mut header = Ipv4Header {
        options: [1, 1, 1, 1].into(),
        total_len: header.total_len + 4,
        ..header
    };
    header.header_checksum = header.calc_header_checksum();
    [&frame[..ETHERNET], &header.to_bytes(), rest].concat()
}

/// The same without them, once their header has been found to be right.
fn without_v4_options(frame: &[u8]) -> Vec<u8> {
    let (header, rest) = Ipv4Header::from_slice(packet_of(frame)).unwrap();
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    assert_eq!(header.options.as_slice(), [1, 1, 1, 1]);
    let mut header = Ipv4Header {
        options: [0_u8; 0].as_slice().try_into().unwrap(),
        total_len: header.total_len - 4,
        ..header
    };
    header.header_checksum = header.calc_header_checksum();
    [&frame[..ETHERNET], &header.to_bytes(), rest].concat()
}

/// The frame with extension headers of these kinds, each of so many bytes beyond the first eight.
fn with_extensions(frame: &[u8], extensions: &[(u8, u8)]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let at = ETHERNET + 40;
    for (kind, more) in extensions.iter().rev() {
        let length = 8 + usize::from(*more);
        let mut header = vec![frame[ETHERNET + 6], more / 8, 1, u8::try_from(length - 4).unwrap()];
        header.resize(length, 0);
        frame.splice(at..at, header);
        frame[ETHERNET + 6] = *kind;
    }
    let payload = u16::try_from(frame.len() - at).unwrap().to_be_bytes();
    frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&payload);
    frame
}

/// The same without those headers.
fn without_extensions(frame: &[u8], extensions: &[(u8, u8)], protocol: u8) -> Vec<u8> {
    let length: usize = extensions.iter().map(|(_, more)| 8 + usize::from(*more)).sum();
    let at = ETHERNET + 40;
    let mut frame = [&frame[..at], &frame[at + length..]].concat();
    frame[ETHERNET + 6] = protocol;
    let payload = u16::try_from(frame.len() - at).unwrap().to_be_bytes();
    frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&payload);
    frame
}

#[test]
fn packets_with_options_are_translated_both_ways() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        let kinds: &[&[(u8, u8)]] = match family {
            Family::V4 => &[&[]],
            Family::V6 => &[
                &[(HOP_BY_HOP, 0)],
                &[(DESTINATION, 16)],
                &[(HOP_BY_HOP, 0), (DESTINATION, 8), (DESTINATION, 0)],
            ],
        };
        for extensions in kinds {
            let dress = |frame: &[u8]| match family {
                Family::V4 => with_v4_options(frame),
                Family::V6 => with_extensions(frame, extensions),
            };
            let undress = |frame: &[u8]| match family {
                Family::V4 => without_v4_options(frame),
                Family::V6 => without_extensions(frame, extensions, transport.number()),
            };
            let sent = dress(&frame(transport, client(family), frontend(family), SYN));
            let seen = read(&undress(&datapath.run(Hook::PodIngress, &sent).frame));
            assert_eq!((seen.from(), seen.to()), (client(family), backend(family, 1)));
            let answer = dress(&frame(transport, backend(family, 1), client(family), SYN | ACK));
            let seen = read(&undress(&datapath.run(Hook::Egress, &answer).frame));
            assert_eq!((seen.from(), seen.to()), (frontend(family), client(family)));
        }
    });
}

#[test]
fn what_is_routed_by_the_way_or_has_more_headers_than_anybody_needs_is_left_alone() {
    each(|mut datapath, family, transport| {
        if family == Family::V4 {
            return;
        }
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        let sent = frame(transport, client(family), frontend(family), SYN);
        for extensions in [&[(ROUTING, 0)][..], &[(DESTINATION, 0); 4]] {
            let sent = with_extensions(&sent, extensions);
            let out = datapath.run(Hook::PodIngress, &sent);
            assert_eq!((out.verdict, out.frame), (PASS, sent));
        }
    });
}
