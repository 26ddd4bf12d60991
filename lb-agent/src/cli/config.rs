//! `lb-agent config`.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use clap::{ArgMatches, Args, Command, parser::ValueSource};
use serde::Serialize;
use serde_json::Value;

use super::output::{Answer, Output, columns};
use crate::config::{Config, Settings};

/// Print each setting of `lb-agent run` as it comes out of flags, environment and file, and which of them it is from.
/// Given the same of them as `run`, it says what that would do
#[derive(Debug, Args)]
#[command(after_help = "\
A default is shown as `lb-agent run --help` has it. Of a URL, name and password are left out.

Exit codes: 0 they can be run with, 1 they make no sense together, 2 they cannot be read.")]
pub(super) struct ConfigVerb {
    #[command(flatten)]
    output: Output,

    /// Settings that are not given as flags or in the environment, as YAML
    #[arg(long, value_name = "FILE", env = "LB_AGENT_CONFIG")]
    config: Option<PathBuf>,

    #[command(flatten)]
    settings: Settings,
}

/// Where a setting is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum From {
    Flag,
    Environment,
    File,
    Default,
}

/// A setting as it comes out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Setting {
    /// As a field of the file.
    name: String,
    value: String,
    from: From,
}

impl ConfigVerb {
    /// `command` and `matches` are those of this verb.
    pub(super) fn run(self, command: &Command, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
        let (file, of_file) = match &self.config {
            Some(path) => {
                let (fields, settings) = read(path).with_context(|| format!("--config {}", path.display()))?;
                (fields, Some(settings))
            }
            None => (BTreeMap::new(), None),
        };
        let settings = settings(command, matches, &file);
        self.output.print(&settings, &Table(&settings))?;
        let all = match of_file {
            Some(of_file) => self.settings.or(of_file),
            None => self.settings,
        };
        if let Err(error) = Config::new(all) {
            eprintln!("error: {error:#}");
            return Ok(Answer::Problem.into());
        }
        Ok(Answer::Good.into())
    }
}

/// The fields of a file, as they are written, and what they mean.
fn read(path: &Path) -> anyhow::Result<(BTreeMap<String, Value>, Settings)> {
    let text = fs::read_to_string(path)?;
    let fields: Option<BTreeMap<String, Value>> = serde_saphyr::from_str(&text)?;
    let fields = fields.unwrap_or_default();
    if fields.contains_key("apiVersion") {
        bail!(
            "a file of kube-proxy's has none of the settings as they are named here: docs/configuration.md has what it comes to"
        );
    }
    Ok((fields, Settings::parse(&text)?))
}

fn settings(command: &Command, matches: &ArgMatches, file: &BTreeMap<String, Value>) -> Vec<Setting> {
    let settings = command.get_arguments().filter(|arg| {
        let is_setting = arg.get_env().is_some() && arg.get_id() != "config";
        is_setting && matches.try_contains_id(arg.get_id().as_str()).is_ok()
    });
    settings
        .map(|arg| {
            let id = arg.get_id().as_str();
            let name = camel_case(id);
            let given = || {
                let values = matches.get_raw(id).into_iter().flatten();
                let values: Vec<_> = values.map(|value| value.to_string_lossy().into_owned()).collect();
                values.join(",")
            };
            let (value, from) = match (matches.value_source(id), file.get(&name)) {
                (Some(ValueSource::CommandLine), _) => (given(), From::Flag),
                (Some(ValueSource::EnvVariable), in_file) if !given().is_empty() || in_file.is_none() => {
                    (given(), From::Environment)
                }
                (_, Some(value)) => (written(value), From::File),
                (..) => (default_of(arg), From::Default),
            };
            let value = without_password(&value);
            Setting { name, value, from }
        })
        .collect()
}

/// `max_services` as files have it: `maxServices`.
fn camel_case(id: &str) -> String {
    let mut words = id.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let (head, tail) = word.split_at(word.len().min(1));
        name + &head.to_uppercase() + tail
    })
}

fn written(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(written).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// What the help says between brackets.
fn default_of(arg: &clap::Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default = help
        .rsplit_once("[default: ")
        .and_then(|(_, rest)| rest.split_once(']'));
    default.map(|(default, _)| default.to_owned()).unwrap_or_default()
}

/// A URL without the name and the password of its user.
fn without_password(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else {
        return value.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => value.to_owned(),
    }
}

/// For people.
struct Table<'a>(&'a [Setting]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.iter().map(|setting| {
            let from = match setting.from {
                From::Flag => "flag",
                From::Environment => "environment",
                From::File => "file",
                From::Default => "default",
            };
            [setting.name.clone(), setting.value.clone(), from.to_owned()]
        });
        f.write_str(&columns(["SETTING", "VALUE", "FROM"], rows))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use serde_json::json;

    use super::*;
    use crate::cli::Cli;

    fn all(args: &[&str], file: &Value) -> BTreeMap<String, (String, From)> {
        let mut command = Cli::command();
        command.build();
        let args = ["lb-agent", "config"].iter().chain(args);
        let matches = command.clone().get_matches_from(args);
        let of_verb = command.find_subcommand("config").unwrap();
        let file = serde_json::from_value(file.clone()).unwrap();
        let settings = settings(of_verb, matches.subcommand_matches("config").unwrap(), &file);
        let pairs = settings
            .into_iter()
            .map(|setting| (setting.name, (setting.value, setting.from)));
        pairs.collect()
    }

    #[test]
    fn the_flag_comes_before_the_file_and_the_file_before_the_default() {
        let file = json!({"maxServices": 10, "maxFlows": 20, "clusterCidr": ["10.0.0.0/8", "fd00::/8"]});
        let all = all(&["--max-services=30", "--cluster-cidr=10.1.0.0/16,10.2.0.0/16"], &file);
        let is = |name: &str, value: &str, from| assert_eq!(all[name], (value.to_owned(), from), "{name}");
        is("maxServices", "30", From::Flag);
        is("maxFlows", "20", From::File);
        is("maxSlots", "1048576", From::Default);
        is("clusterCidr", "10.1.0.0/16,10.2.0.0/16", From::Flag);
        is("healthzBindAddress", "0.0.0.0:10256, which is IPv6 too", From::Default);
    }

    #[test]
    fn every_setting_is_there_by_its_name_in_the_file() {
        let all = all(&[], &json!({}));
        for name in all.keys() {
            let error = serde_json::from_value::<Settings>(json!({name: {"no": "such"}})).unwrap_err();
            assert!(!error.to_string().contains("unknown field"), "{error}");
        }
        let error = serde_json::from_value::<Settings>(json!({"no-such": 1}))
            .unwrap_err()
            .to_string();
        let fields = error.matches('`').count() / 2 - 1;
        assert_eq!(all.len(), fields, "{error}");
    }

    #[test]
    fn no_password_is_shown() {
        let shown = |url: &str| all(&["--apiserver", url], &json!({}))["apiserver"].0.clone();
        assert_eq!(
            shown("https://user:p@ss@10.0.0.1:6443/x@y"),
            "https://***@10.0.0.1:6443/x@y"
        );
        assert_eq!(shown("https://10.0.0.1:6443/x@y"), "https://10.0.0.1:6443/x@y");
    }
}
