//! Attaches the programs: to links as they come and change, to the cgroup for sockets.
//!
//! A BPF link is held by its pin alone. The agent keeps no descriptor of it, so a program stays on
//! its hook when the agent goes, and goes from it when the pin does.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
};

use anyhow::Context as _;
use tracing::{debug, info, warn};

use super::{
    clsact::{self, Qdisc},
    object::{Programs, SOCKET_PROGRAMS, link_program},
    pins::{self, LinkName, Pins},
    sys::{self, Direction, Target},
};
use crate::{
    kernel::links::{Link, LinkEvent},
    plane::{LinkState, PlaneError},
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

/// The hooks, and what is on them.
#[derive(Debug)]
pub(super) struct Hooks {
    pins: Pins,
    programs: Programs,
    way: Way,
    /// Links whose clsact qdisc we made; another's stays when our programs go.
    made_qdiscs: HashSet<u32>,
    /// Programs of others that run before ours, as last reported.
    foreign: HashMap<(u32, Direction), Vec<String>>,
}

impl Hooks {
    /// Attaches nothing yet. `force_clsact` is for tests of what older kernels do.
    pub(super) fn new(pins: Pins, programs: Programs, force_clsact: bool) -> Self {
        Self {
            pins,
            programs,
            way: if force_clsact { Way::Clsact } else { Way::TcxIfThere },
            made_qdiscs: HashSet::new(),
            foreign: HashMap::new(),
        }
    }

    /// Unpins what an earlier agent left and is certainly no use any more: links that have lost their
    /// hook. A program that is on its hook serves on until the next event of its link, which each link
    /// has soon after a start, tells which of ours takes its place. So nobody has to ask the kernel
    /// what program it is, which takes `CAP_SYS_ADMIN`. What cannot be told is left alone: to unpin it
    /// might be to stop what serves.
    pub(super) fn unpin_useless(&self) -> io::Result<()> {
        for name in self.pins.link_names()? {
            let path = self.pins.link(LinkName::parse(&name));
            match LinkName::parse(&name) {
                LinkName::Tcx(direction, ifindex) => match self.alive(&path, direction, ifindex) {
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        debug!(pin = %path.display(), "unpinning a link that is no use");
                        pins::remove(&path)?;
                    }
                    Err(error) => {
                        warn!(pin = %path.display(), %error, "left as it is: cannot tell whether it is of use");
                    }
                },
                LinkName::Cgroup(program) => {
                    // Known ones have their turn with `attach_sockets`.
                    if SOCKET_PROGRAMS.iter().all(|(known, _)| *known != program) {
                        warn!(pin = %path.display(), "unpinning a link that we do not know");
                        pins::remove(&path)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The pinned link, if it is on this link of this network namespace. An interface index alone
    /// does not tell: the link may be gone, another have its index, or have moved with its own to
    /// another namespace.
    fn alive(&self, path: &Path, direction: Direction, ifindex: u32) -> io::Result<Option<AttachedLink>> {
        let Some(fd) = pins::open(path)? else {
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

    /// Does what the event asks for.
    pub(super) fn link(&mut self, event: &LinkEvent) -> Result<LinkState, PlaneError> {
        match event {
            LinkEvent::Is(link) => self.attach(link),
            LinkEvent::Gone { index } => self.detach(*index).map(|()| LinkState::Gone),
        }
    }

    fn attach(&mut self, link: &Link) -> Result<LinkState, PlaneError> {
        for direction in ATTACH_ORDER {
            let program = link_program(link, direction);
            match self.attach_program(link.index, direction, program) {
                Ok(()) => self.report_foreign(link, direction),
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
        Ok(LinkState::Served)
    }

    fn attach_program(&mut self, ifindex: u32, direction: Direction, name: &str) -> io::Result<()> {
        let program = self.programs.get(name)?;
        let path = self.pins.link(LinkName::Tcx(direction, ifindex));
        if self.way == Way::Clsact {
            if clsact::attach(ifindex, direction, program.fd(), name)? == Qdisc::Made {
                self.made_qdiscs.insert(ifindex);
            }
            return pins::remove(&path).map(drop);
        }
        if let Some(attached) = self.alive(&path, direction, ifindex)? {
            if attached.program == program.id {
                return Ok(());
            }
            return sys::update_link(attached.fd.as_fd(), program.fd());
        }
        pins::remove(&path)?;
        match sys::attach_tcx(program.fd(), ifindex, direction) {
            Ok(fd) => {
                self.way = Way::Tcx;
                sys::pin(fd.as_fd(), &path)
            }
            Err(error) if self.way == Way::TcxIfThere && error.raw_os_error() == Some(libc::EINVAL) => {
                info!("this kernel has no TCX (before 6.6): using the clsact qdisc");
                self.way = Way::Clsact;
                self.attach_program(ifindex, direction, name)
            }
            Err(error) => Err(error),
        }
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
        // Before the first attach it is not known what an earlier agent used.
        if self.way != Way::Tcx {
            let qdisc = if self.made_qdiscs.remove(&ifindex) {
                Qdisc::Made
            } else {
                Qdisc::Found
            };
            match clsact::detach(ifindex, qdisc) {
                Err(error) if !is_gone(&error) => {
                    return Err(kernel("detach the programs of", error));
                }
                _ => {}
            }
        }
        Ok(())
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

    /// Attaches the socket programs to the cgroup, or with `None` takes them off.
    pub(super) fn attach_sockets(&self, cgroup: Option<&Path>) -> anyhow::Result<()> {
        let Some(cgroup) = cgroup else {
            for (name, _) in SOCKET_PROGRAMS {
                pins::remove(&self.pins.link(LinkName::Cgroup(name)))?;
            }
            return Ok(());
        };
        let folder = File::open(cgroup).with_context(|| format!("cgroup {}", cgroup.display()))?;
        // The kernel's number of a cgroup is the number of its folder.
        let id = folder.metadata()?.ino();
        for (name, attach_type) in SOCKET_PROGRAMS {
            self.attach_socket(name, attach_type, folder.as_fd(), id)
                .with_context(|| {
                    format!(
                        "cannot attach program {name} to cgroup {}; `--socket-lb off` goes without",
                        cgroup.display()
                    )
                })?;
        }
        Ok(())
    }

    fn attach_socket(
        &self,
        name: &str,
        attach_type: aya_obj::generated::bpf_attach_type,
        cgroup: BorrowedFd<'_>,
        cgroup_id: u64,
    ) -> io::Result<()> {
        let program = self.programs.get(name)?;
        let path = self.pins.link(LinkName::Cgroup(name));
        if let Some(fd) = pins::open(&path)? {
            if sys::link_info(fd.as_fd())?.target == Target::Cgroup(cgroup_id) {
                return sys::update_link(fd.as_fd(), program.fd());
            }
            pins::remove(&path)?;
        }
        let link = sys::attach_cgroup(program.fd(), cgroup, attach_type)?;
        sys::pin(link.as_fd(), &path)
    }

    /// Whether a program of ours, or of an earlier agent, is on a link, as far as can be told.
    pub(super) fn may_serve(&self, ifindex: u32) -> bool {
        let is_pinned = Direction::ALL.into_iter().any(|direction| {
            let path = self.pins.link(LinkName::Tcx(direction, ifindex));
            !matches!(self.alive(&path, direction, ifindex), Ok(None))
        });
        is_pinned || clsact::has_ours(ifindex).unwrap_or(false)
    }

    /// Whether an earlier agent left programs on hooks.
    pub(super) fn are_in_use(&self) -> io::Result<bool> {
        if !self.pins.link_names()?.is_empty() {
            return Ok(true);
        }
        // Filters have no pins.
        for link in nix::net::if_::if_nameindex()?.iter() {
            match clsact::has_ours(link.index()) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// A pinned link that is where it should be.
struct AttachedLink {
    fd: OwnedFd,
    /// Number of its program.
    program: u32,
}

/// Whether an error says that the link, in the sense of an interface, is not there.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOLINK | libc::ENXIO))
}
