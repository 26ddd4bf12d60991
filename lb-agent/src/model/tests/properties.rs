//! Properties that hold for any objects in any order.

mod any;

use std::collections::{BTreeMap, HashSet};

use proptest::{collection::vec, prelude::*};

use self::any::{Step, any_batch_in_two_orders, any_rules, any_steps};
use super::*;
use crate::{
    desired::Frontend,
    model::{Pod, ServiceCidr},
};

/// What the objects are after the steps, whatever the model makes of them.
#[derive(Default)]
struct Objects {
    services: BTreeMap<ObjectName, AnyService>,
    slices: BTreeMap<ObjectName, EndpointSlice>,
    service_cidrs: BTreeMap<ObjectName, ServiceCidr>,
    pods: BTreeMap<ObjectName, Pod>,
    are_pods_listed: bool,
    node: Option<Node>,
    node_addresses: BTreeSet<IpAddr>,
}

impl Objects {
    fn apply(&mut self, event: &Event) {
        fn update<T: Clone>(
            objects: &mut BTreeMap<ObjectName, T>,
            update: &Update<T>,
            name: impl Fn(&T) -> ObjectName,
        ) {
            match update {
                Update::Apply(object) => {
                    objects.insert(name(object), object.clone());
                }
                Update::Delete(name) => {
                    objects.remove(name);
                }
                Update::Replace {
                    objects: listed,
                    unreadable,
                } => {
                    objects.retain(|name, _| unreadable.contains(name));
                    objects.extend(listed.iter().map(|object| (name(object), object.clone())));
                }
            }
        }
        match event {
            Event::Services(services) => {
                update(&mut self.services, services, |service| service.name().clone());
            }
            Event::EndpointSlices(slices) => {
                update(&mut self.slices, slices, |slice| slice.name().clone());
            }
            Event::Node(node) => self.node.clone_from(node),
            Event::ServiceCidrs(service_cidrs) => {
                update(&mut self.service_cidrs, service_cidrs, |object| {
                    ObjectName::new("", &object.name)
                });
            }
            Event::Pods(pods) => {
                update(&mut self.pods, pods, |pod| pod.name.clone());
                self.are_pods_listed |= matches!(pods, Update::Replace { .. });
            }
            Event::NodeAddresses(addresses) => self.node_addresses.clone_from(addresses),
            Event::UnreadableNode => {}
        }
    }

    fn events(&self) -> Vec<Event> {
        fn applied<T: Clone>(objects: &BTreeMap<ObjectName, T>) -> impl Iterator<Item = Update<T>> {
            objects.values().cloned().map(Update::Apply)
        }
        applied(&self.services)
            .map(Event::Services)
            .chain(applied(&self.slices).map(Event::EndpointSlices))
            .chain(applied(&self.service_cidrs).map(Event::ServiceCidrs))
            .chain(self.are_pods_listed.then(|| {
                Event::Pods(Update::Replace {
                    objects: self.pods.values().cloned().collect(),
                    unreadable: Vec::new(),
                })
            }))
            .chain([
                Event::Node(self.node.clone()),
                Event::NodeAddresses(self.node_addresses.clone()),
            ])
            .collect()
    }

    /// A model that has seen nothing but these objects.
    fn cluster(&self, rules: &Rules) -> Cluster {
        let mut cluster = Cluster::new(rules.clone());
        for event in self.events() {
            cluster.apply(event);
        }
        cluster.take_change();
        cluster
    }
}

/// The objects and the model after the steps, with `check` at each change.
fn run(rules: &Rules, steps: Vec<Step>, mut check: impl FnMut(&Objects, &Cluster, Change)) -> (Objects, Cluster) {
    let mut objects = Objects::default();
    let mut cluster = Cluster::new(rules.clone());
    for step in steps.into_iter().chain([Step::TakeChange]) {
        match step {
            Step::Event(event) => {
                objects.apply(&event);
                cluster.apply(event);
            }
            Step::TakeChange => {
                let change = cluster.take_change();
                check(&objects, &cluster, change);
            }
        }
    }
    (objects, cluster)
}

