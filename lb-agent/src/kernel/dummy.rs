//! The dummy link whose addresses are those of services, so that the kernel takes their packets in.
//!
//! IPVS sees what is for an address of the node and nothing else. The link itself does nothing: it stays down,
//! where it has no address of its own and joins no group of hosts for each address that it gets; the kernel
//! takes in packets for an address of a link that is down all the same.
//!
//! No address of it is ever the source of what the node sends by itself. An IPv4 address has the scope `host`:
//! where a packet leaves by a link without an address the kernel takes one of any link, but none of that scope. An
//! IPv6 address is deprecated from the start (RFC 6724, rule 3): any other that reaches as far comes first.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope, CacheInfo},
    link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage},
};

use super::{
    links::{address, link_facts},
    netlink::Requests,
};

/// The name of ours.
pub const NAME: &str = "lb-ipvs0";
/// The name of the one that kube-proxy has in its IPVS mode.
pub const KUBE_PROXYS: &str = "kube-ipvs0";
/// The links by these names hold addresses of services, which are none of the node's own: ours, and kube-proxy's.
const HOLD_SERVICES: [&str; 2] = [NAME, KUBE_PROXYS];

/// How often to look for the link that another is making, or taking away, at the same time.
const LOOKS: usize = 3;

/// Whether the addresses of the link by this name are those of services.
pub(super) fn holds_services(name: &str) -> bool {
    HOLD_SERVICES.contains(&name)
}

/// Why there is no such link, or its addresses are not known.
#[derive(Debug, thiserror::Error)]
pub enum DummyError {
    /// The kernel makes no such links.
    #[error("this kernel makes no dummy links, which hold the addresses of services: `modprobe dummy`")]
    Missing,
    /// Somebody else has the name.
    #[error("{name} is {kind}, not a dummy link: remove or rename it (`ip link set {name} name OTHER`)")]
    Other {
        /// The name.
        name: String,
        /// What it is.
        kind: String,
    },
    /// A request failed.
    #[error("cannot {doing} the dummy link {name}: {source}")]
    Kernel {
        /// What was tried.
        doing: &'static str,
        /// The name.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The link. It stays when this is dropped.
#[derive(Debug)]
pub struct DummyLink {
    name: String,
    index: u32,
    requests: Requests,
}

impl DummyLink {
    /// Takes the link over, or makes it, in the network namespace of this thread.
    ///
    /// # Errors
    /// [`DummyError::Other`] where a link of another kind has the name.
    pub fn ensure(name: &str) -> Result<Self, DummyError> {
        let failed = |doing| move |source| kernel_error(doing, name, source);
        let mut requests = Requests::open().map_err(failed("ask for"))?;
        for _ in 0..LOOKS {
            if let Some(index) = find(&mut requests, name)? {
                let name = name.to_owned();
                return Ok(Self { name, index, requests });
            }
            match requests.request(RouteNetlinkMessage::NewLink(new_link(name)), NLM_F_CREATE | NLM_F_EXCL) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Err(DummyError::Missing),
                Err(error) => return Err(kernel_error("make", name, error)),
            }
        }
        let source = io::Error::other("somebody takes it away as soon as it is there");
        Err(kernel_error("make", name, source))
    }

    /// Interface index.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Its addresses, without the link-local one that the kernel gives a link which is up.
    ///
    /// # Errors
    /// Where the kernel does not tell. A link that is gone has no addresses.
    pub fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, DummyError> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let known = self.requests.dump(&request);
        let known = known.map_err(|source| kernel_error("list the addresses of", &self.name, source))?;
        let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
        for message in known {
            if let RouteNetlinkMessage::NewAddress(message) = message {
                addresses.extend(
                    address(&message)
                        .filter(|(index, _)| *index == self.index)
                        .map(|(_, ip)| ip),
                );
            }
        }
        addresses.retain(|address| !is_link_local(address));
        Ok(addresses)
    }

    /// Gives it addresses and takes addresses from it, in this order. One that it has, or has not, already is fine.
    /// Returns the addresses for which the kernel says no; of each other it holds what was asked for.
    ///
    /// An address in both is there afterwards. Where the link is gone, each fails with `ENODEV`: [`Self::ensure`]
    /// makes another.
    pub fn change(&mut self, add: &BTreeSet<IpAddr>, remove: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, io::Error> {
        let index = self.index;
        let added = add
            .iter()
            .map(|address| RouteNetlinkMessage::NewAddress(new_address(index, *address)));
        let failed = self.requests.request_all(added, NLM_F_CREATE | NLM_F_EXCL);
        let mut refused = refusals(add.iter(), failed, libc::EEXIST);

        let removed: Vec<_> = remove.difference(add).collect();
        let messages = removed
            .iter()
            .map(|address| RouteNetlinkMessage::DelAddress(address_message(index, **address)));
        let failed = self.requests.request_all(messages, 0);
        refused.extend(refusals(removed.iter().copied(), failed, libc::EADDRNOTAVAIL));
        refused
    }

    /// Removes the link by this name with its addresses, if it is a dummy link. Says whether it was there.
    ///
    /// # Errors
    /// [`DummyError::Other`] where it is of another kind.
    pub fn remove(name: &str) -> Result<bool, DummyError> {
        let mut requests = Requests::open().map_err(|source| kernel_error("ask for", name, source))?;
        let Some(index) = find(&mut requests, name)? else {
            return Ok(false);
        };
        let mut message = LinkMessage::default();
        message.header.index = index;
        match requests.request(RouteNetlinkMessage::DelLink(message), 0) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
            Err(error) => Err(kernel_error("remove", name, error)),
        }
    }
}

