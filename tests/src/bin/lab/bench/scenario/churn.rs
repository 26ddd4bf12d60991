//! `churn`: what new connections to a Service come to while endpoints of all Services change as fast as the API server takes
//! it, beside what they come to in peace.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use lb_tests::manifests::Service;
use lb_tests::stage::Family;

use super::super::load::Kind;
use super::super::recorder::Recorder;
use super::super::sample::Unit;
use super::super::site::Client;
use super::super::writer::{Writer, changed};
use super::{Begin, Place, Scenario};

/// Who is dialled. It changes too, as one of each [`BATCH`].
const SERVICE: usize = 0;
/// How many changes are made between two looks at whether it is over.
const BATCH: usize = 32;

/// It.
pub(super) struct Churn;

impl Scenario for Churn {
    fn name(&self) -> &'static str {
        "churn"
    }

    fn begin(&self) -> Begin {
        // Proxies at rest would have to catch up with the changes of all others' turns.
        Begin::Cold
    }

    fn parts(&self, _: usize) -> usize {
        1
    }

    fn measure(&self, _: usize, place: &mut Place<'_>, recorder: &mut Recorder) -> Result<()> {
        place.site.serve(place.cluster)?;
        connect(place, "in peace", recorder)?;
        let cluster = place.cluster;
        cluster.with_client(|runtime, client| {
            let api = Writer::new(runtime, client);
            let measured = under_changes(place, &api, recorder);
            measured.and(api.restore(place.endpoints))
        })
    }
}

fn connect(place: &Place<'_>, case: &str, recorder: &mut Recorder) -> Result<()> {
    let to = place.site.address(Client::Pod, SERVICE, Family::V4)?;
    let done = place.ask(Client::Pod, Kind::TcpCrr, 1, to)?;
    recorder.failures(case, &done);
    recorder.value(case, "failed connections", Unit::Times, done.failed as f64);
    recorder.value(
        case,
        "connections",
        Unit::PerSecond,
        done.operations as f64 / done.seconds,
    );
    recorder.times(case, "transaction", Unit::Microseconds, done.times);
    Ok(())
}

fn under_changes(place: &Place<'_>, api: &Writer<'_>, recorder: &mut Recorder) -> Result<()> {
    let case = "under changes";
    let used = || place.site.proxy().map_or(Ok(Duration::ZERO), |proxy| proxy.processor());
    let is_over = AtomicBool::new(false);
    let before = used()?;
    let begun = Instant::now();
    let (changes, connected) = thread::scope(|scope| {
        let client = scope.spawn(|| {
            let connected = connect(place, case, recorder);
            is_over.store(true, Ordering::SeqCst);
            connected
        });
        let changes = change(place, api, &is_over);
        let connected = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (changes, connected)
    });
    let seconds = begun.elapsed().as_secs_f64();
    let used = used()?.saturating_sub(before);
    connected?;
    recorder.value(case, "changes", Unit::PerSecond, changes? as f64 / seconds);
    if place.site.proxy().is_some() {
        recorder.value(
            case,
            "processor time a second",
            Unit::Milliseconds,
            used.as_secs_f64() * 1e3 / seconds,
        );
    }
    Ok(())
}

/// Changes Services until it is over, and says how many times.
fn change(place: &Place<'_>, api: &Writer<'_>, is_over: &AtomicBool) -> Result<usize> {
    let mut made = 0;
    for number in 0.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let batch = batch(number, place.services, place.endpoints)?;
        api.write_all(&batch)?;
        made += batch.len();
    }
    Ok(made)
}

/// The changes of this batch, from 0: the Service that is dialled, and others by turns. No Service is in it twice, since two
/// writes of one at a time could end either way.
fn batch(number: usize, services: usize, endpoints: usize) -> Result<Vec<Service>> {
    let others = services.saturating_sub(1);
    let generation = |seen: usize| 1 + seen % 2;
    let first = std::iter::once(changed(SERVICE, endpoints, generation(number)));
    let rest = (0..others.min(BATCH - 1)).map(|place| {
        let turn = number * others.min(BATCH - 1) + place;
        changed(1 + turn % others, endpoints, generation(turn / others))
    });
    first.chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_batch_changes_each_of_its_services_once_and_for_another_state() {
        for services in [1, 2, 20, 100] {
            let mut last: Vec<Service> = Vec::new();
            for number in 0..4 {
                let batch = batch(number, services, 3).unwrap();
                let names: BTreeSet<&str> = batch.iter().map(|service| &*service.name).collect();
                assert_eq!(names.len(), batch.len(), "{services} services, {number}");
                assert_eq!(batch[0].name, "bench-0");
                if let Some(before) = last.first() {
                    assert_ne!(before.endpoints, batch[0].endpoints);
                }
                last = batch;
            }
        }
    }
}
