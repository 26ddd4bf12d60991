//! What the kernel holds of a plane, in the text form of the desired state: for people and for tests.

use std::{collections::BTreeSet, fmt};

use crate::desired::text::Line;

/// A line, and what is wrong with what it was read from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shown {
    /// What the kernel goes by.
    pub line: Line,
    /// Where the kernel's own entries contradict each other.
    pub errors: BTreeSet<String>,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line.fmt(f)?;
        self.errors.iter().try_for_each(|error| write!(f, " error=\"{error}\""))
    }
}
