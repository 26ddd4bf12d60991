//! The plane for nodes without BPF: kernel IPVS, an nftables table and a dummy link.
//!
//! IPVS translates what comes to a virtual service; the [rules](rules) beside it say who may, who is refused,
//! and whose address gives way to the node's; the dummy link has the addresses of services, since IPVS sees
//! only packets that are for the node. All three are netlink, and what they hold is adopted by the next agent.

mod cleanup;
mod counted;
mod inspect;
mod limit;
mod links;
mod marks;
mod ports;
mod probe;
mod program;
pub mod rules;
mod servers;
#[cfg(test)]
mod tests;
mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tracing::{info, warn};

pub use self::{
    cleanup::{cleanup, owned_services},
    inspect::inspect,
    links::IpvsLinks,
    probe::probe,
    program::addresses_of,
};
use self::{
    marks::OutOfMarks,
    ports::Touched,
    program::{Failures, Programmed},
    rules::{Change as RulesChange, Key, Mark, Row, Rules, Table, Verdict},
    wanted::{Surroundings, Wanted},
};
use crate::{
    desired::{Change, Family, Protocol, ServicePort, ServicePortName, State},
    kernel::{
        dummy::{self, DummyLink},
        ipvs::{Ipvs, Scheduler, ServiceKey},
        sysctls,
    },
    plane::{Outcome, Plane, PlaneError, Unsupported},
};

/// How often IPVS is asked for the connections of what is to go.
const DRAIN: Duration = Duration::from_secs(2);
/// How often it is looked whether everything is there still: `ipvsadm -C` and `nft flush ruleset` tell nobody.
const VERIFY: Duration = Duration::from_secs(30);

/// What the plane is told at the start.
#[derive(Clone, Debug)]
pub struct IpvsOptions {
    /// How IPVS chooses among endpoints.
    pub scheduler: Scheduler,
    /// Bit of the mark of packets whose clients are masqueraded.
    pub masquerade_mark: u32,
    /// Virtual services and addresses of a kube-proxy in IPVS mode become ours.
    pub take_over: bool,
    /// The node says nothing by ARP of addresses of services.
    pub strict_arp: bool,
    /// Where the sysctls are written down that are set.
    pub run_dir: PathBuf,
}

/// The plane.
pub struct IpvsPlane {
    programmed: Programmed,
    /// What holds for all service ports; it has none itself.
    around: State,
    scheduler: Scheduler,
    take_over: bool,
    /// A complete state has come.
    is_filled: bool,
    /// The rules or IPVS are not as noted: everything is to be written again.
    is_out_of_step: bool,
    last_drain: Instant,
    last_verify: Instant,
}

impl IpvsPlane {
    /// Opens what the plane needs of the kernel and looks at what an earlier agent left there, which serves
    /// on. What comes back beside the plane is its side on the links.
    ///
    /// # Errors
    /// The kernel lacks something, which is named with what to do.
    pub fn start(options: IpvsOptions) -> anyhow::Result<(Self, IpvsLinks)> {
        let ipvs = Ipvs::open().context("IPVS")?;
        set_sysctls(&options).context("the sysctls of IPVS")?;
        let rules = Rules::adopt(options.masquerade_mark).context("the rules beside IPVS")?;
        let mut link = DummyLink::ensure(dummy::NAME).context("the link that has the addresses of services")?;
        let addresses = link.addresses().context("the addresses of services")?;
        let links = IpvsLinks::new(rules.clone());
        let plane = Self {
            programmed: Programmed::new(rules, ipvs, link, addresses),
            around: State::default(),
            scheduler: options.scheduler,
            take_over: options.take_over,
            is_filled: false,
            is_out_of_step: false,
            last_drain: Instant::now(),
            last_verify: Instant::now(),
        };
        Ok((plane, links))
    }

    fn surroundings(&self) -> Surroundings {
        let (loopback, others): (BTreeSet<_>, BTreeSet<_>) =
            self.around.node_port_addresses.iter().partition(|ip| ip.is_loopback());
        Surroundings {
            node_port_addresses: others,
            has_loopback_node_ports: !loopback.is_empty(),
            families_with_pod_cidrs: self
                .around
                .pod_cidrs
                .iter()
                .map(|cidr| Family::of(cidr.addr()))
                .collect(),
            scheduler: self.scheduler,
        }
    }

