//! `lb-agent cleanup`.

use std::path::PathBuf;

use clap::Args;

use super::logging;
use crate::{
    config::{DEFAULT_BPFFS, LogFormat, LogLevel},
    plane::ebpf,
};

/// Remove every trace of the agent from this node: its maps, programs, links, filters and nftables
/// tables. Services stop working. Stop the agent first; it is not needed for this
#[derive(Debug, Args)]
pub(super) struct Cleanup {
    /// The BPF file system
    #[arg(long, value_name = "DIR", env = "LB_AGENT_BPFFS", default_value = DEFAULT_BPFFS)]
    bpffs: PathBuf,
}

impl Cleanup {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        logging::start(LogLevel::Warn, LogFormat::Text);
        let removed = ebpf::cleanup(&self.bpffs)?;
        for what in &removed {
            println!("removed {what}");
        }
        if removed.is_empty() {
            println!("there was nothing to remove");
        }
        Ok(())
    }
}
