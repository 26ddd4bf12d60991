//! The chart's README has each value, with its default and what `values.yaml` says of it.

use std::env;
use std::fs;

use serde_json::Value;

use crate::helm::file;

const README: &str = "deploy/helm/lb-agent/README.md";
const VALUES: &str = "deploy/helm/lb-agent/values.yaml";
const SCHEMA: &str = "deploy/helm/lb-agent/values.schema.json";
/// What the table is between.
const MARKS: [&str; 2] = [
    "<!-- Written by `LB_UPDATE_DOCS=1 cargo xtask test deploy -- readme`. -->\n",
    "<!-- The end of what is written. -->\n",
];
/// What makes the test write the table instead of comparing it.
const UPDATE: &str = "LB_UPDATE_DOCS";

#[test]
fn it_has_each_value_with_its_default_and_its_comment() {
    let path = file(README);
    let text = fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(MARKS[0]).unwrap();
    let (_, tail) = rest.split_once(MARKS[1]).unwrap();
    let expected = [head, MARKS[0], &table(), MARKS[1], tail].concat();
    if env::var_os(UPDATE).is_some() {
        fs::write(&path, expected).unwrap();
    } else {
        assert!(
            text == expected,
            "{README} is stale: `{UPDATE}=1 cargo xtask test deploy -- readme` writes it"
        );
    }
}

fn table() -> String {
    let text = fs::read_to_string(file(VALUES)).unwrap();
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    let schema: Value = serde_json::from_str(&fs::read_to_string(file(SCHEMA)).unwrap()).unwrap();
    let mut table = String::from("\n| Value | Default | Meaning |\n|---|---|---|\n");
    let (mut path, mut comment) = (Vec::<&str>::new(), Vec::new());
    for line in text.lines() {
        let (indent, line) = (line.len() - line.trim_start().len(), line.trim_start());
        if let Some(said) = line.strip_prefix('#') {
            comment.push(said.trim());
        } else if let Some((key, _)) = line.split_once(':') {
            path.truncate(indent / 2);
            path.push(key);
            let inside = |whole: &Value, step: &str| {
                path.iter().try_fold(whole.clone(), |here, name| {
                    let next = if step.is_empty() {
                        &here[*name]
                    } else {
                        &here[step][*name]
                    };
                    (!next.is_null()).then(|| next.clone())
                })
            };
            // What is below a value that is free is part of it.
            let Some(known) = inside(&schema, "properties") else {
                continue;
            };
            let default = match known["properties"] {
                Value::Null => format!("`{}`", inside(&values, "").unwrap()),
                _ => String::new(),
            };
            let meaning = comment.join(" ").replace('|', "\\|");
            if !(default.is_empty() && meaning.is_empty()) {
                table += &format!("| `{}` | {default} | {meaning} |\n", path.join("."));
            }
            comment.clear();
        } else {
            comment.clear();
        }
    }
    table + "\n"
}
