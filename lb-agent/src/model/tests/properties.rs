//! Properties that hold for any objects in any order.

use std::{
    collections::{BTreeMap, HashSet},
    num::NonZeroU32,
};

use proptest::{
    collection::vec,
    prelude::*,
    sample::{select, subsequence},
};

use super::*;
use crate::{
    desired::Frontend,
    model::{DetectLocal, ServiceCidr},
};

/// What may happen between two looks at the model.
#[derive(Clone, Debug)]
enum Step {
    Event(Event),
    TakeChange,
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let words = |words: &[&str]| words.iter().map(|word| word.parse().unwrap()).collect();
    select(vec![
        Rules::default(),
        Rules {
            node_port_addresses: words(&["all", "localhost"]),
            masquerade_all: true,
            serve_external_ips: false,
            detect_local: DetectLocal::NodeCidr,
        },
        Rules {
            node_port_addresses: words(&["192.168.0.0/31"]),
            detect_local: DetectLocal::ClusterCidr(networks(&["10.0.0.0/8"])),
            ..Rules::default()
        },
    ])
}

/// Services of few names with few addresses, so that conflicts are common; `own_addresses` gives
/// each its own, so that there are none.
fn any_service(own_addresses: bool) -> impl Strategy<Value = Service> {
    let addresses = if own_addresses { 1..=1_u8 } else { 1..=3_u8 };
    let policy = select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local]);
    (
        (0..4_u8, addresses, any::<[bool; 8]>()),
        (policy.clone(), policy),
        select(vec![None, NonZeroU32::new(1), NonZeroU32::new(10_800)]),
        subsequence(
            vec!["192.168.0.0/31", "198.51.100.0/24", "2001:db8::/32", "0.0.0.0/0"],
            0..3,
        ),
    )
        .prop_map(
            move |((name, address, flags), (internal, external), affinity, ranges)| {
                let [
                    dual_stack,
                    with_node_port,
                    external_ip,
                    external_ip_is_another,
                    load_balancer_ip,
                    load_balancer_ip_is_external,
                    with_health_check,
                    no_ports,
                ] = flags;
                let host = if own_addresses { name * 4 } else { 0 } + address;
                let both = |v4: &str, v6: &str| [format!("{v4}.{host}"), format!("{v6}::{host}")];
                let cluster_ips = both("10.96.0", "fd00:96");
                let external_ips = if external_ip_is_another {
                    both("192.0.2", "2001:db8:1")
                } else {
                    cluster_ips.clone()
                };
                let load_balancer_ips = if load_balancer_ip_is_external {
                    external_ips.clone()
                } else {
                    both("203.0.113", "2001:db8:2")
                };
                let service_ips = |wanted: bool, addresses: &[String; 2]| {
                    let addresses = addresses.each_ref().map(String::as_str);
                    service_ips(if wanted { &addresses } else { &[] })
                };
                let node_port = with_node_port.then(|| 30_000 + u16::from(host));
                let all_ports = [
                    ("http", Protocol::Tcp, 80, node_port),
                    ("dns", Protocol::Udp, 53, node_port),
                ];
                Service {
                    ports: ports(if no_ports { &[] } else { &all_ports }),
                    external_ips: service_ips(external_ip, &external_ips),
                    load_balancer_ips: service_ips(load_balancer_ip, &load_balancer_ips),
                    source_ranges: networks(&ranges),
                    internal_traffic_policy: internal,
                    external_traffic_policy: external,
                    affinity,
                    health_check_node_port: with_health_check.then(|| number(31_000 + u16::from(host))),
                    ..service(
                        &name.to_string(),
                        &cluster_ips.each_ref().map(String::as_str)[..1 + usize::from(dual_stack)],
                    )
                }
            },
        )
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let condition = || select(vec![None, Some(false), Some(true)]);
    let placement = select(vec![Placement::Here, Placement::Elsewhere]);
    let hints = (
        subsequence(vec!["this-node", "other"], 0..=2),
        subsequence(vec!["a", "b"], 0..=2),
    );
    (1..5_u8, placement, (condition(), condition(), condition()), hints).prop_map(
        |(host, placement, (ready, serving, terminating), (nodes, zones))| {
            let conditions = Conditions::new(ready, serving, terminating);
            let zones = zones.into_iter().map(str::to_owned).collect();
            Endpoint {
                hints: Hints::new(nodes, zones, "this-node"),
                ..endpoint(&format!("10.0.0.{host}"), placement, conditions)
            }
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
    let zone = select(vec![None, Some("a"), Some("b")]);
    let pod_cidrs = subsequence(vec!["10.0.0.0/24", "fd00::/64"], 0..=2);
    proptest::option::of((1..3_u8, zone, pod_cidrs).prop_map(|(host, zone, pod_cidrs)| Node {
        internal_ips: vec![ip(&format!("192.168.0.{host}"))],
        zone: zone.map(str::to_owned),
        pod_cidrs: networks(&pod_cidrs),
        ..Node::default()
    }))
}

fn any_node_addresses() -> impl Strategy<Value = BTreeSet<IpAddr>> {
    let addresses = [
        "127.0.0.1",
        "::1",
        "fe80::1",
        "192.168.0.1",
        "192.168.0.2",
        "2001:db8::9",
    ];
    subsequence(addresses.map(ip).to_vec(), 0..=6).prop_map(|addresses| addresses.into_iter().collect())
}

fn any_service_cidr() -> impl Strategy<Value = ServiceCidr> {
    let cidrs = subsequence(vec!["10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112"], 0..=3);
    (0..3_u8, cidrs).prop_map(|(name, cidrs)| ServiceCidr {
        name: name.to_string(),
        cidrs: networks(&cidrs).into_iter().collect(),
    })
}

fn any_update<T: Clone + std::fmt::Debug>(
    namespace: &'static str,
    object: impl Strategy<Value = T> + Clone + 'static,
) -> impl Strategy<Value = Update<T>> {
    let name = (0..5_u8).prop_map(move |name| ObjectName::new(namespace, name.to_string()));
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
        8 => any_update("shop", service).prop_map(Event::Services),
        8 => any_update("shop", any_slice().boxed()).prop_map(Event::EndpointSlices),
        1 => any_update("", any_service_cidr().boxed()).prop_map(Event::ServiceCidrs),
        2 => any_node().prop_map(Event::Node),
        1 => Just(Event::UnreadableNode),
        1 => any_node_addresses().prop_map(Event::NodeAddresses),
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
    service_cidrs: BTreeMap<ObjectName, ServiceCidr>,
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
                update(&mut self.services, services, |service| service.name.clone());
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
    for (ip, is_there) in change.cluster_ips {
        let changed = if is_there {
            mirror.cluster_ips.insert(ip)
        } else {
            mirror.cluster_ips.remove(&ip)
        };
        assert!(changed, "{ip} did not change");
    }
    if let Some(cidrs) = change.service_cidrs {
        mirror.service_cidrs = cidrs;
    }
    if let Some(cidrs) = change.pod_cidrs {
        mirror.pod_cidrs = cidrs;
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
            apply_change(&mut mirror, change);
            assert_eq!(&mirror, cluster.state());
        });
    }

    #[test]
    fn the_order_of_events_between_two_changes_does_not_matter(
        rules in any_rules(),
        steps in any_steps(false),
        seed in vec(any::<u32>(), 64),
    ) {
        let (objects, cluster) = run(&rules, steps, |_, _, _| {});
        // The same objects, in one batch and in any order, on top of whatever was held before.
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
            for service in objects.services.values() {
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
        cluster.apply(Event::Node(None));
        cluster.apply(Event::NodeAddresses(BTreeSet::new()));
        cluster.take_change();
        prop_assert!(cluster.holds_nothing());
    }
}
