//! The addresses of this process's network namespace, as they come and go.
//!
//! All of them, as kube-proxy takes them from its library: of loopback and of every other link, global
//! and link-local, temporary and deprecated. Only an IPv6 address that the kernel takes no packet for is
//! left out: one of which it is not known yet, or known, that another host has it. And those of the links that
//! hold services' addresses, ours and kube-proxy's, which are not the node's own: a NodePort is not served there.

use std::{collections::BTreeSet, net::IpAddr};

use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressHeaderFlags, AddressMessage},
    link::LinkMessage,
};
use tokio::{sync::watch, task::JoinHandle};

use super::{
    dummy,
    links::{address, link_facts},
};

mod follow;
pub mod sources;

use follow::Collected;

/// Follows the addresses of the network namespace that the runtime's thread is in. `None` is that they
/// are not known yet. Ends when the receivers are dropped.
pub fn watch() -> (watch::Receiver<Option<BTreeSet<IpAddr>>>, JoinHandle<()>) {
    follow::watch::<Addresses>()
}

/// The addresses, each with its link: two links may have the same one.
#[derive(Default)]
struct Addresses {
    all: BTreeSet<(u32, IpAddr)>,
    /// The links whose addresses are services'.
    of_services: BTreeSet<u32>,
}

impl Collected for Addresses {
    type Told = BTreeSet<IpAddr>;

    fn notified(&mut self, message: &RouteNetlinkMessage) -> bool {
        match message {
            RouteNetlinkMessage::NewAddress(message) => self.is(message),
            RouteNetlinkMessage::DelAddress(message) => self.is_gone(message),
            RouteNetlinkMessage::NewLink(message) => self.link_is(message),
            // Its addresses are told to be gone before.
            RouteNetlinkMessage::DelLink(message) => {
                link_facts(message).is_some_and(|facts| self.of_services.remove(&facts.index))
            }
            _ => false,
        }
    }

    fn told(&self) -> BTreeSet<IpAddr> {
        let of_the_node = self.all.iter().filter(|(link, _)| !self.of_services.contains(link));
        of_the_node.map(|(_, address)| *address).collect()
    }
}

impl Addresses {
    fn is(&mut self, message: &AddressMessage) -> bool {
        if !is_usable(message) {
            return self.is_gone(message);
        }
        address(message).is_some_and(|(link, address)| {
            self.all.insert((link, address));
            !self.of_services.contains(&link)
        })
    }

    fn is_gone(&mut self, message: &AddressMessage) -> bool {
        address(message).is_some_and(|(link, address)| {
            self.all.remove(&(link, address));
            !self.of_services.contains(&link)
        })
    }

    fn link_is(&mut self, message: &LinkMessage) -> bool {
        link_facts(message).is_some_and(|facts| {
            if dummy::holds_services(&facts.name) {
                self.of_services.insert(facts.index)
            } else {
                // It may have had such a name before.
                self.of_services.remove(&facts.index)
            }
        })
    }
}

