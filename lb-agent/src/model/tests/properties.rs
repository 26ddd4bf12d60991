//! Properties that hold for any objects in any order.

use std::collections::{BTreeMap, HashSet};

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::desired::Frontend;

/// What may happen between two looks at the model.
#[derive(Clone, Debug)]
enum Step {
    Event(Event),
    TakeChange,
}

/// Services of few names with few addresses, so that conflicts are common; `own_addresses` gives
/// each its own, so that there are none.
fn any_service(own_addresses: bool) -> impl Strategy<Value = Service> {
    let addresses = if own_addresses { 1..=1_u8 } else { 1..=3_u8 };
    let policy = select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local]);
    (0..4_u8, addresses, any::<bool>(), any::<bool>(), policy.clone(), policy).prop_map(
        move |(name, address, dual_stack, with_node_port, internal, external)| {
            let host = if own_addresses { name * 4 } else { 0 } + address;
            let v4 = format!("10.96.0.{host}");
            let v6 = format!("fd00:96::{host}");
            let addresses = [v4.as_str(), v6.as_str()];
            let node_port = with_node_port.then(|| 30_000 + u16::from(host));
            Service {
                ports: ports(&[
                    ("http", Protocol::Tcp, 80, node_port),
                    ("dns", Protocol::Udp, 53, node_port),
                ]),
                internal_traffic_policy: internal,
                external_traffic_policy: external,
                ..service(&name.to_string(), &addresses[..1 + usize::from(dual_stack)])
            }
        },
    )
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let condition = || select(vec![None, Some(false), Some(true)]);
    let placement = select(vec![Placement::Here, Placement::Elsewhere]);
    (1..5_u8, placement, condition(), condition(), condition()).prop_map(
        |(host, placement, ready, serving, terminating)| {
            let conditions = Conditions::new(ready, serving, terminating);
            endpoint(&format!("10.0.0.{host}"), placement, conditions)
        },
    )
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    (0..5_u8, 0..4_u8, vec(any_endpoint(), 0..4)).prop_map(|(name, service, endpoints)| {
        let ports = [("http", Protocol::Tcp, 8080), ("dns", Protocol::Udp, 5353)];
        slice_with_ports(&name.to_string(), &service.to_string(), &ports, &endpoints)
    })
}

fn any_node() -> impl Strategy<Value = Option<Node>> {
    proptest::option::of((1..3_u8).prop_map(|host| Node {
        internal_ips: vec![ip(&format!("192.168.0.{host}"))],
        external_ips: Vec::new(),
        ..Node::default()
    }))
}

fn any_update<T: Clone + std::fmt::Debug>(
    object: impl Strategy<Value = T> + Clone + 'static,
) -> impl Strategy<Value = Update<T>> {
    let name = (0..5_u8).prop_map(|name| ObjectName::new("shop", name.to_string()));
    prop_oneof![
        6 => object.clone().prop_map(Update::Apply),
        3 => name.clone().prop_map(Update::Delete),
        1 => (vec(object, 0..4), vec(name, 0..2))
            .prop_map(|(objects, unreadable)| Update::Replace { objects, unreadable }),
    ]
}

fn any_event(own_addresses: bool) -> impl Strategy<Value = Event> {
    let service = any_service(own_addresses).boxed();
    prop_oneof![
        4 => any_update(service).prop_map(Event::Services),
        4 => any_update(any_slice().boxed()).prop_map(Event::EndpointSlices),
        1 => any_node().prop_map(Event::Node),
        1 => Just(Event::UnreadableNode),
    ]
}

fn any_steps(own_addresses: bool) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => any_event(own_addresses).prop_map(Step::Event),
        1 => Just(Step::TakeChange),
    ];
    vec(step, 0..40)
}

