//! All objects, and the change of the desired state that their changes come to.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    mem,
    net::IpAddr,
    ops::Bound,
};

use super::{
    AnyService, Conflict, Event, HealthCheck, Kind, Node, ObjectName, Rules,
    api_server::ApiServerSlices,
    claims::Claims,
    cluster_ips::ClaimedClusterIps,
    inventory::{Changed, Inventory},
    serve::{self, Surroundings},
};
use crate::desired::{self, Change, Family, Frontend, ServedBy, ServicePortName, State};

/// The objects, and the desired state that has been handed out for them.
///
/// An event costs what it changes: it marks the Services whose rules may come out differently, and
/// [`take_change`](Self::take_change) applies the rules to those and to no other.
#[derive(Debug)]
pub struct Cluster {
    rules: Rules,
    inventory: Inventory,
    /// The rules themselves have not been handed out yet.
    is_new: bool,
    claims: Claims,
    /// What a service port claims and does not hold; most claim nothing in vain.
    withheld: BTreeMap<ServicePortName, BTreeSet<Frontend>>,
    cluster_ips: ClaimedClusterIps,
    api_server_slices: ApiServerSlices,
    health_checks: BTreeMap<ObjectName, HealthCheck>,
    /// They, or where they are answered, have changed since this was last asked.
    health_checks_changed: bool,
    state: State,
    recomputations: u64,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new(Rules::default())
    }
}

