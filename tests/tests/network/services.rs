//! What `lb-agent services` prints is what the kernel goes by.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};

use ipnet::IpNet;
use lb_agent::desired::{
    AllowedSources, Change, Distribution, Endpoint, Family, Frontend, FrontendAddress, Masquerade, Protocol, Route,
    ServedBy, ServicePort, ServicePortName, State, Target, Weight, text,
};
use lb_agent::plane::Plane as _;
use lb_agent::plane::ebpf::{DEFAULT_TABLE_SIZE, EbpfOptions, EbpfPlane, MapSizes, Masquerading, PodSockets, inspect};
use lb_tests::agent;
use lb_tests::manifests::Service;
use lb_tests::network::{Attachment, Node};
use lb_tests::plane::{Plane, other_than};
use lb_tests::stage::TARGET;

use crate::fixture::{World, patiently};

/// The lines of frontends, or what the command says against it.
pub(crate) fn frontend_lines(node: &Node) -> Result<BTreeSet<String>, String> {
    let output = agent::offline(node, "services", &[]).unwrap();
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("address ") && !line.starts_with("cidr "));
    Ok(lines.map(str::to_owned).collect())
}

#[test]
fn it_says_what_is_served_whether_an_agent_runs_or_not() {
    let mut world = World::new();
    let said = frontend_lines(world.node1()).unwrap_err();
    assert!(said.contains("nothing is programmed on this node"), "{said}");

    let pods = [
        world.backend(1, "here", Attachment::Veth),
        world.backend(2, "there", Attachment::Bridge),
    ];
    let service = Service::new("web", 1, TARGET)
        .at_node_port(30_001)
        .with_endpoints([&pods[0], &pods[1]]);
    world.apply(&service);
    world.start_agent(1);

    let mut expected = BTreeSet::new();
    let node = world.node1().addresses();
    for (family, any) in ["0.0.0.0", "::"]
        .map(|ip| ip.parse::<IpAddr>().unwrap())
        .into_iter()
        .enumerate()
    {
        // IPVS has each address of the node by itself.
        let any = match Plane::under_test() {
            Plane::Ebpf => any,
            Plane::Ipvs => node[family],
        };
        let at = |ip, port| SocketAddr::new(ip, port);
        let [here, there] = [&pods[0], &pods[1]].map(|pod| at(pod.addresses()[family], TARGET));
        let backends = BTreeMap::from([(here, "*"), (there, "")]);
        let backends: Vec<_> = backends
            .iter()
            .map(|(address, mark)| format!("{address}{mark}"))
            .collect();
        for port in &service.ports {
            let frontends = [
                at(service.cluster_ips[family], port.port),
                at(any, port.node_port.unwrap()),
            ];
            expected.extend(frontends.map(|at| format!("{at}/{} to={}", port.protocol, backends.join(","))));
        }
    }
    assert_eq!(frontend_lines(world.node1()).unwrap(), expected);
    world.agents.pop().unwrap().kill().unwrap();
    assert_eq!(frontend_lines(world.node1()).unwrap(), expected);
}

const SIZES: MapSizes = MapSizes {
    services: 64,
    slots: 256,
    backends: 64,
    flows: 64,
    sockets: 64,
    affinity: 64,
    source_ranges: 8_192,
};

