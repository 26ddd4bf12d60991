//! Programs on links, as these come, change and go.
//!
//! With TCX (kernel 6.6) a program is on a link by a BPF link, which is held by its pin alone: the agent keeps
//! no descriptor of it, so a program stays on its hook when the agent goes, and goes from it when the pin
//! does. Without TCX it is a filter on the clsact qdisc. With TCX a filter serves too, where many links come
//! at once: the kernel is some fifty times faster over it. It is exchanged for a program on TCX as soon as
//! there is time, since programs of others on TCX run before all filters.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use tracing::{debug, info, warn};

use super::{
    chain::{Chain, Mark},
    clsact::{self, Qdisc, Which},
    drain::Drain,
    lock::Lock,
    object::{Programs, link_program},
    pins::{self, LinkName, Pins},
    sys::{self, Direction, Target},
};
use crate::{
    kernel::links::{Link, LinkEvent},
    plane::{LinkPlane, LinkState, Pace, PlaneError},
};

/// The order in which a link gets its programs: an answer must never meet a link that cannot
/// translate it, while a client that is not translated yet only asks again.
const ATTACH_ORDER: [Direction; 2] = [Direction::Egress, Direction::Ingress];
/// The order in which it loses them, for the same reason.
const DETACH_ORDER: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// How programs are attached to links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// TCX, or clsact if the kernel turns out to have no TCX.
    TcxIfThere,
    /// TCX: it has worked.
    Tcx,
    /// Filters on the clsact qdisc.
    Clsact,
}

/// How a program is on a link now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attached {
    /// As it is to stay.
    ToStay,
    /// By a filter although there is TCX.
    InHaste,
    /// By a filter although there is TCX, since one of an earlier agent goes on before it.
    BehindFilter,
}

/// What is known of what others have on a link.
#[derive(Debug, Default)]
struct Known {
    /// As the chains were when our programs were put there, or not.
    marks: Vec<Mark>,
    /// Our programs are there.
    is_served: bool,
    /// Programs of others that see packets before ours, as last reported.
    before: [Vec<String>; 2],
    /// The service proxy to which the link is left.
    proxy: Option<&'static str>,
}

/// The links, and what is on them.
#[derive(Debug)]
pub struct LinkHooks {
    pins: Pins,
    programs: Arc<Programs>,
    way: Way,
    /// Programs of an earlier agent serve from its own maps: they stay until ours are filled.
    is_waiting: bool,
    /// Which filters are ours, and not of programs that drain.
    side: u32,
    /// Who is to know when each link has our programs, if any drain then.
    drain: Option<Drain>,
    /// Each link that was there has had its turn.
    are_all_told: bool,
    /// Links whose clsact qdisc we made; another's stays when our programs go.
    made_qdiscs: HashSet<u32>,
    /// What is known of links, by index.
    known: HashMap<u32, Known>,
    _lock: Arc<Lock>,
}

impl LinkHooks {
    /// Attaches nothing yet. `force_clsact` is for tests of what older kernels do.
    pub(super) fn new(
        pins: Pins,
        programs: Arc<Programs>,
        is_waiting: bool,
        side: u32,
        drain: Option<Drain>,
        force_clsact: bool,
        lock: Arc<Lock>,
    ) -> Self {
        Self {
            pins,
            programs,
            way: if force_clsact { Way::Clsact } else { Way::TcxIfThere },
            is_waiting,
            side,
            drain,
            are_all_told: false,
            made_qdiscs: HashSet::new(),
            known: HashMap::new(),
            _lock: lock,
        }
    }

    /// Serves a link, unless another service proxy does.
    fn attend(&mut self, link: &Link, pace: Pace) -> Result<LinkState, PlaneError> {
        let chains = Direction::ALL.map(|direction| Chain::read(&self.pins, self.side, link.index, direction));
        // What cannot be told does not keep a link from being served.
        let chains: Vec<Chain> = chains.into_iter().flatten().collect();
        let proxy = chains.iter().find_map(Chain::proxy).filter(|_| !link.is_by_rule);
        let known = self.known.entry(link.index).or_default();
        let state = if let Some((proxy, programs)) = proxy {
            let is_new = known.proxy.replace(proxy) != Some(proxy);
            self.detach(link.index)?;
            if is_new {
                warn!(
                    link = %link.name,
                    ?programs,
                    "left alone: {proxy} serves this link; `--link {}=pod` (or uplink, tunnel) has it served \
                     all the same",
                    link.name
                );
            }
            LinkState::LeftAlone
        } else {
            known.proxy = None;
            if known.is_served && !chains.iter().all(Chain::has_ours) {
                warn!(link = %link.name, "our programs have been taken off the link: putting them back");
            }
            self.attach(link, pace)?
        };
        // One that is served in haste has another turn soon.
        if state == LinkState::Served {
            self.report_foreign(link);
        }
        let known = self.known.entry(link.index).or_default();
        known.is_served = matches!(state, LinkState::Served | LinkState::ServedInHaste);
        // Only to see changes: where they cannot be read there are none.
        let marks = Direction::ALL.map(|direction| Mark::read(link.index, direction));
        if let Ok(marks) = marks.into_iter().collect() {
            known.marks = marks;
        }
        Ok(state)
    }

