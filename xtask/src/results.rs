//! Reads what the tests said in a guest: which kernel, what it has, and how each test ended.

use std::collections::{BTreeMap, BTreeSet};

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Passed,
    /// Not well.
    Failed,
    /// Before its beginning, for this reason.
    Skipped(String),
}

/// Something that not every supported kernel has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// What it is called, with the first kernel that has it.
    pub name: String,
    /// What becomes of it where it is not there. `None` where it is.
    pub without: Option<String>,
}

/// What was said.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Results {
    /// The kernel's own name of its version.
    pub kernel: String,
    /// What it has and has not.
    pub features: Vec<Feature>,
    /// How each test ended, by suite and name.
    pub tests: BTreeMap<(String, String), Outcome>,
    /// What the comparison with kube-proxy came to, in its own words.
    pub parity: Option<String>,
    /// Programs that ended badly, and how.
    pub bad_ends: Vec<String>,
    suite: String,
    /// The tests that were skipped in the guest that speaks.
    skipped: BTreeSet<(String, String)>,
}

impl Results {
    /// Reads all lines.
    pub fn parse(text: &str) -> Self {
        let mut results = Self::default();
        for line in text.lines() {
            results.read(line);
        }
        results
    }

    /// Takes a line in.
    pub fn read(&mut self, line: &str) {
        if let Some(text) = line.strip_prefix("vm: ") {
            self.read_of_guest(text);
        } else if let Some(text) = line.strip_prefix("feature ") {
            self.features.extend(feature(text));
        } else if let Some(text) = line.strip_prefix("parity: ") {
            self.parity = Some(text.to_owned());
        } else if let Some((name, reason)) = skipped(line) {
            let test = (self.suite.clone(), name.to_owned());
            self.skipped.insert(test.clone());
            self.tests.insert(test, Outcome::Skipped(reason.to_owned()));
        } else if let Some((name, outcome)) = ended(line) {
            let test = (self.suite.clone(), name.to_owned());
            // The runner does not know of a test that it was skipped.
            if !self.skipped.contains(&test) {
                self.tests.insert(test, outcome);
            }
        }
    }

    fn read_of_guest(&mut self, text: &str) {
        if let Some(rest) = text.strip_prefix("Linux version ") {
            // The next guest, where there is one: what it says of a test counts.
            self.skipped.clear();
            self.features.clear();
            self.kernel = rest.split(' ').next().unwrap_or_default().to_owned();
        } else if let Some(suite) = text.strip_prefix("running ") {
            suite.clone_into(&mut self.suite);
        } else if text.contains(" ended with ") && !text.ends_with(" ended with 0") || text.contains(" was ended by ") {
            self.bad_ends.push(text.to_owned());
        }
    }

    /// How many ended how.
    pub fn count(&self) -> String {
        let number = |wanted: fn(&Outcome) -> bool| self.tests.values().filter(|outcome| wanted(outcome)).count();
        let passed = number(|outcome| matches!(outcome, Outcome::Passed));
        let skipped = number(|outcome| matches!(outcome, Outcome::Skipped(_)));
        format!("{passed} passed, {} failed, {skipped} skipped", self.failed().count())
    }

    /// Names of the tests that failed.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        let failed = self.tests.iter().filter(|(_, outcome)| **outcome == Outcome::Failed);
        failed.map(|((_, name), _)| name.as_str())
    }
}

/// Reads `skipped NAME: REASON`.
pub fn skipped(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("skipped ")?.split_once(": ")
}

/// Reads `NAME: yes` or `NAME: no: WITHOUT`.
fn feature(text: &str) -> Option<Feature> {
    let (name, rest) = text.split_once(": ")?;
    let without = match rest.split_once(": ") {
        Some(("no", without)) => Some(without.to_owned()),
        _ if rest == "yes" => None,
        _ => return None,
    };
    Some(Feature {
        name: name.to_owned(),
        without,
    })
}

/// Reads `test NAME ... ok`.
fn ended(line: &str) -> Option<(&str, Outcome)> {
    let (name, word) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let outcome = match word.split_once(", ").unwrap_or((word, "")) {
        ("ok", _) => Outcome::Passed,
        ("FAILED", _) => Outcome::Failed,
        ("ignored", reason) => Outcome::Skipped(reason.to_owned()),
        _ => return None,
    };
    Some((name, outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
vm: Linux version 6.1.0-57-cloud-amd64 (debian) #1 SMP
vm: running kernel
feature TCX (6.6): no: clsact instead
feature SO_NETNS_COOKIE (5.14): yes
vm: kernel ended with 0
vm: running packet
running 2 tests
test affinity::sticks ... ok
test flows::close ... FAILED
test result: FAILED. 1 passed; 1 failed
vm: packet ended with 101
vm: running network
skipped cleanup::nothing_is_left: this kernel has no TCX
test cleanup::nothing_is_left ... ok
test slow::one ... ignored, by hand
vm: network was ended by SIGSEGV
vm: running parity
parity: 8 of 9 probes agree, 1 declared differences, 0 undeclared
vm: parity ended with 0
vm: done
";

    #[test]
    fn what_a_later_guest_says_of_a_test_counts() {
        let later = "\
vm: Linux version 6.1.0-58-cloud-amd64 (debian) #1 SMP
vm: running kernel
feature SO_NETNS_COOKIE (5.14): yes
vm: kernel ended with 0
vm: running packet
test flows::close ... ok
vm: packet ended with 0
vm: running network
test cleanup::nothing_is_left ... FAILED
vm: network ended with 101
";
        let results = Results::parse(&format!("{TEXT}{later}"));
        assert_eq!(
            (results.kernel.as_str(), results.features.len()),
            ("6.1.0-58-cloud-amd64", 1)
        );
        let outcome = |suite: &str, name: &str| results.tests[&(suite.to_owned(), name.to_owned())].clone();
        assert_eq!(outcome("packet", "flows::close"), Outcome::Passed);
        assert_eq!(outcome("packet", "affinity::sticks"), Outcome::Passed);
        assert_eq!(outcome("network", "cleanup::nothing_is_left"), Outcome::Failed);
        assert_eq!(outcome("network", "slow::one"), Outcome::Skipped("by hand".into()));
    }

    #[test]
    fn all_that_was_said_is_read() {
        let results = Results::parse(TEXT);
        assert_eq!(results.kernel, "6.1.0-57-cloud-amd64");
        let features: Vec<_> = results
            .features
            .iter()
            .map(|feature| (feature.name.as_str(), feature.without.as_deref()))
            .collect();
        assert_eq!(
            features,
            [("TCX (6.6)", Some("clsact instead")), ("SO_NETNS_COOKIE (5.14)", None)]
        );
        assert_eq!(
            results.parity.as_deref(),
            Some("8 of 9 probes agree, 1 declared differences, 0 undeclared")
        );
        let outcome = |suite: &str, name: &str| results.tests[&(suite.to_owned(), name.to_owned())].clone();
        assert_eq!(outcome("packet", "affinity::sticks"), Outcome::Passed);
        assert_eq!(outcome("packet", "flows::close"), Outcome::Failed);
        assert_eq!(
            outcome("network", "cleanup::nothing_is_left"),
            Outcome::Skipped("this kernel has no TCX".to_owned())
        );
        assert_eq!(outcome("network", "slow::one"), Outcome::Skipped("by hand".to_owned()));
        assert_eq!(results.tests.len(), 4);
        assert_eq!(results.failed().collect::<Vec<_>>(), ["flows::close"]);
        assert_eq!(
            results.bad_ends,
            ["packet ended with 101", "network was ended by SIGSEGV"]
        );
    }
}
