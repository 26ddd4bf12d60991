//! What `lb-agent monitor` is told: each packet that goes nowhere, as it came, and why.

use std::net::SocketAddr;

use lb_common::{Counter, Event, FlowKey, Port, Range, Verdict, event::EVENTS_PER_SECOND, flow::FORWARD};

use crate::{
    Family, backend, client,
    datapath::{Datapath, Hook, each},
    frame::{SYN, Transport, frame},
    frontend,
};

/// Index of the link that the kernel runs tests on: `lo`.
const LINK: u32 = 1;

fn packet(protocol: u8, from: SocketAddr, to: SocketAddr) -> FlowKey {
    let end = |end: SocketAddr| (end.ip().into(), Port::new(end.port()));
    FlowKey::new(FORWARD, protocol, end(from), end(to))
}

#[test]
fn a_refused_and_a_dropped_packet_are_told_with_their_reasons() {
    for (verdict, reason) in [
        (Verdict::Reject, Counter::Rejected),
        (Verdict::Drop, Counter::DroppedNoLocalEndpoint),
    ] {
        each(|mut datapath, family, transport| {
            datapath.service(transport, frontend(family), Range::empty(verdict), 0);
            datapath.run(
                Hook::PodIngress,
                &frame(transport, client(family), frontend(family), SYN),
            );
            let events = datapath.events();
            let [event] = events[..] else {
                panic!("{} events", events.len())
            };
            let expected = Event {
                time: event.time,
                packet: packet(transport.number(), client(family), frontend(family)),
                reason: reason as u32,
                link: LINK,
            };
            assert_eq!(event, expected);
            assert_eq!(datapath.counter(reason), 1);
        });
    }
}

#[test]
fn what_is_served_or_none_of_ours_is_not_told() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        for to in [frontend(family), backend(family, 2)] {
            datapath.run(Hook::PodIngress, &frame(transport, client(family), to, SYN));
        }
        assert_eq!(datapath.events(), []);
    });
}

#[test]
fn more_than_can_be_read_are_counted_and_not_told() {
    let family = Family::V4;
    let mut datapath = Datapath::new();
    datapath.service(Transport::Udp, frontend(family), Range::empty(Verdict::Drop), 0);
    let sent = frame(Transport::Udp, client(family), frontend(family), 0);
    let packets = 10 * EVENTS_PER_SECOND;
    for _ in 0..packets {
        datapath.run(Hook::PodIngress, &sent);
    }
    let told = datapath.events().len() as u64;
    assert_eq!(datapath.counter(Counter::DroppedNoLocalEndpoint), u64::from(packets));
    assert_eq!(told + datapath.counter(Counter::EventsLost), u64::from(packets));
    assert!(told >= EVENTS_PER_SECOND.into(), "{told}");
    // Every second of the clock and every CPU that the loop ran on has its own.
    assert!(told < u64::from(packets), "{told}");
}
