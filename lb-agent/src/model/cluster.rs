//! All objects, and the change of the desired state that their changes come to.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map::Entry},
    fmt, mem,
    net::IpAddr,
    ops::Bound,
};

use super::{EndpointSlice, Node, ObjectName, Service, ServiceCidr, claims::Claims, serve};
use crate::desired::{self, Change, Frontend, ServicePortName, State};

/// What has happened to the objects of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Update<T> {
    /// A complete list: what is not in it is gone.
    Replace {
        /// The objects.
        objects: Vec<T>,
        /// Objects that exist but could not be read. Their last good version stays.
        unreadable: Vec<ObjectName>,
    },
    /// An object is new or different.
    Apply(T),
    /// An object is gone.
    Delete(ObjectName),
}

/// What has happened to an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// To Services.
    Services(Update<Service>),
    /// To EndpointSlices.
    EndpointSlices(Update<EndpointSlice>),
    /// To ServiceCIDRs, whose names have an empty namespace. Services do not wait for them.
    ServiceCidrs(Update<ServiceCidr>),
    /// The Node object of this node, or that there is none.
    Node(Option<Node>),
    /// There is a Node object of this node and it could not be read. The last good one stays.
    UnreadableNode,
}

/// The kinds of objects that a service proxy reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Services.
    Service,
    /// EndpointSlices.
    EndpointSlice,
    /// ServiceCIDRs.
    ServiceCidr,
    /// This node's Node object.
    Node,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::ServiceCidr => "ServiceCIDR",
            Self::Node => "Node",
        })
    }
}

/// A frontend that a service port claims while another one holds it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Conflict {
    /// What both claim.
    pub frontend: Frontend,
    /// Who serves it.
    pub holder: ServicePortName,
    /// Who does not, until the holder lets go.
    pub loser: ServicePortName,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            frontend,
            holder,
            loser,
        } = self;
        write!(f, "{frontend} of {loser} is not served: {holder} holds it")
    }
}

/// The objects, and the desired state that has been handed out for them.
///
/// An event costs what it changes: it marks the Services whose rules may come out differently, and
/// [`take_change`](Self::take_change) applies the rules to those and to no other.
#[derive(Debug, Default)]
pub struct Cluster {
    services: HashMap<ObjectName, Service>,
    /// By Service, then by the slice's own name.
    slices: HashMap<ObjectName, BTreeMap<String, EndpointSlice>>,
    /// To which Service each slice belongs.
    service_of_slice: HashMap<ObjectName, ObjectName>,
    node: Option<Node>,
    listed: HashSet<Kind>,

    dirty: BTreeSet<ObjectName>,
    claims: Claims,
    /// What a service port claims and does not hold; most claim nothing in vain.
    withheld: BTreeMap<ServicePortName, BTreeSet<Frontend>>,
    state: State,
    recomputations: u64,
}