/// What the objects are after the steps, whatever the model makes of them.
#[derive(Default)]
struct Objects {
    services: BTreeMap<ObjectName, Service>,
    slices: BTreeMap<ObjectName, EndpointSlice>,
    node: Option<Node>,
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
                update(&mut self.services, services, |service| service.name.clone());
            }
            Event::EndpointSlices(slices) => {
                update(&mut self.slices, slices, |slice| slice.name().clone());
            }
            Event::Node(node) => self.node.clone_from(node),
            Event::ServiceCidrs(_) | Event::UnreadableNode => {}
        }
    }

    fn events(&self) -> Vec<Event> {
        let services = self.services.values().cloned().map(Update::Apply).map(Event::Services);
        let slices = self
            .slices
            .values()
            .cloned()
            .map(Update::Apply)
            .map(Event::EndpointSlices);
        services.chain(slices).chain([Event::Node(self.node.clone())]).collect()
    }

    /// The desired state of a model that has seen nothing but these objects.
    fn desired_state(&self) -> State {
        let mut cluster = Cluster::default();
        for event in self.events() {
            cluster.apply(event);
        }
        cluster.take_change();
        cluster.state().clone()
    }
}

/// What a plane would hold that applies every change.
fn apply_change(mirror: &mut State, change: Change) {
    for (name, service) in change.services {
        match service {
            Some(service) => mirror.services.insert(name, service),
            None => mirror.services.remove(&name),
        };
    }
    if let Some(addresses) = change.node_port_addresses {
        mirror.node_port_addresses = addresses;
    }
}

/// The objects and the model after the steps, with `check` at each change.
fn run(steps: Vec<Step>, mut check: impl FnMut(&Objects, &Cluster, Change)) -> (Objects, Cluster) {
    let mut objects = Objects::default();
    let mut cluster = Cluster::default();
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
    fn incremental_equals_from_scratch(steps in any_steps(true)) {
        run(steps, |objects, cluster, _| {
            assert_eq!(cluster.state(), &objects.desired_state());
        });
    }

    #[test]
    fn the_changes_add_up_to_the_state(steps in any_steps(false)) {
        let mut mirror = State::default();
        run(steps, |_, cluster, change| {
            for (name, service) in &change.services {
                assert_ne!(mirror.services.get(name), service.as_ref(), "{} did not change", name);
            }
            apply_change(&mut mirror, change);
            assert_eq!(&mirror, cluster.state());
        });
    }

    #[test]
    fn the_order_of_events_between_two_changes_does_not_matter(
        steps in any_steps(false),
        seed in vec(any::<u32>(), 64),
    ) {
        let (objects, cluster) = run(steps, |_, _, _| {});
        // The same objects, in one batch and in any order, on top of whatever was held before.
        let mut events = objects.events();
        let mut keys = seed.into_iter();
        events.sort_by_cached_key(|_| keys.next());
        let mut shuffled = Cluster::default();
        for event in events {
            shuffled.apply(event);
        }
        shuffled.take_change();
        prop_assert_eq!(shuffled.state(), &objects.desired_state());
        prop_assert_eq!(shuffled.services(), cluster.services());
    }

    #[test]
    fn every_claimed_frontend_has_one_holder_and_a_holder_keeps_it(steps in any_steps(false)) {
        let mut holders_before: BTreeMap<Frontend, ServicePortName> = BTreeMap::new();
        run(steps, |objects, cluster, _| {
            let mut holders = BTreeMap::new();
            for (name, service) in &cluster.state().services {
                for frontend in service.frontends.keys() {
                    let second = holders.insert(*frontend, name.clone());
                    assert_eq!(second, None, "{frontend} has two holders");
                }
            }
            let mut claims: HashSet<(Frontend, ServicePortName)> = HashSet::new();
            for service in objects.services.values() {
                for (name, port) in state(vec![service.clone()], Vec::new()).services {
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
    fn what_is_added_and_deleted_leaves_nothing(steps in any_steps(false)) {
        let (objects, mut cluster) = run(steps, |_, _, _| {});
        for name in objects.services.into_keys() {
            cluster.apply(Event::Services(Update::Delete(name)));
        }
        for name in objects.slices.into_keys() {
            cluster.apply(Event::EndpointSlices(Update::Delete(name)));
        }
        cluster.apply(Event::Node(None));
        cluster.take_change();
        prop_assert!(cluster.holds_nothing());
    }
}
