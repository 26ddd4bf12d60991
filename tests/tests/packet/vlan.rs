//! VLAN tags in the bytes of a frame: the second of two, or the only one where the link sends it so. The first
//! tag of what comes in is beside the packet, where the kernel puts it before any program sees it.

use crate::{
    backend, client,
    datapath::{Hook, PASS, each},
    frame::{ACK, SYN, frame, read},
    frontend,
};

const CUSTOMER: [u8; 2] = [0x81, 0x00];
const SERVICE: [u8; 2] = [0x88, 0xa8];
const VLAN_7: [u8; 2] = [0, 7];

/// The frame with tags of these kinds behind its Ethernet addresses.
fn tagged(frame: &[u8], kinds: &[[u8; 2]]) -> Vec<u8> {
    let tags: Vec<u8> = kinds.iter().flat_map(|kind| [*kind, VLAN_7].concat()).collect();
    [&frame[..12], &tags, &frame[12..]].concat()
}

/// The same without them, which must be there still.
fn untagged(frame: &[u8], kinds: &[[u8; 2]]) -> Vec<u8> {
    let end = 12 + 4 * kinds.len();
    for (tag, kind) in frame[12..end].chunks(4).zip(kinds) {
        assert_eq!(tag, [*kind, VLAN_7].concat());
    }
    [&frame[..12], &frame[end..]].concat()
}

#[test]
fn tagged_packets_are_translated_both_ways_and_keep_their_tags() {
    for kinds in [&[CUSTOMER][..], &[SERVICE, CUSTOMER]] {
        each(|mut datapath, family, transport| {
            datapath.simple(transport, frontend(family), &[backend(family, 1)]);
            let sent = tagged(&frame(transport, client(family), frontend(family), SYN), kinds);
            let out = datapath.run(Hook::PodIngress, &sent);
            let seen = read(&untagged(&out.frame, kinds));
            assert_eq!((out.verdict, seen.to()), (PASS, backend(family, 1)));
            let answer = tagged(&frame(transport, backend(family, 1), client(family), SYN | ACK), kinds);
            let seen = read(&untagged(&datapath.run(Hook::Egress, &answer).frame, kinds));
            assert_eq!((seen.from(), seen.to()), (frontend(family), client(family)));
        });
    }
}

#[test]
fn more_tags_than_two_pass_untouched() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        let sent = tagged(&frame(transport, client(family), frontend(family), SYN), &[CUSTOMER; 3]);
        let out = datapath.run(Hook::PodIngress, &sent);
        assert!(out.verdict == PASS && out.frame == sent);
    });
}
