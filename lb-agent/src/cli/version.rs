//! `lb-agent version`.

use std::{fmt, process::ExitCode};

use clap::Args;
use lb_common::maps::LAYOUT_VERSION;
use serde::Serialize;

use super::output::{Answer, Output};

/// Print the version, and that of the layout of the pinned maps
#[derive(Debug, Args)]
pub(super) struct Version {
    #[command(flatten)]
    output: Output,
}

/// What is printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    version: &'static str,
    map_layout: u32,
}

impl Version {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let versions = Versions {
            version: env!("CARGO_PKG_VERSION"),
            map_layout: LAYOUT_VERSION,
        };
        self.output.print(&versions, &versions)?;
        Ok(Answer::Good.into())
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "lb-agent {}", self.version)?;
        writeln!(f, "map layout {}", self.map_layout)
    }
}
