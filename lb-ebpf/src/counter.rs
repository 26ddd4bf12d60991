//! Counting.

use lb_common::Counter;

use crate::maps::COUNTERS;

/// One more.
#[inline(always)]
pub(crate) fn count(counter: Counter) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the row is this CPU's own, and nothing else of ours runs on it before we return.
        unsafe { *value += 1 };
    }
}
