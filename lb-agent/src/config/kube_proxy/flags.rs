//! kube-proxy's flags that are none of ours as well.
//!
//! They are on the command line of `lb-agent run` as they are on kube-proxy's, out of the table; none is a variable of
//! the environment.

use std::{fmt, sync::LazyLock};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value, json};

use super::{
    super::{Given, Settings},
    table::{Fate, Kind, Row, TABLE},
    translate::{self, Origin, pointer},
    types::KubeProxyConfiguration,
};

/// What was given of them.
#[derive(Clone, Default)]
pub struct Flags(Vec<(&'static Row, String)>);

impl fmt::Debug for Flags {
    /// Which there are. A value may be a URL with a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(row, _)| row.flag)).finish()
    }
}

/// The rows whose flag is none of ours.
static OWN: LazyLock<Vec<(&'static Row, &'static str)>> = LazyLock::new(|| {
    let settings = Settings::augment_args(Command::new("lb-agent"));
    let is_ours = |flag: &str| {
        settings.get_arguments().any(|argument| {
            let aliases = argument.get_all_aliases().unwrap_or_default();
            argument.get_long() == Some(flag) || aliases.contains(&flag)
        })
    };
    let rows = TABLE.iter().filter_map(|row| Some((row, row.flag?)));
    rows.filter(|(_, flag)| !is_ours(flag)).collect()
});

impl Args for Flags {
    fn augment_args(mut command: Command) -> Command {
        for (row, flag) in OWN.iter() {
            let mut argument = Arg::new(*flag)
                .long(*flag)
                .help(help(row))
                .help_heading("Flags of kube-proxy")
                .hide_short_help(true)
                .action(ArgAction::Set);
            argument = match row.kind {
                Kind::Bool => argument
                    .value_name("BOOL")
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true"),
                Kind::Number => argument.value_name("N").allow_negative_numbers(true),
                Kind::Duration => argument.value_name("DURATION"),
                Kind::Text | Kind::List | Kind::Gates | Kind::Any => argument.value_name("VALUE"),
            };
            if *flag == "v" {
                argument = argument.short('v');
            }
            command = command.arg(argument);
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = OWN.iter().filter_map(|(row, flag)| {
            let value: &String = matches.get_one(flag)?;
            Some((*row, value.clone()))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Flags {
    /// What they say.
    ///
    /// # Errors
    /// A value that kube-proxy would not take, or a flag that is refused.
    pub(in crate::config) fn given(&self) -> anyhow::Result<Given> {
        let mut document = Value::Object(Map::new());
        let mut warnings = Vec::new();
        let mut master = None;
        for (row, text) in &self.0 {
            let name = Origin::Flags.name(row);
            let context = || format!("{name} {text:?}");
            let value = value(row.kind, text).with_context(context)?;
            if let Some(field) = row.field {
                // Alone first, so that what is wrong with it is said of this flag.
                let mut alone = Value::Object(Map::new());
                put(&mut alone, field, value.clone());
                serde_json::from_value::<KubeProxyConfiguration>(alone).with_context(context)?;
                put(&mut document, field, value);
                continue;
            }
            match row.fate {
                Fate::Setting(..) => master = Some(text.clone()).filter(|url| !url.is_empty()),
                _ if row.is_default(&value) => {}
                Fate::Ignored(why) => warnings.push(format!("{name} does nothing here: {why}")),
                Fate::Refused(instead) => anyhow::bail!("{name}: {instead}"),
            }
        }
        let configuration = serde_json::from_value(document.clone()).context("kube-proxy's flags")?;
        let mut given = translate::translate(&configuration, &document, Origin::Flags).context("kube-proxy's flags")?;
        given.settings.apiserver = master.map(Into::into);
        given.warnings.extend(warnings);
        Ok(given)
    }
}

fn help(row: &Row) -> String {
    match row.fate {
        Fate::Setting(setting, "") => format!("The same as --{setting}"),
        Fate::Setting(setting, how) => format!("The same as --{setting}: {how}"),
        Fate::Ignored(why) => format!("Does nothing here: {why}"),
        Fate::Refused(instead) => format!("Refused: {instead}"),
    }
}

/// A flag's value, as the file would have it.
fn value(kind: Kind, text: &str) -> anyhow::Result<Value> {
    Ok(match kind {
        Kind::Text | Kind::Duration | Kind::Any => json!(text),
        Kind::Bool => json!(text.parse::<bool>().context("neither true nor false")?),
        Kind::Number => match text.parse::<i64>() {
            Ok(number) => json!(number),
            Err(_) => json!(text.parse::<f64>().context("not a number")?),
        },
        Kind::List => json!(text.split(',').filter(|part| !part.is_empty()).collect::<Vec<_>>()),
        Kind::Gates => {
            let mut gates = Map::new();
            for gate in text.split(',').filter(|gate| !gate.is_empty()) {
                let (name, is_on) = gate.split_once('=').context("a gate is NAME=true or NAME=false")?;
                let is_on: bool = is_on.trim().parse().context("a gate is NAME=true or NAME=false")?;
                gates.insert(name.trim().to_owned(), json!(is_on));
            }
            Value::Object(gates)
        }
    })
}

/// Puts a value where its field is.
fn put(document: &mut Value, field: &str, value: Value) {
    let mut place = document;
    for part in pointer(field).split('/').skip(1) {
        // What is no map yet is made one by the index.
        place = &mut place[part];
    }
    *place = value;
}
