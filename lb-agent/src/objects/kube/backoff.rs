//! How long to wait before trying again.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Waits that double from try to try, up to a limit, and differ from node to node: an API server
/// that comes back must not meet all its clients in one moment.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(30);

impl Backoff {
    pub(super) const fn new() -> Self {
        Self { next: FIRST }
    }

    /// It worked: the next wait is short again.
    pub(super) const fn reset(&mut self) {
        self.next = FIRST;
    }

    /// The next wait: a random one between half of what it is and all of it.
    pub(super) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LONGEST);
        wait.mul_f64(0.5 + random_fraction() / 2.0)
    }
}

/// A number from 0 to 1. The standard library's only source of randomness is the seed of its
/// hash maps, which is good enough to spread clients over time.
fn random_fraction() -> f64 {
    let bits = RandomState::new().hash_one(());
    f64::from((bits >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_start_again_after_a_success() {
        let mut backoff = Backoff::new();
        let mut limit = FIRST;
        for _ in 0..12 {
            let wait = backoff.next();
            assert!(wait >= limit / 2 && wait <= limit, "{wait:?} of {limit:?}");
            limit = (limit * 2).min(LONGEST);
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
