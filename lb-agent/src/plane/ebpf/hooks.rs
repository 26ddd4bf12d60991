//! Attaches the programs: to links as they come and change, to the cgroup for sockets.
//!
//! A BPF link is held by its pin alone. The agent keeps no descriptor of it, so a program stays on
//! its hook when the agent goes, and goes from it when the pin does.

use std::{
    collections::HashMap,
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
    clsact,
    object::{LINK_PROGRAMS, Programs, SOCKET_PROGRAMS, link_program},
    pins::{self, LinkName, Pins},
    sys::{self, Direction, Target},
};
use crate::{
    kernel::links::{Link, LinkEvent},
    plane::PlaneError,
};

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
            foreign: HashMap::new(),
        }
    }

    /// Puts our programs in the place of those that an earlier agent left on links. What the link is
    /// by now, its next event tells; here each program is replaced by the one of its name.
    pub(super) fn adopt_links(&self) -> io::Result<()> {
        for name in self.pins.link_names()? {
            let path = self.pins.link(LinkName::parse(&name));
            match LinkName::parse(&name) {
                LinkName::Tcx(direction, ifindex) => {
                    let result = self.adopt_link(&path, direction, ifindex);
                    if !matches!(result, Ok(true)) {
                        debug!(pin = %path.display(), ?result, "unpinning a link that is no use");
                        pins::remove(&path)?;
                    }
                }
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

    /// Whether the pinned link is one of ours and alive, and now has our program.
    fn adopt_link(&self, path: &Path, direction: Direction, ifindex: u32) -> io::Result<bool> {
        let Some(link) = self.alive(path, direction, ifindex)? else {
            return Ok(false);
        };
        let current = sys::program_name(link.program)?;
        if !LINK_PROGRAMS.contains(&current.as_str()) {
            return Ok(false);
        }
        sys::update_link(link.fd.as_fd(), self.programs.get(&current)?.fd())?;
        Ok(true)
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
        let chain = sys::tcx_chain(ifindex, direction)?;
        let is_there = chain.iter().any(|entry| entry.link == info.id);
        Ok(is_there.then_some(AttachedLink {
            fd,
            program: info.program,
        }))
    }

    /// Does what the event asks for.
    pub(super) fn link(&mut self, event: &LinkEvent) -> Result<(), PlaneError> {
        match event {
            LinkEvent::Is(link) => self.attach(link),
            LinkEvent::Gone { index } => self.detach(*index),
        }
    }

    fn attach(&mut self, link: &Link) -> Result<(), PlaneError> {
        for direction in Direction::ALL {
            let program = link_program(link, direction);
            match self.attach_program(link.index, direction, program) {
                Ok(()) => self.report_foreign(link, direction),
                // It went in the meantime; its event is on the way.
                Err(error) if is_gone(&error) => {
                    debug!(link = %link.name, "gone before it had its programs");
                    return Ok(());
                }
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
        debug!(link = %link.name, index = link.index, role = ?link.role, "has its programs");
        Ok(())
    }

    fn attach_program(&mut self, ifindex: u32, direction: Direction, name: &str) -> io::Result<()> {
        let program = self.programs.get(name)?;
        let path = self.pins.link(LinkName::Tcx(direction, ifindex));
        if self.way == Way::Clsact {
            clsact::attach(ifindex, direction, program.fd(), name)?;
            return pins::remove(&path).map(drop);
        }
        if let Ok(Some(attached)) = self.alive(&path, direction, ifindex) {
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
        for direction in Direction::ALL {
            self.foreign.remove(&(ifindex, direction));
            let path = self.pins.link(LinkName::Tcx(direction, ifindex));
            pins::remove(&path).map_err(|error| kernel("unpin the programs of", error))?;
        }
        if self.way == Way::Clsact {
            match clsact::detach(ifindex) {
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
                let name = sys::program_name(entry.program).unwrap_or_default();
                format!("{name} (id {})", entry.program)
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
            let is_here = sys::link_info(fd.as_fd())?.target == Target::Cgroup(cgroup_id);
            if is_here && sys::update_link(fd.as_fd(), program.fd()).is_ok() {
                return Ok(());
            }
            pins::remove(&path)?;
        }
        let link = sys::attach_cgroup(program.fd(), cgroup, attach_type)?;
        sys::pin(link.as_fd(), &path)
    }

    /// Whether an earlier agent left programs on hooks.
    pub(super) fn are_in_use(&self) -> io::Result<bool> {
        Ok(!self.pins.link_names()?.is_empty())
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
