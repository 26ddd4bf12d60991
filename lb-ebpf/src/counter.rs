//! Counting.

use crate::maps::COUNTERS;

/// One more; `counter` is the number of a [`Counter`](lb_common::Counter).
#[inline(always)]
pub(crate) fn count(counter: u32) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: the row is this CPU's own, and nothing else of ours runs on it before we return.
        unsafe { *value += 1 };
    }
}