impl Cluster {
    /// Takes note of an event. The desired state follows at the next [`take_change`](Self::take_change).
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Services(Update::Apply(service)) => self.apply_service(service),
            Event::Services(Update::Delete(name)) => self.delete_service(name),
            Event::Services(Update::Replace { objects, unreadable }) => {
                let listed = objects.iter().map(|service| &service.name);
                for name in missing(self.services.keys(), listed.chain(&unreadable)) {
                    self.delete_service(name);
                }
                for service in objects {
                    self.apply_service(service);
                }
                self.listed.insert(Kind::Service);
            }
            Event::EndpointSlices(Update::Apply(slice)) => self.apply_slice(slice),
            Event::EndpointSlices(Update::Delete(name)) => self.delete_slice(&name),
            Event::EndpointSlices(Update::Replace { objects, unreadable }) => {
                let listed = objects.iter().map(EndpointSlice::name);
                for name in missing(self.service_of_slice.keys(), listed.chain(&unreadable)) {
                    self.delete_slice(&name);
                }
                for slice in objects {
                    self.apply_slice(slice);
                }
                self.listed.insert(Kind::EndpointSlice);
            }
            Event::ServiceCidrs(_) => {}
            Event::Node(node) => {
                self.node = node;
                self.listed.insert(Kind::Node);
            }
            // Services do not wait for it: one bad object stops nothing but itself.
            Event::UnreadableNode => {
                self.listed.insert(Kind::Node);
            }
        }
    }

    /// The kinds of which no complete list has come yet. Until this is empty, the desired state
    /// would lack what exists, and must not be written.
    #[must_use]
    pub fn awaited(&self) -> Vec<Kind> {
        let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node];
        kinds.into_iter().filter(|kind| !self.listed.contains(kind)).collect()
    }

    /// This node's object.
    #[must_use]
    pub const fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// How many Services there are.
    #[must_use]
    pub fn services(&self) -> usize {
        self.services.len()
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
        let mut change = Change {
            node_port_addresses: self.take_node_port_addresses(),
            ..Change::default()
        };
        for (name, wanted) in self.recompute() {
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
        change
    }

    fn take_node_port_addresses(&mut self) -> Option<BTreeSet<IpAddr>> {
        let addresses = self.node.as_ref().map(Node::primary_addresses).unwrap_or_default();
        if addresses == self.state.node_port_addresses {
            return None;
        }
        self.state.node_port_addresses.clone_from(&addresses);
        Some(addresses)
    }

    /// Applies the rules to the marked Services and settles who holds which frontend. Returns the
    /// service ports of which either may have come out differently, with all that they claim.
    fn recompute(&mut self) -> BTreeMap<ServicePortName, Option<desired::ServicePort>> {
        let mut recomputed = BTreeMap::new();
        for service in mem::take(&mut self.dirty) {
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
        let Some(service) = self.services.get(name) else {
            return BTreeMap::new();
        };
        self.recomputations += 1;
        let slices = self.slices.get(name).into_iter().flat_map(BTreeMap::values);
        serve::service_ports(service, slices)
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

    fn apply_service(&mut self, service: Service) {
        if self.services.get(&service.name) != Some(&service) {
            self.dirty.insert(service.name.clone());
            self.services.insert(service.name.clone(), service);
        }
    }

    fn delete_service(&mut self, name: ObjectName) {
        if self.services.remove(&name).is_some() {
            self.dirty.insert(name);
        }
    }

    fn apply_slice(&mut self, slice: EndpointSlice) {
        let service = slice.service();
        if self
            .service_of_slice
            .get(slice.name())
            .is_some_and(|before| *before != service)
        {
            self.delete_slice(&slice.name().clone());
        }
        let slices = self.slices.entry(service.clone()).or_default();
        if slices.get(&slice.name().name) != Some(&slice) {
            self.service_of_slice.insert(slice.name().clone(), service.clone());
            slices.insert(slice.name().name.clone(), slice);
            self.dirty.insert(service);
        }
    }

    fn delete_slice(&mut self, name: &ObjectName) {
        let Some(service) = self.service_of_slice.remove(name) else {
            return;
        };
        if let Some(slices) = self.slices.get_mut(&service) {
            slices.remove(&name.name);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.dirty.insert(service);
    }

    #[cfg(test)]
    pub(super) fn holds_nothing(&self) -> bool {
        self.services.is_empty()
            && self.slices.is_empty()
            && self.service_of_slice.is_empty()
            && self.claims.is_empty()
            && self.withheld.is_empty()
            && self.state == State::default()
    }
}

/// Those that are known and not listed any more.
fn missing<'a>(
    known: impl Iterator<Item = &'a ObjectName>,
    listed: impl Iterator<Item = &'a ObjectName>,
) -> Vec<ObjectName> {
    let listed: HashSet<&ObjectName> = listed.collect();
    known.filter(|name| !listed.contains(name)).cloned().collect()
}
