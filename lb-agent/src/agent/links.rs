//! Links, on a thread of their own: each gets its programs when its turn comes.
//!
//! The kernel takes long over a program on a link. With TCX it waits for every processor to have left the
//! chain as it was, and keeps all other changes of links waiting meanwhile, also those of whoever makes the
//! pods: 14 ms a program on kernel 6.18 and as much again when the link goes, with one thread as with eight.
//! So links do not come in the way of services; a link that changes or goes while it waits has one turn;
//! and time is spent on links only so fast ([`Budget`]). Where many come the plane takes its quickest way
//! ([`Pace::Hurried`]), and those that have stayed have another turn once it is quiet.

mod standings;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    io, thread,
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, watch},
    task::yield_now,
};

pub use standings::{Standing, Standings};

use super::{retries::Retries, sleep_until};
use crate::{
    kernel::links::{Link, LinkEvent, Notice, Role},
    plane::{LinkPlane, LinkState, Pace},
};

/// How often to look for what others have done on the links.
const LOOK: Duration = Duration::from_secs(10);
/// How long the first turn waits for all links that are there, which take it in another order than they are told in.
const TELLING: Duration = Duration::from_millis(500);
/// How many links may be served steadily one after another.
const STEADY_AT_ONCE: u32 = 16;
/// How often another one may.
const STEADY_EACH: Duration = Duration::from_millis(250);

/// What others may want to know of the links. Ends with the thread that attends to them.
#[derive(Debug)]
pub struct Served {
    /// Whether each link that was there at the start has had its turn.
    pub all: watch::Receiver<bool>,
    /// Uplinks and tunnels that take part, by index.
    pub paths: watch::Receiver<BTreeMap<u32, Link>>,
    /// The first pod's link that was a port of a bridge.
    pub bridge_port: watch::Receiver<Option<Link>>,
    /// How all of them stand.
    pub standings: watch::Receiver<Standings>,
}

/// Attends to links on a new thread until the notices end, or the process does. `is_filled` is whether the
/// plane holds a complete state.
pub fn start<P: LinkPlane + Send + 'static>(
    plane: P,
    notices: mpsc::Receiver<Notice>,
    is_filled: watch::Receiver<bool>,
) -> io::Result<Served> {
    let (all_served, all) = watch::channel(false);
    let (paths_sender, paths) = watch::channel(BTreeMap::new());
    let (bridge_port_sender, bridge_port) = watch::channel(None);
    let (standings_sender, standings) = watch::channel(Standings::default());
    let told = Told {
        paths: paths_sender,
        bridge_port: bridge_port_sender,
        standings: standings_sender,
    };
    // Only to wait on channels and for time: no input or output.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    thread::Builder::new()
        .name("links".to_owned())
        .spawn(move || runtime.block_on(Links::new(plane, told).run(notices, is_filled, all_served)))?;
    Ok(Served {
        all,
        paths,
        bridge_port,
        standings,
    })
}

/// Where the same is told.
struct Told {
    paths: watch::Sender<BTreeMap<u32, Link>>,
    bridge_port: watch::Sender<Option<Link>>,
    standings: watch::Sender<Standings>,
}

/// What is known of the links, and whose turn it is.
struct Links<P> {
    plane: P,
    turns: Turns,
    budget: Budget,
    /// Those that take part.
    known: BTreeMap<u32, Link>,
    told: Told,
    failed: Retries<u32>,
    /// By index, the last event of each link that the plane put off until it is filled.
    waiting: BTreeMap<u32, LinkEvent>,
    /// Those that are served, as last said.
    served: BTreeMap<u32, Link>,
    /// Served in haste.
    hasty: BTreeSet<u32>,
    /// To be looked at.
    looks: Vec<u32>,
    telling: Duration,
    look_each: Duration,
    next_look: Instant,
    /// Those that were there at the start and have not had their turn.
    first: BTreeSet<u32>,
    /// Whether `first` is complete.
    all_told: bool,
}

/// The events of links in the order in which the links' turns come: tunnels first, since a client that comes in by an
/// uplink is masqueraded where it goes out to one. Of each link, the last event counts.
#[derive(Debug, Default)]
struct Turns {
    tunnels: VecDeque<u32>,
    others: VecDeque<u32>,
    events: HashMap<u32, LinkEvent>,
}

impl Turns {
    fn push(&mut self, event: LinkEvent) {
        let index = event.index();
        let is_tunnel = matches!(&event, LinkEvent::Is(link) if link.role == Role::Tunnel);
        if self.events.insert(index, event).is_none() {
            let order = if is_tunnel { &mut self.tunnels } else { &mut self.others };
            order.push_back(index);
        }
    }

