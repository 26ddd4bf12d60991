//! `lab bench`: measures, and prints what it measured. Nothing here passes or fails.

mod objects;
mod programming;
mod services_map;

use anyhow::Result;
use clap::Subcommand;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// From a write to the API server to what the kernel holds: many Services at once, a start, and single changes
    Programming(programming::Args),
}

/// Measures it.
pub(crate) fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Programming(args) => programming::run(args),
    }
}
