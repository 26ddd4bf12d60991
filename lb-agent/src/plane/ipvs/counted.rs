//! Things that several service ports have in common, and which go with the last of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
};

/// How many want each.
#[derive(Clone, Debug)]
pub(super) struct Counted<T>(BTreeMap<T, NonZeroUsize>);

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Copy + Ord> Counted<T> {
    /// One more wants these.
    pub(super) fn add(&mut self, all: &BTreeSet<T>) {
        for one in all {
            self.0
                .entry(*one)
                .and_modify(|count| *count = count.saturating_add(1))
                .or_insert(NonZeroUsize::MIN);
        }
    }

    /// One less does.
    pub(super) fn remove(&mut self, all: &BTreeSet<T>) {
        for one in all {
            if let Some(count) = self.0.remove(one)
                && let Some(count) = NonZeroUsize::new(count.get() - 1)
            {
                self.0.insert(*one, count);
            }
        }
    }

    /// Whether anybody wants it.
    pub(super) fn contains(&self, one: &T) -> bool {
        self.0.contains_key(one)
    }

    /// All that somebody wants, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = T> + '_ {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_want_goes_with_the_second() {
        let mut counted = Counted::default();
        counted.add(&BTreeSet::from([1, 2]));
        counted.add(&BTreeSet::from([2, 3]));
        counted.remove(&BTreeSet::from([1, 2]));
        assert_eq!(counted.all().collect::<Vec<_>>(), [2, 3]);
        counted.remove(&BTreeSet::from([2, 3]));
        assert!(!counted.contains(&2));
    }
}
