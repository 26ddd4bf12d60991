//! Follows the links of this process's network namespace over rtnetlink.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::{MulticastGroup, RouteMessageBuilder, packet_core::NetlinkPayload};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, warn};

use super::{
    Facts, LinkEvent, LinkRules, Notice,
    messages::{address, is_default_route, link_facts, links_of_route},
    stacked::{self, Stacked},
    table::{LinkTable, Snapshot},
};
use crate::kernel::netlink::{Connection, within};

/// What waits for the receiver.
const EVENTS: usize = 256;
/// After what failed.
const RETRY: Duration = Duration::from_secs(1);
/// Default routes that change together are asked for together.
const ROUTES_SETTLE: Duration = Duration::from_millis(100);
/// When to ask for a link whose peer moves to another namespace: the kernel tells before it does it,
/// and how long it takes is not told.
const PEER_SETTLES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// How soon to look whether pods hang on an uplink of which something was told.
const STACKED_SETTLE: Duration = Duration::from_secs(1);

/// How long the roles that depend on the Node's addresses wait for them. Without an API server, pods
/// must be served all the same.
const NODE: Duration = Duration::from_secs(5);

const GROUPS: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

/// Follows the links. The first events are of the links that are there: [`LinkEvent::Is`] for those
/// that take part, [`LinkEvent::Gone`] for each that does not, since an earlier agent may have held
/// it for one that does. What only the Node's addresses can tell, an uplink that is a veth, waits a few
/// seconds for them: `None` is that they are not known yet. Then comes [`Notice::AllTold`]. Ends when
/// the receiver is dropped.
pub fn watch(
    rules: LinkRules,
    node_addresses: watch::Receiver<Option<BTreeSet<IpAddr>>>,
) -> (mpsc::Receiver<Notice>, JoinHandle<()>) {
    let (events, receiver) = mpsc::channel(EVENTS);
    let table = LinkTable::new(rules, node_addresses.borrow().clone());
    let task = tokio::spawn(async move {
        let mut watcher = Watcher {
            table,
            node_addresses,
            events,
            routes_due: None,
            links_due: BTreeSet::new(),
            stacked: Stacked::default(),
            stacked_due: None,
            node_due: Some(Instant::now() + NODE),
            has_told_all: false,
        };
        loop {
            match watcher.run().await {
                Ok(()) => return,
                Err(Stop::Closed) => return,
                Err(Stop::Failed(error)) => {
                    warn!(%error, "cannot follow the links: trying again");
                    sleep(RETRY).await;
                }
            }
        }
    });
    (receiver, task)
}

/// Why following ends.
enum Stop {
    /// Nobody listens any more.
    Closed,
    /// The kernel's answer.
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

struct Watcher {
    table: LinkTable,
    node_addresses: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    events: mpsc::Sender<Notice>,
    /// When to ask for default routes.
    routes_due: Option<Instant>,
    /// When to ask for which link.
    links_due: BTreeSet<(Instant, u32)>,
    stacked: Stacked,
    /// When to look for pods that hang on uplinks.
    stacked_due: Option<Instant>,
    /// When to wait no more for the Node's addresses.
    node_due: Option<Instant>,
    /// [`Notice::AllTold`] has been said.
    has_told_all: bool,
}

/// Asks for everything. What changes meanwhile is told by notifications, which are on already.
async fn snapshot(connection: &Connection) -> io::Result<Snapshot> {
    within(async {
        let links: Vec<_> = connection.handle.link().get().execute().try_collect().await?;
        let addresses: Vec<_> = connection.handle.address().get().execute().try_collect().await?;
        Ok(Snapshot {
            links: links.iter().filter_map(link_facts).collect(),
            addresses: addresses.iter().filter_map(address).collect(),
            default_routes: default_routes(connection).await?,
        })
    })
    .await
}

async fn default_routes(connection: &Connection) -> Result<BTreeSet<u32>, rtnetlink::Error> {
    let mut links = BTreeSet::new();
    for request in [
        RouteMessageBuilder::<Ipv4Addr>::new().build(),
        RouteMessageBuilder::<Ipv6Addr>::new().build(),
    ] {
        let mut routes = std::pin::pin!(connection.handle.route().get(request).execute());
        while let Some(route) = routes.try_next().await? {
            if is_default_route(&route) {
                links.extend(links_of_route(&route));
            }
        }
    }
    Ok(links)
}

impl Watcher {
    async fn run(&mut self) -> Result<(), Stop> {
        let mut connection = Connection::open(&GROUPS)?;
        self.start_over(&connection).await?;
        let mut has_node_addresses = true;
        loop {
            if self.table.knows_node() && !self.has_told_all {
                self.has_told_all = true;
                self.say(Notice::AllTold).await?;
            }
            let next_link = self.links_due.first().map(|(due, _)| *due);
            let others = [self.routes_due, self.stacked_due, self.node_due];
            let due = others.into_iter().flatten().chain(next_link).min();
            tokio::select! {
                message = connection.notifications.next() => {
                    let Some((message, _)) = message else {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                    };
                    match message.payload {
                        NetlinkPayload::Overrun(_) => {
                            warn!("notifications of links were lost: asking for all links");
                            // What still waits on this socket is older than the loss: a link that
                            // came there may have gone in what was lost.
                            connection = Connection::open(&GROUPS)?;
                            self.start_over(&connection).await?;
                        }
                        NetlinkPayload::InnerMessage(message) => self.notified(message).await?,
                        _ => {}
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.ask_due(&connection).await?;
                }
                changed = self.node_addresses.changed(), if has_node_addresses => {
                    has_node_addresses = changed.is_ok();
                    let addresses = self.node_addresses.borrow_and_update().clone();
                    if let Some(addresses) = addresses {
                        let events = self.table.set_node_addresses(addresses);
                        self.tell(events).await?;
                    }
                }
                () = self.events.closed() => return Ok(()),
            }
        }
    }

    async fn start_over(&mut self, connection: &Connection) -> Result<(), Stop> {
        self.routes_due = None;
        self.links_due.clear();
        let snapshot = snapshot(connection).await?;
        let events = self.table.reset(snapshot);
        self.stacked_may_change();
        self.tell(events).await
    }

    /// Takes in a notification.
    async fn notified(&mut self, message: RouteNetlinkMessage) -> Result<(), Stop> {
        let events = match message {
            RouteNetlinkMessage::NewLink(message) => link_facts(&message).map(|facts| {
                if self.table.is_new(&facts) {
                    self.peer_changes(&facts);
                }
                self.routes_may_change(facts.index);
                // The kernel tells of it when something comes to hang on it.
                if self.table.is_uplink(facts.index) {
                    self.stacked_may_change();
                }
                self.table.set_link(facts)
            }),
            RouteNetlinkMessage::DelLink(message) => link_facts(&message).map(|facts| {
                // As it was known: the kernel may tell of one that moves as it will be.
                if let Some(known) = self.table.link(facts.index).cloned() {
                    self.peer_changes(&known);
                }
                if let Some(parent) = stacked::moved_from(&message, &facts)
                    && let Some(name) = self.table.link(parent).map(|parent| &parent.name)
                {
                    self.stacked.found(parent, name);
                }
                self.stacked.gone(facts.index);
                self.table.remove_link(facts.index)
            }),
            RouteNetlinkMessage::NewAddress(message) => {
                address(&message).map(|(index, ip)| self.table.add_address(index, ip))
            }
            RouteNetlinkMessage::DelAddress(message) => address(&message).map(|(index, ip)| {
                self.routes_may_change(index);
                self.table.remove_address(index, ip)
            }),
            // A route with several next hops is told of in parts: what it leads through is asked for.
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
                if is_default_route(&route) {
                    self.ask_for_routes();
                }
                None
            }
            _ => None,
        };
        self.tell(events.into_iter().flatten()).await
    }

