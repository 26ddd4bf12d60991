//! `lab bench`: measures, and prints what it measured. Nothing here passes or fails.

mod links;
mod objects;
mod plane;
mod programming;
mod services_map;

use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// From a write to the API server to what the kernel holds: many Services at once, a start, and single changes
    Programming(programming::Args),
    /// Links of pods that come and go fast: how soon they are served, what is left of them, and how services fare
    Links(links::Args),
    /// The plane under test with few services and with many: a cold start, a restart, and single changes
    Plane(plane::Args),
}

/// Measures it.
pub(crate) fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Programming(args) => programming::run(args),
        Verb::Links(args) => links::run(args),
        Verb::Plane(args) => plane::run(args),
    }
}

/// Of sorted values, the one that so many of a hundred do not exceed.
fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or_default()
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(quantile(&values, 50), Duration::from_millis(100));
        assert_eq!(quantile(&values, 99), Duration::from_millis(198));
        assert_eq!(quantile(&values, 100), Duration::from_millis(200));
        assert_eq!(quantile(&[], 50), Duration::ZERO);
    }
}
