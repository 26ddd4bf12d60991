//! What the data path knows of addresses and networks: who may dial, who counts as a pod, and what becomes
//! of an address of Services that serves nothing.

use std::net::{IpAddr, SocketAddr};

use lb_common::{
    Counter, Range, Verdict,
    address::{CLUSTER_IP, FOREIGN, HOST_NODE_PORTS, NODE_PORTS},
    config::DEFAULT_MASQUERADE_MARK as MARK,
    maps::{CIDRS, SOURCE_RANGES},
    prefix::{BY_LINK, INSIDE, OUTSIDE, PODS, SERVICES},
    service::RESTRICTED,
};

use crate::{
    Family, backend, client,
    datapath::{DROP, Datapath, Hook, PASS, REDIRECT, each},
    frame::{ACK, SYN, Transport, frame, read},
    frontend, node,
};

/// A network that the tests' client is in, and one that it is not in.
fn networks(family: Family) -> [(IpAddr, u8); 2] {
    let network = |v4: &str, v6: &str| family.pick::<IpAddr>(v4, v6);
    let length = |v4, v6| if family == Family::V4 { v4 } else { v6 };
    [
        (network("10.244.1.0", "fd00:244:1::"), length(24, 64)),
        (network("198.51.100.0", "2001:db8:51::"), length(24, 48)),
    ]
}

#[test]
fn a_restricted_frontend_serves_clients_in_its_ranges_only() {
    each(|mut datapath, family, transport| {
        let [inside, outside] = networks(family);
        let number = datapath.backend(1, backend(family, 1), false);
        let range = datapath.slots(&[number]);
        // Its number is 1, as the first of a data path.
        datapath.service(transport, frontend(family), range, RESTRICTED);
        let syn = frame(transport, client(family), frontend(family), SYN);
        for hook in [Hook::PodIngress, Hook::OutsideIngress] {
            assert_eq!(datapath.run(hook, &syn).verdict, DROP, "no range yet");
        }
        datapath.prefix(SOURCE_RANGES, 1, outside.0, outside.1, INSIDE);
        datapath.prefix(SOURCE_RANGES, 2, inside.0, inside.1, INSIDE);
        assert_eq!(datapath.run(Hook::PodIngress, &syn).verdict, DROP, "of another service");
        assert_eq!(datapath.counter(Counter::DroppedSourceRange), 3);
        assert!(datapath.flows().is_empty());

        datapath.prefix(SOURCE_RANGES, 1, inside.0, inside.1, INSIDE);
        let out = datapath.run(Hook::PodIngress, &syn);
        assert_eq!(read(&out.frame).to(), backend(family, 1));
    });
}

#[test]
fn a_flow_that_has_begun_is_not_asked_again() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        datapath.run(
            Hook::OutsideIngress,
            &frame(transport, client(family), frontend(family), SYN),
        );
        let range = datapath.slots(&[1]);
        datapath.service(transport, frontend(family), range, RESTRICTED);
        let out = datapath.run(
            Hook::OutsideIngress,
            &frame(transport, client(family), frontend(family), ACK),
        );
        assert_eq!(read(&out.frame).to(), backend(family, 1));
    });
}

#[test]
fn the_other_frontends_of_a_restricted_service_serve_everybody() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        let out = datapath.run(
            Hook::PodIngress,
            &frame(transport, client(family), frontend(family), SYN),
        );
        assert_eq!(out.verdict, PASS);
        assert_eq!(datapath.counter(Counter::DroppedSourceRange), 0);
    });
}

/// Where a client goes that comes by `hook`: to the near backend, the far one, and with which mark.
fn seen_as(datapath: &mut Datapath, family: Family, transport: Transport, hook: Hook) -> (&'static str, bool) {
    let near = datapath.backend(1, backend(family, 1), false);
    let far = datapath.backend(2, backend(family, 2), false);
    let (near, far) = (datapath.slots(&[near]), datapath.slots(&[far]));
    datapath.service_for(transport, frontend(family), near, far, 0);
    let out = datapath.run(hook, &frame(transport, client(family), frontend(family), SYN));
    let place = if read(&out.frame).to() == backend(family, 1) {
        "near"
    } else {
        "far"
    };
    (place, out.mark & MARK != 0)
}

