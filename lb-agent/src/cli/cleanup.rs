//! `lb-agent cleanup`.

use clap::Args;

use super::{bpffs::Bpffs, logging};
use crate::{
    config::{LogFormat, LogLevel},
    plane::ebpf,
};

/// Remove every trace of the agent from this node: its maps, programs, links, filters and nftables
/// table; sysctls that it set stay. Services stop working. Stop the agent first; it is not needed for this
#[derive(Debug, Args)]
pub(super) struct Cleanup {
    #[command(flatten)]
    bpffs: Bpffs,
}

impl Cleanup {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        logging::start(LogLevel::Warn, LogFormat::Text);
        let removed = ebpf::cleanup(&self.bpffs.path()?)?;
        for what in &removed {
            println!("removed {what}");
        }
        if removed.is_empty() {
            println!("there was nothing to remove");
        }
        Ok(())
    }
}