    fn attach(&mut self, link: &Link, pace: Pace) -> Result<LinkState, PlaneError> {
        let mut state = LinkState::Served;
        let mut needs_filter = self.way == Way::Clsact;
        for direction in ATTACH_ORDER {
            let program = link_program(link, direction);
            match self.attach_program(link.index, direction, program, pace) {
                Ok(Attached::ToStay) => {}
                Ok(Attached::InHaste) => state = LinkState::ServedInHaste,
                Ok(Attached::BehindFilter) => needs_filter = true,
                // It went in the meantime; its event is on the way.
                Err(error) if is_gone(&error) => return Ok(LinkState::Gone),
                Err(source) => {
                    let what = format!(
                        "attach program {program} to the {} of link {}",
                        direction.name(),
                        link.name
                    );
                    return Err(PlaneError::kernel(what, source));
                }
            }
        }
        if self.way != Way::Clsact && !needs_filter && state == LinkState::Served {
            self.remove_filters(link.index, Which::Serving(self.side))
                .map_err(|source| PlaneError::kernel(format!("take filters off link {}", link.name), source))?;
        }
        Ok(state)
    }

    fn attach_program(&mut self, ifindex: u32, direction: Direction, name: &str, pace: Pace) -> io::Result<Attached> {
        if self.way == Way::Clsact {
            return self.attach_filter(ifindex, direction, name).map(|()| Attached::ToStay);
        }
        let program = self.programs.get(name)?;
        if let Some(attached) = pinned(&self.pins, direction, ifindex)? {
            if attached.program != program.id {
                sys::update_link(attached.fd.as_fd(), program.fd())?;
            }
            return Ok(Attached::ToStay);
        }
        if pace == Pace::Hurried {
            match self.attach_filter(ifindex, direction, name) {
                Ok(()) => return Ok(Attached::InHaste),
                Err(error) if is_gone(&error) => return Err(error),
                Err(error) => debug!(ifindex, %error, "no filter can be attached in haste"),
            }
        }
        // Programs on TCX run before all filters.
        if clsact::has_draining(ifindex, direction, self.side)? {
            return self
                .attach_filter(ifindex, direction, name)
                .map(|()| Attached::BehindFilter);
        }
        let path = self.pins.link(LinkName::Tcx(direction, ifindex));
        pins::remove(&path)?;
        let before = last_before(&self.pins, direction, ifindex)?;
        let program = self.programs.get(name)?;
        match sys::attach_tcx(program.fd(), ifindex, direction, before.as_ref().map(|fd| fd.as_fd())) {
            Ok(fd) => {
                self.way = Way::Tcx;
                sys::pin(fd.as_fd(), &path)?;
                Ok(Attached::ToStay)
            }
            Err(error) if self.way == Way::TcxIfThere && error.raw_os_error() == Some(libc::EINVAL) => {
                info!("this kernel has no TCX (before 6.6): using the clsact qdisc");
                self.way = Way::Clsact;
                self.attach_program(ifindex, direction, name, pace)
            }
            Err(error) => Err(error),
        }
    }

    /// Puts a filter on the link, in the place of ours that is there.
    fn attach_filter(&mut self, ifindex: u32, direction: Direction, name: &str) -> io::Result<()> {
        let program = self.programs.get(name)?;
        if clsact::attach(ifindex, direction, program.fd(), name, self.side)? == Qdisc::Made {
            self.made_qdiscs.insert(ifindex);
        }
        pins::remove(&self.pins.link(LinkName::Tcx(direction, ifindex))).map(drop)
    }

    fn detach(&mut self, ifindex: u32) -> Result<(), PlaneError> {
        let kernel =
            |what: &str, source: io::Error| PlaneError::kernel(format!("{what} link with index {ifindex}"), source);
        for direction in DETACH_ORDER {
            let name = LinkName::Tcx(direction, ifindex);
            let before = self.pins.links_before(name);
            let mut paths = before.map_err(|error| kernel("look for programs of", error))?;
            paths.push(self.pins.link(name));
            for path in paths {
                pins::remove(&path).map_err(|error| kernel("unpin the programs of", error))?;
            }
        }
        self.remove_filters(ifindex, Which::All)
            .map_err(|error| kernel("take the filters off", error))
    }

