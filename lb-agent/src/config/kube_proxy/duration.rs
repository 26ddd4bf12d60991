//! Durations as Go writes them: `1h30m`, `0s`, `250ms`.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Nanoseconds. None of kube-proxy's may be negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub(super) struct GoDuration(u128);

/// What is no duration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no duration such as 30s, 1h15m or 0")]
pub(super) struct InvalidDuration(String);

/// The units, in nanoseconds. The first that fits counts: `ms` comes before `m`.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
/// More digits of a fraction are smaller than a nanosecond, whatever the unit.
const DIGITS: usize = 15;

impl GoDuration {
    pub(super) const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl FromStr for GoDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(Self).ok_or_else(|| InvalidDuration(text.to_owned()))
    }
}

impl TryFrom<String> for GoDuration {
    type Error = InvalidDuration;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

fn parse(text: &str) -> Option<u128> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let (unit, nanoseconds) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        rest = &after[unit.len()..];
        if !whole.is_empty() {
            total = total.checked_add(whole.parse::<u128>().ok()?.checked_mul(*nanoseconds)?)?;
        }
        let fraction = &fraction[..fraction.len().min(DIGITS)];
        if !fraction.is_empty() {
            let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
            total = total.checked_add(fraction.parse::<u128>().ok()? * nanoseconds / scale)?;
        }
    }
    // Go has them in 64 bits with a sign.
    (total <= i64::MAX as u128).then_some(total)
}

/// The digits that a text begins with, and the rest.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_the_sum_of_its_parts() {
        const SECOND: u128 = 1_000_000_000;
        for (text, expected) in [
            ("0", 0),
            ("0s", 0),
            ("30s", 30 * SECOND),
            ("1h0m0s", 3600 * SECOND),
            ("2h22m", 8520 * SECOND),
            ("1.5h", 5400 * SECOND),
            (".5s", SECOND / 2),
            ("250ms", SECOND / 4),
            ("+1m", 60 * SECOND),
            ("3µs", 3_000),
        ] {
            assert_eq!(text.parse(), Ok(GoDuration(expected)), "{text}");
        }
        for wrong in ["", "30", "s", "-1s", "1d", "1 s", "1h 5m", ".s", "9999999h"] {
            assert!(wrong.parse::<GoDuration>().is_err(), "{wrong}");
        }
    }
}
