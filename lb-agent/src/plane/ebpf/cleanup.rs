//! Takes away every trace of the plane.

use std::{fs, path::Path};

use anyhow::Context as _;
use tracing::warn;

use super::{
    clsact,
    pins::{self, Pins},
};
use crate::kernel::nft;

/// Removes programs, maps, filters and the masquerade rule from the kernel: those pinned under
/// `bpffs`, those on the links of this network namespace. Says what it removed. Where there is
/// nothing, there is nothing to say.
pub fn cleanup(bpffs: &Path) -> anyhow::Result<Vec<String>> {
    let mut removed = Vec::new();
    // First the programs, then what they stand on.
    match Pins::new(bpffs) {
        Ok(pins) => remove_pins(&pins, &mut removed)?,
        Err(error) => warn!("nothing is pinned: {error:#}"),
    }
    for link in nix::net::if_::if_nameindex().context("cannot list the links")?.iter() {
        let name = link.name().to_string_lossy();
        match clsact::detach(link.index()) {
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
    Ok(removed)
}

fn remove_pins(pins: &Pins, removed: &mut Vec<String>) -> anyhow::Result<()> {
    for version in pins::names(pins.root())? {
        for kind in ["links", "maps"] {
            let folder = pins.root().join(&version).join(kind);
            for name in pins::names(&folder)? {
                let path = folder.join(&name);
                pins::remove(&path).with_context(|| format!("cannot unpin {}", path.display()))?;
                removed.push(format!("{} {name}", kind.trim_end_matches('s')));
            }
        }
    }
    match fs::remove_dir_all(pins.root()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", pins.root().display()))
        }
        _ => Ok(()),
    }
}
