//! Connections of which we see a part only, or parts that make no sense: a translator knows addresses and ports, and
//! leaves windows to the ends.

use etherparse::TcpHeader;

use crate::{
    Family, backend, client,
    datapath::{Datapath, Hook, PASS},
    frame::{ACK, RST, SYN, Transport, frame, read},
    frontend,
};

const TCP_HEADER: std::ops::Range<usize> = 0..20;

/// The frame with other sequence and acknowledgment numbers and another window.
fn with_numbers(frame: &[u8], sequence: u32, acknowledgment: u32, window: u16) -> Vec<u8> {
    let header = frame.len() - TcpHeader::MIN_LEN - b"GET / of a test".len();
    let (front, tcp) = frame.split_at(header);
    let mut changed = tcp.to_vec();
    changed[4..8].copy_from_slice(&sequence.to_be_bytes());
    changed[8..12].copy_from_slice(&acknowledgment.to_be_bytes());
    changed[14..16].copy_from_slice(&window.to_be_bytes());
    // What the checksum has to say of the difference (RFC 1624).
    let sum = |bytes: &[u8]| {
        let words = bytes
            .chunks(2)
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        words.sum::<u32>()
    };
    let old = u32::from(u16::from_be_bytes([tcp[16], tcp[17]]));
    let mut new = (!old & 0xffff) + sum(&changed[TCP_HEADER]) + 0xffff * 20 - sum(&tcp[TCP_HEADER]);
    while new > 0xffff {
        new = (new & 0xffff) + (new >> 16);
    }
    changed[16..18].copy_from_slice(&(!(new as u16)).to_be_bytes());
    [front, &changed].concat()
}

fn opened(family: Family) -> Datapath {
    let mut datapath = Datapath::new();
    datapath.simple(Transport::Tcp, frontend(family), &[backend(family, 1)]);
    datapath.run(
        Hook::PodIngress,
        &frame(Transport::Tcp, client(family), frontend(family), SYN),
    );
    datapath
}

#[test]
fn segments_far_outside_any_window_are_translated_like_the_others() {
    for family in Family::BOTH {
        let datapath = opened(family);
        for (sequence, acknowledgment, window) in [(0, 0, 0), (u32::MAX, 1, 1), (0x8000_0000, u32::MAX, u16::MAX)] {
            for flags in [ACK, RST | ACK, RST, 0] {
                let sent = frame(Transport::Tcp, client(family), frontend(family), flags);
                let sent = with_numbers(&sent, sequence, acknowledgment, window);
                read(&sent);
                let out = datapath.run(Hook::PodIngress, &sent);
                let seen = read(&out.frame);
                assert_eq!((out.verdict, seen.to()), (PASS, backend(family, 1)));
                assert_eq!(seen.payload[4..8], sequence.to_be_bytes());
                assert_eq!(seen.payload[8..12], acknowledgment.to_be_bytes());

                let answer = frame(Transport::Tcp, backend(family, 1), client(family), flags);
                let answer = with_numbers(&answer, sequence, acknowledgment, window);
                let seen = read(&datapath.run(Hook::Egress, &answer).frame);
                assert_eq!((seen.from(), seen.to()), (frontend(family), client(family)));
            }
        }
    }
}

#[test]
fn a_connection_whose_answers_go_another_way_keeps_to_its_backend() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        let backends: Vec<_> = (1..=50).map(|n| backend(family, n)).collect();
        datapath.simple(Transport::Tcp, frontend(family), &backends);
        let to = |flags| {
            let sent = frame(Transport::Tcp, client(family), frontend(family), flags);
            read(&datapath.run(Hook::PodIngress, &sent).frame).to()
        };
        let first = to(SYN);
        for _ in 0..20 {
            assert_eq!(to(ACK), first);
        }
    }
}

#[test]
fn a_connection_whose_questions_go_another_way_is_answered_by_its_frontend() {
    for family in Family::BOTH {
        let datapath = opened(family);
        for flags in [SYN | ACK, ACK, ACK, RST, RST] {
            let answer = frame(Transport::Tcp, backend(family, 1), client(family), flags);
            assert_eq!(
                read(&datapath.run(Hook::Egress, &answer).frame).from(),
                frontend(family)
            );
        }
    }
}
