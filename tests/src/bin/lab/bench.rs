//! `lab bench`
use clap::Subcommand;
/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// x
    Programming,
}
pub(crate) fn run(_: &Verb) -> anyhow::Result<()> {
    Ok(())
}
