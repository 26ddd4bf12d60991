//! Which slots are whose: ranges of the map `SLOTS`.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::Range;

/// Hands out ranges and takes them back. What is free is kept by place, so that neighbours merge,
/// and by length, so that the smallest that fits is found at once.
///
/// A range that programs may have seen comes back by way of [`Ranges::retire`] and waits for two
/// ticks: a program that read the service's old row must still find the old slots there.
#[derive(Debug)]
pub(super) struct Ranges {
    by_base: BTreeMap<u32, u32>,
    by_length: BTreeSet<(u32, u32)>,
    capacity: u32,
    /// Retired since the last tick, and in the one before.
    resting: [Vec<Range>; 2],
}

impl Ranges {
    /// `capacity` free slots.
    pub(super) fn new(capacity: u32) -> Self {
        let mut ranges = Self {
            by_base: BTreeMap::new(),
            by_length: BTreeSet::new(),
            capacity,
            resting: [Vec::new(), Vec::new()],
        };
        if capacity > 0 {
            ranges.insert(0, capacity);
        }
        ranges
    }

    /// How many slots are not free.
    pub(super) fn used(&self) -> usize {
        let free: u32 = self.by_base.values().sum();
        self.capacity.saturating_sub(free) as usize
    }

    /// Takes `count` free slots in a row; `None` if there are none.
    pub(super) fn allocate(&mut self, count: u32) -> Option<Range> {
        debug_assert!(count > 0, "an empty range needs no slots");
        let &(length, base) = self.by_length.range((count, 0)..).next()?;
        self.take(base, length);
        if length > count {
            self.insert(base + count, length - count);
        }
        Some(Range { base, count })
    }

    /// Takes exactly this range; `false`, and nothing taken, unless all of it is free.
    pub(super) fn claim(&mut self, range: Range) -> bool {
        let Some(end) = range.base.checked_add(range.count) else {
            return false;
        };
        let Some((&base, &length)) = self.by_base.range(..=range.base).next_back() else {
            return false;
        };
        if range.count == 0 || end > base + length {
            return false;
        }
        self.take(base, length);
        if base < range.base {
            self.insert(base, range.base - base);
        }
        if end < base + length {
            self.insert(end, base + length - end);
        }
        true
    }

    /// Takes what is free between `base` and `end`, and lets it rest.
    pub(super) fn retire_free(&mut self, base: u32, end: u32) {
        let first = self
            .by_base
            .range(..base)
            .next_back()
            .map_or(base, |(&before, _)| before);
        let pieces: Vec<_> = self
            .by_base
            .range(first..end)
            .map(|(&from, &length)| (from.max(base), (from + length).min(end)))
            .filter(|(from, to)| from < to)
            .collect();
        for (from, to) in pieces {
            let piece = Range {
                base: from,
                count: to - from,
            };
            let taken = self.claim(piece);
            debug_assert!(taken, "it is part of a free one");
            self.retire(piece);
        }
    }

    /// Gives back a range that no program can have seen.
    pub(super) fn free(&mut self, range: Range) {
        let (mut base, mut length) = (range.base, range.count);
        if let Some((&before, &before_length)) = self.by_base.range(..base).next_back()
            && before + before_length == base
        {
            self.take(before, before_length);
            base = before;
            length += before_length;
        }
        if let Some(&after_length) = self.by_base.get(&(base + length)) {
            self.take(base + length, after_length);
            length += after_length;
        }
        self.insert(base, length);
    }

    /// Gives back a range that a running program may still read.
    pub(super) fn retire(&mut self, range: Range) {
        self.resting[0].push(range);
    }

    /// A second has gone by.
    pub(super) fn tick(&mut self) {
        let [recent, rested] = &mut self.resting;
        let rested = std::mem::replace(rested, std::mem::take(recent));
        for range in rested {
            self.free(range);
        }
    }

    fn insert(&mut self, base: u32, length: u32) {
        self.by_base.insert(base, length);
        self.by_length.insert((length, base));
    }