    /// Takes over what the kernel holds of an earlier agent: what is wanted of it stays as it is.
    fn adopt(&mut self, state: &State) -> anyhow::Result<()> {
        let mut old = Rules::read()?.map(|(table, _)| table.frontends).unwrap_or_default();
        old.retain(|_, row| row.is_ours());
        let marks: BTreeMap<Key, Mark> = old
            .iter()
            .filter_map(|(key, row)| Some((*key, mark_of(row)?)))
            .collect();
        let around = self.surroundings();
        for (name, service) in &state.services {
            let rows = Wanted::new(service, name.protocol, name.family, None, &around).rows;
            if let Some(mark) = rows.keys().find_map(|key| marks.get(key)) {
                self.programmed.ports.adopt_mark(name, service, *mark);
            }
        }
        let marks: BTreeMap<Mark, Protocol> = marks.into_iter().map(|(key, mark)| (mark, key.protocol)).collect();
        let kube_proxys = match self.take_over {
            true => program::addresses_where(|name| name == dummy::KUBE_PROXYS),
            false => BTreeSet::new(),
        };
        let wanted: BTreeSet<Key> = state
            .services
            .iter()
            .flat_map(|(name, service)| {
                Wanted::new(service, name.protocol, name.family, None, &around)
                    .rows
                    .into_keys()
            })
            .collect();
        for (key, config) in self.programmed.ipvs.services()? {
            let protocol = match key {
                ServiceKey::Address { protocol, address } => {
                    let row = Key { protocol, address };
                    // Those at addresses of the node may be of keepalived, or whoever: only one that is in our way.
                    let is_kube_proxys = kube_proxys.contains(&address.ip()) || self.take_over && wanted.contains(&row);
                    if !old.contains_key(&row) && !is_kube_proxys {
                        self.programmed.foreign.extend(wanted.contains(&row).then_some(row));
                        continue;
                    }
                    self.programmed.leaving.insert(row);
                    protocol
                }
                ServiceKey::Mark { mark, .. } => {
                    let Some(mark) = Mark::of(mark.get()) else {
                        continue;
                    };
                    self.programmed.ports.keep_mark(mark);
                    marks.get(&mark).copied().unwrap_or(Protocol::Tcp)
                }
            };
            let destinations = self.programmed.ipvs.destinations(&key)?;
            self.programmed.servers.adopt(key, config, protocol, &destinations);
        }
        self.programmed.leaving.extend(old.into_keys());
        Ok(())
    }

    /// Writes everything that is wanted, whatever the kernel holds.
    fn write_all(&mut self) -> anyhow::Result<Outcome> {
        let programmed = &mut self.programmed;
        let rows = programmed.ports.all_rows();
        programmed.look_for_foreign(rows.keys());
        let rows: BTreeMap<Key, Row> = rows
            .into_keys()
            .filter_map(|key| Some((key, programmed.row(key)?.clone())))
            .collect();
        let mut touched = Touched {
            rows: rows.keys().chain(&programmed.leaving).copied().collect(),
            servers: programmed
                .ports
                .all_servers()
                .chain(programmed.servers.keys())
                .collect(),
            addresses: programmed.ports.all_addresses(),
            endpoints: programmed.ports.endpoints(),
        };
        touched.addresses.extend(&programmed.addresses);
        let own_addresses = programmed.own_addresses(&touched.addresses, &self.around);
        let mut table = Table {
            own_addresses,
            cluster_ips: self.around.cluster_ips.clone(),
            service_cidrs: self.around.service_cidrs.clone(),
            pod_cidrs: self.around.pod_cidrs.clone(),
            local_endpoints: touched.endpoints.clone(),
            frontends: rows,
        };
        for key in &programmed.leaving {
            table
                .frontends
                .entry(*key)
                .or_insert_with(|| program::closed(key, &self.around));
        }
        let writes = programmed.rules.replace(table).context("the rules beside IPVS")?;
        self.is_out_of_step = false;
        let mut failures = Failures::default();
        let writes = writes + programmed.write(&touched, RulesChange::default(), &self.around, &mut failures);
        let names = programmed.ports.names().cloned().collect();
        Ok(outcome(&names, writes, failures))
    }

    /// Puts back what somebody took away.
    fn verify(&mut self) {
        match self.programmed.rules.restore() {
            Ok(None) => {}
            Ok(Some(what)) => warn!("somebody {what} the nftables table {}: put back", rules::TABLE),
            Err(error) => warn!("the rules beside IPVS may be missing: {error}"),
        }
        let missing = match self.programmed.missing() {
            Ok(missing) => missing,
            Err(error) => {
                warn!("it is not known what IPVS holds: {error}");
                return;
            }
        };
        if missing.servers.is_empty() && missing.addresses.is_empty() {
            return;
        }
        warn!(
            services = missing.servers.len(),
            addresses = missing.addresses.len(),
            "somebody took virtual services from IPVS, or addresses from {}: put back",
            dummy::NAME
        );
        let mut failures = Failures::default();
        self.programmed
            .write(&missing, RulesChange::default(), &self.around, &mut failures);
        self.is_out_of_step |= !failures.services.is_empty() || failures.addresses.is_some();
    }
}

