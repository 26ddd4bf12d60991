//! Services without an endpoint.

use lb_common::{Counter, Range, Verdict};

use crate::{
    Family, client,
    datapath::{DROP, Datapath, Hook, REDIRECT, each},
    frame::{CLIENT_MAC, NODE_MAC, SYN, Transport, frame, read},
    frontend,
};

#[test]
fn no_endpoint_anywhere_is_answered_with_port_unreachable() {
    each(|mut datapath, family, transport| {
        datapath.service(transport, frontend(family), Range::empty(Verdict::Reject), 0);
        let sent = frame(transport, client(family), frontend(family), SYN);
        let out = datapath.run(Hook::PodIngress, &sent);
        assert_eq!(out.verdict, REDIRECT);
        // `read` verifies lengths and checksums.
        let seen = read(&out.frame);
        assert_eq!((seen.source_mac, seen.destination_mac), (NODE_MAC, CLIENT_MAC));
        assert_eq!(
            (seen.source, seen.destination),
            (frontend(family).ip(), client(family).ip())
        );
        let (protocol, kind, code) = match family {
            Family::V4 => (1, 3, 3),
            Family::V6 => (58, 1, 4),
        };
        assert_eq!(
            (seen.protocol, seen.payload[0], seen.payload[1]),
            (protocol, kind, code)
        );
        let headers = match (family, transport) {
            (Family::V4, Transport::Tcp) => 40,
            (Family::V4, Transport::Udp | Transport::Sctp) => 28,
            (Family::V6, Transport::Tcp) => 60,
            (Family::V6, Transport::Udp | Transport::Sctp) => 48,
        };
        assert_eq!(seen.payload[8..], sent[14..14 + headers], "it quotes what was sent");
        assert_eq!(datapath.counter(Counter::Rejected), 1);
        assert!(datapath.flows().is_empty());
    });
}

#[test]
fn endpoints_that_the_policy_forbids_are_silence() {
    each(|mut datapath, family, transport| {
        datapath.service(transport, frontend(family), Range::empty(Verdict::Drop), 0);
        let sent = frame(transport, client(family), frontend(family), SYN);
        assert_eq!(datapath.run(Hook::PodIngress, &sent).verdict, DROP);
        assert_eq!(datapath.counter(Counter::DroppedNoLocalEndpoint), 1);
    });
}

#[test]
fn near_and_far_clients_are_asked_separately() {
    each(|mut datapath, family, transport| {
        let (near, far) = (Range::empty(Verdict::Reject), Range::empty(Verdict::Drop));
        datapath.service_for(transport, frontend(family), near, far, 0);
        let sent = frame(transport, client(family), frontend(family), SYN);
        assert_eq!(datapath.run(Hook::PodIngress, &sent).verdict, REDIRECT);
        assert_eq!(datapath.run(Hook::OutsideIngress, &sent).verdict, DROP);
    });
}

#[test]
fn a_source_that_is_no_single_host_is_told_nothing() {
    each(|mut datapath, family, transport| {
        datapath.service(transport, frontend(family), Range::empty(Verdict::Reject), 0);
        let nobody: &[&str] = match family {
            Family::V4 => &[
                "0.0.0.0",
                "0.1.2.3",
                "127.0.0.1",
                "224.0.0.1",
                "240.0.0.1",
                "255.255.255.255",
            ],
            Family::V6 => &["::", "::1", "ff02::1"],
        };
        for address in nobody {
            let source = std::net::SocketAddr::new(address.parse().unwrap(), 40_000);
            let sent = frame(transport, source, frontend(family), SYN);
            assert_eq!(datapath.run(Hook::PodIngress, &sent).verdict, DROP, "{address}");
        }
        assert_eq!(datapath.counter(Counter::DroppedRejectFailed), nobody.len() as u64);
    });
}

#[test]
fn a_header_that_is_cut_short_is_not_quoted_as_more_than_it_is() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        datapath.service(Transport::Tcp, frontend(family), Range::empty(Verdict::Reject), 0);
        let sent = frame(Transport::Tcp, client(family), frontend(family), SYN);
        let header = 14 + if family == Family::V4 { 20 } else { 40 };
        let out = datapath.run(Hook::PodIngress, &sent[..header + 19]);
        assert_eq!(out.verdict, DROP);
        assert_eq!(datapath.counter(Counter::DroppedRejectFailed), 1);
    }
}
