//! Which metrics an expression of Prometheus asks for: enough of its grammar for dashboards and alerts of ours.

use std::{collections::BTreeSet, iter};

/// Words that stand where a name could.
const KEYWORDS: [&str; 8] = ["and", "or", "unless", "bool", "offset", "Inf", "NaN", "atan2"];
/// Words before a list of labels.
const LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// The names of all metrics in an expression.
pub(super) fn metrics(expression: &str) -> BTreeSet<String> {
    let tokens = tokens(expression);
    let mut metrics = BTreeSet::new();
    let mut position = 0;
    while let Some(token) = tokens.get(position) {
        position += 1;
        let next = tokens.get(position).map(String::as_str);
        if token == "{" {
            position = after(&tokens, position, "}");
        } else if token == "[" {
            position = after(&tokens, position, "]");
        } else if LISTS.contains(&token.as_str()) {
            if next == Some("(") {
                position = after(&tokens, position, ")");
            }
        } else if is_name(token) && !KEYWORDS.contains(&token.as_str()) && !is_called(&tokens[position..]) {
            metrics.insert(token.clone());
        }
    }
    metrics
}

/// Whether what stands before this is a function, or an aggregation, which may have its labels first.
fn is_called(rest: &[String]) -> bool {
    match rest {
        [first, ..] if first == "(" => true,
        [first, second, ..] => ["by", "without"].contains(&first.as_str()) && second == "(",
        _ => false,
    }
}

/// The position behind the next of these tokens.
fn after(tokens: &[String], from: usize, end: &str) -> usize {
    let found = tokens[from..].iter().position(|token| token == end);
    found.map_or(tokens.len(), |length| from + length + 1)
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
}

/// Words, strings as one each, and single characters.
fn tokens(expression: &str) -> Vec<String> {
    let mut rest = expression.chars().peekable();
    let mut tokens = Vec::new();
    while let Some(first) = rest.next() {
        if first == '"' {
            let mut is_escaped = false;
            let inside = rest.by_ref().take_while(|next| {
                let ends = *next == '"' && !is_escaped;
                is_escaped = *next == '\\' && !is_escaped;
                !ends
            });
            tokens.push(format!("\"{}", inside.collect::<String>()));
        } else if first.is_ascii_alphanumeric() || first == '_' {
            let is_part = |next: &char| next.is_ascii_alphanumeric() || "_:.".contains(*next);
            let word = iter::once(first).chain(iter::from_fn(|| rest.next_if(is_part)));
            tokens.push(word.collect());
        } else if !first.is_whitespace() {
            tokens.push(first.to_string());
        }
    }
    tokens
}

#[test]
fn names_are_told_from_functions_labels_strings_and_numbers() {
    for (expression, expected) in [
        ("up == 0", &["up"][..]),
        (r#"a{job=~"$job",x="y}\"z"} > 1e3"#, &["a"]),
        (
            "rate(a_total[5m]) / on (job, instance) group_left (x) b",
            &["a_total", "b"],
        ),
        (
            "sum by (plane) (lb_plane_info) or count(count by (version) (lb_build_info)) > 1",
            &["lb_build_info", "lb_plane_info"],
        ),
        ("clamp_min(a - b, 0) and on (c) d offset 5m", &["a", "b", "d"]),
        ("a unless bool b", &["a", "b"]),
    ] {
        let found = metrics(expression);
        assert_eq!(
            found.iter().map(String::as_str).collect::<Vec<_>>(),
            expected,
            "{expression}"
        );
    }
}
