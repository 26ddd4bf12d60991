//! What the IPVS plane says that it serves, `lb-agent services`, is what `ipvsadm` and `nft` find in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use k8s_openapi::api::core::v1 as core;
use lb_tests::ipvs::{self, Protocol, Table, Virtual};
use lb_tests::manifests::{Manifest, Service};
use lb_tests::network::{Attachment, Node, plan};
use lb_tests::nft::{Key, frontend_maps};
use lb_tests::plane::{Plane, lacks_ipvs, other_than};
use lb_tests::process;
use lb_tests::stage::TARGET;
use serde_json::Value;

use crate::fixture::World;
use crate::services::frontend_lines;

const TABLE: &str = "inet lb-agent-ipvs";
const BALANCER: u8 = 201;

/// Where clients go, in the words of `lb-agent services`.
#[derive(PartialEq, Eq, Debug)]
enum Goes {
    To(BTreeSet<SocketAddr>),
    Reject,
    Drop,
}

/// A line of `lb-agent services`.
struct Line {
    frontend: Key,
    near: Goes,
    far: Goes,
    affinity: Option<u32>,
}

fn line(text: &str) -> Line {
    let mut words = text.split(' ');
    let (address, protocol) = words.next().unwrap().rsplit_once('/').unwrap();
    let protocol = match protocol {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        _ => panic!("{text}"),
    };
    let fields: BTreeMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
    assert!(!fields.contains_key("error"), "{text}");
    let goes = |field: &str| match *fields.get(field).or(fields.get("to")).unwrap() {
        "reject" => Goes::Reject,
        "drop" => Goes::Drop,
        backends => {
            let backends = backends.split(',');
            Goes::To(
                backends
                    .map(|text| text.trim_end_matches('*').parse().unwrap())
                    .collect(),
            )
        }
    };
    Line {
        frontend: (protocol, address.parse().unwrap()),
        near: goes("near"),
        far: goes("far"),
        affinity: fields.get("affinity").map(|seconds| seconds.parse().unwrap()),
    }
}

/// The lines, with one for each address of the node in place of one for all.
fn lines(node: &Node) -> Vec<Line> {
    let mut lines = Vec::new();
    for text in frontend_lines(node).unwrap() {
        let (_, address) = line(&text).frontend;
        let own = node.addresses().into_iter();
        let addresses: Vec<_> = if address.ip().is_unspecified() {
            own.filter(|ip| ip.is_ipv4() == address.is_ipv4()).collect()
        } else {
            vec![address.ip()]
        };
        lines.extend(addresses.into_iter().map(|ip| {
            let mut line = line(&text);
            line.frontend.1.set_ip(ip);
            line
        }));
    }
    lines
}

/// What the kernel has of a node, by its own tools.
struct Kernel {
    ipvs: Table,
    /// Of both families.
    maps: BTreeMap<String, BTreeMap<Key, Value>>,
}

impl Kernel {
    fn of(node: &Node) -> Self {
        let mut maps: BTreeMap<String, BTreeMap<Key, Value>> = BTreeMap::new();
        for (name, elements) in frontend_maps(node.netns(), TABLE).unwrap() {
            let name = name.trim_end_matches("_v4").trim_end_matches("_v6");
            maps.entry(name.to_owned()).or_default().extend(elements);
        }
        Self {
            ipvs: Table::of(node).unwrap(),
            maps,
        }
    }

    /// The virtual service that a client of a frontend comes to: by the mark that this map gives it, or by its address.
    fn virtual_of(&self, marks: &str, frontend: Key) -> Virtual {
        let mark = self.maps.get(marks).and_then(|map| map.get(&frontend));
        match mark.map(|mark| mark.as_u64().unwrap()) {
            Some(mark) => Virtual::Mark {
                mark: mark.try_into().unwrap(),
                is_v6: frontend.1.is_ipv6(),
            },
            None => Virtual::Address(frontend.0, frontend.1),
        }
    }
}

#[track_caller]
fn agrees(node: &Node) {
    let (kernel, lines) = (Kernel::of(node), lines(node));
    let frontends: BTreeSet<Key> = lines.iter().map(|line| line.frontend).collect();
    let known: BTreeSet<Key> = kernel.maps["frontends"].keys().copied().collect();
    assert_eq!(known, frontends, "frontends of the packet filter");

    let mut used = BTreeSet::new();
    for Line {
        frontend,
        near,
        far,
        affinity,
    } in &lines
    {
        for (who, marks, goes) in [("near", "near_marks", near), ("far", "far_marks", far)] {
            let key = kernel.virtual_of(marks, *frontend);
            // Nobody is sent on to what is refused or dropped before, so nothing needs to be there.
            if let Goes::To(backends) = goes {
                assert_eq!(
                    kernel.ipvs.taking(key).as_ref(),
                    Some(backends),
                    "{who} clients of {frontend:?}, by {key:?}, in:\n{}",
                    kernel.ipvs
                );
                if let Virtual::Address(..) = key {
                    assert_eq!(
                        kernel.ipvs.0[&key].persistent, *affinity,
                        "{who} clients of {frontend:?}"
                    );
                }
                used.insert(key);
            }
        }
    }
    let there: BTreeSet<Virtual> = kernel.ipvs.0.keys().copied().collect();
    assert_eq!(there, used, "virtual services that no frontend has");
}

