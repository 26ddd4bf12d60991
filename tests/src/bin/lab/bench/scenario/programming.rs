//! `programming`: how soon packets follow what is written to the API server, and what that takes.
//!
//! A proxy starts beside all objects, with nothing of its own in the kernel. Then the endpoints of one Service change, again
//! and again; then those of one in a hundred, all at once; then it is ended, a Service changes, and it starts anew. Who says
//! when is a client in a pod, which asks the Service all the while which endpoint answers.

use std::fs;
use std::net::IpAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lb_tests::interrupt;
use lb_tests::manifests::Service;
use lb_tests::stage::Family;

use super::super::probe;
use super::super::proxy::Proxy;
use super::super::recorder::Recorder;
use super::super::sample::{Times, Unit, histogram};
use super::super::site::{Client, Site};
use super::super::target::Target;
use super::super::writer::{Writer, changed, number_of};
use super::{Begin, Effort, Place, Scenario};

/// Longer than any of it takes that works.
const LIMIT: Duration = Duration::from_secs(600);
/// Between two single changes. kube-proxy lets a second go by between two writes, which a change that comes sooner would
/// have to wait for.
const REST: Duration = Duration::from_millis(1200);

/// It.
pub(super) struct Programming;

impl Scenario for Programming {
    fn name(&self) -> &'static str {
        "programming"
    }

    fn begin(&self) -> Begin {
        Begin::Cold
    }

    fn applies_to(&self, target: Target) -> bool {
        target != Target::None
    }

    fn parts(&self, _: usize) -> usize {
        // Each begins with what the one before has left.
        1
    }

    fn measure(&self, _: usize, place: &mut Place<'_>, recorder: &mut Recorder) -> Result<()> {
        cold_start(place, recorder)?;
        let cluster = place.cluster;
        cluster.with_client(|runtime, client| {
            let api = Writer::new(runtime, client);
            let measured = single_changes(place, &api, recorder)
                .and_then(|()| many_changes(place, &api, recorder))
                .and_then(|()| restart(place, &api, recorder));
            // What the next round, and the next target, is to find.
            measured.and(api.restore(place.endpoints))
        })
    }
}

/// The proxy that runs, which it does but between its end and its start here.
fn proxy(site: &Site) -> Result<&Proxy> {
    site.proxy().context("the proxy does not run")
}

fn cold_start(place: &mut Place<'_>, recorder: &mut Recorder) -> Result<()> {
    let case = "cold start";
    let memory_before = kernel_memory()?;
    let begun = Instant::now();
    place.site.spawn_proxy(place.cluster)?;
    // Whatever order it writes them in.
    for service in [place.services - 1, 0, place.services / 2] {
        let to = place.site.address(Client::Pod, service, Family::V4)?;
        probe::until_answered(place.site.client_pod().netns(), to, |_| true, LIMIT)?;
    }
    recorder.time(case, "until it serves", Unit::Seconds, begun.elapsed());
    let proxy = proxy(place.site)?;
    proxy.settle(LIMIT)?;
    recorder.time(case, "processor time", Unit::Seconds, proxy.processor()?);
    let memory = proxy.memory()?;
    recorder.value(case, "memory of the process", Unit::Megabytes, memory.now as f64 / 1e6);
    recorder.value(case, "memory at most", Unit::Megabytes, memory.most as f64 / 1e6);
    let kernel = kernel_memory()?.saturating_sub(memory_before);
    recorder.value(case, "memory of the kernel", Unit::Megabytes, kernel as f64 / 1e6);
    Ok(())
}

fn single_changes(place: &Place<'_>, api: &Writer<'_>, recorder: &mut Recorder) -> Result<()> {
    let case = "one change";
    let proxy = proxy(place.site)?;
    let (changes, budget) = match place.effort {
        Effort::Quick => (6, Duration::from_secs(20)),
        Effort::Full => (40, Duration::from_secs(120)),
    };
    let begun = Instant::now();
    let (mut followed, mut answered) = (histogram(), histogram());
    let (mut made, mut processor) = (0_u32, Duration::ZERO);
    for number in 0..changes {
        // From all over the services, and never one twice while there are others.
        let service = number * 7919 % place.services;
        let generation = 1 + (number / place.services) % 2;
        let changed = changed(service, place.endpoints, generation)?;
        interrupt::sleep(REST)?;
        let before = proxy.processor()?;
        let change = change(place.site, api, &changed)?;
        proxy.settle(LIMIT)?;
        processor += proxy.processor()? - before;
        made += 1;
        followed.saturating_record(u64::try_from(change.followed.as_nanos())?);
        answered.saturating_record(u64::try_from(change.answered.as_nanos())?);
        if begun.elapsed() > budget {
            break;
        }
    }
    recorder.times(case, "until packets follow", Unit::Milliseconds, Times::of(&followed));
    recorder.value(
        case,
        "until packets follow max",
        Unit::Milliseconds,
        followed.max() as f64 / 1e6,
    );
    recorder.times(
        case,
        "until the API server answers",
        Unit::Milliseconds,
        Times::of(&answered),
    );
    recorder.time(case, "processor time", Unit::Milliseconds, processor / made);
    Ok(())
}