    /// IPv4 routes vanish without a word when their link goes down or loses its address.
    fn routes_may_change(&mut self, index: u32) {
        if self.table.has_default_route(index) {
            self.ask_for_routes();
        }
    }

    fn ask_for_routes(&mut self) {
        self.routes_due.get_or_insert(Instant::now() + ROUTES_SETTLE);
    }

    fn stacked_may_change(&mut self) {
        self.stacked_due.get_or_insert(Instant::now() + STACKED_SETTLE);
    }

    /// A link comes, moves or goes, of which its peer says nothing.
    fn peer_changes(&mut self, facts: &Facts) {
        if let Some(peer) = self.table.peer_to_ask(facts) {
            let now = Instant::now();
            self.links_due.extend(PEER_SETTLES.map(|after| (now + after, peer)));
        }
    }

    /// Asks for what is due.
    async fn ask_due(&mut self, connection: &Connection) -> Result<(), Stop> {
        let now = Instant::now();
        while let Some((due, index)) = self.links_due.pop_first() {
            if due > now {
                self.links_due.insert((due, index));
                break;
            }
            let request = connection.handle.link().get().match_index(index);
            let answer = within(async { request.execute().try_collect::<Vec<_>>().await }).await;
            match answer {
                Ok(links) => {
                    for facts in links.iter().filter_map(link_facts) {
                        let events = self.table.set_link(facts);
                        self.tell(events).await?;
                    }
                }
                // Gone with its peer: its own notification is on the way.
                Err(error) => debug!(index, %error, "a link went before it was asked for"),
            }
        }
        if self.node_due.is_some_and(|due| due <= now) {
            self.node_due = None;
            let events = self.table.give_up_on_node();
            self.tell(events).await?;
        }
        if self.stacked_due.is_some_and(|due| due <= now) {
            self.stacked_due = None;
            self.look_for_stacked(connection).await;
        }
        if self.routes_due.is_some_and(|due| due <= now) {
            self.routes_due = None;
            let links = within(default_routes(connection)).await?;
            let events = self.table.set_default_routes(links);
            self.tell(events).await?;
        }
        Ok(())
    }

    /// Only to say so: what cannot be found out is not said.
    async fn look_for_stacked(&mut self, connection: &Connection) {
        match stacked::with_strangers(connection, &self.table.macs()).await {
            Ok(found) => {
                for index in found.into_iter().filter(|index| self.table.is_uplink(*index)) {
                    if let Some(link) = self.table.link(index) {
                        self.stacked.found(index, &link.name);
                    }
                }
            }
            Err(error) => debug!(%error, "cannot tell whether pods hang on uplinks"),
        }
    }

    async fn tell(&self, events: impl IntoIterator<Item = LinkEvent>) -> Result<(), Stop> {
        for event in events {
            debug!(?event, "link");
            self.say(Notice::Link(event)).await?;
        }
        Ok(())
    }

    async fn say(&self, notice: Notice) -> Result<(), Stop> {
        self.events.send(notice).await.map_err(|_| Stop::Closed)
    }
}