impl Cluster {
    /// No objects yet.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            inventory: Inventory::default(),
            is_new: true,
            claims: Claims::default(),
            withheld: BTreeMap::new(),
            cluster_ips: ClaimedClusterIps::default(),
            api_server_slices: ApiServerSlices::default(),
            health_checks: BTreeMap::new(),
            health_checks_changed: false,
            state: State::default(),
            recomputations: 0,
        }
    }

    /// Takes note of an event. The desired state follows at the next [`take_change`](Self::take_change).
    pub fn apply(&mut self, event: Event) {
        self.inventory.apply(event);
    }

    /// The kinds of which no complete list has come yet.
    #[must_use]
    pub fn awaited(&self) -> Vec<Kind> {
        let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node];
        kinds
            .into_iter()
            .filter(|kind| !self.inventory.has_list(*kind))
            .collect()
    }

    /// Whether all has come that the desired state depends on. Before, it would lack what exists,
    /// and must not be written.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let needs_addresses = self.rules.node_port_addresses.needs_links();
        self.awaited().is_empty() && (!needs_addresses || self.inventory.node_addresses().is_some())
    }

    /// This node's object.
    #[must_use]
    pub const fn node(&self) -> Option<&Node> {
        self.inventory.node()
    }

    /// How many Services there are, whoever serves them.
    #[must_use]
    pub fn services(&self) -> usize {
        self.inventory.services()
    }

    /// The health checks that load balancers ask for on this node, as of the last change taken.
    #[must_use]
    pub const fn health_checks(&self) -> &BTreeMap<ObjectName, HealthCheck> {
        &self.health_checks
    }

    /// Where these health checks are to be answered, as of the last change taken: where NodePorts are
    /// served. The unspecified address stands for every address of its family.
    #[must_use]
    pub fn health_check_addresses(&self) -> BTreeSet<IpAddr> {
        let whole = self.rules.node_port_addresses.whole_families();
        let addresses = self.state.node_port_addresses.iter().copied();
        let others = addresses.filter(|address| !whole.contains(&Family::of(*address)));
        whole.iter().map(|family| family.unspecified()).chain(others).collect()
    }

    /// Whether health checks, or where they are to be answered, have changed since this was last asked: a
    /// change of anything else is not to cost a look at all of them.
    pub const fn take_health_checks_changed(&mut self) -> bool {
        mem::replace(&mut self.health_checks_changed, false)
    }

    /// How often the rules have been applied to a Service.
    #[must_use]
    pub const fn recomputations(&self) -> u64 {
        self.recomputations
    }

    /// The desired state that has been handed out: the sum of all changes so far.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The frontends that are claimed in vain.
    pub fn conflicts(&self) -> impl Iterator<Item = Conflict> {
        self.withheld.iter().flat_map(|(loser, frontends)| {
            frontends.iter().filter_map(|frontend| {
                Some(Conflict {
                    frontend: *frontend,
                    holder: self.claims.holder(frontend)?.clone(),
                    loser: loser.clone(),
                })
            })
        })
    }

    /// The difference between what has been handed out and what the objects say now. From here on
    /// it counts as handed out.
    pub fn take_change(&mut self) -> Change {
        let changed = self.inventory.take_changed();
        let mut change = self.take_surroundings(&changed);
        for (name, wanted) in self.recompute(changed.services) {
            let served = wanted.and_then(|wanted| self.withhold(&name, wanted));
            if self.state.services.get(&name) == served.as_ref() {
                continue;
            }
            match &served {
                Some(served) => self.state.services.insert(name.clone(), served.clone()),
                None => self.state.services.remove(&name),
            };
            change.services.insert(name, served);
        }
        change.cluster_ips = self.take_cluster_ips();
        change
    }

    /// What is the same for every Service.
    fn take_surroundings(&mut self, changed: &Changed) -> Change {
        let mut change = Change::default();
        let is_new = mem::take(&mut self.is_new);
        if is_new || changed.node {
            let node = self.inventory.node();
            let nothing = BTreeSet::new();
            let on_links = self.inventory.node_addresses().unwrap_or(&nothing);
            let node_port_addresses = self.rules.node_port_addresses.choose(node, on_links);
            let pod_cidrs = self.rules.detect_local.pod_cidrs(node);
            change.node_port_addresses = renew(&mut self.state.node_port_addresses, node_port_addresses);
            self.health_checks_changed |= is_new || change.node_port_addresses.is_some();
            change.pod_cidrs = renew(&mut self.state.pod_cidrs, pod_cidrs);
        }
        if changed.service_cidrs {
            let cidrs = self
                .inventory
                .service_cidrs()
                .flat_map(|object| object.cidrs.iter().copied());
            change.service_cidrs = renew(&mut self.state.service_cidrs, cidrs.collect());
        }
        // Before the list is complete, what an earlier agent knew is better.
        if changed.pods && self.inventory.has_list(Kind::Pod) {
            let opted_out = self.inventory.pods().filter(|pod| pod.is_opted_out);
            let uids = opted_out.map(|pod| pod.uid.clone()).collect();
            change.untranslated_pods = renew(&mut self.state.untranslated_pods, Some(uids)).flatten();
        }
        change
    }

    fn take_cluster_ips(&mut self) -> BTreeMap<IpAddr, Option<ServedBy>> {
        let change = self.cluster_ips.take_change(&self.state.cluster_ips);
        for (ip, served_by) in &change {
            match served_by {
                Some(served_by) => self.state.cluster_ips.insert(*ip, *served_by),
                None => self.state.cluster_ips.remove(ip),
            };
        }
        change
    }

    /// Applies the rules to these Services and settles who holds which frontend. Returns the
    /// service ports of which either may have come out differently, with all that they claim.
    fn recompute(&mut self, services: BTreeSet<ObjectName>) -> BTreeMap<ServicePortName, Option<desired::ServicePort>> {
        let mut recomputed = BTreeMap::new();
        for service in services {
            let mut wanted = self.serve(&service);
            let mut names = self.known_service_ports(&service);
            names.extend(wanted.keys().cloned());
            for name in names {
                let wanted = wanted.remove(&name);
                self.renew_claims(&name, wanted.as_ref());
                recomputed.insert(name, wanted);
            }
        }
        for winner in self.claims.settle() {
            // One whose Service is not marked waited for what another has let go.
            if let Entry::Vacant(entry) = recomputed.entry(winner) {
                let winner = entry.key();
                let service = ObjectName::new(&winner.namespace, &winner.name);
                let wanted = self.serve(&service).remove(winner);
                entry.insert(wanted);
            }
        }
        recomputed
    }

    fn serve(&mut self, name: &ObjectName) -> BTreeMap<ServicePortName, desired::ServicePort> {
        let service = self.inventory.service(name);
        self.cluster_ips.set(name, service.and_then(AnyService::claim));
        let Some(service) = service.and_then(AnyService::ours) else {
            self.set_health_check(name, None);
            if ApiServerSlices::is_of(name) {
                self.api_server_slices.forget();
            }
            return BTreeMap::new();
        };
        self.recomputations += 1;
        let slices = self.inventory.slices(name);
        let health_check = serve::health_check(service, slices.clone()).filter(|_| !service.ports.is_empty());
        let surroundings = Surroundings {
            rules: &self.rules,
            node: self.inventory.node(),
        };
        let served = if ApiServerSlices::is_of(name) {
            serve::service_ports(service, self.api_server_slices.or_last(slices), surroundings)
        } else {
            serve::service_ports(service, slices, surroundings)
        };
        self.set_health_check(name, health_check);
        served
    }

    fn set_health_check(&mut self, service: &ObjectName, health_check: Option<HealthCheck>) {
        let before = self.health_checks.get(service);
        if before == health_check.as_ref() {
            return;
        }
        self.health_checks_changed = true;
        match health_check {
            Some(health_check) => self.health_checks.insert(service.clone(), health_check),
            None => self.health_checks.remove(service),
        };
    }

    /// The service ports of a Service that claim anything so far.
    fn known_service_ports(&self, service: &ObjectName) -> BTreeSet<ServicePortName> {
        let first = ServicePortName {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            port: String::new(),
            protocol: desired::Protocol::Tcp,
            family: desired::Family::V4,
        };
        let range = (Bound::Included(&first), Bound::Unbounded);
        let of_service = |name: &&ServicePortName| name.namespace == service.namespace && name.name == service.name;
        let served = self
            .state
            .services
            .range(range)
            .map(|(name, _)| name)
            .take_while(of_service);
        let withheld = self.withheld.range(range).map(|(name, _)| name).take_while(of_service);
        served.chain(withheld).cloned().collect()
    }

    fn renew_claims(&mut self, name: &ServicePortName, wanted: Option<&desired::ServicePort>) {
        let served = self.state.services.get(name).into_iter();
        let withheld = self.withheld.get(name).into_iter();
        let before: BTreeSet<Frontend> = served
            .flat_map(|served| served.frontends.keys())
            .chain(withheld.flatten())
            .copied()
            .collect();
        let claims = |frontend: &Frontend| wanted.is_some_and(|wanted| wanted.frontends.contains_key(frontend));
        for frontend in before.iter().filter(|frontend| !claims(frontend)) {
            self.claims.release(*frontend, name);
        }
        for frontend in wanted.into_iter().flat_map(|wanted| wanted.frontends.keys()) {
            if !before.contains(frontend) {
                self.claims.claim(*frontend, name);
            }
        }
        if wanted.is_none() {
            self.withheld.remove(name);
        }
    }

    /// Takes from a service port what another one holds. One that is left with nothing is not
    /// served.
    fn withhold(&mut self, name: &ServicePortName, mut wanted: desired::ServicePort) -> Option<desired::ServicePort> {
        let mut withheld = BTreeSet::new();
        wanted.frontends.retain(|frontend, _| {
            let held = self.claims.holder(frontend) == Some(name);
            if !held {
                withheld.insert(*frontend);
            }
            held
        });
        if withheld.is_empty() {
            self.withheld.remove(name);
        } else {
            self.withheld.insert(name.clone(), withheld);
        }
        (!wanted.frontends.is_empty()).then_some(wanted)
    }

    /// Whether it is as it was before the first event.
    #[cfg(test)]
    pub(super) fn holds_nothing(&self) -> bool {
        let mut fresh = Self::new(self.rules.clone());
        fresh.take_change();
        // That there is no pod is something to know.
        fresh.state.untranslated_pods = self.state.untranslated_pods.as_ref().map(|_| BTreeSet::new());
        self.inventory.is_empty()
            && self.claims.is_empty()
            && self.withheld.is_empty()
            && self.cluster_ips.is_empty()
            && self.api_server_slices.is_empty()
            && self.health_checks.is_empty()
            && self.state == fresh.state
    }
}

/// Takes on what is wanted; says so if it is different.
fn renew<T: Clone + PartialEq>(state: &mut T, wanted: T) -> Option<T> {
    (*state != wanted).then(|| {
        state.clone_from(&wanted);
        wanted
    })
}
