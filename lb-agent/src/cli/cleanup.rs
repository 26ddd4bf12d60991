//! `lb-agent cleanup`.

use anyhow::{Context as _, bail};
use clap::Args;
use tracing::warn;

use super::{
    logging,
    output::say,
    places::{Paths, Places},
};
use crate::{
    config::{LogFormat, LogLevel},
    kernel::sysctls,
    kube_proxy::{self, active},
    plane::{PlaneName, choice},
    run_dir::RunDir,
};

/// Remove every trace of the agent from this node, of whichever plane: its maps, programs, links, filters, nftables
/// tables, IPVS services, addresses and files; sysctls that it set get the value back that they had, unless somebody
/// else has changed them since. Services stop working, unless a kube-proxy runs: then new connections are left to it first,
/// and the rest goes five seconds later. Stop the agent first; it is not needed for this
#[derive(Debug, Args)]
pub(super) struct Cleanup {
    /// Remove what kube-proxy has left on this node instead, in each of its modes: its nftables tables, its chains of
    /// iptables, its IPVS services and their link, its ipsets. Of the agent nothing is removed, and it may run. kube-proxy
    /// may not
    #[arg(long)]
    kube_proxy: bool,

    #[command(flatten)]
    places: Places,
}

impl Cleanup {
    pub(super) fn run(self) -> anyhow::Result<()> {
        logging::start(LogLevel::Warn, LogFormat::Text);
        let paths = self.places.paths()?;
        if self.kube_proxy {
            return remove_kube_proxys();
        }
        // Taken only where there is one: nothing is made to be removed again.
        let run_dir = paths
            .run_dir
            .exists()
            .then(|| RunDir::take(&paths.run_dir))
            .transpose()?;
        if active::look().is_some()
            && let Err(error) = choice::hand_over(&paths.bpffs)
        {
            // What is in the way is in the way of removing as well, which says so.
            warn!("connections are not left to kube-proxy before the programs go: {error:#}");
        }
        let mut has_removed = false;
        let mut failed = Vec::new();
        for plane in PlaneName::ALL {
            match choice::clean_up(plane, &paths.bpffs) {
                Ok(removed) => {
                    has_removed |= !removed.is_empty();
                    for what in removed {
                        say(format_args!("removed {what}"));
                    }
                }
                Err(error) => failed.push(format!("{plane}: {error:#}")),
            }
        }
        // Last: what was forwarded for services needs it no more.
        for setting in sysctls::restore(&paths.run_dir).context("the sysctls are left alone")? {
            say(format_args!("sysctl {setting}"));
            has_removed = true;
            if matches!(setting.end, sysctls::End::Failed(_)) {
                failed.push(format!("sysctl {setting}: run this again once it can be put back"));
            }
        }
        // What could not be put back is written down there.
        if failed.is_empty()
            && let Some(run_dir) = run_dir
        {
            has_removed |= remove_files(run_dir, &paths)?;
        }
        if !failed.is_empty() {
            bail!("{}", failed.join("\n"));
        }
        if !has_removed {
            say("there was nothing to remove");
        }
        Ok(())
    }
}

/// Removes what kube-proxy has left, and tells of it.
fn remove_kube_proxys() -> anyhow::Result<()> {
    if let Some(evidence) = active::look() {
        bail!("kube-proxy still runs on this node ({evidence}) and would put everything back: stop it first");
    }
    let leftovers = kube_proxy::remove();
    for what in &leftovers.removed {
        println!("removed {what}");
    }
    for what in &leftovers.kept {
        println!("left alone: {what}");
    }
    if !leftovers.failed.is_empty() {
        bail!("{}", leftovers.failed.join("\n"));
    }
    if leftovers.removed.is_empty() {
        println!("there was nothing of kube-proxy's to remove");
    }
    Ok(())
}

fn remove_files(run_dir: RunDir, paths: &Paths) -> anyhow::Result<bool> {
    let folder = paths.run_dir.display();
    let had_files = run_dir
        .remove()
        .with_context(|| format!("cannot remove the folder {folder}"))?;
    if had_files {
        say(format_args!("removed folder {folder}"));
    }
    Ok(had_files)
}
