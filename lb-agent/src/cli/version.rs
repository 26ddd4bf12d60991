//! `lb-agent version`.

use clap::Args;
use lb_common::maps::LAYOUT_VERSION;

/// Print the version, and that of the layout of the pinned maps
#[derive(Debug, Args)]
pub(super) struct Version {}

impl Version {
    pub(super) fn run(&self) {
        println!("lb-agent {}", env!("CARGO_PKG_VERSION"));
        println!("map layout {LAYOUT_VERSION}");
    }
}