proptest! {
    #[test]
    fn incremental_equals_from_scratch(rules in any_rules(), steps in any_steps(true)) {
        run(&rules, steps, |objects, cluster, _| {
            let from_scratch = objects.cluster(&rules);
            assert_eq!(cluster.state(), from_scratch.state());
            assert_eq!(cluster.health_checks(), from_scratch.health_checks());
        });
    }

    #[test]
    fn the_changes_add_up_to_the_state(rules in any_rules(), steps in any_steps(false)) {
        let mut mirror = State::default();
        run(&rules, steps, |_, cluster, change| {
            for (name, service) in &change.services {
                assert_ne!(mirror.services.get(name), service.as_ref(), "{} did not change", name);
            }
            for (ip, served_by) in &change.cluster_ips {
                assert_ne!(mirror.cluster_ips.get(ip), served_by.as_ref(), "{} did not change", ip);
            }
            mirror.apply(change);
            assert_eq!(&mirror, cluster.state());
        });
    }

    #[test]
    fn the_same_events_make_the_same_changes(rules in any_rules(), steps in any_steps(false)) {
        let changes = || {
            let mut changes = Vec::new();
            run(&rules, steps.clone(), |_, _, change| changes.push(change));
            changes
        };
        prop_assert_eq!(changes(), changes());
    }

    #[test]
    fn the_order_of_events_between_two_changes_does_not_matter(
        rules in any_rules(),
        before in any_steps(false),
        (batch, other_order) in any_batch_in_two_orders(),
    ) {
        let change = |batch: Vec<Event>| {
            let (_, mut cluster) = run(&rules, before.clone(), |_, _, _| {});
            for event in batch {
                cluster.apply(event);
            }
            (cluster.take_change(), cluster.health_checks().clone())
        };
        prop_assert_eq!(change(batch), change(other_order));
    }

    #[test]
    fn the_order_in_which_objects_are_first_heard_of_does_not_matter(
        rules in any_rules(),
        steps in any_steps(false),
        seed in vec(any::<u32>(), 64),
    ) {
        let (objects, cluster) = run(&rules, steps, |_, _, _| {});
        // The same objects, in one batch and in any order.
        let mut events = objects.events();
        let mut keys = seed.into_iter();
        events.sort_by_cached_key(|_| keys.next());
        let mut shuffled = Cluster::new(rules.clone());
        for event in events {
            shuffled.apply(event);
        }
        shuffled.take_change();
        let in_order = objects.cluster(&rules);
        prop_assert_eq!(shuffled.state(), in_order.state());
        prop_assert_eq!(shuffled.services(), cluster.services());
    }

    #[test]
    fn every_claimed_frontend_has_one_holder_and_a_holder_keeps_it(
        rules in any_rules(),
        steps in any_steps(false),
    ) {
        let mut holders_before: BTreeMap<Frontend, ServicePortName> = BTreeMap::new();
        run(&rules, steps, |objects, cluster, _| {
            let mut holders = BTreeMap::new();
            for (name, service) in &cluster.state().services {
                for frontend in service.frontends.keys() {
                    let second = holders.insert(*frontend, name.clone());
                    assert_eq!(second, None, "{frontend} has two holders");
                }
            }
            let mut claims: HashSet<(Frontend, ServicePortName)> = HashSet::new();
            for service in objects.services.values().filter_map(AnyService::ours) {
                for (name, port) in state_under(rules.clone(), None, vec![service.clone()], Vec::new()).services {
                    for frontend in port.frontends.keys() {
                        assert!(holders.contains_key(frontend), "{frontend} has no holder");
                        claims.insert((*frontend, name.clone()));
                    }
                }
            }
            for (frontend, holder) in &holders_before {
                if claims.contains(&(*frontend, holder.clone())) {
                    assert_eq!(holders.get(frontend), Some(holder));
                }
            }
            let waiting = cluster.conflicts().count();
            assert_eq!(holders.len() + waiting, claims.len());
            holders_before = holders;
        });
    }

    #[test]
    fn every_cluster_ip_is_ours_or_another_proxys(rules in any_rules(), steps in any_steps(false)) {
        run(&rules, steps, |objects, cluster, _| {
            let mut expected = BTreeMap::new();
            for service in objects.services.values() {
                match service {
                    AnyService::Ours(service) if service.ports.is_empty() => {}
                    AnyService::Ours(service) => {
                        expected.extend(service.cluster_ips.iter().map(|ip| (ip, ServedBy::Us)));
                    }
                    AnyService::OfAnotherProxy { cluster_ips, .. } => {
                        for ip in cluster_ips.iter() {
                            expected.entry(ip).or_insert(ServedBy::AnotherProxy);
                        }
                    }
                }
            }
            assert_eq!(cluster.state().cluster_ips, expected);
        });
    }

    #[test]
    fn what_is_added_and_deleted_leaves_nothing(rules in any_rules(), steps in any_steps(false)) {
        let (objects, mut cluster) = run(&rules, steps, |_, _, _| {});
        for name in objects.services.into_keys() {
            cluster.apply(Event::Services(Update::Delete(name)));
        }
        for name in objects.slices.into_keys() {
            cluster.apply(Event::EndpointSlices(Update::Delete(name)));
        }
        for name in objects.service_cidrs.into_keys() {
            cluster.apply(Event::ServiceCidrs(Update::Delete(name)));
        }
        for name in objects.pods.into_keys() {
            cluster.apply(Event::Pods(Update::Delete(name)));
        }
        cluster.apply(Event::Node(None));
        cluster.apply(Event::NodeAddresses(BTreeSet::new()));
        cluster.take_change();
        prop_assert!(cluster.holds_nothing());
    }
}
