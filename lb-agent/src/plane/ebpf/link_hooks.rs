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
    clsact::{self, Qdisc},
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
}

/// The links, and what is on them.
#[derive(Debug)]
pub struct LinkHooks {
    pins: Pins,
    programs: Arc<Programs>,
    way: Way,
    /// Programs of an earlier agent serve from its own maps: they stay until ours are filled.
    is_waiting: bool,
    /// Links whose clsact qdisc we made; another's stays when our programs go.
    made_qdiscs: HashSet<u32>,
    /// Programs of others that run before ours, as last reported.
    foreign: HashMap<(u32, Direction), Vec<String>>,
    _lock: Arc<Lock>,
}

impl LinkHooks {
    /// Attaches nothing yet. `force_clsact` is for tests of what older kernels do.
    pub(super) fn new(
        pins: Pins,
        programs: Arc<Programs>,
        is_waiting: bool,
        force_clsact: bool,
        lock: Arc<Lock>,
    ) -> Self {
        Self {
            pins,
            programs,
            way: if force_clsact { Way::Clsact } else { Way::TcxIfThere },
            is_waiting,
            made_qdiscs: HashSet::new(),
            foreign: HashMap::new(),
            _lock: lock,
        }
    }

    fn attach(&mut self, link: &Link, pace: Pace) -> Result<LinkState, PlaneError> {
        let mut state = LinkState::Served;
        for direction in ATTACH_ORDER {
            let program = link_program(link, direction);
            match self.attach_program(link.index, direction, program, pace) {
                Ok(Attached::ToStay) => {}
                Ok(Attached::InHaste) => state = LinkState::ServedInHaste,
                // It went in the meantime; its event is on the way.
                Err(error) if is_gone(&error) => return Ok(LinkState::Gone),
                Err(source) => {
                    return Err(PlaneError::Kernel {
                        what: format!(
                            "attach program {program} to the {} of link {}",
                            direction.name(),
                            link.name
                        ),
                        source,
                    });
                }
            }
        }
        if self.way != Way::Clsact && state == LinkState::Served {
            self.remove_filters(link.index).map_err(|source| PlaneError::Kernel {
                what: format!("take filters off link {}", link.name),
                source,
            })?;
        }
        for direction in ATTACH_ORDER {
            self.report_foreign(link, direction);
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
        let path = self.pins.link(LinkName::Tcx(direction, ifindex));
        pins::remove(&path)?;
        let program = self.programs.get(name)?;
        match sys::attach_tcx(program.fd(), ifindex, direction) {
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
        if clsact::attach(ifindex, direction, program.fd(), name)? == Qdisc::Made {
            self.made_qdiscs.insert(ifindex);
        }
        pins::remove(&self.pins.link(LinkName::Tcx(direction, ifindex))).map(drop)
    }

    fn detach(&mut self, ifindex: u32) -> Result<(), PlaneError> {
        let kernel = |what: &str, source| PlaneError::Kernel {
            what: format!("{what} link with index {ifindex}"),
            source,
        };
        for direction in DETACH_ORDER {
            self.foreign.remove(&(ifindex, direction));
            let path = self.pins.link(LinkName::Tcx(direction, ifindex));
            pins::remove(&path).map_err(|error| kernel("unpin the programs of", error))?;
        }
        self.remove_filters(ifindex)
            .map_err(|error| kernel("take the filters off", error))
    }

    /// Takes our filters off a link, whoever of us put them there.
    fn remove_filters(&mut self, ifindex: u32) -> io::Result<()> {
        let qdisc = if self.made_qdiscs.remove(&ifindex) {
            Qdisc::Made
        } else {
            Qdisc::Found
        };
        match clsact::detach(ifindex, qdisc) {
            Err(error) if !is_gone(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Says which programs of others run before ours, when that has changed.
    fn report_foreign(&mut self, link: &Link, direction: Direction) {
        // Only for the report: what cannot be read is not reported.
        let foreign = self.before_ours(link.index, direction).unwrap_or_default();
        let hook = (link.index, direction);
        if foreign.is_empty() {
            self.foreign.remove(&hook);
        } else if self.foreign.get(&hook) != Some(&foreign) {
            warn!(
                link = %link.name,
                hook = direction.name(),
                programs = ?foreign,
                "programs of others run before ours and may hide packets from it"
            );
            self.foreign.insert(hook, foreign);
        }
    }

    fn before_ours(&self, ifindex: u32, direction: Direction) -> io::Result<Vec<String>> {
        if self.way == Way::Clsact {
            let chain = clsact::chain(ifindex, direction)?;
            let before = chain.into_iter().take_while(|filter| !filter.is_ours());
            return Ok(before.map(|filter| filter.name).collect());
        }
        let path = self.pins.link(LinkName::Tcx(direction, ifindex));
        let Some(fd) = pins::open(&path)? else {
            return Ok(Vec::new());
        };
        let ours = sys::link_info(fd.as_fd())?.id;
        let chain = sys::tcx_chain(ifindex, direction)?;
        let before = chain.into_iter().take_while(|entry| entry.link != ours);
        Ok(before
            .map(|entry| {
                // The name takes CAP_SYS_ADMIN.
                match sys::program_name(entry.program) {
                    Ok(name) => format!("{name} (id {})", entry.program),
                    Err(_) => format!("id {}", entry.program),
                }
            })
            .collect())
    }

    /// Whether a program of ours, or of an earlier agent, is on a link, as far as can be told.
    fn may_serve(&self, ifindex: u32) -> bool {
        let is_pinned = Direction::ALL
            .into_iter()
            .any(|direction| !matches!(pinned(&self.pins, direction, ifindex), Ok(None)));
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
            LinkEvent::Is(link) => self.attach(link, pace),
            LinkEvent::Gone { index } => self.detach(*index).map(|()| LinkState::Gone),
        }
    }

    fn stop_waiting(&mut self) {
        self.is_waiting = false;
    }

    fn look(&mut self, _link: &Link) -> bool {
        false
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
    let is_there = chain.iter().any(|entry| entry.link == info.id);
    Ok(is_there.then_some(AttachedLink {
        fd,
        program: info.program,
    }))
}

/// Whether an error says that the link, in the sense of an interface, is not there.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOLINK | libc::ENXIO))
}