    fn take(&mut self, base: u32, length: u32) {
        self.by_base.remove(&base);
        self.by_length.remove(&(length, base));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(base: u32, count: u32) -> Range {
        Range { base, count }
    }

    #[test]
    fn what_is_given_back_merges_with_its_neighbours() {
        let mut ranges = Ranges::new(30);
        let taken: Vec<_> = (0..3).map(|_| ranges.allocate(10).unwrap()).collect();
        assert_eq!(ranges.allocate(1), None);
        ranges.free(taken[0]);
        ranges.free(taken[2]);
        assert_eq!(ranges.allocate(11), None);
        ranges.free(taken[1]);
        assert_eq!(ranges.allocate(30), Some(range(0, 30)));
    }

    #[test]
    fn the_smallest_that_fits_is_taken() {
        let mut ranges = Ranges::new(100);
        assert!(ranges.claim(range(10, 1)));
        assert!(ranges.claim(range(15, 1)));
        assert_eq!(ranges.allocate(4), Some(range(11, 4)));
        assert_eq!(ranges.allocate(5), Some(range(0, 5)));
    }

    #[test]
    fn a_claim_takes_all_or_nothing() {
        let mut ranges = Ranges::new(10);
        assert!(ranges.claim(range(3, 4)));
        for refused in [range(3, 4), range(6, 2), range(0, 4), range(9, 2), range(u32::MAX, 2)] {
            assert!(!ranges.claim(refused), "{refused:?}");
        }
        assert!(ranges.claim(range(0, 3)));
        assert!(ranges.claim(range(7, 3)));
        assert_eq!(ranges.allocate(1), None);
    }

    #[test]
    fn a_retired_range_comes_back_at_the_second_tick() {
        let mut ranges = Ranges::new(4);
        let taken = ranges.allocate(4).unwrap();
        ranges.retire(taken);
        assert_eq!(ranges.allocate(1), None);
        ranges.tick();
        assert_eq!(ranges.allocate(1), None);
        ranges.tick();
        assert_eq!(ranges.allocate(4), Some(taken));
    }

    #[test]
    fn only_what_is_free_is_sent_to_rest() {
        let mut ranges = Ranges::new(20);
        assert!(ranges.claim(range(5, 5)));
        ranges.retire_free(3, 15);
        assert_eq!(ranges.allocate(5), Some(range(15, 5)));
        assert_eq!(ranges.allocate(3), Some(range(0, 3)));
        assert_eq!(ranges.allocate(1), None);
        ranges.tick();
        ranges.tick();
        assert_eq!(ranges.allocate(5), Some(range(10, 5)));
        assert_eq!(ranges.allocate(2), Some(range(3, 2)));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Allocate(u32),
        Claim(u32, u32),
        Free(prop::sample::Index),
        Retire(prop::sample::Index),
        Tick,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1_u32..40).prop_map(Step::Allocate),
            (0_u32..260, 0_u32..40).prop_map(|(base, count)| Step::Claim(base, count)),
            any::<prop::sample::Index>().prop_map(Step::Free),
            any::<prop::sample::Index>().prop_map(Step::Retire),
            Just(Step::Tick),
        ]
    }

    proptest! {
        #[test]
        fn no_slot_has_two_owners_and_every_slot_comes_back(
            steps in prop::collection::vec(step(), 0..200)
        ) {
            const CAPACITY: u32 = 256;
            let mut ranges = Ranges::new(CAPACITY);
            let mut held: Vec<Range> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(count) => held.extend(ranges.allocate(count)),
                    Step::Claim(base, count) => {
                        let wanted = range(base, count);
                        if ranges.claim(wanted) {
                            held.push(wanted);
                        }
                    }
                    Step::Free(index) if !held.is_empty() => {
                        let at = index.index(held.len());
                        ranges.free(held.swap_remove(at));
                    }
                    Step::Retire(index) if !held.is_empty() => {
                        let at = index.index(held.len());
                        ranges.retire(held.swap_remove(at));
                    }
                    Step::Free(_) | Step::Retire(_) => {}
                    Step::Tick => ranges.tick(),
                }
                let mut owned = vec![false; CAPACITY as usize];
                for range in &held {
                    for slot in range.base..range.base + range.count {
                        prop_assert!(!std::mem::replace(&mut owned[slot as usize], true));
                    }
                }
            }
            for range in held {
                ranges.retire(range);
            }
            ranges.tick();
            ranges.tick();
            prop_assert_eq!(ranges.allocate(CAPACITY), Some(range(0, CAPACITY)));
        }
    }
}
