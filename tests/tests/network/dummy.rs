//! The dummy link that holds addresses of services, on the real kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use lb_agent::kernel::dummy::{DummyError, DummyLink, NAME};
use lb_tests::kernel::{Feature, has, lacks};
use lb_tests::netlink::{Cidr, End, Link, Route};
use lb_tests::netns::Netns;
use lb_tests::patience::patient;

/// Where the uplink leads.
const BEYOND: [&str; 2] = ["198.51.100.1", "2001:db8:1::1"];

fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

fn ips(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses.iter().map(|address| ip(address)).collect()
}

fn none() -> BTreeSet<IpAddr> {
    BTreeSet::new()
}

/// Gives the link of a namespace these addresses.
fn hold(netns: &Netns, addresses: &BTreeSet<IpAddr>) -> DummyLink {
    netns
        .run(|| {
            let mut link = DummyLink::ensure(NAME).unwrap();
            assert!(link.change(addresses, &none()).is_empty());
            link
        })
        .unwrap()
}

#[test]
fn without_dummy_links_it_is_said_what_to_load() {
    if has(Feature::Dummy) {
        return;
    }
    let netns = Netns::new("node").unwrap();
    let error = netns.run(|| DummyLink::ensure(NAME)).unwrap().unwrap_err();
    assert!(matches!(error, DummyError::Missing));
    assert_eq!(error.to_string(), Feature::Dummy.without());
    assert!(!netns.run(|| DummyLink::remove(NAME)).unwrap().unwrap());
}

#[test]
fn it_is_made_once_taken_over_with_its_addresses_and_removed() {
    if lacks(Feature::Dummy) {
        return;
    }
    let netns = Netns::new("node").unwrap();
    let addresses = ips(&["10.96.0.1", "fd00:96::1"]);
    let first = hold(&netns, &addresses);
    netns
        .run(|| {
            let mut second = DummyLink::ensure(NAME).unwrap();
            assert_eq!(second.index(), first.index());
            assert_eq!(second.addresses().unwrap(), addresses);
            assert!(DummyLink::remove(NAME).unwrap());
            assert!(!DummyLink::remove(NAME).unwrap());
            // It says so, and does not take another link for it.
            let refused = second.change(&addresses, &none());
            assert_eq!(refused.len(), addresses.len());
            assert_eq!(DummyLink::ensure(NAME).unwrap().addresses().unwrap(), none());
        })
        .unwrap();
}

/// Also on a kernel without dummy links.
#[test]
fn a_link_of_another_kind_by_that_name_is_left_alone() {
    let netns = Netns::new("node").unwrap();
    netns.netlink().unwrap().add_bridge(NAME, 1500).unwrap();
    let ensured = netns.run(|| DummyLink::ensure(NAME).map(drop)).unwrap();
    let removed = netns.run(|| DummyLink::remove(NAME).map(drop)).unwrap();
    for error in [ensured.unwrap_err(), removed.unwrap_err()] {
        let said = error.to_string();
        assert!(said.contains("lb-ipvs0 is a bridge link"), "{said}");
    }
    netns.netlink().unwrap().link(NAME).unwrap();
}

#[test]
fn addresses_come_and_go_again_is_fine_and_what_is_refused_stops_no_other() {
    if lacks(Feature::Dummy) {
        return;
    }
    let netns = Netns::new("node").unwrap();
    let mut link = hold(&netns, &ips(&["10.96.0.1", "fd00:96::1"]));
    // No link has a group's address.
    let refused = link.change(
        &ips(&["10.96.0.1", "10.96.0.2", "fd00:96::1", "ff02::1", "fd00:96::2"]),
        &none(),
    );
    assert_eq!(refused.keys().copied().collect::<BTreeSet<_>>(), ips(&["ff02::1"]));
    assert_eq!(
        link.addresses().unwrap(),
        ips(&["10.96.0.1", "10.96.0.2", "fd00:96::1", "fd00:96::2"])
    );
    let refused = link.change(
        &ips(&["10.96.0.3"]),
        &ips(&["10.96.0.1", "10.96.0.9", "fd00:96::1", "fd00:96::9"]),
    );
    assert!(refused.is_empty(), "{refused:?}");
    assert_eq!(
        link.addresses().unwrap(),
        ips(&["10.96.0.2", "10.96.0.3", "fd00:96::2"])
    );
    let both = ips(&["10.96.0.2"]);
    assert!(link.change(&both, &both).is_empty());
    assert!(link.addresses().unwrap().contains(&ip("10.96.0.2")));
}

#[test]
fn it_holds_thousands_of_addresses() {
    if lacks(Feature::Dummy) {
        return;
    }
    let netns = Netns::new("node").unwrap();
    let v4 = (0..2500).map(|n| IpAddr::from(Ipv4Addr::from_bits(0x0a60_0001 + n)));
    let v6 = (0..2500).map(|n| IpAddr::from(Ipv6Addr::from_bits(0xfd00_0096 << 96 | (n + 1))));
    let all: BTreeSet<IpAddr> = v4.chain(v6).collect();
    let mut link = hold(&netns, &all);
    assert_eq!(link.addresses().unwrap(), all);
    let (rest, gone): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = all.iter().partition(|address| match address {
        IpAddr::V4(v4) => v4.octets()[3] % 2 == 0,
        IpAddr::V6(v6) => v6.octets()[15] % 2 == 0,
    });
    assert!(link.change(&none(), &gone).is_empty());
    assert_eq!(link.addresses().unwrap(), rest);
}

