//! `cargo xtask compatibility`: docs/compatibility.md, written from what the tests said on each kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::plane::Plane;
use crate::results::{Outcome, Results};
use crate::run::say;
use crate::test::Suite;
use crate::vm::{self, Line};
use crate::workspace;

const HEAD: &str = "\
# Kernels

Written by `cargo xtask compatibility` from whole runs of `cargo xtask test --kernel` on Debian's own kernels, and of each test
from the last run that it was in. What is said here of a kernel is what happened on it; nothing is edited by hand.
";

/// What a plane's tests said on each kernel, oldest first.
type Of = (Plane, Vec<Results>);

/// The verb.
pub fn run() -> Result<()> {
    let mut all = Vec::new();
    for plane in Plane::ALL {
        let mut results = Vec::new();
        for line in Line::ALL {
            results.extend(last(line, plane)?);
        }
        if !results.is_empty() {
            all.push((plane, results));
        }
    }
    if all.is_empty() {
        bail!("there is no whole run on any kernel yet: `cargo xtask test --kernel all`");
    }
    let place = workspace::root().join("docs/compatibility.md");
    std::fs::write(&place, page(&all, &about)).with_context(|| format!("cannot write {}", place.display()))?;
    say(format_args!("written: {}", place.display()));
    Ok(())
}

/// Keeps what a plane's last run on a kernel said of a whole suite, for the page, if the suite got to its end.
pub fn keep(line: Line, plane: Plane, suite: Suite) -> Result<()> {
    let output = vm::folder(line, plane)?.join("output");
    let text = std::fs::read_to_string(&output).unwrap_or_default();
    let end = format!("vm: {} ended with ", suite.name());
    if !text.lines().any(|line| line.starts_with(&end)) {
        return Ok(());
    }
    let file = file(line, plane, suite)?;
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Notes beside what a whole run of this suite said what a later one of a part of it did, if there was a whole one: the
/// page has of each test what it said last.
pub fn amend(line: Line, plane: Plane, suite: Suite) -> Result<()> {
    let file = file(line, plane, suite)?;
    // A part of the comparison says nothing of the rest.
    if suite == Suite::Parity || !file.is_file() {
        return Ok(());
    }
    let later = std::fs::read(vm::folder(line, plane)?.join("output")).unwrap_or_default();
    OpenOptions::new()
        .append(true)
        .open(&file)
        .and_then(|mut whole| whole.write_all(&later))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn file(line: Line, plane: Plane, suite: Suite) -> Result<PathBuf> {
    Ok(vm::folder(line, plane)?.join(suite.name()))
}

/// What the last whole runs of each suite said, taken together. What was not run is said, and stands in the page as such.
fn last(line: Line, plane: Plane) -> Result<Option<Results>> {
    let mut all: Option<Results> = None;
    for suite in Suite::on_kernels(plane) {
        let file = file(line, plane, *suite)?;
        let Ok(text) = std::fs::read_to_string(&file) else {
            say(format_args!(
                "no whole run of {0} on {1} yet: `{2} --kernel {1} {0}`",
                suite.name(),
                line.name(),
                plane.command()
            ));
            continue;
        };
        let mut results = Results::parse(&text);
        results.tests.retain(|(of, _), _| of == suite.name());
        if *suite != Suite::Parity {
            results.parity = None;
        }
        if let Some(before) = all {
            results.tests.extend(before.tests);
            results.parity = results.parity.or(before.parity);
        }
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

fn page(all: &[Of], about: &dyn Fn(&str, &str) -> String) -> String {
    let mut page = HEAD.to_owned();
    for (plane, results) in all {
        // Writing to a string does not fail.
        let _ = writeln!(page, "\n## {}", plane.title());
        // Those are what the BPF plane makes use of.
        if *plane == Plane::Ebpf {
            page += &table(
                "What a kernel has",
                "feature, and its first kernel",
                results,
                features(results),
            );
        }
        for suite in Suite::on_kernels(*plane) {
            let title = format!("What works: `{} {}`", plane.command(), suite.name());
            page += &match suite {
                Suite::Parity => table(&title, "comparison", results, parity(results)),
                _ => table(&title, "tests of", results, modules(suite.name(), results, about)),
            };
        }
        if *plane == Plane::Ebpf {
            page += &instead(results);
        }
        page += &skipped(results);
    }
    page
}

/// A table with a column a kernel.
fn table(title: &str, first: &str, results: &[Results], rows: Vec<(String, Vec<String>)>) -> String {
    let names = results
        .iter()
        .map(|results| results.kernel.trim_end_matches("-cloud-amd64"));
    let names = names.collect::<Vec<_>>().join(" | ");
    let columns = "---|".repeat(results.len());
    let mut text = format!("\n### {title}\n\n| {first} | {names} |\n|---|{columns}\n");
    for (name, cells) in rows {
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text
}

fn parity(results: &[Results]) -> Vec<(String, Vec<String>)> {
    let cell = |results: &Results| results.parity.clone().unwrap_or_else(|| "not run".to_owned());
    let cells = results.iter().map(cell).collect();
    vec![("with kube-proxy, in nftables mode".to_owned(), cells)]
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
    let mut text = "\n### What is done instead\n\nWhere a feature is missing, the agent says:\n\n".to_owned();
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
    let mut text = "\n### What was skipped, and why\n\n".to_owned();
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

    fn described(suite: &str, module: &str) -> String {
        format!("{suite} about {module}")
    }

    /// That all of these lines are in a text.
    #[track_caller]
    fn assert_has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_row_says_what_happened_on_each_kernel() {
        let results = vec![Results::parse(OLD), Results::parse(NEW)];
        let page = page(&[(Plane::Ebpf, results)], &described);
        let lines = [
            "| feature, and its first kernel | 6.1.0-57 | 7.3.4 |",
            "| TCX (6.6) | no | yes |",
            "| `flows`: packet about flows | 2 of 2 | 1 of 1 |",
            "| `cleanup`: network about cleanup | 1, 1 skipped | not run |",
            "| `links`: network about links | **1 of 2 fail** | not run |",
            "* TCX (6.6): clsact instead",
            "* 6.1.0-57-cloud-amd64, no TCX: `cleanup::a`",
        ];
        assert_has(&page, &lines);
    }

    const IPVS: &str = "vm: Linux version 6.1.0-57-cloud-amd64 (x)\nfeature TCX (6.6): no: clsact instead\n\
        vm: running network\ntest links::a ... ok\n\
        vm: running parity\nparity: 8 of 9 probes agree, 1 declared differences, 0 undeclared\n";

    #[test]
    fn what_one_plane_does_is_not_said_of_the_other() {
        let all = [
            (Plane::Ebpf, vec![Results::parse(OLD)]),
            (Plane::Ipvs, vec![Results::parse(IPVS)]),
        ];
        let page = page(&all, &described);
        let (ebpf, ipvs) = page.split_once("\n## The IPVS plane\n").unwrap();
        assert_has(ebpf, &["| `links`: network about links | **1 of 2 fail** |"]);
        let parity =
            "| with kube-proxy, in nftables mode | 8 of 9 probes agree, 1 declared differences, 0 undeclared |";
        assert_has(ipvs, &["| `links`: network about links | 1 of 1 |", parity]);
        assert!(!ebpf.contains("kube-proxy") && !ipvs.contains("TCX"), "{page}");
    }

    #[test]
    fn a_module_is_described_by_its_first_sentence() {
        assert_eq!(
            about("network", "cleanup"),
            "`lb-agent cleanup` leaves nothing of ours behind."
        );
    }
}
