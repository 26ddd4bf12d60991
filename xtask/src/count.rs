//! Adds up what the test runners report.

use std::fmt;

use crate::results;

/// How many tests ended how.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that are marked as not to be run, and those that found the kernel without what they test.
    pub skipped: u64,
    /// What the next number of passed tests has too much.
    not_passed: u64,
}

impl Count {
    /// Takes a line of output in; only lines such as `test result: ok. 9 passed; 0 failed; 1 ignored; ...` count, and
    /// `skipped NAME: REASON`, by which a test that the runner takes for passed says that it was not.
    pub fn read(&mut self, line: &str) {
        if results::skipped(line).is_some() {
            self.skipped += 1;
            self.not_passed += 1;
        }
        let Some((_, numbers)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for part in numbers.split(';') {
            let mut words = part.split_whitespace();
            let (Some(Ok(number)), Some(word)) = (words.next().map(str::parse::<u64>), words.next()) else {
                continue;
            };
            match word {
                "passed" => {
                    self.passed += number.saturating_sub(self.not_passed);
                    self.not_passed = 0;
                }
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up() {
        let mut count = Count::default();
        for line in [
            "running 2 tests",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: \x1b[31mFAILED\x1b[0m. 10 passed; 1 failed; 3 ignored; 0 measured; 7 filtered out; finished in 1s",
            "skipped network::cleanup: no TCX",
            "test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "a test result: ok. 5 passed; 0 failed",
            "test result: odd",
        ] {
            count.read(line);
        }
        assert_eq!(
            count,
            Count {
                passed: 15,
                failed: 1,
                skipped: 4,
                not_passed: 0,
            }
        );
        assert_eq!(count.to_string(), "15 passed, 1 failed, 4 skipped");
        assert_eq!(Count::default().to_string(), "0 passed, 0 failed");
    }
}
