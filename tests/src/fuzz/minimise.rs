//! Leaves out of a script what its fault does not need.

use anyhow::Result;

use super::script::Step;
use super::{Found, Fuzzer};

/// How often a shorter script is played before it counts as right: the programs draw backends at random.
const PLAYS: usize = 60;

/// The same fault, or another, in as few steps as can be had by leaving some out.
pub fn minimise(fuzzer: &mut Fuzzer, mut found: Found) -> Result<Found> {
    let mut width = found.steps.len().div_ceil(2);
    while width > 0 {
        let mut at = 0;
        while at < found.steps.len() {
            let end = (at + width).min(found.steps.len());
            let fewer: Vec<Step> = [&found.steps[..at], &found.steps[end..]].concat();
            match still_wrong(fuzzer, &fewer)? {
                Some(shorter) => found = shorter,
                None => at += width,
            }
        }
        width /= 2;
    }
    Ok(found)
}

fn still_wrong(fuzzer: &mut Fuzzer, steps: &[Step]) -> Result<Option<Found>> {
    for _ in 0..PLAYS {
        if let Some(found) = fuzzer.play(steps)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
