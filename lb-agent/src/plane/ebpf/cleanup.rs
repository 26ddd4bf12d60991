//! Takes away every trace of the plane.

use std::{fs, path::Path};

use anyhow::Context as _;
use tracing::warn;

use super::{
    clsact::{self, Qdisc, Which},
    pins::{self, Pins},
};
use crate::kernel::{capabilities, nft};

/// Removes programs, maps, filters and the masquerade rule from the kernel: those pinned under
/// `bpffs`, those on the links of this network namespace. Says what it removed. Where there is
/// nothing, there is nothing to say.
///
/// # Errors
/// An agent holds it, or something cannot be removed.
pub fn cleanup(bpffs: &Path) -> anyhow::Result<Vec<String>> {
    let pins = Pins::new(bpffs);
    if let Err(error) = &pins {
        warn!("nothing is pinned: {error:#}");
    }
    // Who made the qdisc of a filter of ours is not known any more. If nothing else is on it, it is most likely ours, and
    // empty in any case.
    remove(pins.ok(), Qdisc::Made)
}

/// The same for an agent of another plane, which may have no `bpffs` and no use for one. Traffic goes on meanwhile, so the
/// clsact qdisc of a link stays, empty: many a kernel takes the link down for packets while one goes (6.1 does, by
/// `dev_deactivate`).
///
/// # Errors
/// As for [`cleanup`].
pub fn remove_leftovers(bpffs: &Path) -> anyhow::Result<Vec<String>> {
    remove(Pins::new(bpffs).ok(), Qdisc::Found)
}

fn remove(pins: Option<Pins>, qdisc: Qdisc) -> anyhow::Result<Vec<String>> {
    capabilities::check_to_clean_up()?;
    let mut removed = Vec::new();
    // Makes the folder where there is none, so that an agent that starts meanwhile is told.
    let lock = pins.as_ref().map(Pins::lock).transpose()?;
    // First the programs, then what they stand on.
    if let Some(pins) = &pins {
        remove_pins(pins, &mut removed)?;
    }
    for link in nix::net::if_::if_nameindex().context("cannot list the links")?.iter() {
        let name = link.name().to_string_lossy();
        match clsact::detach(link.index(), qdisc, Which::All) {
            Ok(filters) => {
                removed.extend(filters.into_iter().map(|filter| format!("filter {filter} on {name}")));
            }
            // Gone in the meantime, or of a kind that has no qdiscs.
            Err(error) => warn!(link = %name, %error, "cannot look for filters"),
        }
    }
    if nft::remove()? {
        removed.push(format!("nft table {}", nft::TABLE));
    }
    // Last, since an agent may start when its lock has gone with it.
    if let Some(pins) = &pins {
        remove_folder(pins.root())?;
    }
    drop(lock);
    Ok(removed)
}

/// Unpins links, then maps.
fn remove_pins(pins: &Pins, removed: &mut Vec<String>) -> anyhow::Result<()> {
    let names = |folder: &Path| pins::names(folder).with_context(|| format!("cannot read {}", folder.display()));
    // Those that drain last: what ours let pass meanwhile, they do too.
    let mut folders = Vec::new();
    for (generations, [link, map]) in [
        (pins.serving()?, ["link", "map"]),
        (pins.drained()?, ["draining link", "draining map"]),
    ] {
        for generation in generations {
            folders.extend([(link, generation.links()), (map, generation.maps())]);
        }
    }
    folders.push(("unfilled map", pins.unfilled_maps()));
    for (kind, folder) in folders {
        for name in names(&folder)? {
            let path = folder.join(&name);
            pins::remove(&path).with_context(|| format!("cannot unpin {}", path.display()))?;
            removed.push(format!("{kind} {name}"));
        }
    }
    Ok(())
}

fn remove_folder(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
