//! By which address the node speaks on each of its links, for itself and for clients that it masquerades.
//!
//! It is the kernel's choice (`inet_select_addr`, `ipv6_dev_get_saddr`) as far as that does not depend on the
//! destination: the link's first address of global scope, which is neither deprecated, nor temporary, nor a second one of
//! its network, if there is such a one. A link without any speaks by that of the bridge, bond or VRF that it is a port of, and
//! else by the first that any link has.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressHeaderFlags, AddressMessage, AddressScope},
    link::LinkMessage,
};
use tokio::{sync::watch, task::JoinHandle};

use super::{
    follow::{self, Collected},
    is_usable,
};
use crate::{
    desired::Family,
    kernel::{
        dummy,
        links::{address, link_facts},
    },
};

/// How many levels of ports are looked up: a VLAN of a bond in a bridge in a VRF, and one more.
const LEVELS: usize = 5;

/// Of links with an address, their own or that of what they are a port of; and of all others, at `None`.
pub type Sources = BTreeMap<(Option<u32>, Family), IpAddr>;

/// Follows them in the network namespace that the runtime's thread is in. `None` is that they are not known yet. Ends
/// when the receivers are dropped.
pub fn watch() -> (watch::Receiver<Option<Sources>>, JoinHandle<()>) {
    follow::watch::<Links>()
}

/// Links and their addresses, as the kernel lists them.
#[derive(Default)]
struct Links {
    addresses: BTreeMap<u32, Vec<Candidate>>,
    /// What each link is a port of.
    links: BTreeMap<u32, Link>,
}

#[derive(Clone, PartialEq, Eq)]
struct Candidate {
    address: IpAddr,
    is_preferred: bool,
}

#[derive(Clone, PartialEq, Eq)]
struct Link {
    master: Option<u32>,
    holds_services: bool,
}

impl Collected for Links {
    type Told = Sources;

    fn notified(&mut self, message: &RouteNetlinkMessage) -> bool {
        match message {
            RouteNetlinkMessage::NewAddress(message) => self.address_is(message),
            RouteNetlinkMessage::DelAddress(message) => self.address_is_gone(message),
            RouteNetlinkMessage::NewLink(message) => self.link_is(message),
            RouteNetlinkMessage::DelLink(message) => link_facts(message).is_some_and(|facts| {
                self.addresses.remove(&facts.index);
                self.links.remove(&facts.index).is_some()
            }),
            _ => false,
        }
    }

    fn told(&self) -> Sources {
        let mut sources = Sources::new();
        for family in [Family::V4, Family::V6] {
            let of_links = self
                .links
                .keys()
                .filter_map(|index| Some((*index, self.of_link(*index, family)?)));
            sources.extend(of_links.map(|(index, address)| ((Some(index), family), address)));
            let first = self.links.keys().find_map(|index| self.own(*index, family));
            sources.extend(first.map(|address| ((None, family), address)));
        }
        sources
    }
}

impl Links {
    fn address_is(&mut self, message: &AddressMessage) -> bool {
        if !is_usable(message) || message.header.scope != AddressScope::Universe {
            return self.address_is_gone(message);
        }
        let Some((link, address)) = address(message) else {
            return false;
        };
        let flags = message.header.flags;
        let candidate = Candidate {
            address,
            is_preferred: !flags.intersects(AddressHeaderFlags::Deprecated | AddressHeaderFlags::Secondary),
        };
        let candidates = self.addresses.entry(link).or_default();
        match candidates.iter_mut().find(|known| known.address == address) {
            Some(known) => std::mem::replace(known, candidate.clone()) != candidate,
            None => {
                candidates.push(candidate);
                true
            }
        }
    }

    fn address_is_gone(&mut self, message: &AddressMessage) -> bool {
        let Some((link, address)) = address(message) else {
            return false;
        };
        let Some(candidates) = self.addresses.get_mut(&link) else {
            return false;
        };
        let before = candidates.len();
        candidates.retain(|known| known.address != address);
        candidates.len() != before
    }

    fn link_is(&mut self, message: &LinkMessage) -> bool {
        link_facts(message).is_some_and(|facts| {
            let link = Link {
                master: facts.master,
                holds_services: dummy::holds_services(&facts.name),
            };
            self.links.insert(facts.index, link.clone()) != Some(link)
        })
    }

    fn of_link(&self, index: u32, family: Family) -> Option<IpAddr> {
        let mut index = index;
        for _ in 0..LEVELS {
            if let Some(address) = self.own(index, family) {
                return Some(address);
            }
            index = self.links.get(&index)?.master?;
        }
        None
    }

    fn own(&self, index: u32, family: Family) -> Option<IpAddr> {
        if self.links.get(&index).is_none_or(|link| link.holds_services) {
            return None;
        }
        let candidates = self.addresses.get(&index)?;
        let of_family = |candidate: &&Candidate| Family::of(candidate.address) == family;
        let preferred = candidates.iter().filter(of_family).find(|known| known.is_preferred);
        preferred
            .or_else(|| candidates.iter().find(of_family))
            .map(|known| known.address)
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::{address::AddressAttribute, link::LinkAttribute};

    use super::*;

    fn link(index: u32, name: &str, master: Option<u32>) -> RouteNetlinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        message.attributes.extend(master.map(LinkAttribute::Controller));
        RouteNetlinkMessage::NewLink(message)
    }

