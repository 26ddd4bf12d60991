//! The objects in the API server: written before the proxies start, and changed all at once while they run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail};
use lb_tests::client::Protocol;
use lb_tests::controlplane::ControlPlane;
use lb_tests::interrupt;
use lb_tests::manifests::{self, Manifest};
use lb_tests::patience::patient;
use lb_tests::source::Source;
use lb_tests::stage::Family;

use super::actors::{self, Backend};
use super::catalogue::{CANARY, ZONE_HERE, ZONE_THERE};
use super::probe::Entry;
use super::service::{Endpoint, Kind, Service};
use super::sides::{Ours, Theirs};
use super::twin::Twin;
use crate::progress::Step;

/// How many Services are written by one call of kubectl, which costs more than what it writes.
const AT_ONCE: usize = 25;
/// How long the proxies may take to follow a change of everything.
const FOLLOW: Duration = Duration::from_secs(60);
/// kube-proxy writes its rules once a second at most, and what it does not know of when it shows the last change comes
/// with the next time.
const SETTLE: Duration = Duration::from_secs(3);
/// How often in a row the last change must show.
const IN_A_ROW: usize = 5;

/// Writes the objects for the first time.
pub(crate) fn create(entries: &[Entry], twin: &Twin, source: &Source) -> Result<()> {
    let step = Step::of(
        format!("{} Services and their EndpointSlices", entries.len()),
        entries.len(),
    );
    let mut nodes = Vec::new();
    for (node, zone) in twin.network().nodes().iter().zip([ZONE_HERE, ZONE_THERE]) {
        let mut object = manifests::node(node);
        let label = ("topology.kubernetes.io/zone".to_owned(), zone.to_owned());
        object.metadata.labels.get_or_insert_default().extend([label]);
        nodes.push(Manifest::new(&object)?);
    }
    source.apply(&nodes)?;
    let Source::ApiServer(cluster) = source else {
        bail!("a folder has no status to write");
    };
    for entries in entries.chunks(AT_ONCE) {
        interrupt::check()?;
        let services: Vec<_> = entries.iter().map(|entry| &entry.service).collect();
        cluster.apply(&texts(&services, |_| true, |_| true, twin)?)?;
        write_statuses(&services, cluster)?;
        entries.iter().for_each(|_| step.advance());
    }
    cluster.apply(&texts(&[&canary(Backend::HereBridge)], |_| true, |_| true, twin)?)?;
    step.done();
    Ok(())
}

/// Makes every Service another one, and waits until both proxies have followed.
pub(crate) fn change(old: &[Entry], new: &[Entry], to: Backend, theirs: &Theirs, ours: &Ours) -> Result<()> {
    let step = Step::of("every Service becomes another one", new.len());
    let (cluster, twin) = (ours.cluster()?, &ours.twin);
    let by_number: BTreeMap<_, _> = old.iter().map(|entry| (entry.service.number, &entry.service)).collect();
    // What an object cannot become, a new one of its name can.
    let stays = |service: &Service| {
        let before = by_number.get(&service.number);
        before.is_some_and(|before| before.is_plain()) && service.is_plain()
    };
    let new_services: Vec<_> = new.iter().map(|entry| &entry.service).collect();
    let gone: Vec<_> = new_services.iter().filter(|service| !stays(service)).collect();
    let names: Vec<_> = gone.iter().map(|service| service.object_name()).collect();
    delete(cluster, "service", &names)?;

    let slices_of = |services: &[&Service]| -> BTreeSet<String> {
        let slices = services
            .iter()
            .flat_map(|service| service.slices(|backend| twin.addresses(backend)));
        slices.filter_map(|slice| slice.metadata.name).collect()
    };
    let old_services: Vec<_> = old.iter().map(|entry| &entry.service).collect();
    let (before, after) = (slices_of(&old_services), slices_of(&new_services));
    delete(
        cluster,
        "endpointslice",
        &before.difference(&after).cloned().collect::<Vec<_>>(),
    )?;

    for services in new_services.chunks(AT_ONCE) {
        interrupt::check()?;
        let replaced = texts(services, stays, |slice| before.contains(slice), twin)?;
        if !replaced.is_empty() {
            cluster.replace(&replaced)?;
        }
        let made = texts(
            services,
            |service| !stays(service),
            |slice| !before.contains(slice),
            twin,
        )?;
        if !made.is_empty() {
            cluster.apply(&made)?;
        }
        write_statuses(services, cluster)?;
        services.iter().for_each(|_| step.advance());
    }
    cluster.replace(&texts(&[&canary(to)], |_| true, |_| true, twin)?)?;
    step.done();
    let step = Step::start("both proxies follow");
    for twin in [&theirs.twin, twin] {
        follow(twin, to)?;
    }
    interrupt::sleep(patient(SETTLE))?;
    step.done();
    Ok(())
}

/// The objects of Services, of those that are wanted, as one text.
fn texts(
    services: &[&Service],
    service_wanted: impl Fn(&Service) -> bool,
    slice_wanted: impl Fn(&str) -> bool,
    twin: &Twin,
) -> Result<String> {
    let mut texts = Vec::new();
    for service in services {
        if service_wanted(service) {
            texts.push(Manifest::new(&service.object())?.yaml()?);
        }
        for slice in service.slices(|backend| twin.addresses(backend)) {
            let manifest = Manifest::new(&slice)?;
            if slice_wanted(&manifest.name) {
                texts.push(manifest.yaml()?);
            }
        }
    }
    Ok(texts.join("\n---\n"))
}

fn write_statuses(services: &[&Service], cluster: &ControlPlane) -> Result<()> {
    let statuses: Vec<_> = services.iter().filter_map(|service| service.status()).collect();
    if statuses.is_empty() {
        return Ok(());
    }
    let texts: Vec<_> = statuses.iter().map(ToString::to_string).collect();
    cluster.apply_status(&texts.join("\n---\n"))
}

fn delete(cluster: &ControlPlane, kind: &str, names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let mut args = vec!["delete", "--wait=false", kind];
    args.extend(names.iter().map(String::as_str));
    cluster.kubectl(&args).map(drop)
}

/// The Service that is written last.
fn canary(backend: Backend) -> Service {
    let mut canary = Service::new("canary", CANARY, vec![Endpoint::ready(backend)]);
    canary.kind = Kind::ClusterIp;
    (canary.ingress, canary.external_ips) = (Vec::new(), Vec::new());
    canary
}

/// Waits until the last change shows in a copy of the network.
fn follow(twin: &Twin, to: Backend) -> Result<()> {
    let client = twin.client(actors::Source::BridgePod)?;
    for family in Family::ALL {
        let at = (family.of(canary(to).cluster_ips()), 80).into();
        let shows = || {
            let answer = client.ask(Protocol::Tcp, at);
            answer.is_ok_and(|answer| Backend::of_server(&answer.server) == Some(to))
        };
        interrupt::eventually(FOLLOW, "the last change of all", || {
            Ok((0..IN_A_ROW).all(|_| shows()).then_some(()))
        })?;
    }
    Ok(())
}
