//! The dashboard and the alerts under `deploy/` ask for nothing that an agent does not tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
};

use promql_parser::{
    label::Labels,
    parser::{AggregateExpr, BinaryExpr, Expr, VectorMatchCardinality, parse},
    util::{ExprVisitor, walk_expr},
};
use serde::Deserialize;
use serde_json::Value;

use super::descriptions;

const DASHBOARD: &str = include_str!("../../../deploy/grafana/lb-agent.json");
const ALERTS: &str = include_str!("../../../deploy/prometheus/alerts.yaml");

/// Labels that whoever scrapes adds.
const OF_TARGETS: [&str; 2] = ["instance", "job"];
/// What Grafana puts in before it asks.
const VARIABLES: [(&str, &str); 1] = [("$__rate_interval", "5m")];

/// Each series that can be asked for, with its labels.
fn series() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut series = BTreeMap::new();
    for description in descriptions() {
        for name in description.series() {
            let mut labels: BTreeSet<&str> = description.labels.iter().copied().chain(OF_TARGETS).collect();
            if name.ends_with("_bucket") {
                labels.insert("le");
            }
            series.insert(name, labels);
        }
    }
    series
}

/// What a query asks for.
#[derive(Default)]
struct Asked {
    series: BTreeSet<String>,
    labels: BTreeSet<String>,
}

impl Asked {
    fn by(query: &str) -> Self {
        let query = VARIABLES
            .iter()
            .fold(query.to_owned(), |query, (name, value)| query.replace(name, value));
        let expression = parse(&query).unwrap_or_else(|error| panic!("{query}: {error}"));
        let mut asked = Self::default();
        let Ok(_) = walk_expr(&mut asked, &expression);
        assert!(!asked.series.is_empty(), "{query} asks for nothing");
        asked
    }

    fn add(&mut self, labels: &Labels) {
        self.labels.extend(labels.labels.iter().cloned());
    }
}

impl ExprVisitor for Asked {
    type Error = Infallible;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Infallible> {
        let selector = match expression {
            Expr::VectorSelector(selector) => Some(selector),
            Expr::MatrixSelector(matrix) => Some(&matrix.vs),
            Expr::Aggregate(AggregateExpr {
                modifier: Some(modifier),
                ..
            }) => {
                self.add(modifier.labels());
                None
            }
            Expr::Binary(BinaryExpr {
                modifier: Some(modifier),
                ..
            }) => {
                if let Some(matching) = &modifier.matching {
                    self.add(matching.labels());
                }
                match &modifier.card {
                    VectorMatchCardinality::ManyToOne(labels) | VectorMatchCardinality::OneToMany(labels) => {
                        self.add(labels);
                    }
                    VectorMatchCardinality::OneToOne | VectorMatchCardinality::ManyToMany => {}
                }
                None
            }
            _ => None,
        };
        if let Some(selector) = selector {
            self.series.extend(selector.name.clone());
            let matchers = selector.matchers.matchers.iter();
            let others = selector.matchers.or_matchers.iter().flatten();
            self.labels
                .extend(matchers.chain(others).map(|matcher| matcher.name.clone()));
        }
        Ok(true)
    }
}

/// Fails unless each series exists, and each label is one of them.
#[track_caller]
fn is_answered(query: &str) {
    let known = series();
    let asked = Asked::by(query);
    let mut labels: BTreeSet<&str> = BTreeSet::new();
    for name in &asked.series {
        let of_series = known.get(name).unwrap_or_else(|| panic!("there is no {name}: {query}"));
        labels.extend(of_series);
    }
    for label in &asked.labels {
        assert!(
            labels.contains(label.as_str()),
            "{:?} have no label {label}: {query}",
            asked.series
        );
    }
}

/// The queries of a dashboard, wherever in it they are.
fn queries<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("expr", Value::String(query)) => found.push(query),
                    _ => queries(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| queries(value, found)),
        _ => {}
    }
}

#[test]
fn a_query_of_something_else_is_noticed() {
    for (query, is_good) in [
        ("sum by (instance) (rate(lb_drops_total{reason=\"rewrite\"}[5m]))", true),
        ("lb_drops{reason=\"rewrite\"}", false),
        ("lb_drops_total{cause=\"rewrite\"}", false),
        ("sum by (cause) (lb_drops_total)", false),
        ("lb_flows_max / on (instance) group_left (cause) lb_flows", false),
        (
            "histogram_quantile(0.5, sum by (le) (lb_programming_duration_seconds_bucket))",
            true,
        ),
        (
            "histogram_quantile(0.5, sum by (le) (lb_programming_duration_seconds))",
            false,
        ),
    ] {
        let result = std::panic::catch_unwind(|| is_answered(query));
        assert_eq!(result.is_ok(), is_good, "{query}");
    }
}

#[test]
fn the_dashboard_shows_what_there_is() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut all = Vec::new();
    queries(&dashboard, &mut all);
    assert!(all.len() > 20, "{all:?}");
    all.iter().for_each(|query| is_answered(query));
    // Values to choose from are asked for in Grafana's words.
    let chosen = &dashboard["templating"]["list"][1]["query"]["query"];
    let chosen = chosen.as_str().unwrap();
    let (name, label) = chosen
        .strip_prefix("label_values(")
        .and_then(|rest| rest.strip_suffix(')')?.split_once(", "))
        .unwrap();
    assert!(series()[name].contains(label), "{chosen}");
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    #[serde(default, rename = "for")]
    _for: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[test]
fn alerts_are_about_what_there_is_and_say_what_to_do() {
    let rules: Rules = serde_saphyr::from_str(ALERTS).unwrap();
    let rules: Vec<Rule> = rules.groups.into_iter().flat_map(|group| group.rules).collect();
    let names: BTreeSet<&str> = rules.iter().map(|rule| rule.alert.as_str()).collect();
    assert_eq!(names.len(), rules.len(), "one of {names:?} is there twice");
    for Rule {
        alert,
        expr,
        labels,
        annotations,
        ..
    } in &rules
    {
        is_answered(expr);
        assert!(
            ["critical", "warning", "info"].contains(&labels["severity"].as_str()),
            "{alert}"
        );
        assert!(!annotations["description"].is_empty(), "{alert}");
        let series = series();
        let known: BTreeSet<&str> = Asked::by(expr)
            .series
            .iter()
            .flat_map(|name| series[name].clone())
            .collect();
        let text = &annotations["summary"];
        for label in text.split("$labels.").skip(1) {
            let label = label.split(|c: char| c != '_' && !c.is_alphanumeric()).next().unwrap();
            assert!(known.contains(label), "{alert} has no label {label}");
        }
    }
}
