//! `lb-agent status`.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;

use super::{
    output::{Answer, Output},
    places::Places,
};
use crate::{
    plane::ebpf,
    status::{Seen, State},
};

/// Print how this node is served: whether an agent runs, which plane serves and why, what has failed, what the plane
/// cannot do. Works with the agent dead as well: then it is what that knew last
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 ready, 1 an agent runs but is not ready or has failures, 2 no agent runs, or its status cannot be read.")]
pub(super) struct StatusVerb {
    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    places: Places,
}

impl StatusVerb {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let paths = self.places.paths()?;
        let mut seen = Seen::at(&paths.run_dir)?;
        // Whoever may not look at programs is told the rest.
        let since = ebpf::draining_since(&paths.bpffs).ok().flatten();
        seen.draining_since = since.and_then(|since| Timestamp::try_from(since).ok());
        self.output.print(&seen, &seen.text(Timestamp::now()))?;
        Ok(match seen.state {
            State::Ready => Answer::Good,
            State::Degraded => Answer::Problem,
            State::NotRunning => Answer::Unknown,
        }
        .into())
    }
}
