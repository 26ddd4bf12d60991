//! Programs of an agent before, whose flow table ours cannot share: they go on with the flows that they have.
//!
//! ```text
//!            hook: programs of before   ours behind them    pins
//! start      serve                      not there           v4
//! step_aside serve                      come, link by link  draining/v4 (old), v5 (ours)
//! switch     drain                      serve               every link has ours: one write to `STAGE`
//! end        gone                       serve               v5
//! ```
//!
//! Ours see nothing but what those before let pass, so nothing is served twice, and nothing between the two: which of
//! both begins a flow hangs on one number. Nothing has to be known of the other's maps but `STAGE`
//! ([`lb_common::stage`]). Where they differ in size only, the rows are carried over and it is over at once. Else it is
//! when its time is up, and what is still open then, breaks.
//!
//! An agent that ends before the switch leaves no trace: the next one takes ours off again. After it, the next one goes
//! on. One whose own layout it is that drains takes those maps again, with all that is in them; the other one drains then.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{
        Arc, Weak,
        mpsc::{self, Receiver, RecvError, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use lb_common::{
    maps,
    stage::{DRAINS_TO_BE_CARRIED, SERVES, SIDES},
};
use tracing::{info, warn};

use super::{
    carry,
    clsact::{self, Qdisc, Which},
    link_hooks::is_gone,
    lock::Lock,
    pins::{Generation, Pins},
    raw_map::RawMap,
    stage::{Stage, is_same_map},
};

/// How long a program may still run that has read before the switch what it is to do.
const SETTLED: Duration = Duration::from_millis(100);
/// When to try again what has failed.
const RETRY: Duration = Duration::from_secs(30);
/// How often to look whether there is anything to wait for.
const LOOK: Duration = Duration::from_secs(10);
/// For so long it is waited in any case: whoever has just been asked something may answer.
const AT_LEAST: Duration = Duration::from_secs(60);

/// Bytes of an address.
const ADDRESS: usize = 16;

/// Whoever sees to the end of what drains. It ends with those that can tell it something.
#[derive(Clone, Debug)]
pub(super) struct Drain {
    told: Sender<Told>,
    /// Lives as long as anybody hears it.
    hearer: Weak<()>,
}

/// What it is told.
enum Told {
    LinksHaveOurs,
    BackendsAre(HashSet<SocketAddr>),
}

impl Drain {
    /// Starts it, in the network namespace of this thread. Flows may take so long to their end, if their rows cannot be
    /// `carried`.
    pub(super) fn start(pins: Pins, time: Duration, carried: bool, lock: Arc<Lock>) -> io::Result<Self> {
        let (told, hears) = mpsc::channel();
        let lives = Arc::new(());
        let hearer = Arc::downgrade(&lives);
        let end = End { pins, time, carried };
        let work = move || {
            end.follow(&hears);
            drop((lock, lives));
        };
        thread::Builder::new().name("drain".to_owned()).spawn(work)?;
        Ok(Self { told, hearer })
    }

    /// Each link that there was has our programs.
    pub(super) fn links_have_ours(&self) {
        self.tell(Told::LinksHaveOurs);
    }

    /// These are all backends of UDP that serve: which only our maps say.
    pub(super) fn backends_are(&self, serving: impl FnOnce() -> HashSet<SocketAddr>) {
        if self.hearer.strong_count() > 0 {
            self.tell(Told::BackendsAre(serving()));
        }
    }

    fn tell(&self, what: Told) {
        // If nothing drains any more, nobody is there.
        let _ = self.told.send(what);
    }
}

struct End {
    pins: Pins,
    time: Duration,
    carried: bool,
}

impl End {
    fn follow(&self, hears: &Receiver<Told>) {
        let mut serving = None;
        loop {
            match hears.recv() {
                Ok(Told::LinksHaveOurs) => break,
                Ok(Told::BackendsAre(backends)) => serving = Some(backends),
                Err(RecvError) => return,
            }
        }
        loop {
            let pause = match self.step() {
                Ok(Some(pause)) => pause,
                Ok(None) => return,
                Err(error) => {
                    warn!("programs of an earlier agent stay for now: {error:#}");
                    RETRY
                }
            };
            if let Some(serving) = serving.take() {
                self.let_datagrams_go(&serving);
            }
            match hears.recv_timeout(pause) {
                Ok(Told::BackendsAre(backends)) => serving = Some(backends),
                Ok(Told::LinksHaveOurs) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Does what is to be done now, whatever was done before; says when there is more.
    fn step(&self) -> anyhow::Result<Option<Duration>> {
        let maps = self.pins.maps();
        let mut ours = Stage::open(&maps)?.context("there is no map of what programs do")?;
        self.switch()?;
        let mut pause = None;
        for generation in self.pins.drained()? {
            // On our own maps, from before others were between: ours have their flows.
            if is_same_map(maps::FLOWS, &generation.maps(), &maps).unwrap_or(false) {
                take_off(Which::Former(ours.side()?))?;
                generation.remove()?;
                continue;
            }
            if let Some(left) = self.left(&generation)? {
                pause = Some(pause.unwrap_or(left).min(left));
            }
        }
        if pause.is_some() {
            return Ok(pause);
        }
        take_off(Which::Draining(ours.side()?))?;
        self.pins.remove_draining()?;
        ours.set(SERVES)?;
        info!("programs of an earlier agent are gone");
        Ok(None)
    }

    /// From here on ours begin what begins.
    fn switch(&self) -> anyhow::Result<()> {
        for generation in self.pins.drained()? {
            let Some(mut stage) = Stage::open(&generation.maps())? else {
                continue;
            };
            if stage.drains()? && !self.carried {
                continue;
            }
            if self.carried {
                // A flow of ours that begins must find those of before, whose backend it may meet from the same port.
                carry::bring_flows(&generation.maps(), &self.pins.maps())?;
            }
            stage.drain(self.carried)?;
            if self.carried {
                info!(
                    "programs of an earlier agent, on maps of other sizes, begin no flow any more: carrying its flows over"
                );
            } else {
                info!(
                    seconds = self.time.as_secs(),
                    "programs of an earlier agent, whose flows cannot be carried over, begin none any more: those that \
                     are open have so long to end (--drain)"
                );
            }
        }
        Ok(())
    }

    /// How long it is to be waited for the flows of what drains. Nothing, once they are carried over.
    fn left(&self, generation: &Generation) -> anyhow::Result<Option<Duration>> {
        let Some(stage) = Stage::open(&generation.maps())? else {
            warn!("an earlier agent is of before agents let each other's flows go on: they begin anew");
            return Ok(None);
        };
        if stage.get()? == DRAINS_TO_BE_CARRIED {
            thread::sleep(SETTLED);
            carry::bring_flows(&generation.maps(), &self.pins.maps())?;
            return Ok(None);
        }
        let since = stage.drained_for()?;
        let left = self.time.checked_sub(since).filter(|left| !left.is_zero());
        match left {
            Some(_) if since >= AT_LEAST && !has_flows(&generation.maps())? => Ok(None),
            Some(left) => Ok(Some(left.min(LOOK))),
            None => Ok(None),
        }
    }

    /// Programs that drain know nothing of what becomes of their backends. Datagrams to one that is gone go where ours say
    /// from now on, as they do where nothing drains; a TCP connection ends with its backend.
    fn let_datagrams_go(&self, serving: &HashSet<SocketAddr>) {
        // In whatever layout, a row has the address of its backend somewhere, and the port.
        let serving: HashSet<([u8; ADDRESS], [u8; 2])> = serving
            .iter()
            .map(|backend| (octets(backend.ip()), backend.port().to_be_bytes()))
            .collect();
        let addresses: HashSet<[u8; ADDRESS]> = serving.iter().map(|(address, _)| *address).collect();
        let serves = |row: &[u8]| {
            let mut addresses = row.array_windows().filter(|window| addresses.contains(*window));
            addresses.any(|address| row.array_windows().any(|port| serving.contains(&(*address, *port))))
        };
        let let_go = || -> anyhow::Result<()> {
            for generation in self.pins.drained()? {
                if !is_same_map(maps::BACKENDS, &generation.maps(), &self.pins.maps())? {
                    RawMap::open(&generation.maps(), maps::BACKENDS)?.clear_array(|row| !serves(row))?;
                }
            }
            Ok(())
        };
        if let Err(error) = let_go() {
            warn!("datagrams of flows that an earlier agent began may go to backends that are gone: {error:#}");
        }
    }
}

/// An address as rows have it, IPv4 mapped into IPv6.
fn octets(ip: IpAddr) -> [u8; ADDRESS] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Whether anything is translated by what drains, in any layout.
fn has_flows(maps: &Path) -> anyhow::Result<bool> {
    Ok(!RawMap::open(maps, maps::FLOWS)?.is_empty()? || !RawMap::open(maps, maps::CONNECTED)?.is_empty()?)
}

/// Since when programs of an earlier agent under `bpffs` drain, if any do.
///
/// # Errors
/// There is no bpffs, or this process may not look into it.
pub fn draining_since(bpffs: &Path) -> anyhow::Result<Option<SystemTime>> {
    let mut first = None;
    for generation in Pins::new(bpffs)?.drained()? {
        if let Some(stage) = Stage::open(&generation.maps())?
            && stage.drains()?
        {
            let since = stage.since()?;
            first = Some(first.unwrap_or(since).min(since));
        }
    }
    Ok(first)
}

/// Makes what an agent left whole that ended while programs were to drain, before anything of it is looked at.
pub(super) fn tidy(pins: &Pins) -> anyhow::Result<()> {
    let mut unbegun = Vec::new();
    for generation in pins.drained()? {
        if let Some(stage) = Stage::open(&generation.maps())?
            && !stage.drains()?
        {
            unbegun.push(generation);
        }
    }
    if !unbegun.is_empty() {
        info!("an earlier agent was ended before its programs served: those before it serve on");
        if let Some(side) = side(pins)? {
            take_off(Which::Serving(side))?;
        }
        pins.step_back(&unbegun)?;
    }
    for generation in pins.drained()? {
        let stage = Stage::open(&generation.maps())?.map(|stage| stage.get()).transpose()?;
        if stage == Some(DRAINS_TO_BE_CARRIED) {
            end_carried(pins, &generation)?;
        }
    }
    Ok(())
}

/// What the thread would have done next.
fn end_carried(pins: &Pins, generation: &Generation) -> anyhow::Result<()> {
    let ours = pins.maps();
    if *generation == pins.drained_of_ours() && ours.try_exists()? {
        carry::bring_flows(&generation.maps(), &ours)?;
    }
    if let Some(side) = side(pins)? {
        take_off(Which::Draining(side))?;
    }
    generation.remove()?;
    if pins.drained()?.is_empty() {
        pins.remove_draining()?;
    }
    info!("flows of an earlier agent have been carried over");
    Ok(())
}

/// What serves is to drain, and the unfilled maps take its place: they are filled. There are two sides, so that what
/// drains since before goes.
pub(super) fn step_aside(pins: &Pins) -> anyhow::Result<()> {
    for generation in pins.drained()? {
        if is_same_map(maps::FLOWS, &generation.maps(), &pins.unfilled_maps()).unwrap_or(false) {
            continue;
        }
        warn!("programs of the agent before the last one go: flows that they have still break");
        if let Some(side) = side(pins)? {
            take_off(Which::Draining(side))?;
        }
        generation.remove()?;
    }
    pins.step_aside()
}

/// The side of those that are to be beside what serves.
pub(super) fn other_side(pins: &Pins) -> anyhow::Result<u32> {
    let theirs = match side(pins)? {
        Some(side) => side,
        None => side_of_filters()?.unwrap_or(0),
    };
    Ok((theirs + 1) % SIDES)
}

/// The side of what serves.
pub(super) fn side(pins: &Pins) -> anyhow::Result<Option<u32>> {
    let stage = serving(pins)?;
    Ok(stage.map(|stage| stage.side()).transpose()?)
}

/// The ports of who comes beside what serves, and whose rows are `carried` over or not.
pub(super) fn ports_beside(pins: &Pins, carried: bool) -> anyhow::Result<u32> {
    let theirs = serving(pins)?.map_or(Ok(0), |stage| stage.ports())?;
    Ok(if carried { theirs } else { (theirs + 1) % SIDES })
}

fn serving(pins: &Pins) -> anyhow::Result<Option<Stage>> {
    for generation in pins.serving()? {
        if let Some(stage) = Stage::open(&generation.maps())? {
            return Ok(Some(stage));
        }
    }
    Ok(None)
}

fn side_of_filters() -> io::Result<Option<u32>> {
    for link in nix::net::if_::if_nameindex()?.iter() {
        match clsact::side_of_ours(link.index()) {
            Ok(None) => {}
            Ok(side) => return Ok(side),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Takes filters of ours off all links.
fn take_off(which: Which) -> io::Result<()> {
    for link in nix::net::if_::if_nameindex()?.iter() {
        match clsact::detach(link.index(), Qdisc::Found, which) {
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