fn kernel_error(doing: &'static str, name: &str, source: io::Error) -> DummyError {
    let name = name.to_owned();
    DummyError::Kernel { doing, name, source }
}

/// The index of the dummy link by this name.
fn find(requests: &mut Requests, name: &str) -> Result<Option<u32>, DummyError> {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    let answers = match requests.get(RouteNetlinkMessage::GetLink(message)) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
        answers => answers.map_err(|source| kernel_error("ask for", name, source))?,
    };
    for answer in answers {
        if let RouteNetlinkMessage::NewLink(message) = answer
            && let Some(facts) = link_facts(&message)
        {
            return match facts.kind.as_deref() {
                Some("dummy") => Ok(Some(facts.index)),
                other => Err(DummyError::Other {
                    name: name.to_owned(),
                    kind: other.map_or_else(|| "a card".to_owned(), |kind| format!("a {kind} link")),
                }),
            };
        }
    }
    Ok(None)
}

fn new_link(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Dummy)]),
    ];
    message
}

/// An address as the kernel knows it again.
fn address_message(index: u32, address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    (message.header.family, message.header.prefix_len) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    message
}

/// An address as it is to be.
fn new_address(index: u32, address: IpAddr) -> AddressMessage {
    let mut message = address_message(index, address);
    match address {
        IpAddr::V4(_) => message.header.scope = AddressScope::Host,
        IpAddr::V6(_) => {
            let mut lifetime = CacheInfo::default();
            lifetime.ifa_preferred = 0;
            lifetime.ifa_valid = u32::MAX;
            // Nobody else on the link could have it, and a route to where it is already leads nowhere.
            let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
            message.attributes.push(AddressAttribute::Flags(flags));
            message.attributes.push(AddressAttribute::CacheInfo(lifetime));
        }
    }
    message
}

/// What the kernel says no to, without those that are as they should be already, which is `fine`.
fn refusals<'a>(
    addresses: impl Iterator<Item = &'a IpAddr>,
    mut failed: BTreeMap<usize, io::Error>,
    fine: i32,
) -> BTreeMap<IpAddr, io::Error> {
    failed.retain(|_, error| error.raw_os_error() != Some(fine));
    let by_place = addresses.enumerate();
    by_place
        .filter_map(|(place, address)| failed.remove(&place).map(|error| (*address, error)))
        .collect()
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 1));

    fn v6() -> IpAddr {
        "fd00:96::1".parse().unwrap()
    }

    #[test]
    fn an_ipv4_address_is_of_the_host_alone() {
        let message = new_address(7, V4);
        assert_eq!(message.header.index, 7);
        assert_eq!(message.header.family, AddressFamily::Inet);
        assert_eq!(message.header.prefix_len, 32);
        assert_eq!(message.header.scope, AddressScope::Host);
        assert!(message.attributes.contains(&AddressAttribute::Local(V4)));
    }

    #[test]
    fn an_ipv6_address_is_there_at_once_for_ever_and_no_source() {
        let message = new_address(7, v6());
        assert_eq!(message.header.family, AddressFamily::Inet6);
        assert_eq!(message.header.prefix_len, 128);
        let mut flags = None;
        let mut lifetime = None;
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Flags(found) => flags = Some(*found),
                AddressAttribute::CacheInfo(found) => lifetime = Some((found.ifa_preferred, found.ifa_valid)),
                _ => {}
            }
        }
        assert_eq!(flags, Some(AddressFlags::Nodad | AddressFlags::Noprefixroute));
        assert_eq!(lifetime, Some((0, u32::MAX)));
    }

    #[test]
    fn what_is_as_it_should_be_already_is_no_failure() {
        let addresses = [V4, v6()];
        let failed = |codes: [i32; 2]| {
            let errors = codes.map(io::Error::from_raw_os_error);
            refusals(addresses.iter(), errors.into_iter().enumerate().collect(), libc::EEXIST)
        };
        assert!(failed([libc::EEXIST, libc::EEXIST]).is_empty());
        let refused = failed([libc::EEXIST, libc::EACCES]);
        let refused: Vec<_> = refused
            .iter()
            .map(|(address, error)| (*address, error.raw_os_error()))
            .collect();
        assert_eq!(refused, [(v6(), Some(libc::EACCES))]);
    }
}
