//! `lab controlplane`: a real API server to play with.

use anyhow::Result;
use clap::Subcommand;
use lb_tests::controlplane::{self, DownOptions, UpOptions};

/// What to do with it.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Starts etcd and kube-apiserver on loopback, and says how to use kubectl against them
    Up {
        /// The port to listen at [default: a free one]
        #[arg(long)]
        port: Option<u16>,
    },
    /// Ends them
    Down,
}

/// Does it.
pub(crate) fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Up { port } => controlplane::up(&UpOptions {
            port: *port,
            ..UpOptions::default()
        }),
        Verb::Down => controlplane::down(&DownOptions::default()),
    }
}
