//! `lb-agent services`.

use std::io::{self, BufWriter, Write as _};

use anyhow::bail;
use clap::Args;

use super::places::Places;
use crate::plane::{ebpf, ipvs, shown::Shown};

/// Print what is served on this node, one line a frontend: where it leads, and for whom. It is read from the kernel,
/// beside a running agent or without one, from whichever plane is there. Changes nothing
#[derive(Debug, Args)]
#[command(after_help = "\
A line names a frontend and where its clients go: `to=`, or `near=` (clients on this node) and `far=`
where they differ. `*` marks an endpoint on this node; the unspecified address stands for each that
serves NodePorts. Lines of addresses and networks follow. Where the kernel's entries contradict each
other, the line says so: `error=\"…\"`.")]
pub(super) struct Services {
    #[command(flatten)]
    places: Places,
}

impl Services {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let lines = self.read()?;
        let mut out = BufWriter::new(io::stdout().lock());
        let written = lines
            .iter()
            .try_for_each(|shown| writeln!(out, "{shown}"))
            .and_then(|()| out.flush());
        match written {
            // Who reads has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }

    fn read(self) -> anyhow::Result<Vec<Shown>> {
        let bpffs = self.places.paths()?.bpffs;
        // Where both are there, one is about to go, and packets come to the programs first.
        let maps = ebpf::inspect(&bpffs);
        if maps.is_ok() || ebpf::has_maps(&bpffs) {
            return maps;
        }
        match (ipvs::inspect(), maps) {
            (Ok(Some(lines)), _) => Ok(lines),
            (Ok(None), Err(error)) => bail!("nothing is programmed on this node: {error:#}; and nothing in IPVS"),
            (Err(ipvs), Err(ebpf)) => bail!("nothing can be read: {ebpf:#}; and of IPVS: {ipvs:#}"),
            (_, Ok(lines)) => Ok(lines),
        }
    }
}
