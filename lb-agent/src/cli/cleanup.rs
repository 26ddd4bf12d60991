//! `lb-agent cleanup`.

use anyhow::{Context as _, bail};
use clap::Args;

use super::{
    logging,
    output::say,
    places::{Paths, Places},
};
use crate::{
    config::{LogFormat, LogLevel},
    kernel::sysctls,
    plane::{PlaneName, choice},
    run_dir::RunDir,
};

/// Remove every trace of the agent from this node, of whichever plane: its maps, programs, links, filters, nftables
/// tables, IPVS services, addresses and files; sysctls that it set get the value back that they had, unless somebody
/// else has changed them since. Services stop working. Stop the agent first; it is not needed for this
#[derive(Debug, Args)]
pub(super) struct Cleanup {
    #[command(flatten)]
    places: Places,
}

impl Cleanup {
    pub(super) fn run(self) -> anyhow::Result<()> {
        logging::start(LogLevel::Warn, LogFormat::Text);
        let paths = self.places.paths()?;
        // Taken only where there is one: nothing is made to be removed again.
        let run_dir = paths
            .run_dir
            .exists()
            .then(|| RunDir::take(&paths.run_dir))
            .transpose()?;
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