    fn pop(&mut self) -> Option<LinkEvent> {
        let index = self.tunnels.pop_front().or_else(|| self.others.pop_front())?;
        self.events.remove(&index)
    }
}

/// How many links may be served steadily now.
#[derive(Debug)]
struct Budget {
    left: u32,
    /// Up to when it has been counted.
    counted: Instant,
}

impl Budget {
    const fn new(now: Instant) -> Self {
        Self {
            left: STEADY_AT_ONCE,
            counted: now,
        }
    }

    /// How many are left now.
    fn left(&mut self, now: Instant) -> u32 {
        while self.left < STEADY_AT_ONCE && now.duration_since(self.counted) >= STEADY_EACH {
            self.left += 1;
            self.counted += STEADY_EACH;
        }
        if self.left == STEADY_AT_ONCE {
            self.counted = now;
        }
        self.left
    }

    /// For a new link.
    fn pace(&mut self, now: Instant) -> Pace {
        if self.left(now) == 0 {
            return Pace::Hurried;
        }
        self.left -= 1;
        Pace::Steady
    }

    /// Since when, or from when on, there is enough for one that is served already and some new ones.
    fn ample_from(&mut self, now: Instant) -> Instant {
        let missing = (STEADY_AT_ONCE / 2).saturating_sub(self.left(now));
        self.counted + STEADY_EACH * missing
    }
}

impl<P: LinkPlane> Links<P> {
    /// None known yet.
    fn new(plane: P, told: Told) -> Self {
        Self {
            plane,
            told,
            turns: Turns::default(),
            budget: Budget::new(Instant::now()),
            known: BTreeMap::new(),
            failed: Retries::default(),
            waiting: BTreeMap::new(),
            served: BTreeMap::new(),
            hasty: BTreeSet::new(),
            looks: Vec::new(),
            telling: TELLING,
            look_each: LOOK,
            next_look: Instant::now() + LOOK,
            first: BTreeSet::new(),
            all_told: false,
        }
    }

    /// Attends to links until the notices end.
    async fn run(
        mut self,
        mut notices: mpsc::Receiver<Notice>,
        mut is_filled: watch::Receiver<bool>,
        all_served: watch::Sender<bool>,
    ) {
        let mut was_filled = false;
        let begun = Instant::now();
        loop {
            while let Ok(notice) = notices.try_recv() {
                self.note(notice);
            }
            if !was_filled && *is_filled.borrow_and_update() {
                was_filled = true;
                self.stop_waiting();
            }
            let now = Instant::now();
            let may_begin = self.all_told || now >= begun + self.telling;
            self.note_due(now);
            if self.all_told
                && self.first.is_empty()
                && all_served.send_if_modified(|told| !std::mem::replace(told, true))
            {
                self.plane.links_are_served();
            }
            if may_begin && self.work() {
                // Nobody else is on this thread, but the clock has to be looked at.
                yield_now().await;
                continue;
            }
            let settle = (!self.hasty.is_empty()).then(|| self.budget.ample_from(Instant::now()));
            let due = self
                .failed
                .next()
                .into_iter()
                .chain(settle)
                .chain((!may_begin).then(|| begun + self.telling))
                .chain([self.next_look])
                .min();
            tokio::select! {
                notice = notices.recv() => match notice {
                    Some(notice) => self.note(notice),
                    None => return,
                },
                Ok(()) = is_filled.changed(), if !was_filled => {}
                () = sleep_until(due) => {}
            }
        }
    }

    fn note(&mut self, notice: Notice) {
        let event = match notice {
            Notice::Link(event) => event,
            Notice::AllTold => {
                self.all_told = true;
                return;
            }
        };
        let index = event.index();
        if let LinkEvent::Is(link) = &event
            && let Some(known) = self.known.get_mut(&index)
            && known != link
            && known.is_same_but_for_bridge(link)
            && !self.plane.minds_bridges()
        {
            // Of paths nobody else asks for the bridge.
            *known = link.clone();
            return;
        }
        // Whatever was to be done about it: this is newer.
        self.failed.forget(&index);
        self.waiting.remove(&index);
        self.hasty.remove(&index);
        let link = match &event {
            LinkEvent::Is(link) => Some(link.clone()),
            LinkEvent::Gone { .. } => None,
        };
        let before = match link.clone() {
            Some(link) => self.known.insert(index, link),
            None => self.known.remove(&index),
        };
        if let Some(link) = &link
            && link.role == Role::Pod
            && link.bridge.is_some()
        {
            self.told
                .bridge_port
                .send_if_modified(|port| port.is_none() && port.replace(link.clone()).is_none());
        }
        let path = link.filter(|link| link.role != Role::Pod);
        if path.is_some() || before.is_some_and(|link| link.role != Role::Pod) {
            self.told.paths.send_modify(|paths| match path {
                Some(path) => drop(paths.insert(index, path)),
                None => drop(paths.remove(&index)),
            });
        }
        if !self.all_told {
            self.first.insert(index);
        }
        self.turns.push(event);
    }

