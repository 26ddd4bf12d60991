//! Follows what rtnetlink tells of links and addresses, and says what comes of it.

use std::{io, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::{MulticastGroup, packet_core::NetlinkPayload};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use crate::kernel::netlink::{Connection, within};

/// After what failed.
const RETRY: Duration = Duration::from_secs(1);
/// Addresses that change together are told of together.
const SETTLE: Duration = Duration::from_millis(20);

const GROUPS: [MulticastGroup; 3] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
];

/// What is made of the messages.
pub(super) trait Collected: Default + Send {
    /// What is told of it.
    type Told: PartialEq + Send + Sync + 'static;

    /// Takes a message; says whether there may be something new to tell.
    fn notified(&mut self, message: &RouteNetlinkMessage) -> bool;

    /// As it stands.
    fn told(&self) -> Self::Told;
}

/// What the receiver has: nothing yet, or the last that was told.
pub(super) type Receiver<C> = watch::Receiver<Option<<C as Collected>::Told>>;

/// Follows the network namespace that the runtime's thread is in. Ends when the receivers are dropped.
pub(super) fn watch<C: Collected + 'static>() -> (Receiver<C>, JoinHandle<()>) {
    let (sender, receiver) = watch::channel(None);
    let task = tokio::spawn(async move {
        while let Err(error) = follow::<C>(&sender).await {
            tracing::warn!(%error, "cannot follow the addresses of this node: trying again");
            sleep(RETRY).await;
        }
    });
    (receiver, task)
}

async fn follow<C: Collected>(known: &watch::Sender<Option<C::Told>>) -> io::Result<()> {
    let mut connection = Connection::open(&GROUPS)?;
    let mut collected: C = snapshot(&connection).await?;
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
                        collected = snapshot(&connection).await?;
                    }
                    NetlinkPayload::InnerMessage(message) if !collected.notified(&message) => continue,
                    _ => {}
                }
                due.get_or_insert(Instant::now() + SETTLE);
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                due = None;
                tell(known, collected.told());
            }
            () = known.closed() => return Ok(()),
        }
    }
}

/// Asks for everything. What changes meanwhile is told by notifications, which are on already.
async fn snapshot<C: Collected>(connection: &Connection) -> io::Result<C> {
    // Links second: of each address that is known, it is known then what link it is of.
    let addresses = within(connection.handle.address().get().execute().try_collect::<Vec<_>>()).await?;
    let links = within(connection.handle.link().get().execute().try_collect::<Vec<_>>()).await?;
    let mut collected = C::default();
    for message in addresses {
        collected.notified(&RouteNetlinkMessage::NewAddress(message));
    }
    for message in links {
        collected.notified(&RouteNetlinkMessage::NewLink(message));
    }
    Ok(collected)
}

fn tell<T: PartialEq>(known: &watch::Sender<Option<T>>, told: T) {
    let told = Some(told);
    known.send_if_modified(|before| {
        let modified = *before != told;
        *before = told;
        modified
    });
}
