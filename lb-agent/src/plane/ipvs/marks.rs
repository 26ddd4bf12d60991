//! Which marks lead to which service port is for others to know; here, which are in use.

use std::collections::BTreeSet;

use super::rules::Mark;

/// The marks in use.
#[derive(Debug, Default)]
pub(super) struct Marks {
    used: BTreeSet<u16>,
    last: u16,
}

/// All marks are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no mark is left: more than {} service ports send clients of this node to endpoints of their own",
    Mark::LAST
)]
pub(super) struct OutOfMarks;

impl Marks {
    /// Takes this one. Says whether it was free.
    pub(super) fn take(&mut self, mark: Mark) -> bool {
        self.used.insert(mark.number())
    }

    /// Takes the one that has been free for longest or so: packets may be on their way with one that was in use.
    pub(super) fn give(&mut self) -> Result<Mark, OutOfMarks> {
        for _ in 0..Mark::LAST {
            self.last = if self.last == Mark::LAST { 1 } else { self.last + 1 };
            if let Some(mark) = Mark::new(self.last).filter(|mark| self.used.insert(mark.number())) {
                return Ok(mark);
            }
        }
        Err(OutOfMarks)
    }

    /// It is free again.
    pub(super) fn free(&mut self, mark: Mark) {
        self.used.remove(&mark.number());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_given_once_and_run_out() {
        let mut marks = Marks::default();
        let given: BTreeSet<Mark> = (0..Mark::LAST).map(|_| marks.give().unwrap()).collect();
        assert_eq!(given.len(), usize::from(Mark::LAST));
        assert_eq!(marks.give(), Err(OutOfMarks));
        let one = *given.first().unwrap();
        marks.free(one);
        assert!(marks.take(one));
        assert!(!marks.take(one));
        marks.free(one);
        assert_eq!(marks.give(), Ok(one));
    }
}
