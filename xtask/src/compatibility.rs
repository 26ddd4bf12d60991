//! `cargo xtask compatibility`: docs/compatibility.md, written from what the tests said on each kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::results::{Outcome, Results};
use crate::run::say;
use crate::test::Suite;
use crate::vm::{self, Line};
use crate::workspace;

const HEAD: &str = "\
# Kernels

Written by `cargo xtask compatibility` from the last whole runs of `cargo xtask test --kernel` on Debian's own kernels. What is
said here of a kernel is what happened on it; nothing is edited by hand.
";

/// The verb.
pub fn run() -> Result<()> {
    let mut results = Vec::new();
    for line in Line::ALL {
        results.extend(last(line)?);
    }
    if results.is_empty() {
        bail!("there is no whole run on any kernel yet: `cargo xtask test --kernel all`");
    }
    let place = workspace::root().join("docs/compatibility.md");
    std::fs::write(&place, page(&results, &about)).with_context(|| format!("cannot write {}", place.display()))?;
    say(format_args!("written: {}", place.display()));
    Ok(())
}

/// Keeps what the last run on a kernel said of a whole suite, for the page, if the suite got to its end.
pub fn keep(line: Line, suite: Suite) -> Result<()> {
    let output = vm::folder(line)?.join("output");
    let text = std::fs::read_to_string(&output).unwrap_or_default();
    let end = format!("vm: {} ended with ", suite.name());
    if !text.lines().any(|line| line.starts_with(&end)) {
        return Ok(());
    }
    let file = file(line, suite)?;
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn file(line: Line, suite: Suite) -> Result<PathBuf> {
    Ok(vm::folder(line)?.join(suite.name()))
}

/// What the last whole runs of each suite said, taken together. What was not run is said, and stands in the page as such.
fn last(line: Line) -> Result<Option<Results>> {
    let mut all: Option<Results> = None;
    for suite in Suite::ON_KERNELS {
        let file = file(line, suite)?;
        let Ok(text) = std::fs::read_to_string(&file) else {
            say(format_args!(
                "no whole run of {0} on {1} yet: `cargo xtask test --kernel {1} {0}`",
                suite.name(),
                line.name()
            ));
            continue;
        };
        let mut results = Results::parse(&text);
        results.tests.retain(|(of, _), _| of == suite.name());
        results.tests.extend(all.into_iter().flat_map(|before| before.tests));
        all = Some(results);
    }
    Ok(all)
}

/// The first sentence of what a module of tests says that it is about.
fn about(suite: &str, module: &str) -> String {
    let file = workspace::root()
        .join("tests/tests")
        .join(suite)
        .join(module)
        .with_extension("rs");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<_> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let paragraph = lines.split(|line| line.trim().is_empty()).next().unwrap_or_default();
    let paragraph = paragraph.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    paragraph
        .split_inclusive(". ")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn page(results: &[Results], about: &dyn Fn(&str, &str) -> String) -> String {
    let mut page = HEAD.to_owned();
    let mut table = |title: &str, first: &str, rows: Vec<(String, Vec<String>)>| {
        let names = results
            .iter()
            .map(|results| results.kernel.trim_end_matches("-cloud-amd64"));
        let names = names.collect::<Vec<_>>().join(" | ");
        // Writing to a string does not fail.
        let _ = writeln!(
            page,
            "\n## {title}\n\n| {first} | {names} |\n|---|{}",
            "---|".repeat(results.len())
        );
        for (name, cells) in rows {
            let _ = writeln!(page, "| {name} | {} |", cells.join(" | "));
        }
    };
    table("What a kernel has", "feature, and its first kernel", features(results));
    for suite in Suite::ON_KERNELS {
        let title = format!("What works: `cargo xtask test {}`", suite.name());
        table(&title, "tests of", modules(suite.name(), results, about));
    }
    let _ = write!(page, "{}{}", instead(results), skipped(results));
    page
}

fn features(results: &[Results]) -> Vec<(String, Vec<String>)> {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for feature in results.iter().flat_map(|results| &results.features) {
        let has = |results: &Results| {
            let found = results.features.iter().find(|other| other.name == feature.name);
            match found.map(|feature| &feature.without) {
                Some(None) => "yes",
                Some(Some(_)) => "no",
                None => "not asked",
            }
        };
        if rows.iter().all(|(name, _)| *name != feature.name) {
            let cells = results.iter().map(|results| has(results).to_owned()).collect();
            rows.push((feature.name.clone(), cells));
        }
    }
    rows
}

fn modules(suite: &str, results: &[Results], about: &dyn Fn(&str, &str) -> String) -> Vec<(String, Vec<String>)> {
    let names: BTreeSet<_> = results
        .iter()
        .flat_map(|results| results.tests.keys())
        .filter(|(of, _)| of == suite)
        .filter_map(|(_, name)| name.split_once("::").map(|(module, _)| module))
        .collect();
    let row = |module: &str| {
        let cells = results.iter().map(|results| cell(results, suite, module)).collect();
        (format!("`{module}`: {}", about(suite, module)), cells)
    };
    names.into_iter().map(row).collect()
}

/// How the tests of a module ended, in a word or two.
fn cell(results: &Results, suite: &str, module: &str) -> String {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for ((of, name), outcome) in &results.tests {
        if of == suite && name.split_once("::").is_some_and(|(first, _)| first == module) {
            match outcome {
                Outcome::Passed => passed += 1,
                Outcome::Failed => failed += 1,
                Outcome::Skipped(_) => skipped += 1,
            }
        }
    }
    match (passed, failed, skipped) {
        (0, 0, 0) => "not run".to_owned(),
        (0, 0, _) => "skipped".to_owned(),
        (_, 0, 0) => format!("{passed} of {passed}"),
        (_, 0, _) => format!("{passed}, {skipped} skipped"),
        _ => format!("**{failed} of {} fail**", passed + failed + skipped),
    }
}

/// What the agent says where a feature is missing.
fn instead(results: &[Results]) -> String {
    let mut text = "\n## What is done instead\n\nWhere a feature is missing, the agent says:\n\n".to_owned();
    let missing: BTreeMap<_, _> = results
        .iter()
        .flat_map(|results| &results.features)
        .filter_map(|feature| Some((&feature.name, feature.without.as_ref()?)))
        .collect();
    for (name, without) in missing {
        let _ = writeln!(text, "* {name}: {without}");
    }
    text
}

/// Tests that were skipped, by kernel and reason.
fn skipped(results: &[Results]) -> String {
    let mut text = "\n## What was skipped, and why\n\n".to_owned();
    for results in results {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for ((_, name), outcome) in &results.tests {
            if let Outcome::Skipped(reason) = outcome {
                reasons.entry(reason).or_default().push(name);
            }
        }
        for (reason, names) in reasons {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            let _ = writeln!(text, "* {}, {reason}: {}", results.kernel, names.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "vm: Linux version 6.1.0-57-cloud-amd64 (x)\nfeature TCX (6.6): no: clsact instead\n\
        vm: running packet\ntest flows::a ... ok\ntest flows::b ... ok\n\
        vm: running network\nskipped cleanup::a: no TCX\ntest cleanup::a ... ok\ntest cleanup::b ... ok\n\
        test links::a ... FAILED\ntest links::b ... ok\n";
    const NEW: &str = "vm: Linux version 7.3.4-cloud-amd64 (x)\nfeature TCX (6.6): yes\n\
        vm: running packet\ntest flows::a ... ok\n";

    #[test]
    fn a_row_says_what_happened_on_each_kernel() {
        let page = page(&[Results::parse(OLD), Results::parse(NEW)], &|suite, module| {
            format!("{suite} about {module}")
        });
        for line in [
            "| feature, and its first kernel | 6.1.0-57 | 7.3.4 |",
            "| TCX (6.6) | no | yes |",
            "| `flows`: packet about flows | 2 of 2 | 1 of 1 |",
            "| `cleanup`: network about cleanup | 1, 1 skipped | not run |",
            "| `links`: network about links | **1 of 2 fail** | not run |",
            "* TCX (6.6): clsact instead",
            "* 6.1.0-57-cloud-amd64, no TCX: `cleanup::a`",
        ] {
            assert!(page.lines().any(|found| found == line), "{line:?} is not in\n{page}");
        }
    }

    #[test]
    fn a_module_is_described_by_its_first_sentence() {
        assert_eq!(
            about("network", "cleanup"),
            "`lb-agent cleanup` leaves nothing of ours behind."
        );
    }
}
