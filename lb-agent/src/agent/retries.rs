//! What failed, and when to try it again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);

/// Things that failed, each with its own wait, which doubles with each failure.
#[derive(Debug)]
pub(super) struct Retries<K>(BTreeMap<K, Retry>);

#[derive(Debug)]
struct Retry {
    due: Instant,
    wait: Duration,
}

impl<K> Default for Retries<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Retries<K> {
    /// It failed, once more or for the first time.
    pub(super) fn failed(&mut self, key: K, now: Instant) {
        let before = self.0.get(&key).map(|retry| retry.wait);
        let wait = before.map_or(FIRST, |wait| (wait * 2).min(LONGEST));
        let due = now + wait;
        self.0.insert(key, Retry { due, wait });
    }

    /// It worked, or is not wanted any more.
    pub(super) fn forget(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|retry| retry.due).min()
    }

    /// Those that are due. They stay until they are forgotten or fail again.
    pub(super) fn due(&self, now: Instant) -> Vec<K> {
        let due = self.0.iter().filter(|(_, retry)| retry.due <= now);
        due.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_with_each_failure_up_to_a_limit() {
        let start = Instant::now();
        let mut retries = Retries::default();
        let mut waits = Vec::new();
        for _ in 0..10 {
            retries.failed("web", start);
            waits.push((retries.next().unwrap() - start).as_millis());
        }
        assert_eq!(
            waits,
            [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
        );
        retries.forget(&"web");
        retries.failed("web", start);
        assert_eq!(retries.next(), Some(start + FIRST));
    }

    #[test]
    fn only_what_is_due_is_tried() {
        let start = Instant::now();
        let mut retries = Retries::default();
        retries.failed("a", start);
        retries.failed("b", start + FIRST);
        assert_eq!(retries.due(start), [""; 0]);
        assert_eq!(retries.due(start + FIRST), ["a"]);
        assert_eq!(retries.due(start + FIRST * 2), ["a", "b"]);
    }
}
