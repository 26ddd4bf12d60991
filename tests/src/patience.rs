//! How much slower than usual the machine is: an emulated processor takes ten times as long.

use std::sync::LazyLock;
use std::time::Duration;

/// A number to multiply times to wait with. `cargo xtask test --kernel` sets it.
const VARIABLE: &str = "LB_TEST_PATIENCE";

static FACTOR: LazyLock<u32> = LazyLock::new(|| match std::env::var(VARIABLE) {
    Ok(text) => text
        .parse()
        .ok()
        .filter(|factor| *factor > 0)
        .unwrap_or_else(|| panic!("{VARIABLE} is {text:?}, which is no number from 1 on")),
    Err(_) => 1,
});

/// How long to wait here for what elsewhere takes no longer than this. Not for times that the agent itself keeps.
#[must_use]
pub fn patient(duration: Duration) -> Duration {
    duration * *FACTOR
}

/// How many things may be done at once here, of which elsewhere so many may: fewer, or each would take longer than
/// [`patient`] waits. Most of them wait for what does not come, so it is not as many times fewer as the machine is slower.
#[must_use]
pub fn at_once(elsewhere: usize) -> usize {
    match *FACTOR {
        1 => elsewhere,
        _ => elsewhere.div_ceil(4),
    }
}

/// How many times to do here what elsewhere is done so many times, for what is right the first time or is a matter of
/// numbers that a slow machine does not get to.
#[must_use]
pub fn times(elsewhere: u32) -> u32 {
    elsewhere / *FACTOR
}
