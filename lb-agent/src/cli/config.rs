//! `lb-agent config`.

use std::{collections::BTreeMap, fmt, process::ExitCode};

use clap::{ArgMatches, Args, Command, parser::ValueSource};
use serde::Serialize;
use serde_json::Value;

use super::output::{Answer, Output, columns};
use crate::config::{Arguments, Layers, Settings};

/// Print each setting of `lb-agent run` as it comes out of flags, environment and file, and which of them it is from.
/// Given the same of them as `run`, it says what that would do. A configuration of kube-proxy's is shown as what it comes to
#[derive(Debug, Args)]
#[command(after_help = "\
A default is shown as `lb-agent run --help` has it. Of a URL, name and password are left out. What was given and does
nothing here is told on standard error.

Exit codes: 0 they can be run with, 1 they make no sense together, 2 they cannot be read.")]
pub(super) struct ConfigVerb {
    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    arguments: Arguments,
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
        let layers = self.arguments.layers()?;
        let settings = settings(command, matches, &layers)?;
        self.output.print(&settings, &Table(&settings))?;
        match layers.resolve() {
            Ok((_, warnings)) => {
                for warning in warnings {
                    eprintln!("warning: {warning}");
                }
                Ok(Answer::Good.into())
            }
            Err(error) => {
                eprintln!("error: {error:#}");
                Ok(Answer::Problem.into())
            }
        }
    }
}

/// The settings, each from the first place that says it.
fn settings(command: &Command, matches: &ArgMatches, layers: &Layers) -> anyhow::Result<Vec<Setting>> {
    let Layers { own, kube_proxy, file } = layers;
    let own = fields(own)?;
    let others = [
        (From::Flag, fields(&kube_proxy.settings)?),
        (From::File, fields(&file.settings)?),
        (From::Flag, fields(&kube_proxy.implied)?),
        (From::File, fields(&file.implied)?),
    ];
    let settings = command.get_arguments().filter(|arg| {
        let is_setting = arg.get_env().is_some() && arg.get_id() != "config";
        is_setting && matches.try_contains_id(arg.get_id().as_str()).is_ok()
    });
    let settings = settings.map(|arg| {
        let id = arg.get_id().as_str();
        let name = camel_case(id);
        let of_own = own.get(&name).map(|value| match matches.value_source(id) {
            Some(ValueSource::EnvVariable) => (value, From::Environment),
            _ => (value, From::Flag),
        });
        let of_others = || {
            let mut others = others.iter();
            others.find_map(|(from, fields)| Some((fields.get(&name)?, *from)))
        };
        let (value, from) = match of_own.or_else(of_others) {
            Some((value, from)) => (written(value), from),
            None => (default_of(arg), From::Default),
        };
        Setting { name, value, from }
    });
    Ok(settings.collect())
}

