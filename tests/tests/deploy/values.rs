//! What can be said to the chart: all of it is documented, and reaches the agent.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use lb_agent::config::{Config, LogFormat, LogLevel, Settings, SocketLb};
use lb_agent::plane::choice::Wanted;
use lb_tests::owner::Folder;
use serde_json::Value;

use crate::helm::{file, render};

const VALUES: &str = "deploy/helm/lb-agent/values.yaml";
const SCHEMA: &str = "deploy/helm/lb-agent/values.schema.json";

/// The settings of an agent whose chart has these values.
fn config(args: &[&str]) -> Config {
    let text = render(args).unwrap().config();
    let settings: Settings = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error:#}\n{text}"));
    Config::new(settings).unwrap()
}

#[test]
fn the_defaults_are_the_agents_but_for_places_and_the_log() {
    let ours = config(&[]);
    let mut plain = Config::new(Settings::default()).unwrap();
    plain.cgroup = Some("/host/cgroup".into());
    plain.log_format = LogFormat::Json;
    assert_eq!(ours, plain);
}

#[test]
fn values_reach_the_agent() {
    let config = config(&[
        "--set=plane=ebpf",
        "--set=socketLB=all",
        "--set=nodePortAddresses={localhost,10.0.0.0/8}",
        "--set=healthz.port=20256",
        "--set=metrics.address=fd00::1",
        "--set=metrics.port=20249",
        "--set=log.level=debug",
        "--set=log.format=text",
        "--set=config.masqueradeAll=true",
        // As big a number as any setting takes, which must not become one with an exponent.
        "--set=config.maxFlows=4194304",
    ]);
    assert_eq!(config.plane, Wanted::Ebpf);
    assert_eq!(config.socket_lb, SocketLb::All);
    assert_eq!(config.healthz_address, Some(SocketAddr::from(([0, 0, 0, 0], 20256))));
    assert_eq!(config.metrics_address, Some("[fd00::1]:20249".parse().unwrap()));
    assert_eq!(
        (config.log_level, config.log_format),
        (LogLevel::Debug, LogFormat::Text)
    );
    assert!(config.rules.masquerade_all);
    assert_eq!(config.sizes.flows, 4_194_304);
    let words = ["localhost", "10.0.0.0/8"].map(|word| word.parse().unwrap());
    assert_eq!(config.rules.node_port_addresses, words.into_iter().collect());
}

#[test]
fn numbers_of_a_file_of_values_stay_numbers() {
    let folder = Folder::new().unwrap();
    let path = folder.path().join("values.yaml");
    fs::write(&path, "config: {maxFlows: 4194304, masqueradeMark: 32768}").unwrap();
    let config = config(&["--values", path.to_str().unwrap()]);
    assert_eq!((config.sizes.flows, config.masquerade_mark), (4_194_304, 32_768));
}

#[test]
fn what_is_privileged_reaches_the_agent_too() {
    let config = config(&[
        "--set=plane=ipvs",
        "--set=setSysctls=true",
        "--set=privileged=true",
        "--set=metrics.enabled=false",
    ]);
    assert_eq!(config.plane, Wanted::Ipvs);
    assert!(config.set_sysctls);
    assert_eq!(config.metrics_address, None);
}

#[test]
fn every_value_is_in_the_schema_and_has_a_comment() {
    let text = fs::read_to_string(file(VALUES)).unwrap();
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    let schema: Value = serde_json::from_str(&fs::read_to_string(file(SCHEMA)).unwrap()).unwrap();
    compare("", &values, &schema);

    let lines: Vec<_> = text.lines().collect();
    for (number, line) in lines.iter().enumerate().skip(1) {
        let (indent, key) = (line.len() - line.trim_start().len(), line.trim_start());
        let is_key = key.chars().next().is_some_and(char::is_alphabetic) && key.contains(':');
        // What is inside a free value is Kubernetes' to explain, and a heading is explained by what is below it.
        if !is_key || is_free(&schema, &lines[..number], indent) || key.ends_with(':') {
            continue;
        }
        let before = lines[number - 1].trim_start();
        assert!(before.starts_with('#'), "line {}: {line} has no comment", number + 1);
    }
}

/// Fails unless values and their schema have the same names.
fn compare(path: &str, value: &Value, schema: &Value) {
    let Some(properties) = schema["properties"].as_object() else {
        assert!(schema["description"].is_string(), "{path} has no description");
        return;
    };
    assert_eq!(schema["additionalProperties"], false, "{path}");
    let value = value.as_object().unwrap();
    let known: BTreeSet<_> = properties.keys().filter(|name| *name != "global").collect();
    assert_eq!(value.keys().collect::<BTreeSet<_>>(), known, "{path}");
    for name in known {
        compare(&format!("{path}.{name}"), &value[name], &properties[name]);
    }
}

/// Whether a line with this indent is inside a value of which the schema says nothing.
fn is_free(schema: &Value, before: &[&str], indent: usize) -> bool {
    let mut path = Vec::new();
    let mut indent = indent;
    for line in before.iter().rev() {
        let own = line.len() - line.trim_start().len();
        if own < indent && !line.trim_start().starts_with('#') && line.contains(':') {
            path.push(line.trim_start().split(':').next().unwrap());
            indent = own;
        }
    }
    let mut here = schema;
    for name in path.iter().rev() {
        here = &here["properties"][*name];
        if here["properties"].is_null() {
            return true;
        }
    }
    false
}