fn networks(texts: &[&str]) -> BTreeSet<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A service port of each family for some clients only, and addresses and networks of every kind.
fn restricted(sources: [BTreeSet<IpNet>; 2]) -> State {
    let frontends = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
    let endpoints = ["10.0.1.2:8080", "[fd00:10::2]:8080"].map(|address| address.parse().unwrap());
    let services = frontends
        .into_iter()
        .zip(endpoints)
        .zip(sources)
        .map(|((ip, endpoint), ranges)| {
            let name = ServicePortName {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
                port: String::new(),
                protocol: Protocol::Tcp,
                family: Family::of(ip),
            };
            let frontend = Frontend {
                address: FrontendAddress::Ip(ip),
                port: NonZeroU16::new(80).unwrap(),
                protocol: Protocol::Tcp,
            };
            let route = Route {
                near: Target::Cluster,
                far: Target::Drop,
                masquerade: Masquerade::Always,
                restricted: true,
            };
            let endpoint_is = Endpoint {
                on_node: true,
                cluster: true,
                local: false,
                weight: Weight::ONE,
            };
            let service = ServicePort {
                frontends: BTreeMap::from([(frontend, route)]),
                endpoints: BTreeMap::from([(endpoint, endpoint_is)]),
                affinity: NonZeroU32::new(10_800),
                allowed_sources: AllowedSources { ranges, node: true },
                distribution: Distribution::Random,
            };
            (name, service)
        });
    State {
        services: services.collect(),
        node_port_addresses: ["172.18.0.11", "127.0.0.1", "::1"].map(|ip| ip.parse().unwrap()).into(),
        cluster_ips: ["10.96.0.10", "fd00:96::a"]
            .map(|ip| (ip.parse().unwrap(), ServedBy::Us))
            .into(),
        service_cidrs: networks(&["10.96.0.0/16", "fd00:96::/112"]),
        pod_cidrs: networks(&["10.0.0.0/8", "fd00:10::/64"]),
        ..State::default()
    }
}

/// More than one call reads or writes.
fn many_networks() -> BTreeSet<IpNet> {
    let network = |i: u16| IpNet::new(IpAddr::from([10, i.to_be_bytes()[0], i.to_be_bytes()[1], 0]), 24).unwrap();
    (0..5_000).map(network).collect()
}

/// The kernel's tries too hold what they are given, give it back, and are found by the next agent.
#[test]
fn ranges_and_networks_are_in_the_kernel_as_desired_and_a_restart_writes_nothing() {
    if other_than(Plane::Ebpf, "its networks are in maps") {
        return;
    }
    let world = World::new();
    let node = world.node1();
    let start = || {
        patiently(|| {
            EbpfPlane::start(EbpfOptions {
                bpffs: node.bpffs().path(),
                cgroup: None,
                pod_sockets: PodSockets::Left,
                masquerading: Masquerading::ByPrograms,
                masquerade_mark: 0x4000,
                sizes: SIZES,
                maglev_table: DEFAULT_TABLE_SIZE,
                drain: std::time::Duration::ZERO,
                force_clsact: false,
            })
        })
    };
    let assert_hold = |state: &State| {
        let shown: Vec<String> = inspect(&node.bpffs().path())
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected: Vec<String> = text::lines(state).iter().map(ToString::to_string).collect();
        assert!(shown == expected, "{shown:?}\n{expected:?}");
    };
    let work = || {
        let many = restricted([many_networks(), networks(&["2001:db8::/32", "::/0"])]);
        let (mut plane, links) = start()?;
        let outcome = plane.replace(&many)?;
        assert!(outcome.failed.is_empty() && outcome.addresses.is_none(), "{outcome:?}");
        assert_hold(&many);
        drop((plane, links));

        let (mut plane, _links) = start()?;
        let outcome = plane.replace(&many)?;
        assert_eq!((outcome.programmed, outcome.writes), (2, 0), "{outcome:?}");
        assert_hold(&many);

        let few = State {
            pod_cidrs: networks(&["fd00:10::/64"]),
            ..restricted([networks(&["0.0.0.0/0", "10.0.7.0/24"]), networks(&[])])
        };
        let outcome = plane.apply(&Change {
            services: few
                .services
                .iter()
                .map(|(name, service)| (name.clone(), Some(service.clone())))
                .collect(),
            pod_cidrs: Some(few.pod_cidrs.clone()),
            ..Change::default()
        });
        assert!(outcome.failed.is_empty() && outcome.addresses.is_none(), "{outcome:?}");
        assert_hold(&few);
        anyhow::Ok(())
    };
    node.netns().run(work).unwrap().unwrap();
}
