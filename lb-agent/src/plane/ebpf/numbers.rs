//! Which numbers are whose: of backends, of service ports.

use std::collections::BTreeSet;

/// Hands out numbers from 1 on and takes them back. 0 belongs to nobody.
///
/// As with ranges of slots, a number that programs may have seen waits for two ticks before it
/// means something else.
#[derive(Debug)]
pub(super) struct Numbers {
    /// No number above is used.
    highest: u32,
    /// The highest there may be.
    limit: u32,
    /// Not used, and at most `highest`.
    free: Vec<u32>,
    /// Retired since the last tick, and in the one before.
    resting: [Vec<u32>; 2],
}

impl Numbers {
    /// The numbers from 1 to `limit`, of which `used` are taken.
    pub(super) fn new(limit: u32, used: &BTreeSet<u32>) -> Self {
        let highest = used.last().copied().unwrap_or(0);
        Self {
            highest,
            limit,
            // The last is taken first: low numbers, so that the rows in use stay together.
            free: (1..=highest).rev().filter(|n| !used.contains(n)).collect(),
            resting: [Vec::new(), Vec::new()],
        }
    }

    /// How many are not free.
    pub(super) fn used(&self) -> usize {
        (self.highest as usize).saturating_sub(self.free.len())
    }

    /// Takes a number; `None` if there is none.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        if self.highest >= self.limit {
            return None;
        }
        self.highest += 1;
        Some(self.highest)
    }

    /// Gives back a number that no program can have seen.
    pub(super) fn free(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Gives back a number that programs, or rows that they wrote, may still hold.
    pub(super) fn retire(&mut self, number: u32) {
        self.resting[0].push(number);
    }

    /// A second has gone by.
    pub(super) fn tick(&mut self) {
        let [recent, rested] = &mut self.resting;
        let rested = std::mem::replace(rested, std::mem::take(recent));
        self.free.extend(rested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_nobodys_and_the_limit_holds() {
        let mut numbers = Numbers::new(3, &BTreeSet::new());
        let taken: Vec<_> = std::iter::from_fn(|| numbers.allocate()).collect();
        assert_eq!(taken, [1, 2, 3]);
    }

    #[test]
    fn gaps_between_used_numbers_are_filled() {
        let mut numbers = Numbers::new(6, &BTreeSet::from([2, 5]));
        let taken: Vec<_> = std::iter::from_fn(|| numbers.allocate()).collect();
        assert_eq!(taken, [1, 3, 4, 6]);
    }

    #[test]
    fn a_retired_number_comes_back_at_the_second_tick() {
        let mut numbers = Numbers::new(1, &BTreeSet::new());
        assert_eq!(numbers.allocate(), Some(1));
        numbers.retire(1);
        numbers.tick();
        assert_eq!(numbers.allocate(), None);
        numbers.tick();
        assert_eq!(numbers.allocate(), Some(1));
    }
}