    /// Takes filters of ours off a link.
    fn remove_filters(&mut self, ifindex: u32, which: Which) -> io::Result<()> {
        let qdisc = if self.made_qdiscs.remove(&ifindex) {
            Qdisc::Made
        } else {
            Qdisc::Found
        };
        match clsact::detach(ifindex, qdisc, which) {
            Err(error) if !is_gone(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Says which programs of others see packets before ours, when that has changed.
    fn report_foreign(&mut self, link: &Link) {
        let known = self.known.entry(link.index).or_default();
        for (direction, reported) in Direction::ALL.into_iter().zip(&mut known.before) {
            // What cannot be read is not reported.
            let Ok(chain) = Chain::read(&self.pins, self.side, link.index, direction) else {
                continue;
            };
            let before = chain.before_ours();
            let hook = direction.name();
            if before == *reported {
                continue;
            }
            if before.is_empty() {
                info!(link = %link.name, hook, "our program is the first again");
            } else {
                warn!(
                    link = %link.name,
                    hook,
                    programs = ?before,
                    "programs of others see packets before ours and may hide them from it"
                );
            }
            *reported = before;
        }
    }

    fn tell_drain(&self) {
        if let Some(drain) = &self.drain {
            drain.links_have_ours();
        }
    }

    /// Whether a program of ours, or of an earlier agent, is on a link, as far as can be told.
    fn may_serve(&self, ifindex: u32) -> bool {
        let is_pinned = Direction::ALL.into_iter().any(|direction| {
            !matches!(pinned(&self.pins, direction, ifindex), Ok(None))
                || !matches!(last_before(&self.pins, direction, ifindex), Ok(None))
        });
        is_pinned || clsact::has_ours(ifindex).unwrap_or(false)
    }
}

impl LinkPlane for LinkHooks {
    fn link(&mut self, event: &LinkEvent, pace: Pace) -> Result<LinkState, PlaneError> {
        let must_wait = match event {
            _ if !self.is_waiting => false,
            LinkEvent::Is(_) => true,
            // Where an earlier agent serves, it goes on: without complete lists the role of a link may
            // not be known either.
            LinkEvent::Gone { index } => self.may_serve(*index),
        };
        match event {
            _ if must_wait => Ok(LinkState::Waiting),
            LinkEvent::Is(link) => self.attend(link, pace),
            LinkEvent::Gone { index } => {
                self.known.remove(index);
                self.detach(*index).map(|()| LinkState::Gone)
            }
        }
    }

    fn stop_waiting(&mut self) {
        self.is_waiting = false;
        if self.are_all_told {
            self.tell_drain();
        }
    }

    fn links_are_served(&mut self) {
        self.are_all_told = true;
        if !self.is_waiting {
            self.tell_drain();
        }
    }

    fn look(&mut self, link: &Link) -> bool {
        let Some(known) = self.known.get(&link.index) else {
            return false;
        };
        let marks = Direction::ALL.map(|direction| Mark::read(link.index, direction));
        match marks.into_iter().collect::<io::Result<Vec<_>>>() {
            Ok(marks) => marks != known.marks,
            Err(error) => {
                debug!(link = %link.name, %error, "cannot look at the programs on it");
                false
            }
        }
    }
}

/// A pinned link that is where it should be.
pub(super) struct AttachedLink {
    fd: OwnedFd,
    /// Number of its program.
    program: u32,
}

/// The pinned link, if it is on this link of this network namespace. An interface index alone
/// does not tell: the link may be gone, another have its index, or have moved with its own to
/// another namespace.
pub(super) fn pinned(pins: &Pins, direction: Direction, ifindex: u32) -> io::Result<Option<AttachedLink>> {
    let Some(fd) = pins::open(&pins.link(LinkName::Tcx(direction, ifindex)))? else {
        return Ok(None);
    };
    let info = sys::link_info(fd.as_fd())?;
    if info.target != Target::Tcx(ifindex) {
        return Ok(None);
    }
    let chain = match sys::tcx_chain(ifindex, direction) {
        // It went on to another namespace, or has just gone.
        Err(error) if is_gone(&error) => return Ok(None),
        result => result?,
    };
    let is_there = chain.entries.iter().any(|entry| entry.link == info.id);
    Ok(is_there.then_some(AttachedLink {
        fd,
        program: info.program,
    }))
}

/// Of the links of earlier agents that are in the chain of a hook, the one that comes last.
fn last_before(pins: &Pins, direction: Direction, ifindex: u32) -> io::Result<Option<OwnedFd>> {
    let paths = pins.links_before(LinkName::Tcx(direction, ifindex))?;
    if paths.is_empty() {
        return Ok(None);
    }
    let chain = match sys::tcx_chain(ifindex, direction) {
        Err(error) if is_gone(&error) => return Ok(None),
        result => result?,
    };
    let mut last = None;
    for path in paths {
        let Some(fd) = pins::open(&path)? else {
            continue;
        };
        let id = sys::link_info(fd.as_fd())?.id;
        let place = chain.entries.iter().position(|entry| entry.link == id);
        if let Some(place) = place
            && last.as_ref().is_none_or(|(before, _)| *before < place)
        {
            last = Some((place, fd));
        }
    }
    Ok(last.map(|(_, fd)| fd))
}

/// Whether an error says that the link, in the sense of an interface, is not there.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOLINK | libc::ENXIO))
}
