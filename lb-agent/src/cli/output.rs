//! What a verb prints: for people, or for programs.

use std::{
    fmt,
    io::{self, Write as _},
};

use clap::{Args, ValueEnum};
use serde::Serialize;

/// The flag that tells for whom.
#[derive(Debug, Args)]
pub(super) struct Output {
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

/// A form of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// One JSON object.
    Json,
    /// The same in YAML.
    Yaml,
}

impl Output {
    /// Prints it.
    pub(super) fn print(&self, object: &impl Serialize, text: &impl fmt::Display) -> anyhow::Result<()> {
        let printed = match self.output {
            Format::Text => text.to_string(),
            Format::Json => serde_json::to_string_pretty(object)?,
            Format::Yaml => serde_saphyr::to_string(object)?,
        };
        let mut out = io::stdout().lock();
        let written = writeln!(out, "{}", printed.trim_end()).and_then(|()| out.flush());
        match written {
            // Who reads has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }
}