#[test]
fn without_a_network_of_pods_the_link_tells_where_a_client_is() {
    each(|mut datapath, family, transport| {
        assert_eq!(
            seen_as(&mut datapath, family, transport, Hook::PodIngress),
            ("near", false)
        );
    });
    each(|mut datapath, family, transport| {
        assert_eq!(
            seen_as(&mut datapath, family, transport, Hook::OutsideIngress),
            ("far", true)
        );
    });
}

/// A data path that knows a network of pods.
fn with_pods(family: Family, (network, length): (IpAddr, u8)) -> Datapath {
    let mut datapath = Datapath::new();
    for known in Family::BOTH {
        let value = if known == family { OUTSIDE } else { BY_LINK };
        datapath.prefix(CIDRS, PODS, known.pick("0.0.0.0", "::"), 0, value);
    }
    datapath.prefix(CIDRS, PODS, network, length, INSIDE);
    datapath
}

#[test]
fn with_a_network_of_pods_the_address_tells_it() {
    each(|_, family, transport| {
        let [inside, outside] = networks(family);
        for (hook, network, expected) in [
            (Hook::PodIngress, inside, ("near", false)),
            // Its answer comes by the backend's node, which knows nothing of the service.
            (Hook::OutsideIngress, inside, ("near", true)),
            (Hook::PodIngress, outside, ("far", true)),
            (Hook::OutsideIngress, outside, ("far", true)),
        ] {
            let mut datapath = with_pods(family, network);
            assert_eq!(seen_as(&mut datapath, family, transport, hook), expected);
        }
    });
}

#[test]
fn a_network_of_pods_of_one_family_says_nothing_of_the_other() {
    for transport in Transport::BOTH {
        let [_, outside] = networks(Family::V6);
        let mut datapath = with_pods(Family::V6, outside);
        assert_eq!(
            seen_as(&mut datapath, Family::V4, transport, Hook::PodIngress),
            ("near", false)
        );
        let [_, outside] = networks(Family::V4);
        let mut datapath = with_pods(Family::V4, outside);
        assert_eq!(
            seen_as(&mut datapath, Family::V6, transport, Hook::PodIngress),
            ("near", false)
        );
    }
}

#[test]
fn a_port_that_a_cluster_ip_does_not_have_is_refused() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        datapath.address(frontend(family).ip(), CLUSTER_IP);
        let other = SocketAddr::new(frontend(family).ip(), 81);
        for hook in [Hook::PodIngress, Hook::OutsideIngress] {
            let sent = frame(transport, client(family), other, SYN);
            assert_eq!(datapath.run(hook, &sent).verdict, REDIRECT);
        }
        assert_eq!(datapath.counter(Counter::Rejected), 2);

        // Nothing of that is remembered.
        datapath.simple(transport, other, &[backend(family, 1)]);
        let out = datapath.run(Hook::PodIngress, &frame(transport, client(family), other, SYN));
        assert_eq!(read(&out.frame).to(), backend(family, 1));
    });
}

/// Has a data path know where the tests' frontends come from.
fn know_service_cidr(datapath: &mut Datapath, family: Family) {
    let network: IpAddr = family.pick("10.96.0.0", "fd00:96::");
    let length = if family == Family::V4 { 16 } else { 112 };
    datapath.prefix(CIDRS, SERVICES, network, length, INSIDE);
}

#[test]
fn an_address_for_services_that_is_nobodys_gets_no_answer() {
    each(|mut datapath, family, transport| {
        know_service_cidr(&mut datapath, family);
        let sent = frame(transport, client(family), frontend(family), SYN);
        assert_eq!(datapath.run(Hook::PodIngress, &sent).verdict, DROP);
        assert_eq!(datapath.counter(Counter::DroppedUnallocated), 1);

        // Neither is an address of the node, nor one outside of the network.
        for address in [backend(family, 1), SocketAddr::new(node(family), 80)] {
            let sent = frame(transport, client(family), address, SYN);
            let out = datapath.run(Hook::PodIngress, &sent);
            assert_eq!((out.verdict, out.frame), (PASS, sent));
        }
        datapath.address(frontend(family).ip(), NODE_PORTS);
        assert_eq!(datapath.run(Hook::PodIngress, &sent).verdict, PASS);
    });
}

