//! What is programmed on this node, by whichever plane.

use std::path::Path;

use anyhow::{Context as _, bail};

use crate::plane::{ebpf, ipvs, shown::Shown};

/// The lines that the kernel holds, whether an agent runs or not.
///
/// # Errors
/// There are none, or they cannot be read.
pub(super) fn lines(bpffs: &Path) -> anyhow::Result<Vec<Shown>> {
    // Where both are there, one is about to go, and packets come to the programs first.
    let maps = ebpf::inspect(bpffs);
    if maps.is_ok() || ebpf::has_maps(bpffs) {
        return maps;
    }
    match (ipvs::inspect(), maps) {
        (Ok(Some(lines)), _) => Ok(lines),
        (Ok(None), Err(error)) => bail!("nothing is programmed on this node: {error:#}; and nothing in IPVS"),
        (Err(ipvs), Err(ebpf)) => bail!("nothing can be read: {ebpf:#}; and of IPVS: {ipvs:#}"),
        (_, Ok(lines)) => Ok(lines),
    }
}

/// What only programs can tell.
///
/// # Errors
/// As `told` has them; where IPVS serves instead, that this is so, and `instead`.
pub(super) fn by_programs<T>(
    bpffs: &Path,
    instead: &str,
    told: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if !ebpf::has_maps(bpffs) && matches!(ipvs::inspect(), Ok(Some(_))) {
        bail!("not on the plane ipvs, which serves this node: {instead}");
    }
    told().context("nothing can be told")
}
