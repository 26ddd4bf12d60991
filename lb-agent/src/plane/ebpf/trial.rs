//! Attaches loaded programs to hooks of our own, where they meet nobody: whether the kernel lets them be
//! attached shows in no other way. Nothing of it stays.

use std::{
    fs::{self, File},
    io,
    os::fd::AsFd as _,
    path::Path,
    process,
};

use anyhow::Context as _;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use tracing::warn;

use super::{
    clsact,
    object::{Programs, SOCKET_PROGRAMS},
    sys::{self, Direction},
};
use crate::{kernel::netns, plane::probe::Found};

/// What is attached to the link of the trial: one a direction, the others are of the same type.
const LINK_PROGRAMS: [(Direction, &str); 2] = [(Direction::Egress, "to_link"), (Direction::Ingress, "from_pod")];
/// The index of `lo`, the only link of a network namespace that is new.
const LOOPBACK: u32 = 1;

/// Attaches programs for links, in a network namespace that goes with it.
pub(super) fn links(programs: &Programs) -> anyhow::Result<Found> {
    let attached = match netns::in_new(|| attach_links(programs)) {
        Ok(attached) => attached,
        Err(error) => {
            return Ok(Found::Untried {
                why: format!("no network namespace of our own: {error}"),
            });
        }
    };
    attached.context("the kernel does not take programs on links")
}

fn attach_links(programs: &Programs) -> io::Result<Found> {
    for (direction, name) in LINK_PROGRAMS {
        match sys::attach_tcx(programs.get(name)?.fd(), LOOPBACK, direction, None) {
            // It goes with its descriptor.
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return attach_filters(programs),
            Err(error) => return Err(error),
        }
    }
    Ok(Found::good("attached with TCX"))
}

fn attach_filters(programs: &Programs) -> io::Result<Found> {
    for (direction, name) in LINK_PROGRAMS {
        clsact::attach(LOOPBACK, direction, programs.get(name)?.fd(), name, 0)?;
    }
    Ok(Found::good("attached with clsact filters (no TCX before kernel 6.6)"))
}

/// Attaches the programs for sockets to a cgroup that is made below `cgroup` and goes again.
pub(super) fn sockets(programs: &Programs, cgroup: &Path) -> anyhow::Result<Found> {
    // What would end the process half way waits until the cgroup is gone.
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGINT);
    ends.add(Signal::SIGTERM);
    let before = ends
        .thread_swap_mask(SigmaskHow::SIG_BLOCK)
        .context("cannot block signals")?;
    let found = attach_sockets(programs, cgroup);
    before.thread_set_mask().context("cannot unblock signals")?;
    found
}

fn attach_sockets(programs: &Programs, cgroup: &Path) -> anyhow::Result<Found> {
    let own = cgroup.join(format!("lb-agent-trial-{}", process::id()));
    if let Err(error) = fs::create_dir(&own) {
        return Ok(Found::Untried {
            why: format!("no cgroup of our own in {}: {error}", cgroup.display()),
        });
    }
    let attached = File::open(&own).and_then(|folder| {
        for (name, attach_type) in SOCKET_PROGRAMS {
            sys::attach_cgroup(programs.get(name)?.fd(), folder.as_fd(), attach_type)
                .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        }
        Ok(())
    });
    if let Err(error) = fs::remove_dir(&own) {
        warn!(cgroup = %own.display(), %error, "cannot be removed");
    }
    attached.context("the kernel does not take programs on a cgroup; `--socket-lb off` goes without")?;
    Ok(Found::good(format!("attached below {}", cgroup.display())))
}