#[test]
fn an_address_of_another_proxy_passes_to_it_untouched() {
    each(|mut datapath, family, transport| {
        know_service_cidr(&mut datapath, family);
        // Even where a node port has the same number.
        let any = SocketAddr::new(family.pick("0.0.0.0", "::"), frontend(family).port());
        datapath.simple(transport, any, &[backend(family, 1)]);
        datapath.address(frontend(family).ip(), FOREIGN);
        let sent = frame(transport, client(family), frontend(family), SYN);
        for hook in [Hook::PodIngress, Hook::OutsideIngress] {
            let out = datapath.run(hook, &sent);
            assert_eq!((out.verdict, out.frame, out.mark), (PASS, sent.clone(), 0));
        }
        assert_eq!(datapath.counter(Counter::DroppedUnallocated), 0);
        assert!(datapath.flows().is_empty());

        // A frontend of ours is served, whoever else has its address.
        datapath.simple(transport, frontend(family), &[backend(family, 2)]);
        let out = datapath.run(Hook::PodIngress, &sent);
        assert_eq!(read(&out.frame).to(), backend(family, 2));
    });
}

#[test]
fn a_segment_of_a_connection_that_is_not_ours_passes_wherever_it_goes() {
    for family in Family::BOTH {
        let mut datapath = Datapath::new();
        know_service_cidr(&mut datapath, family);
        let address: SocketAddr = family.pick("10.96.0.99:80", "[fd00:96::99]:80");
        let sent = frame(Transport::Tcp, client(family), address, ACK);
        assert_eq!(datapath.run(Hook::PodIngress, &sent).verdict, PASS);
        datapath.address(address.ip(), CLUSTER_IP);
        assert_eq!(datapath.run(Hook::PodIngress, &sent).verdict, PASS);
    }
}

#[test]
fn the_unspecified_address_is_no_node_port() {
    each(|mut datapath, family, transport| {
        let any: SocketAddr = family.pick("0.0.0.0:30080", "[::]:30080");
        datapath.simple(transport, any, &[backend(family, 1)]);
        let sent = frame(transport, client(family), any, SYN);
        for hook in [Hook::PodIngress, Hook::OutsideIngress] {
            let out = datapath.run(hook, &sent);
            assert_eq!((out.verdict, out.frame), (PASS, sent.clone()));
        }
    });
}

#[test]
fn node_ports_for_the_host_are_not_for_packets() {
    each(|mut datapath, family, transport| {
        let any: SocketAddr = family.pick("0.0.0.0:30080", "[::]:30080");
        datapath.simple(transport, any, &[backend(family, 1)]);
        // What comes from a link with such an address did not come from this host.
        let loopback: SocketAddr = family.pick("127.0.0.1:30080", "[::1]:30080");
        datapath.address(loopback.ip(), HOST_NODE_PORTS);
        let sent = frame(transport, client(family), loopback, SYN);
        let out = datapath.run(Hook::OutsideIngress, &sent);
        assert_eq!((out.verdict, out.frame), (PASS, sent));
    });
}

#[test]
fn a_node_port_is_not_served_on_the_address_of_another_frontend() {
    each(|mut datapath, family, transport| {
        let any: SocketAddr = family.pick("0.0.0.0:30080", "[::]:30080");
        datapath.simple(transport, any, &[backend(family, 1)]);
        datapath.service(transport, frontend(family), Range::empty(Verdict::Reject), 0);
        let there = SocketAddr::new(frontend(family).ip(), 30_080);
        let sent = frame(transport, client(family), there, SYN);
        let out = datapath.run(Hook::OutsideIngress, &sent);
        assert_eq!((out.verdict, out.frame), (PASS, sent));
    });
}
