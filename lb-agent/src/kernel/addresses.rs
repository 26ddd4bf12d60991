//! The addresses of this process's network namespace, as they come and go.
//!
//! All of them, as kube-proxy takes them from its library: of loopback and of every other link, global
//! and link-local, temporary and deprecated. Only an IPv6 address that the kernel takes no packet for is
//! left out: one of which it is not known yet, or known, that another host has it.

use std::{collections::BTreeSet, io, net::IpAddr, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _};
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressHeaderFlags, AddressMessage},
};
use rtnetlink::{MulticastGroup, packet_core::NetlinkPayload};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use super::{
    links::address,
    netlink::{Connection, within},
};

/// After what failed.
const RETRY: Duration = Duration::from_secs(1);
/// Addresses that change together are told of together.
const SETTLE: Duration = Duration::from_millis(20);

const GROUPS: [MulticastGroup; 2] = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];

/// Follows the addresses of the network namespace that the runtime's thread is in. `None` is that they
/// are not known yet. Ends when the receivers are dropped.
pub fn watch() -> (watch::Receiver<Option<BTreeSet<IpAddr>>>, JoinHandle<()>) {
    let (sender, receiver) = watch::channel(None);
    let task = tokio::spawn(async move {
        while let Err(error) = follow(&sender).await {
            tracing::warn!(%error, "cannot follow the addresses of this node: trying again");
            sleep(RETRY).await;
        }
    });
    (receiver, task)
}

async fn follow(known: &watch::Sender<Option<BTreeSet<IpAddr>>>) -> io::Result<()> {
    let mut connection = Connection::open(&GROUPS)?;
    let mut addresses = snapshot(&connection).await?;
    let mut due = Some(Instant::now());
    loop {
        tokio::select! {
            message = connection.notifications.next() => {
                let Some((message, _)) = message else {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                };
                match message.payload {
                    NetlinkPayload::Overrun(_) => {
                        tracing::warn!("notifications of addresses were lost: asking for all addresses");
                        connection = Connection::open(&GROUPS)?;
                        addresses = snapshot(&connection).await?;
                    }
                    NetlinkPayload::InnerMessage(message) => addresses.notified(&message),
                    _ => {}
                }
                due.get_or_insert(Instant::now() + SETTLE);
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                due = None;
                tell(known, &addresses);
            }
            () = known.closed() => return Ok(()),
        }
    }
}

/// Asks for everything. What changes meanwhile is told by notifications, which are on already.
async fn snapshot(connection: &Connection) -> io::Result<Addresses> {
    let messages = within(connection.handle.address().get().execute().try_collect::<Vec<_>>()).await?;
    let mut addresses = Addresses::default();
    messages.iter().for_each(|message| addresses.is(message));
    Ok(addresses)
}

fn tell(known: &watch::Sender<Option<BTreeSet<IpAddr>>>, addresses: &Addresses) {
    let addresses = Some(addresses.all());
    known.send_if_modified(|before| {
        let modified = *before != addresses;
        *before = addresses;
        modified
    });
}

/// The addresses, each with its link: two links may have the same one.
#[derive(Default)]
struct Addresses(BTreeSet<(u32, IpAddr)>);

impl Addresses {
    fn notified(&mut self, message: &RouteNetlinkMessage) {
        match message {
            RouteNetlinkMessage::NewAddress(message) => self.is(message),
            RouteNetlinkMessage::DelAddress(message) => self.is_gone(message),
            _ => {}
        }
    }

    fn is(&mut self, message: &AddressMessage) {
        if !is_usable(message) {
            self.is_gone(message);
        } else if let Some(address) = address(message) {
            self.0.insert(address);
        }
    }

    fn is_gone(&mut self, message: &AddressMessage) {
        if let Some(address) = address(message) {
            self.0.remove(&address);
        }
    }

    fn all(&self) -> BTreeSet<IpAddr> {
        self.0.iter().map(|(_, address)| *address).collect()
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
    use netlink_packet_route::address::AddressAttribute;

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
        messages.iter().for_each(|message| addresses.notified(message));
        addresses.all().iter().map(ToString::to_string).collect()
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
