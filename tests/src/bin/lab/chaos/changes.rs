//! Services and endpoints that come and go meanwhile, though none that a long connection uses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lb_tests::interrupt;
use lb_tests::manifests::Service;
use lb_tests::stage::{Stage, TARGET};

/// Between two changes.
const PAUSE: Duration = Duration::from_secs(2);

/// Changes something every now and then, until it is told that it is over.
pub(crate) fn run(stage: &Stage, over: &AtomicBool) -> Result<()> {
    let usual = &stage.services().changing;
    let moved = usual.clone().with_endpoints([&stage.here()[0], &stage.there()[1]]);
    let more = Service::new("comes-and-goes", 6, TARGET)
        .at_node_port(30_086)
        .with_endpoints([&stage.here()[2]]);
    let source = stage.source();
    let mut next = Instant::now();
    for turn in 0_u32.. {
        while Instant::now() < next {
            if over.load(Ordering::Relaxed) || interrupt::check().is_err() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        let changed = match turn % 4 {
            0 => source.apply(&moved.slice_manifests()?),
            1 => source.apply(&more.manifests()?),
            2 => source.apply(&usual.slice_manifests()?),
            _ => source.delete(&more.manifests()?),
        };
        changed.context("changing Services")?;
        next = Instant::now() + PAUSE;
    }
    Ok(())
}
