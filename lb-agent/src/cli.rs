//! The command line: a file a verb.
//!
//! Exit codes: 0 all is well, 1 something failed or is not as it should be, 2 it cannot be told, or the command line
//! makes no sense. Whoever closes the pipe has seen enough, and that is no failure.

mod backends;
mod cleanup;
mod completions;
mod config;
mod explain;
mod flows;
mod links;
mod logging;
mod monitor;
mod output;
mod places;
mod probe;
mod programmed;
mod protocol;
#[cfg(test)]
mod reference;
mod run;
mod services;
mod status;
mod version;

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use output::{Answer, NobodyReads};

/// Kubernetes Services on a node: a BPF data path and the agent that keeps it true
#[derive(Debug, Parser)]
#[command(name = "lb-agent", version, arg_required_else_help = true)]
#[command(after_help = "\
Exit codes: 0 all is well, 1 something failed or is not as it should be, 2 it cannot be told, or the command line makes
no sense.")]
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
    Backends(backends::Backends),
    Flows(flows::Flows),
    Links(links::Links),
    Explain(explain::Explain),
    Monitor(monitor::Monitor),
    Config(Box<config::ConfigVerb>),
    Completions(completions::Completions),
    Version(version::Version),
}

/// Does what the command line says.
#[must_use]
pub fn main() -> ExitCode {
    let mut command = Cli::command();
    let matches = command.get_matches_mut();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    // Those that do something fail; those that tell something cannot tell.
    let failed = match cli.verb {
        Verb::Run(_) | Verb::Cleanup(_) => Answer::Problem,
        _ => Answer::Unknown,
    };
    cli.verb.run(&matches).unwrap_or_else(|error| {
        if error.is::<NobodyReads>() {
            return Answer::Good.into();
        }
        eprintln!("error: {error:#}");
        failed.into()
    })
}

impl Verb {
    fn run(self, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
        match self {
            Self::Run(verb) => verb.run().map(|()| Answer::Good.into()),
            Self::Cleanup(verb) => verb.run().map(|()| Answer::Good.into()),
            Self::Status(verb) => verb.run(),
            Self::Probe(verb) => verb.run(),
            Self::Services(verb) => verb.run(),
            Self::Backends(verb) => verb.run(),
            Self::Flows(verb) => verb.run(),
            Self::Links(verb) => verb.run(),
            Self::Explain(verb) => verb.run(),
            Self::Monitor(verb) => verb.run(),
            Self::Config(verb) => {
                let (mut command, none) = (Cli::command(), ArgMatches::default());
                command.build();
                let own = command.find_subcommand("config").unwrap_or(&command);
                verb.run(own, matches.subcommand_matches("config").unwrap_or(&none))
            }
            Self::Completions(verb) => verb.run(Cli::command()),
            Self::Version(verb) => verb.run(),
        }
    }
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