/// Whether the kernel takes packets for it. (An optimistic address is used while it is tentative.)
fn is_usable(message: &AddressMessage) -> bool {
    let flags = message.header.flags;
    let is_tentative = flags.contains(AddressHeaderFlags::Tentative) && !flags.contains(AddressHeaderFlags::Optimistic);
    !is_tentative && !flags.contains(AddressHeaderFlags::Dadfailed)
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::{address::AddressAttribute, link::LinkAttribute};

    use super::*;

    fn message(link: u32, address: &str, flags: AddressHeaderFlags) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.index = link;
        message.header.flags = flags;
        message.attributes = vec![AddressAttribute::Address(address.parse().unwrap())];
        message
    }

    fn comes(link: u32, address: &str) -> RouteNetlinkMessage {
        RouteNetlinkMessage::NewAddress(message(link, address, AddressHeaderFlags::Permanent))
    }

    fn goes(link: u32, address: &str) -> RouteNetlinkMessage {
        RouteNetlinkMessage::DelAddress(message(link, address, AddressHeaderFlags::Permanent))
    }

    fn after(messages: &[RouteNetlinkMessage]) -> Vec<String> {
        let mut addresses = Addresses::default();
        for message in messages {
            addresses.notified(message);
        }
        addresses.told().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_address_is_there_from_its_coming_to_its_going() {
        assert_eq!(
            after(&[comes(1, "127.0.0.1"), comes(2, "fd00::1")]),
            ["127.0.0.1", "fd00::1"]
        );
        assert_eq!(
            after(&[comes(2, "10.0.0.1"), comes(2, "10.0.0.1"), goes(2, "10.0.0.1")]),
            [""; 0]
        );
        assert_eq!(after(&[goes(2, "10.0.0.1")]), [""; 0]);
    }

    #[test]
    fn an_address_of_two_links_is_there_until_both_have_lost_it() {
        let on_both = [comes(2, "10.0.0.1"), comes(3, "10.0.0.1"), goes(2, "10.0.0.1")];
        assert_eq!(after(&on_both), ["10.0.0.1"]);
        assert_eq!(after(&[&on_both[..], &[goes(3, "10.0.0.1")]].concat()), [""; 0]);
    }

    fn link(index: u32, name: &str) -> RouteNetlinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        RouteNetlinkMessage::NewLink(message)
    }

    #[test]
    fn addresses_of_services_are_not_the_nodes_own() {
        for name in ["lb-ipvs0", "kube-ipvs0"] {
            let services = [link(7, name), comes(7, "10.96.0.1"), comes(2, "10.0.0.1")];
            assert_eq!(after(&services), ["10.0.0.1"], "{name}");
            let told_late = [comes(7, "10.96.0.1"), comes(2, "10.0.0.1"), link(7, name)];
            assert_eq!(after(&told_late), ["10.0.0.1"], "{name}");
            // One address may be the node's and a service's.
            let of_both = [link(7, name), comes(7, "10.0.0.1"), comes(2, "10.0.0.1")];
            assert_eq!(after(&of_both), ["10.0.0.1"], "{name}");
            let renamed = [link(7, name), comes(7, "10.96.0.1"), link(7, "dummy0")];
            assert_eq!(after(&renamed), ["10.96.0.1"], "{name}");
            let gone = LinkMessage::clone(match &services[0] {
                RouteNetlinkMessage::NewLink(message) => message,
                other => panic!("{other:?}"),
            });
            let another = [link(7, name), RouteNetlinkMessage::DelLink(gone), comes(7, "10.0.0.7")];
            assert_eq!(after(&another), ["10.0.0.7"], "the index is another link's now");
        }
        assert_eq!(after(&[link(7, "dummy0"), comes(7, "10.0.0.1")]), ["10.0.0.1"]);
    }

    #[test]
    fn only_what_concerns_the_nodes_own_addresses_is_news() {
        let mut addresses = Addresses::default();
        assert!(!addresses.notified(&link(2, "eth0")));
        assert!(addresses.notified(&comes(2, "10.0.0.1")));
        assert!(addresses.notified(&link(7, "lb-ipvs0")));
        assert!(!addresses.notified(&link(7, "lb-ipvs0")));
        assert!(!addresses.notified(&comes(7, "10.96.0.1")));
        assert!(!addresses.notified(&goes(7, "10.96.0.1")));
        assert!(addresses.notified(&goes(2, "10.0.0.1")));
    }

    #[test]
    fn an_address_counts_while_the_kernel_takes_packets_for_it() {
        use AddressHeaderFlags as Flags;
        let table = [
            (Flags::Permanent, true),
            (Flags::Permanent | Flags::Deprecated, true),
            // The same bit marks the temporary addresses of IPv6 and the second ones of IPv4.
            (Flags::Secondary, true),
            (Flags::Tentative, false),
            (Flags::Tentative | Flags::Optimistic, true),
            (Flags::Permanent | Flags::Tentative | Flags::Dadfailed, false),
            (Flags::Permanent | Flags::Dadfailed, false),
        ];
        for (flags, counts) in table {
            let comes = RouteNetlinkMessage::NewAddress(message(2, "fd00::1", flags));
            assert_eq!(after(&[comes]).len(), usize::from(counts), "{flags:?}");
        }
        let tentative = RouteNetlinkMessage::NewAddress(message(2, "fd00::1", Flags::Tentative));
        assert_eq!(after(&[tentative.clone(), comes(2, "fd00::1")]), ["fd00::1"]);
        assert_eq!(after(&[comes(2, "fd00::1"), tentative]), [""; 0]);
    }
}