    fn stop_waiting(&mut self) {
        self.plane.stop_waiting();
        for event in std::mem::take(&mut self.waiting).into_values() {
            self.turns.push(event);
        }
    }

    /// Gives a turn to links whose time it is.
    fn note_due(&mut self, now: Instant) {
        for index in self.failed.due(now) {
            self.again(index);
        }
        if self.next_look <= now {
            self.next_look = now + self.look_each;
            self.looks = self.known.keys().copied().collect();
        }
        if self.budget.ample_from(now) <= now
            && let Some(index) = self.hasty.pop_first()
        {
            self.again(index);
        }
    }

    /// Does one thing of each kind that there is to do, so that none has to wait for all of another.
    /// Says whether there was any.
    fn work(&mut self) -> bool {
        let looked = self.looks.pop();
        if let Some(index) = looked
            && let Some(link) = self.known.get(&index)
            && self.plane.look(link)
        {
            self.again(index);
        }
        if let Some(event) = self.turns.pop() {
            let pace = match event {
                LinkEvent::Is(_) => self.budget.pace(Instant::now()),
                LinkEvent::Gone { .. } => Pace::Steady,
            };
            self.attend(event, pace);
            return true;
        }
        looked.is_some()
    }

    fn again(&mut self, index: u32) {
        if let Some(link) = self.known.get(&index) {
            self.turns.push(LinkEvent::Is(link.clone()));
        }
    }

    fn attend(&mut self, event: LinkEvent, pace: Pace) {
        let index = event.index();
        let result = self.plane.link(&event, pace);
        if result.is_ok() {
            self.failed.forget(&index);
        }
        self.hasty.remove(&index);
        self.tell_standing(&event, result.as_ref().ok());
        match (event, result) {
            (event, Ok(LinkState::Waiting)) => {
                tracing::debug!(index, "link stays as it is until there are complete lists");
                self.waiting.insert(index, event);
                return;
            }
            (LinkEvent::Is(link), Ok(LinkState::Served)) => self.tell_served(link, "link is served"),
            (LinkEvent::Is(link), Ok(LinkState::ServedInHaste)) => {
                self.tell_served(link, "link is served, for now by a filter");
                self.hasty.insert(index);
            }
            (_, Ok(LinkState::LeftAlone)) => {
                self.served.remove(&index);
                tracing::debug!(index, "link is left alone");
            }
            (_, Ok(_)) => {
                self.served.remove(&index);
                tracing::debug!(index, "link is gone");
            }
            (LinkEvent::Is(link), Err(error)) => {
                self.served.remove(&index);
                tracing::warn!(link = link.name, index, role = ?link.role, "not served: {error}");
                self.failed.failed(index, Instant::now());
            }
            // The link takes its programs along.
            (LinkEvent::Gone { .. }, Err(error)) => tracing::debug!(index, "{error}"),
        }
        self.first.remove(&index);
    }

    /// `state` is what it is to the plane, unless that failed.
    fn tell_standing(&self, event: &LinkEvent, state: Option<&LinkState>) {
        let standing = match state {
            Some(LinkState::Served) => Some(Standing::Served),
            Some(LinkState::ServedInHaste) => Some(Standing::ServedInHaste),
            Some(LinkState::Waiting) => Some(Standing::Waiting),
            Some(LinkState::LeftAlone) => Some(Standing::LeftAlone),
            Some(LinkState::Gone) => None,
            None => Some(Standing::Failed),
        };
        self.told.standings.send_modify(|standings| match (event, standing) {
            (LinkEvent::Is(link), Some(standing)) => standings.set(link.index, link.role, standing),
            (LinkEvent::Is(_), None) | (LinkEvent::Gone { .. }, _) => standings.remove(event.index()),
        });
    }

    fn tell_served(&mut self, link: Link, what: &str) {
        let said = self.served.get(&link.index);
        if !said.is_some_and(|said| said.is_same_but_for_bridge(&link)) {
            tracing::info!(link = link.name, index = link.index, role = ?link.role, "{what}");
            self.served.insert(link.index, link);
        }
    }
}

#[cfg(test)]
mod tests;
