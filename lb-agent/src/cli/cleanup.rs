//! `lb-agent cleanup`.

use anyhow::{Context as _, bail};
use clap::Args;

use super::{
    logging,
    places::{Paths, Places},
};
use crate::{
    config::{LogFormat, LogLevel},
    plane::{PlaneName, choice},
    run_dir::RunDir,
};

/// Remove every trace of the agent from this node, of whichever plane: its maps, programs, links, filters, nftables
/// tables, IPVS services, addresses and files; sysctls that it set for BPF stay. Services stop working. Stop the agent
/// first; it is not needed for this
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
        let places = choice::Places {
            bpffs: paths.bpffs.clone(),
            run_dir: paths.run_dir.clone(),
        };
        let mut has_removed = false;
        let mut failed = Vec::new();
        for plane in PlaneName::ALL {
            match choice::clean_up(plane, &places) {
                Ok(removed) => {
                    has_removed |= !removed.is_empty();
                    for what in removed {
                        println!("removed {what}");
                    }
                }
                Err(error) => failed.push(format!("{plane}: {error:#}")),
            }
        }
        // What a plane could not restore yet, it has written down there.
        if failed.is_empty()
            && let Some(run_dir) = run_dir
        {
            has_removed |= remove_files(run_dir, &paths)?;
        }
        if !failed.is_empty() {
            bail!("{}", failed.join("\n"));
        }
        if !has_removed {
            println!("there was nothing to remove");
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
        println!("removed folder {folder}");
    }
    Ok(had_files)
}
