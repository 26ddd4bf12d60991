//! The command line: a file a verb.
//!
//! Exit codes: 0 all went well, 1 something failed and was said on standard error, 2 the command
//! line makes no sense. Those of `status` and `probe` are an answer.

mod cleanup;
mod logging;
mod monitor;
mod output;
mod places;
mod probe;
mod run;
mod services;
mod status;
mod version;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Kubernetes Services on a node: a BPF data path and the agent that keeps it true
#[derive(Debug, Parser)]
#[command(name = "lb-agent", version, arg_required_else_help = true)]
#[command(after_help = "\
Exit codes: 0 all went well, 1 something failed, 2 the command line makes no sense.")]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(Box<run::Run>),
    Cleanup(cleanup::Cleanup),
    Status(status::StatusVerb),
    Probe(Box<probe::Probe>),
    Services(services::Services),
    Monitor(monitor::Monitor),
    Version(version::Version),
}

/// Does what the command line says.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.verb {
        Verb::Run(verb) => done(verb.run()),
        Verb::Cleanup(verb) => done(verb.run()),
        Verb::Status(verb) => verb.run(),
        Verb::Probe(verb) => verb.run(),
        Verb::Services(verb) => done(verb.run()),
        Verb::Monitor(verb) => done(verb.run()),
        Verb::Version(verb) => {
            verb.run();
            Ok(ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn done(result: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_unknown_flag_is_a_usage_error_that_names_it() {
        let error = Cli::try_parse_from(["lb-agent", "run", "--no-such-flag"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("--no-such-flag"));
    }

    #[test]
    fn a_reason_that_no_packet_is_dropped_for_is_a_usage_error_that_lists_those_there_are() {
        for name in ["no_such_reason", "flow_new"] {
            let error = Cli::try_parse_from(["lb-agent", "monitor", "--reason", name]).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let said = error.to_string();
            for text in [name, "rejected", "dropped_no_local_endpoint", "dropped_unallocated"] {
                assert!(said.contains(text), "no {text} in {said}");
            }
        }
        let two = [
            "lb-agent",
            "monitor",
            "--reason",
            "rejected",
            "--reason",
            "dropped_rewrite",
        ];
        assert!(Cli::try_parse_from(two).is_ok());
    }
}