#[test]
fn what_is_said_to_be_served_is_what_ipvs_and_the_packet_filter_hold() {
    if other_than(Plane::Ipvs, "it looks at the kernel's IPVS") {
        return;
    }
    let mut world = World::new();
    let pods = [
        world.backend(1, "here", Attachment::Veth),
        world.backend(2, "there", Attachment::Bridge),
    ];
    let web = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints(&pods);
    let empty = Service::new("empty", 2, TARGET).at_node_port(30_002);
    let local = Service::new("local", 3, TARGET)
        .at_node_port(30_003)
        .with_endpoints(&pods);
    for service in [&web, &empty, &local] {
        world.apply(service);
    }
    let mut object = local.service();
    let spec = object.spec.as_mut().unwrap();
    spec.type_ = Some("LoadBalancer".into());
    spec.external_traffic_policy = Some("Local".into());
    spec.session_affinity = Some("ClientIP".into());
    let ingress = plan::service_addresses(BALANCER).map(|ip| core::LoadBalancerIngress {
        ip: Some(ip.to_string()),
        ..Default::default()
    });
    object.status = Some(core::ServiceStatus {
        load_balancer: Some(core::LoadBalancerStatus {
            ingress: Some(ingress.into()),
        }),
        ..Default::default()
    });
    world.source.apply(&[Manifest::new(&object).unwrap()]).unwrap();
    world.start_agent(1);
    let node = world.node1();
    // ClusterIP and NodePort of three Services and a load balancer's address of one, in each family and protocol.
    assert_eq!(lines(node).len(), (3 * 2 + 1) * 4);
    agrees(node);

    // After changes of each kind too, and whether an agent runs or not.
    world.apply(&web.clone().with_endpoints([&pods[1]]));
    world.apply(&empty.clone().with_endpoints([&pods[0]]));
    world.delete(&local);
    let marker = Service::new("marker", 4, TARGET).with_endpoints([&pods[0]]);
    world.apply(&marker);
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    for service in [&empty, &marker] {
        for to in crate::fixture::cluster_ips(service) {
            let tcp = lb_tests::client::Protocol::Tcp;
            crate::fixture::becomes_answered_by(&client.client(), tcp, to, "here");
        }
    }
    world.agents.pop().unwrap().kill().unwrap();
    assert_eq!(lines(world.node1()).len(), (2 * 2 + 1) * 4);
    agrees(world.node1());
}

/// Gives the packet filter of a node these rules.
fn add_rules(node: &Node, rules: &str) {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped());
    let mut child = process::spawn(command, node.netns(), None).unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{rules}");
}

/// The test above believes these two: here they read what somebody else has written.
#[test]
fn what_is_set_by_hand_is_read_back() {
    if lacks_ipvs() {
        return;
    }
    let world = World::new();
    let node = world.node1();
    let (frontend, frontend6): (SocketAddr, SocketAddr) =
        ("10.96.0.1:80".parse().unwrap(), "[fd00:96::1]:53".parse().unwrap());
    let rules = "-A -t 10.96.0.1:80 -s rr -p 60\n\
                 -a -t 10.96.0.1:80 -r 10.244.1.2:8080 -m -w 1\n\
                 -a -t 10.96.0.1:80 -r 10.244.2.2:8080 -m -w 0\n\
                 -A -u [fd00:96::1]:53 -s sh\n\
                 -A -f 7 -6 -s rr\n\
                 -a -f 7 -6 -r [fd00:244:1::2]:8080 -m -w 3\n";
    ipvs::restore(node, rules).unwrap();
    let table = Table::of(node).unwrap();
    let web = Virtual::Address(Protocol::Tcp, frontend);
    assert_eq!(table.0.len(), 3, "{table}");
    assert_eq!(table.0[&web].persistent, Some(60));
    assert_eq!(table.0[&web].destinations.len(), 2);
    assert_eq!(
        table.taking(web).unwrap(),
        BTreeSet::from(["10.244.1.2:8080".parse().unwrap()])
    );
    let dns = Virtual::Address(Protocol::Udp, frontend6);
    assert_eq!(table.0[&dns].scheduler, "sh");
    let marked = Virtual::Mark { mark: 7, is_v6: true };
    assert_eq!(table.taking(marked).unwrap().len(), 1);

    let rules = "add table inet lb-agent-ipvs\n\
                 add map inet lb-agent-ipvs frontends_v4 { type ipv4_addr . inet_proto . inet_service : verdict; }\n\
                 add map inet lb-agent-ipvs near_marks_v6 { type ipv6_addr . inet_proto . inet_service : mark; }\n\
                 add set inet lb-agent-ipvs others { type ipv4_addr; }\n\
                 add element inet lb-agent-ipvs frontends_v4 { 10.96.0.1 . tcp . 80 comment \"web\" : accept }\n\
                 add element inet lb-agent-ipvs near_marks_v6 { fd00:96::1 . udp . 53 : 7 }\n";
    add_rules(node, rules);
    let kernel = Kernel::of(node);
    assert_eq!(
        kernel.maps["frontends"].keys().collect::<Vec<_>>(),
        [&(Protocol::Tcp, frontend)]
    );
    assert_eq!(kernel.virtual_of("near_marks", (Protocol::Udp, frontend6)), marked);
    assert_eq!(kernel.virtual_of("near_marks", (Protocol::Tcp, frontend)), web);
    assert!(!kernel.maps.contains_key("others"));
}
