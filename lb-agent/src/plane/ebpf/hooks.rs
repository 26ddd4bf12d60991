//! What an earlier agent left on hooks, and the programs for sockets, on the cgroup. Those for links are
//! the business of [`LinkHooks`](super::LinkHooks).
//!
//! A BPF link is held by its pin alone. The agent keeps no descriptor of it, so a program stays on
//! its hook when the agent goes, and goes from it when the pin does.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
    sync::Arc,
};

use anyhow::Context as _;
use tracing::{debug, warn};

use super::{
    clsact,
    link_hooks::{is_gone, pinned},
    object::{Programs, SOCKET_PROGRAMS},
    pins::{self, LinkName, Pins},
    sys::{self, Target},
};

/// The hooks, and what is on them.
#[derive(Debug)]
pub(super) struct Hooks {
    pins: Pins,
    programs: Arc<Programs>,
}

impl Hooks {
    /// Attaches nothing yet.
    pub(super) const fn new(pins: Pins, programs: Arc<Programs>) -> Self {
        Self { pins, programs }
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
                LinkName::Tcx(direction, ifindex) => match pinned(&self.pins, direction, ifindex) {
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
}

/// Whether an earlier agent left programs on hooks that serve.
pub(super) fn are_in_use(pins: &Pins) -> io::Result<bool> {
    for generation in pins.serving()? {
        if !pins::names(&generation.links())?.is_empty() {
            return Ok(true);
        }
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
