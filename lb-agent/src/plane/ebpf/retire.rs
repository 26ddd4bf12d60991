//! Makes programs that another plane replaces take no new client, and go on with the flows that they have.

use std::path::Path;

use super::{pins::Pins, stage::Stage};

/// Has programs that an agent left under `bpffs`, of whatever layout, begin nothing any more. From then on who connects
/// passes them as it came, while the flow table still translates whoever had connected before. Where no such agent was
/// there is nothing to do. Says whether there was one.
///
/// # Errors
/// An agent holds them, or they cannot be told.
pub fn retire(bpffs: &Path) -> anyhow::Result<bool> {
    let Ok(pins) = Pins::new(bpffs) else {
        return Ok(false);
    };
    if pins.serving()?.is_empty() {
        return Ok(false);
    }
    let _lock = pins.lock()?;
    let mut is_any = false;
    for generation in pins.serving()? {
        if let Some(mut stage) = Stage::open(&generation.maps())? {
            stage.drain(false)?;
            is_any = true;
        }
    }
    Ok(is_any)
}
