//! `docs/cli.md`: every verb and flag, written from the code.

use std::{env, fmt::Write as _, fs};

use clap::{Arg, Command, CommandFactory as _};

use super::Cli;

/// Where it is, from the folder of the crate.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
/// A variable that has it written.
const WRITE: &str = "LB_WRITE_REFERENCE";

const HEAD: &str = "\
# Command line

Written from the code: `LB_WRITE_REFERENCE=1 cargo test -p lb-agent --lib cli::reference` writes it anew.

Exit codes of every verb: 0 all is well, 1 something failed or is not as it should be, 2 it cannot be told, or the
command line makes no sense. A pipe that nobody reads any more is no failure. `NO_COLOR` is heeded.
";

#[test]
fn the_reference_says_what_the_code_does() {
    let written = reference();
    if env::var_os(WRITE).is_some() {
        fs::write(FILE, &written).unwrap();
    }
    let found = fs::read_to_string(FILE).unwrap_or_default();
    assert!(found == written, "docs/cli.md is stale: run the tests with {WRITE}=1");
}

fn reference() -> String {
    let mut command = Cli::command();
    command.build();
    let mut text = HEAD.to_owned();
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        describe(verb, &mut text);
    }
    text
}

fn describe(verb: &Command, text: &mut String) {
    let mut put = |line: &str| writeln!(text, "{line}").unwrap();
    put(&format!("\n## lb-agent {}\n", verb.get_name()));
    let about = verb.get_long_about().or_else(|| verb.get_about());
    put(&format!("{}.\n", one_line(&about.unwrap().to_string())));
    let usage = verb.clone().render_usage().to_string();
    put(&format!(
        "```text\n{}\n```",
        usage.trim_start_matches("Usage: ").trim_end()
    ));
    let args: Vec<&Arg> = verb.get_arguments().filter(|arg| arg.get_id() != "help").collect();
    if !args.is_empty() {
        put("\n| what | meaning | variable |\n|---|---|---|");
    }
    for arg in args {
        let variable = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy()));
        let help = arg.get_long_help().or_else(|| arg.get_help());
        let mut help = one_line(&help.unwrap().to_string());
        let values = arg.get_possible_values();
        let values: Vec<&str> = values
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| value.get_name())
            .collect();
        if !values.is_empty() {
            help = format!("{help} [{}]", values.join(", "));
        }
        let cells = [format!("`{}`", name(arg)), help, variable.unwrap_or_default()];
        put(&format!(
            "| {} |",
            cells.map(|cell| cell.replace('|', "\\|")).join(" | ")
        ));
    }
    if let Some(after) = verb.get_after_help() {
        put(&format!("\n```text\n{}\n```", after.to_string().trim_end()));
    }
}

/// How it is written on a command line.
fn name(arg: &Arg) -> String {
    let values: Vec<String> = arg
        .get_value_names()
        .unwrap_or_default()
        .iter()
        .map(|name| format!("<{name}>"))
        .collect();
    let takes_value = arg.get_action().takes_values();
    let value = if takes_value { values.join(" ") } else { String::new() };
    let flags = [
        arg.get_short().map(|c| format!("-{c}")),
        arg.get_long().map(|long| format!("--{long}")),
    ];
    let flags: Vec<String> = flags.into_iter().flatten().collect();
    match (flags.is_empty(), value.is_empty()) {
        (true, _) => value,
        (false, true) => flags.join(", "),
        (false, false) => format!("{} {value}", flags.join(", ")),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