fn many_changes(place: &Place<'_>, api: &Writer<'_>, recorder: &mut Recorder) -> Result<()> {
    let case = "one in a hundred changes";
    let proxy = proxy(place.site)?;
    let step = 100.min(place.services);
    let services = (0..place.services).step_by(step);
    let changed: Vec<Service> = services
        .map(|service| changed(service, place.endpoints, 3))
        .collect::<Result<_>>()?;
    interrupt::sleep(REST)?;
    let before = proxy.processor()?;
    let begun = Instant::now();
    api.write_all(&changed)?;
    recorder.time(case, "until all are written", Unit::Milliseconds, begun.elapsed());
    for service in &changed {
        until_follows(place.site, service, LIMIT)?;
    }
    recorder.time(case, "until packets follow", Unit::Milliseconds, begun.elapsed());
    proxy.settle(LIMIT)?;
    recorder.time(case, "processor time", Unit::Milliseconds, proxy.processor()? - before);
    Ok(())
}

fn restart(place: &mut Place<'_>, api: &Writer<'_>, recorder: &mut Recorder) -> Result<()> {
    let case = "restart";
    place.site.stop_proxy();
    let changed = changed(place.services - 1, place.endpoints, 4)?;
    api.write(&changed)?;
    let begun = Instant::now();
    place.site.spawn_proxy(place.cluster)?;
    until_follows(place.site, &changed, LIMIT)?;
    recorder.time(case, "until packets follow", Unit::Seconds, begun.elapsed());
    let proxy = proxy(place.site)?;
    proxy.settle(LIMIT)?;
    recorder.time(case, "processor time", Unit::Seconds, proxy.processor()?);
    Ok(())
}

/// How long a change took.
struct Change {
    /// Until a packet followed it.
    followed: Duration,
    /// Until the API server had answered.
    answered: Duration,
}

/// Writes a change while a client asks.
fn change(site: &Site, api: &Writer<'_>, changed: &Service) -> Result<Change> {
    thread::scope(|scope| {
        let (asking, is_asking) = mpsc::channel();
        let client = scope.spawn(move || {
            // The other end waits for it.
            let _ = asking.send(());
            until_follows(site, changed, LIMIT)
        });
        is_asking.recv().context("the asking thread is gone")?;
        let begun = Instant::now();
        let written = api.write(changed);
        let answered = begun.elapsed();
        let followed = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written?;
        let followed = followed?.saturating_duration_since(begun);
        Ok(Change { followed, answered })
    })
}

/// Asks a Service from the client's pod until one of its endpoints answers, and says when that was.
fn until_follows(site: &Site, service: &Service, within: Duration) -> Result<Instant> {
    let to = site.address(Client::Pod, number_of(service)?, Family::V4)?;
    let endpoints: Vec<IpAddr> = service.endpoints.iter().map(|endpoint| endpoint.addresses[0]).collect();
    probe::until_answered(
        site.client_pod().netns(),
        to,
        move |address| endpoints.contains(&address),
        within,
    )
}

/// What the kernel has taken for itself and could not give back, in bytes: where maps and rules are.
fn kernel_memory() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    kernel_memory_of(&text)
}

fn kernel_memory_of(meminfo: &str) -> Result<u64> {
    let mut sum = 0;
    for name in ["SUnreclaim:", "VmallocUsed:", "Percpu:"] {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
        match kibibytes.map(str::parse::<u64>) {
            Some(Ok(kibibytes)) => sum += 1024 * kibibytes,
            _ => bail!("/proc/meminfo has no {name}"),
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_kernel_is_what_it_cannot_give_back() {
        let text = "Slab: 100 kB\nSUnreclaim:  40 kB\nVmallocUsed:  10 kB\nPercpu:   2 kB\n";
        assert_eq!(kernel_memory_of(text).unwrap(), 52 * 1024);
        assert!(kernel_memory_of("SUnreclaim: 1 kB\n").is_err());
    }
}
