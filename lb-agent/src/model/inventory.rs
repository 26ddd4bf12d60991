//! What the objects say, and which Services may come out differently since they were last looked at.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    net::IpAddr,
};

use super::{AnyService, EndpointSlice, Event, Kind, Node, ObjectName, Pod, ServiceCidr, Update};

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    services: HashMap<ObjectName, AnyService>,
    /// By Service, then by the slice's own name.
    slices: HashMap<ObjectName, BTreeMap<String, EndpointSlice>>,
    /// To which Service each slice belongs.
    service_of_slice: HashMap<ObjectName, ObjectName>,
    service_cidrs: BTreeMap<String, ServiceCidr>,
    pods: BTreeMap<ObjectName, Pod>,
    node: Option<Node>,
    /// The addresses of the node's links, once they are known.
    node_addresses: Option<BTreeSet<IpAddr>>,
    listed: HashSet<Kind>,
    changed: Changed,
}

/// What has changed since it was last taken.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// The Services that are to be looked at.
    pub(super) services: BTreeSet<ObjectName>,
    /// The Node, or an address of its links.
    pub(super) node: bool,
    /// The ServiceCIDRs.
    pub(super) service_cidrs: bool,
    /// The Pods.
    pub(super) pods: bool,
}

impl Inventory {
    pub(super) fn apply(&mut self, event: Event) {
        match event {
            Event::Services(Update::Apply(service)) => self.apply_service(service),
            Event::Services(Update::Delete(name)) => self.delete_service(name),
            Event::Services(Update::Replace { objects, unreadable }) => {
                let listed = objects.iter().map(AnyService::name);
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
            Event::ServiceCidrs(update) => self.update_service_cidrs(update),
            Event::Pods(update) => self.update_pods(update),
            Event::Node(node) => {
                self.set_node(node);
                self.listed.insert(Kind::Node);
            }
            // Services do not wait for it: one bad object stops nothing but itself.
            Event::UnreadableNode => {
                self.listed.insert(Kind::Node);
            }
            Event::NodeAddresses(addresses) => {
                self.node_addresses = Some(addresses);
                self.changed.node = true;
            }
        }
    }

    /// Whether a complete list of a kind has come.
    pub(super) fn has_list(&self, kind: Kind) -> bool {
        self.listed.contains(&kind)
    }

    pub(super) const fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    pub(super) const fn node_addresses(&self) -> Option<&BTreeSet<IpAddr>> {
        self.node_addresses.as_ref()
    }

    pub(super) fn service_cidrs(&self) -> impl Iterator<Item = &ServiceCidr> {
        self.service_cidrs.values()
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// How many Services there are, whoever serves them.
    pub(super) fn services(&self) -> usize {
        self.services.len()
    }

    pub(super) fn service(&self, name: &ObjectName) -> Option<&AnyService> {
        self.services.get(name)
    }

    /// The slices of a Service, in order of their names.
    pub(super) fn slices(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> + Clone {
        self.slices.get(service).into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn take_changed(&mut self) -> Changed {
        mem::take(&mut self.changed)
    }

    fn apply_service(&mut self, service: AnyService) {
        if self.services.get(service.name()) != Some(&service) {
            self.changed.services.insert(service.name().clone());
            self.services.insert(service.name().clone(), service);
        }
    }

    fn delete_service(&mut self, name: ObjectName) {
        if self.services.remove(&name).is_some() {
            self.changed.services.insert(name);
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
            self.changed.services.insert(service);
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
        self.changed.services.insert(service);
    }

    fn update_service_cidrs(&mut self, update: Update<ServiceCidr>) {
        self.changed.service_cidrs = true;
        match update {
            Update::Apply(object) => {
                self.service_cidrs.insert(object.name.clone(), object);
            }
            Update::Delete(name) => {
                self.service_cidrs.remove(&name.name);
            }
            Update::Replace { objects, unreadable } => {
                let stays = |name: &String| unreadable.iter().any(|unreadable| unreadable.name == *name);
                self.service_cidrs.retain(|name, _| stays(name));
                let objects = objects.into_iter().map(|object| (object.name.clone(), object));
                self.service_cidrs.extend(objects);
                self.listed.insert(Kind::ServiceCidr);
            }
        }
    }

    fn update_pods(&mut self, update: Update<Pod>) {
        self.changed.pods = true;
        match update {
            Update::Apply(pod) => {
                self.pods.insert(pod.name.clone(), pod);
            }
            Update::Delete(name) => {
                self.pods.remove(&name);
            }
            Update::Replace { objects, unreadable } => {
                self.pods.retain(|name, _| unreadable.contains(name));
                self.pods.extend(objects.into_iter().map(|pod| (pod.name.clone(), pod)));
                self.listed.insert(Kind::Pod);
            }
        }
    }

    /// Marks the Services to which it matters what has changed of the Node: a Node object changes
    /// all the time, and next to nothing of it does.
    fn set_node(&mut self, node: Option<Node>) {
        if node == self.node {
            return;
        }
        self.changed.node = true;
        let before = mem::replace(&mut self.node, node);
        let zone = |node: &Option<Node>| node.as_ref().and_then(|node| node.zone.clone());
        if zone(&before) != zone(&self.node) {
            let with_hints = self
                .slices
                .iter()
                .filter(|(_, slices)| slices.values().any(EndpointSlice::has_zone_hints));
            self.changed
                .services
                .extend(with_hints.map(|(service, _)| service.clone()));
        }
        let addresses = |node: &Option<Node>| node.as_ref().map(Node::primary_addresses);
        if addresses(&before) != addresses(&self.node) {
            let with_ranges = self
                .services
                .values()
                .filter_map(AnyService::ours)
                .filter(|service| !service.source_ranges.is_empty());
            self.changed
                .services
                .extend(with_ranges.map(|service| service.name.clone()));
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty()
            && self.slices.is_empty()
            && self.service_of_slice.is_empty()
            && self.service_cidrs.is_empty()
            && self.pods.is_empty()
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
