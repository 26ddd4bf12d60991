//! When something was that the kernel dates by its monotonic clock.

use anyhow::Context as _;
use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock.
pub(super) fn monotonic() -> anyhow::Result<u64> {
    read(ClockId::CLOCK_MONOTONIC)?
        .try_into()
        .context("the monotonic clock is out of range")
}

/// How far the wall clock is ahead of the monotonic one. Holds for a moment: it may be set at any time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wall {
    /// Nanoseconds.
    ahead: i128,
}

impl Wall {
    /// As it is now.
    pub(super) fn now() -> anyhow::Result<Self> {
        Ok(Self {
            ahead: read(ClockId::CLOCK_REALTIME)? - read(ClockId::CLOCK_MONOTONIC)?,
        })
    }

    /// What it showed when the monotonic clock showed this many nanoseconds.
    pub(super) fn at(self, monotonic: u64) -> anyhow::Result<Timestamp> {
        Ok(Timestamp::from_nanosecond(self.ahead + i128::from(monotonic))?)
    }
}

fn read(clock: ClockId) -> anyhow::Result<i128> {
    let time = clock_gettime(clock).context("cannot read the clock")?;
    Ok(i128::from(time.tv_sec()) * 1_000_000_000 + i128::from(time.tv_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_now_by_one_clock_is_now_by_the_other() {
        let before = Timestamp::now();
        let shown = Wall::now().unwrap().at(monotonic().unwrap()).unwrap();
        // Between the reading of two clocks this process may have to wait.
        let span = before.duration_until(shown).abs();
        assert!(span < jiff::SignedDuration::from_secs(5), "{span:?}");
    }
}
