//! `lb-agent probe`.

use std::process::ExitCode;

use clap::Args;

use super::{
    logging,
    output::{Answer, Output},
};
use crate::{
    config::{Arguments, LogFormat, LogLevel},
    plane::choice,
};

/// Print what this node can do for each plane, what it lacks and what to do about it, and which plane `lb-agent run`
/// would choose with the same settings. All of it is tried: programs are loaded, and attached where they meet nobody.
/// Nothing of it stays, and what serves is not touched
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 a plane can be run that the settings allow, 1 none can, 2 the settings make no sense.")]
pub(super) struct Probe {
    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    arguments: Arguments,
}

impl Probe {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (config, warnings) = self.arguments.resolve()?;
        logging::start(LogLevel::Warn, LogFormat::Text);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let report = choice::probe(config.plane, &config.plane_options()?);
        self.output.print(&report, &report)?;
        let is_good = report.chosen.is_some();
        Ok(if is_good { Answer::Good } else { Answer::Problem }.into())
    }
}