/// What is said, by the names that a file has. A list without anything says nothing.
fn fields(settings: &Settings) -> anyhow::Result<BTreeMap<String, Value>> {
    let Value::Object(fields) = serde_json::to_value(settings)? else {
        return Ok(BTreeMap::new());
    };
    let is_said = |value: &Value| !value.is_null() && *value != Value::Array(Vec::new());
    Ok(fields.into_iter().filter(|(_, value)| is_said(value)).collect())
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
    use clap::{CommandFactory as _, FromArgMatches as _};
    use serde_json::json;

    use super::*;
    use crate::{cli::Cli, config::Given};

    fn all(args: &[&str], file: &str) -> BTreeMap<String, (String, From)> {
        let mut command = Cli::command();
        command.build();
        let args = ["lb-agent", "config"].iter().chain(args);
        let matches = command.clone().get_matches_from(args);
        let of_verb = command.find_subcommand("config").unwrap();
        let matches = matches.subcommand_matches("config").unwrap();
        let arguments = Arguments::from_arg_matches(matches).unwrap();
        let mut layers = arguments.layers().unwrap();
        layers.file = Given::parse(file).unwrap();
        let settings = settings(of_verb, matches, &layers).unwrap();
        let pairs = settings
            .into_iter()
            .map(|setting| (setting.name, (setting.value, setting.from)));
        pairs.collect()
    }

    #[track_caller]
    fn is(all: &BTreeMap<String, (String, From)>, name: &str, value: &str, from: From) {
        assert_eq!(all[name], (value.to_owned(), from), "{name}");
    }

    #[test]
    fn the_flag_comes_before_the_file_and_the_file_before_the_default() {
        let file = "{maxServices: 10, maxFlows: 20, clusterCidr: [10.0.0.0/8, fd00::/8], masqueradeMark: 0x8000, \
                    metricsBindAddress: '10.0.0.1', nodePortAddresses: [localhost, 10.0.0.0/8]}";
        let all = all(
            &[
                "--max-services=30",
                "--cluster-cidr=10.1.0.0/16,10.2.0.0/16",
                "--plane=ipvs",
            ],
            file,
        );
        is(&all, "maxServices", "30", From::Flag);
        is(&all, "plane", "ipvs", From::Flag);
        is(&all, "maxFlows", "20", From::File);
        is(&all, "masqueradeMark", "0x8000", From::File);
        is(&all, "metricsBindAddress", "10.0.0.1:10249", From::File);
        is(&all, "nodePortAddresses", "localhost,10.0.0.0/8", From::File);
        is(&all, "maxSlots", "1048576", From::Default);
        is(&all, "clusterCidr", "10.1.0.0/16,10.2.0.0/16", From::Flag);
        is(
            &all,
            "healthzBindAddress",
            "0.0.0.0:10256, which is IPv6 too",
            From::Default,
        );
    }

    #[test]
    fn kube_proxys_words_are_shown_as_what_they_come_to() {
        let file = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
                    iptables: {masqueradeBit: 15}\nhostnameOverride: Node-7\nlogging: {format: json, verbosity: 4}\n\
                    clientConnection: {kubeconfig: /etc/kube-proxy.conf}\nclusterCIDR: 10.244.0.0/16\n\
                    metricsBindAddress: ''\nhealthzBindAddress: 0.0.0.0:1234\n";
        let all = all(
            &["--hostname-override=Node-8", "--master=https://u:s3cret@10.0.0.1:6443"],
            file,
        );
        is(&all, "masqueradeMark", "0x8000", From::File);
        is(&all, "nodeName", "node-8", From::Flag);
        is(&all, "apiserver", "https://***@10.0.0.1:6443", From::Flag);
        is(&all, "kubeconfig", "/etc/kube-proxy.conf", From::File);
        is(&all, "logFormat", "json", From::File);
        is(&all, "logLevel", "debug", From::File);
        is(&all, "clusterCidr", "10.244.0.0/16", From::File);
        is(&all, "healthzBindAddress", "0.0.0.0:1234", From::File);
        // What no word of it says, but its mode does.
        is(&all, "nodePortAddresses", "all,localhost", From::File);
        is(&all, "maxFlows", "524288", From::Default);
    }

    #[test]
    fn every_setting_is_there_by_its_name_in_the_file() {
        let all = all(&[], "");
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
    fn no_password_is_shown_and_none_is_told_by_what_holds_it() {
        let url = "https://user:s3cret@10.0.0.1:6443/x@y";
        let shown = all(&["--apiserver", url], "")["apiserver"].0.clone();
        assert_eq!(shown, "https://***@10.0.0.1:6443/x@y");
        for flag in ["--apiserver", "--master"] {
            let mut command = Cli::command();
            command.build();
            let matches = command.get_matches_from(["lb-agent", "config", flag, url, "--node-name=n"]);
            let matches = matches.subcommand_matches("config").unwrap();
            let arguments = Arguments::from_arg_matches(matches).unwrap();
            let told = format!("{arguments:?}");
            let layers = arguments.layers().unwrap();
            let told = format!("{told} {layers:?} {:?}", layers.clone().resolve().unwrap());
            assert!(told.contains("10.0.0.1") && !told.contains("s3cret"), "{told}");
        }
    }
}
