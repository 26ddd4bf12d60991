//! Whether other programs of ours are on the same hooks, and who of both begins what: see [`lb_common::stage`].
//!
//! Asked where something begins only, so that a packet that goes on costs nothing more.

use lb_common::stage::{self, BESIDE, DRAINS};

use crate::maps::STAGE;

/// One of [`lb_common::stage`].
#[inline(always)]
pub(crate) fn stage() -> u32 {
    row(stage::STAGE)
}

/// Programs behind these begin what begins. Whatever these do not know is to be let pass as it came.
#[inline(always)]
pub(crate) fn drains() -> bool {
    stage() >= DRAINS
}

/// Programs before these may have translated what is seen here.
#[inline(always)]
pub(crate) fn is_beside() -> bool {
    stage() == BESIDE
}

/// Which ports are theirs: 0 or 1.
#[inline(always)]
pub(crate) fn ports() -> u16 {
    (row(stage::PORTS) % stage::SIDES) as u16
}

#[inline(always)]
fn row(index: u32) -> u32 {
    match STAGE.get(index) {
        Some(value) => *value,
        None => 0,
    }
}