impl Plane for IpvsPlane {
    fn replace(&mut self, state: &State) -> anyhow::Result<Outcome> {
        self.around = State {
            services: Default::default(),
            ..state.clone()
        };
        self.adopt(state).context("what IPVS holds already")?;
        let around = self.surroundings();
        let mut touched = Touched::default();
        let mut refused: Vec<(ServicePortName, PlaneError)> = Vec::new();
        for (name, service) in &state.services {
            if let Err(error) = self.programmed.ports.set(name, Some(service), &around, &mut touched) {
                refused.push((name.clone(), out_of_marks(error)));
            }
        }
        let mut outcome = self.write_all()?;
        outcome.failed.extend(refused);
        if self.take_over && DummyLink::remove(dummy::KUBE_PROXYS).context("the link of kube-proxy")? {
            info!("{} of kube-proxy is taken over and gone", dummy::KUBE_PROXYS);
        }
        self.is_filled = true;
        // Everything has just been looked at, and it may have taken long.
        self.last_drain = Instant::now();
        self.last_verify = self.last_drain;
        Ok(outcome)
    }

    fn apply(&mut self, change: &Change) -> Outcome {
        let edit = RulesChange {
            cluster_ips: change.cluster_ips.clone(),
            service_cidrs: change.service_cidrs.clone(),
            pod_cidrs: change.pod_cidrs.clone(),
            ..RulesChange::default()
        };
        self.around.apply(Change {
            services: Default::default(),
            ..change.clone()
        });
        let around = self.surroundings();
        let mut touched = Touched::default();
        let mut failures = Failures::default();
        let mut services: BTreeMap<ServicePortName, Option<ServicePort>> = change.services.clone();
        if change.node_port_addresses.is_some() || change.pod_cidrs.is_some() {
            for (name, service) in self.programmed.ports.depending_on_node() {
                services.entry(name).or_insert(Some(service));
            }
        }
        for (name, service) in &services {
            if let Err(error) = self.programmed.ports.set(name, service.as_ref(), &around, &mut touched) {
                failures.services.insert(name.clone(), out_of_marks(error));
            }
        }
        let names: BTreeSet<ServicePortName> = services.into_keys().collect();
        if self.is_out_of_step {
            let refused = failures.services;
            return match self.write_all() {
                Ok(mut outcome) => {
                    outcome.failed.extend(refused);
                    outcome
                }
                Err(error) => {
                    let error = PlaneError::kernel("everything anew", error);
                    all_failed(&names, Some(error))
                }
            };
        }
        let writes = self.programmed.write(&touched, edit, &self.around, &mut failures);
        if failures.is_out_of_step {
            self.is_out_of_step = true;
            return all_failed(&names, failures.addresses);
        }
        outcome(&names, writes, failures)
    }

    fn tick(&mut self) {
        if !self.is_filled {
            // What is there of an earlier agent serves, wanted or not, until it is known what is.
            return;
        }
        let now = Instant::now();
        if now.duration_since(self.last_drain) >= DRAIN {
            self.last_drain = now;
            self.programmed.tick();
        }
        if now.duration_since(self.last_verify) >= VERIFY {
            self.last_verify = now;
            self.verify();
        }
    }

    fn frontends(&self) -> usize {
        self.programmed.ports.frontends()
    }

    fn unsupported(&self) -> Vec<Unsupported> {
        let all = self.programmed.ports.limits();
        all.into_iter()
            .flat_map(|(service, limits)| {
                limits.iter().map(|limit| Unsupported {
                    service: service.clone(),
                    what: limit.to_string(),
                })
            })
            .collect()
    }
}

/// The mark by which clients of a frontend are told apart.
fn mark_of(row: &Row) -> Option<Mark> {
    [row.near, row.far].into_iter().find_map(|verdict| match verdict {
        Verdict::Select(mark) => Some(mark),
        Verdict::Serve | Verdict::Reject | Verdict::Drop | Verdict::Leave => None,
    })
}

/// Sets what IPVS is right with only.
fn set_sysctls(options: &IpvsOptions) -> anyhow::Result<()> {
    let findings = sysctls::check_ipvs(options.strict_arp)?;
    let (done, failed) = sysctls::set(&findings, false, &options.run_dir);
    for finding in done {
        info!(sysctl = finding.name, before = finding.value, "set");
    }
    match failed.into_iter().next() {
        Some((finding, error)) => Err(error).with_context(|| finding.to_string()),
        None => Ok(()),
    }
}

fn out_of_marks(error: OutOfMarks) -> PlaneError {
    PlaneError::kernel("a mark for clients of this node", error)
}

fn outcome(names: &BTreeSet<ServicePortName>, writes: usize, failures: Failures) -> Outcome {
    Outcome {
        programmed: names.len().saturating_sub(failures.services.len()),
        writes,
        failed: failures.services.into_iter().collect(),
        addresses: failures.addresses,
    }
}

fn all_failed(names: &BTreeSet<ServicePortName>, error: Option<PlaneError>) -> Outcome {
    let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
    let failed = names
        .iter()
        .map(|name| (name.clone(), PlaneError::kernel("not written", text.clone())));
    Outcome {
        failed: failed.collect(),
        addresses: error,
        ..Outcome::default()
    }
}