    fn address(link: u32, address: &str, scope: AddressScope, flags: AddressHeaderFlags) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.index = link;
        message.header.scope = scope;
        message.header.flags = flags;
        message.attributes = vec![AddressAttribute::Address(address.parse().unwrap())];
        message
    }

    fn comes(link: u32, text: &str) -> RouteNetlinkMessage {
        let flags = AddressHeaderFlags::Permanent;
        RouteNetlinkMessage::NewAddress(address(link, text, AddressScope::Universe, flags))
    }

    fn goes(link: u32, text: &str) -> RouteNetlinkMessage {
        let flags = AddressHeaderFlags::Permanent;
        RouteNetlinkMessage::DelAddress(address(link, text, AddressScope::Universe, flags))
    }

    /// `index=address`, with `*` for all other links.
    fn after(messages: &[RouteNetlinkMessage]) -> Vec<String> {
        let mut links = Links::default();
        for message in messages {
            links.notified(message);
        }
        let text = |((index, _), address): (&(Option<u32>, Family), &IpAddr)| {
            let index = index.map_or_else(|| "*".to_owned(), |index| index.to_string());
            format!("{index}={address}")
        };
        links.told().iter().map(text).collect()
    }

    #[test]
    fn a_link_speaks_by_its_first_address_and_one_without_by_that_of_any() {
        let messages = [
            link(2, "eth0", None),
            link(3, "veth0", None),
            comes(2, "10.0.0.1"),
            comes(2, "10.0.1.1"),
            comes(2, "fd00::1"),
        ];
        assert_eq!(after(&messages), ["*=10.0.0.1", "*=fd00::1", "2=10.0.0.1", "2=fd00::1"]);
        let lost = [&messages[..], &[goes(2, "10.0.0.1"), goes(2, "fd00::1")]].concat();
        assert_eq!(after(&lost), ["*=10.0.1.1", "2=10.0.1.1"]);
    }

    #[test]
    fn a_port_speaks_by_its_masters_address() {
        let messages = [
            link(2, "eth0", None),
            link(4, "br0", None),
            link(5, "veth5", Some(4)),
            comes(2, "10.0.0.1"),
            comes(4, "10.244.1.1"),
        ];
        assert_eq!(
            after(&messages),
            ["*=10.0.0.1", "2=10.0.0.1", "4=10.244.1.1", "5=10.244.1.1"]
        );
        let left = [&messages[..], &[link(5, "veth5", None)]].concat();
        assert_eq!(after(&left), ["*=10.0.0.1", "2=10.0.0.1", "4=10.244.1.1"]);
    }

    #[test]
    fn a_ring_of_ports_ends() {
        assert_eq!(after(&[link(2, "a", Some(3)), link(3, "b", Some(2))]), [""; 0]);
    }

    #[test]
    fn addresses_that_others_are_preferred_to_are_for_want_of_a_better_one() {
        use AddressHeaderFlags as Flags;
        for flags in [Flags::Deprecated, Flags::Secondary] {
            let second = RouteNetlinkMessage::NewAddress(address(2, "fd00::9", AddressScope::Universe, flags));
            let alone = [link(2, "eth0", None), second];
            assert_eq!(after(&alone), ["*=fd00::9", "2=fd00::9"], "{flags:?}");
            let beside = [&alone[..], &[comes(2, "fd00::1")]].concat();
            assert_eq!(after(&beside), ["*=fd00::1", "2=fd00::1"], "{flags:?}");
        }
    }

    #[test]
    fn addresses_of_the_link_of_the_host_and_of_services_are_none() {
        let of = |scope| RouteNetlinkMessage::NewAddress(address(2, "fe80::1", scope, AddressHeaderFlags::Permanent));
        for scope in [AddressScope::Link, AddressScope::Host] {
            assert_eq!(after(&[link(2, "eth0", None), of(scope)]), [""; 0], "{scope:?}");
        }
        for name in ["lb-ipvs0", "kube-ipvs0"] {
            assert_eq!(after(&[link(7, name, None), comes(7, "10.96.0.1")]), [""; 0], "{name}");
        }
        let tentative = AddressHeaderFlags::Tentative;
        let tentative = RouteNetlinkMessage::NewAddress(address(2, "fd00::1", AddressScope::Universe, tentative));
        assert_eq!(after(&[link(2, "eth0", None), tentative]), [""; 0]);
    }

    #[test]
    fn a_link_that_is_gone_takes_its_addresses_along() {
        let mut gone = LinkMessage::default();
        gone.header.index = 2;
        let messages = [
            link(2, "eth0", None),
            comes(2, "10.0.0.1"),
            RouteNetlinkMessage::DelLink(gone),
            link(2, "veth7", None),
        ];
        assert_eq!(after(&messages), [""; 0]);
    }
}
