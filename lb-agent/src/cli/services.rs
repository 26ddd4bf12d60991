//! `lb-agent services`.

use std::io::{self, BufWriter, Write as _};

use clap::Args;

use super::bpffs::Bpffs;
use crate::plane::ebpf;

/// Print what is served on this node, one line a frontend: where it leads, and for whom. Changes nothing,
/// and works beside a running agent as well as without one
#[derive(Debug, Args)]
#[command(after_help = "\
A line names a frontend and where its clients go: `to=`, or `near=` (clients on this node) and `far=`
where they differ. `*` marks an endpoint on this node; the unspecified address stands for each that
serves NodePorts. Lines of addresses and networks follow. Where rows of the maps contradict each other,
the line says so: `error=\"…\"`.")]
pub(super) struct Services {
    /// Read it from the maps that are pinned in the kernel: what the data path goes by
    #[arg(long, required = true)]
    maps: bool,

    #[command(flatten)]
    bpffs: Bpffs,
}

impl Services {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = ebpf::inspect(&self.bpffs.path()?)?
            .iter()
            .try_for_each(|shown| writeln!(out, "{shown}"))
            .and_then(|()| out.flush());
        match written {
            // Who reads has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }
}
