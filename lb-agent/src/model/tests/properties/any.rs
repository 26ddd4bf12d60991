//! Objects and events of any kind. Names and addresses are few, so that they meet.

use std::{collections::HashSet, mem, num::NonZeroU32};

use proptest::{
    collection::vec,
    prelude::*,
    sample::{select, subsequence},
};

use super::super::*;
use crate::{
    desired::Distribution,
    model::{DetectLocal, Pod, ServiceCidr},
};

/// An event, or a look at what has come of those before.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Event(Event),
    TakeChange,
}

pub(super) fn any_rules() -> impl Strategy<Value = Rules> {
    let words = |words: &[&str]| words.iter().map(|word| word.parse().unwrap()).collect();
    select(vec![
        Rules::default(),
        Rules {
            node_port_addresses: words(&["all", "localhost"]),
            masquerade_all: true,
            serve_external_ips: false,
            detect_local: DetectLocal::NodeCidr,
            distribution: Distribution::Maglev,
        },
        Rules {
            node_port_addresses: words(&["192.168.0.0/31"]),
            detect_local: DetectLocal::ClusterCidr(networks(&["10.0.0.0/8"])),
            ..Rules::default()
        },
    ])
}

/// One of ours, as a rule.
fn any_service(own_addresses: bool) -> impl Strategy<Value = AnyService> {
    (any_service_of_ours(own_addresses), prop::bool::weighted(0.2)).prop_map(|(service, of_another_proxy)| {
        if of_another_proxy {
            AnyService::OfAnotherProxy {
                name: service.name,
                cluster_ips: service.cluster_ips,
            }
        } else {
            service.into()
        }
    })
}

/// Services of few names with few addresses, so that conflicts are common; `own_addresses` gives
/// each its own, so that there are none.
fn any_service_of_ours(own_addresses: bool) -> impl Strategy<Value = Service> {
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

fn any_pod() -> impl Strategy<Value = Pod> {
    (0..5_u8, 0..5_u8, any::<bool>()).prop_map(|(name, uid, is_opted_out)| Pod {
        name: ObjectName::new("shop", name.to_string()),
        uid: uid.to_string(),
        is_opted_out,
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
        1 => any_update("shop", any_pod().boxed()).prop_map(Event::Pods),
        2 => any_node().prop_map(Event::Node),
        1 => Just(Event::UnreadableNode),
        1 => any_node_addresses().prop_map(Event::NodeAddresses),
    ]
}

pub(super) fn any_steps(own_addresses: bool) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => any_event(own_addresses).prop_map(Step::Event),
        1 => Just(Step::TakeChange),
    ];
    vec(step, 0..40)
}

/// One batch in two orders. No object is in it twice, since the last word on it counts.
pub(super) fn any_batch_in_two_orders() -> impl Strategy<Value = (Vec<Event>, Vec<Event>)> {
    let batch = vec(any_event(false), 0..10).prop_map(|events| {
        let mut seen = HashSet::new();
        let is_first = |event: &Event| object(event).is_some_and(|name| seen.insert((mem::discriminant(event), name)));
        events.into_iter().filter(is_first).collect::<Vec<_>>()
    });
    batch.prop_flat_map(|batch| (Just(batch.clone()), Just(batch).prop_shuffle()))
}

/// The object that an event is about, unless it is about many.
fn object(event: &Event) -> Option<ObjectName> {
    fn of<T>(update: &Update<T>, name: impl Fn(&T) -> ObjectName) -> Option<ObjectName> {
        match update {
            Update::Replace { .. } => None,
            Update::Apply(object) => Some(name(object)),
            Update::Delete(name) => Some(name.clone()),
        }
    }
    match event {
        Event::Services(update) => of(update, |service| service.name().clone()),
        Event::EndpointSlices(update) => of(update, |slice| slice.name().clone()),
        Event::ServiceCidrs(update) => of(update, |object| ObjectName::new("", &object.name)),
        Event::Pods(update) => of(update, |pod| pod.name.clone()),
        Event::Node(_) | Event::UnreadableNode | Event::NodeAddresses(_) => Some(ObjectName::new("", "this-node")),
    }
}
