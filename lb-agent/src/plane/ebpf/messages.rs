//! Messages of the BPF programs, for an object that was built with them
//! (`cargo xtask build-ebpf --log`).

use std::{os::fd::AsFd as _, thread};

use anyhow::Context as _;
use aya::Ebpf;
use aya_log::EbpfLogger;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The map that such an object has.
const MAP: &str = "AYA_LOGS";

/// Passes the messages on to the log of the agent, from a thread of their own.
pub(super) fn follow(ebpf: &mut Ebpf) -> anyhow::Result<()> {
    if ebpf.map(MAP).is_none() {
        return Ok(());
    }
    let mut logger = EbpfLogger::init(ebpf).context("the messages of the BPF programs cannot be read")?;
    thread::Builder::new()
        .name("bpf-messages".to_owned())
        .spawn(move || {
            loop {
                let mut fds = [PollFd::new(logger.as_fd(), PollFlags::POLLIN)];
                // Interrupted or not: what is there is read.
                let _ = poll(&mut fds, PollTimeout::NONE);
                logger.flush();
            }
        })
        .context("no thread for the messages of the BPF programs")?;
    Ok(())
}
