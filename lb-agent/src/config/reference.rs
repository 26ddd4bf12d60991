//! The reference of all settings, `docs/configuration.md`, out of the code.

use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::Path};

use clap::{Args as _, Command};

use super::{
    Settings,
    kube_proxy::{Fate, Kind, TABLE},
};

/// What makes the test write the page instead of comparing it.
const UPDATE: &str = "LB_UPDATE_DOCS";

const HEAD: &str = "\
# Configuration

<!-- Written by `LB_UPDATE_DOCS=1 cargo test -p lb-agent --lib reference`. -->

`lb-agent run` and `lb-agent probe` take each setting as a flag, as a variable of the environment, and as a field of
the YAML file that `--config` (`LB_AGENT_CONFIG`) names. The flag comes first, then the variable, then kube-proxy's flags, then
the file, then the default. A flag, a field or a value that makes no sense is an error that names it.

## Settings

The last column has the field of kube-proxy's file, or its flag, that says the same.

| Flag | Variable | Field | Default | Meaning | kube-proxy |
|---|---|---|---|---|---|
";

const KUBE_PROXY: &str = "
## kube-proxy's configuration

`--config` also reads a `KubeProxyConfiguration` (`apiVersion: kubeproxy.config.k8s.io/v1alpha1`), and kube-proxy's flags are
flags of `lb-agent run`. What does nothing here is named in one warning each, unless it is empty or what kube-proxy does
anyhow; what clients would miss is refused with what to do instead. Fields and flags that kube-proxy has not are errors; kube-proxy
itself only warns of fields. Only the sections of the mode that is asked for count.

* The file's `mode` picks no plane: `--plane` does, by default `auto`. With `ipvs` and a scheduler other than `rr` it is the plane
  `ipvs`, which alone has schedulers.
* kube-proxy passes over most flags beside a file; here a flag comes before the file.
* Names of feature gates are not checked.
* With `detectLocalMode: ClusterCIDR`, kube-proxy's default, but no `clusterCIDR`, kube-proxy masquerades nobody for where it comes from. Here
  pods are known by their links then.

| Field | Flag | Default | What becomes of it |
|---|---|---|---|
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut theirs: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in TABLE {
        if let Fate::Setting(setting, _) = row.fate {
            let name = match (row.field, row.flag) {
                (Some(field), _) => format!("`{field}`"),
                (None, flag) => format!("`--{}`", flag.unwrap()),
            };
            theirs.entry(setting).or_default().push(name);
        }
    }
    let command = Settings::augment_args(Command::new("lb-agent"));
    for argument in command.get_arguments() {
        let flag = argument.get_long().unwrap();
        let variable = argument.get_env().unwrap().to_str().unwrap();
        let help = argument.get_help().unwrap().to_string().replace('\n', " ");
        let (meaning, default) = match help.split_once(" [default: ") {
            Some((meaning, default)) => (meaning, default.trim_end_matches(']')),
            None => (&help[..], "none"),
        };
        let theirs = theirs.remove(flag).unwrap_or_default().join(", ");
        let field = field(flag);
        writeln!(
            page,
            "| `--{flag}` | `{variable}` | `{field}` | {default} | {meaning} | {theirs} |"
        )
        .unwrap();
    }
    assert!(theirs.is_empty(), "settings that there are not: {theirs:?}");
    page.push_str(KUBE_PROXY);
    for row in TABLE {
        let code = |text: Option<String>| text.map(|text| format!("`{text}`")).unwrap_or_default();
        let fate = match row.fate {
            Fate::Setting(setting, "") => format!("`--{setting}`"),
            Fate::Setting(setting, how) => format!("`--{setting}`: {how}"),
            Fate::Ignored(why) => format!("ignored: {why}"),
            Fate::Refused(instead) => format!("refused: {instead}"),
        };
        let dashes = |flag: &str| match flag.len() {
            1 => format!("-{flag}"),
            _ => format!("--{flag}"),
        };
        writeln!(
            page,
            "| {} | {} | {} | {fate} |",
            code(row.field.map(str::to_owned)),
            code(row.flag.map(dashes)),
            code(Some(row.default.to_owned()).filter(|default| !default.is_empty())),
        )
        .unwrap();
    }
    page
}

/// A flag as the file spells it.
fn field(flag: &str) -> String {
    let mut words = flag.split('-');
    let mut field = words.next().unwrap().to_owned();
    for word in words {
        let (first, rest) = word.split_at(1);
        field += &first.to_uppercase();
        field += rest;
    }
    field
}

#[test]
fn the_reference_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let page = page();
    if env::var_os(UPDATE).is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == page,
        "docs/configuration.md is out of date: {UPDATE}=1 cargo test -p lb-agent --lib reference"
    );
}

#[test]
fn a_default_that_is_written_down_is_kube_proxys_kind_of_value() {
    for row in TABLE.iter().filter(|row| row.kind == Kind::Bool) {
        assert!(matches!(row.default, "true" | "false"), "{row:?}");
    }
}