/// A node whose uplink has no address of its own, as where routes are learnt by BGP. Another link has one, and came
/// after the dummy link: the kernel takes the first that it finds.
struct Unnumbered {
    node: Netns,
    beyond: Netns,
    services: DummyLink,
}

/// The node's own addresses.
const OWN: [&str; 2] = ["192.0.2.1", "2001:db8:2::1"];
/// Of services. By the longest common prefix the IPv6 one is the best source for what is beyond the uplink.
const SERVICES: [&str; 2] = ["198.51.100.96", "2001:db8:1::96"];

impl Unnumbered {
    fn new() -> Self {
        let node = Netns::new("node").unwrap();
        let beyond = Netns::new("beyond").unwrap();
        for netns in [&node, &beyond] {
            for scope in ["all", "default"] {
                netns.set_sysctl(&format!("ipv6.conf.{scope}.accept_dad"), "0").unwrap();
            }
        }
        let services = hold(&node, &ips(&SERVICES));
        let uplink = pair(&node, &beyond, "eth0");
        let other = pair(&node, &beyond, "eth1");
        let netlink = node.netlink().unwrap();
        for own in OWN {
            netlink.add_address(other.index, Cidr::host(ip(own))).unwrap();
        }
        for to in BEYOND {
            let route = Route {
                to: Cidr::host(ip(to)),
                via: None,
                link: uplink.index,
                onlink: false,
            };
            netlink.add_route(route).unwrap();
        }
        Self { node, beyond, services }
    }

    /// The source of what is sent beyond the uplink.
    fn source(&self, to: &str) -> IpAddr {
        let any = if ip(to).is_ipv4() { "0.0.0.0" } else { "::" };
        self.node
            .run(|| {
                let socket = UdpSocket::bind((any, 0)).unwrap();
                socket.connect((ip(to), 9)).unwrap();
                socket.local_addr().unwrap().ip()
            })
            .unwrap()
    }
}

/// A pair of links of this name, up. Returns the one that is here.
fn pair(here: &Netns, there: &Netns, name: &str) -> Link {
    let peer = End { netns: there, name };
    here.netlink().unwrap().add_veth(name, peer, 1500).unwrap();
    for netns in [here, there] {
        let netlink = netns.netlink().unwrap();
        netlink.up(netlink.link(name).unwrap().index).unwrap();
    }
    here.netlink().unwrap().link(name).unwrap()
}

#[test]
fn its_addresses_are_never_the_source_of_what_the_node_sends() {
    if lacks(Feature::Dummy) {
        return;
    }
    let world = Unnumbered::new();
    let sources = || BEYOND.map(|to| world.source(to)).map(|source| source.to_string());
    assert_eq!(sources(), OWN);
    // Somebody sets it up.
    let netlink = world.node.netlink().unwrap();
    netlink.up(world.services.index()).unwrap();
    assert_eq!(sources(), OWN);
    // Given to the link in the usual way, the same addresses would be.
    netlink.remove(world.services.index()).unwrap();
    let usual = world.node.run(|| DummyLink::ensure(NAME)).unwrap().unwrap();
    netlink.up(usual.index()).unwrap();
    netlink.remove(netlink.link("eth1").unwrap().index).unwrap();
    for address in SERVICES {
        netlink.add_address(usual.index(), Cidr::host(ip(address))).unwrap();
    }
    assert_eq!(sources(), SERVICES);
}

#[test]
fn what_is_for_its_addresses_is_taken_in_while_it_is_down() {
    if lacks(Feature::Dummy) {
        return;
    }
    let world = Unnumbered::new();
    let uplink = world.beyond.netlink().unwrap().link("eth0").unwrap();
    let by = world.node.netlink().unwrap().link("eth0").unwrap();
    for address in SERVICES.map(ip) {
        let route = Route {
            to: Cidr::host(address),
            via: None,
            link: uplink.index,
            onlink: false,
        };
        let netlink = world.beyond.netlink().unwrap();
        netlink.add_route(route).unwrap();
        // Clients come by way of a router: the node's uplink is no member of the IPv6 group in which it would be asked.
        netlink.add_neighbour(uplink.index, address, by.mac).unwrap();
        let server = world.node.run(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
        server.set_read_timeout(Some(patient(Duration::from_secs(10)))).unwrap();
        let to = server.local_addr().unwrap();
        let from = if address.is_ipv4() { BEYOND[0] } else { BEYOND[1] };
        netlink.add_address(uplink.index, Cidr::host(ip(from))).unwrap();
        world
            .beyond
            .run(|| UdpSocket::bind((ip(from), 0)).unwrap().send_to(b"hello", to).unwrap())
            .unwrap();
        let mut bytes = [0; 16];
        let received = server.recv_from(&mut bytes);
        let (length, sender) = received.unwrap_or_else(|error| panic!("{address}: {error}"));
        assert_eq!((&bytes[..length], sender.ip()), (&b"hello"[..], ip(from)));
    }
}

#[test]
fn the_link_local_address_of_one_that_is_up_is_none_of_a_service() {
    if lacks(Feature::Dummy) {
        return;
    }
    let netns = Netns::new("node").unwrap();
    netns.set_sysctl("ipv6.conf.default.accept_dad", "0").unwrap();
    let mut link = hold(&netns, &ips(&["fd00:96::1"]));
    netns.netlink().unwrap().up(link.index()).unwrap();
    assert_eq!(link.addresses().unwrap(), ips(&["fd00:96::1"]));
}
