//! `lb-agent cleanup`.

use std::path::Path;

use anyhow::{Context as _, bail};
use clap::Args;

use super::{bpffs::Bpffs, logging};
use crate::{
    config::{LogFormat, LogLevel},
    kernel::sysctls,
    plane::ebpf,
};

/// Remove every trace of the agent from this node: its maps, programs, links, filters and nftables
/// table; sysctls that it set get the value back that they had, unless somebody else has changed them
/// since. Services stop working. Stop the agent first; it is not needed for this
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
        // Last: what was forwarded for services needs it no more.
        let restored = sysctls::restore(Path::new(sysctls::DEFAULT_RUN_DIR)).context("the sysctls are left alone")?;
        for setting in &restored {
            println!("sysctl {setting}");
        }
        if removed.is_empty() && restored.is_empty() {
            println!("there was nothing to remove");
        }
        let failed = restored
            .iter()
            .filter(|setting| matches!(setting.end, sysctls::End::Failed(_)));
        match failed.count() {
            0 => Ok(()),
            count => bail!("{count} sysctls could not be put back: run this again once they can be"),
        }
    }
}
