//! A node with two uplinks, policy routing, and the strictest filter of source addresses.
//!
//! ```text
//!   outside ── switch ── eth0 ┌ node1 ┐ eth1 ── router ── far
//!   172.18.0.100              └───────┘ 172.19.0.11  .1    203.0.113.5
//! ```
//!
//! The main table's default route is by eth0. `far` hears of the node by eth1 alone, so that whoever it hears an
//! answer from has sent it out there.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;

use lb_tests::client::{Client, Protocol};
use lb_tests::ethtool;
use lb_tests::manifests::Service;
use lb_tests::netlink::{Cidr, End};
use lb_tests::netns::Netns;
use lb_tests::network::{Attachment, Node, Pod, plan};
use lb_tests::plane::{self, Plane, other_than};
use lb_tests::process;
use lb_tests::stage::TARGET;

use crate::fixture::{BOTH, BRIEFLY, SOON, World, add_rules, node_ports};

const UPLINK: &str = "eth1";
/// It is a veth, of which the agent cannot know that it stands for a card.
const AS_A_CARD: &str = "eth1=uplink";
const NODE_PORT: u16 = 30_001;
/// The table of eth1's default route.
const TABLE: &str = "100";

/// The second uplink of node 1, and who is behind it.
struct Second {
    router: Arc<Netns>,
    far: Arc<Netns>,
}

/// The addresses of a machine in one of the two networks, IPv4 first.
fn near(host: u8) -> [IpAddr; 2] {
    [
        [172, 19, 0, host].into(),
        [0xfd00, 0x172, 0x19, 0, 0, 0, 0, u16::from(host)].into(),
    ]
}

fn beyond(host: u8) -> [IpAddr; 2] {
    [
        [203, 0, 113, host].into(),
        [0xfd00, 0x203, 0, 0, 0, 0, 0, u16::from(host)].into(),
    ]
}

fn netns(name: &str) -> Netns {
    let netns = Netns::new(name).unwrap();
    for scope in ["all", "default"] {
        netns.set_sysctl(&format!("ipv6.conf.{scope}.accept_dad"), "0").unwrap();
    }
    netns
}

/// A pair of links with these names and addresses, up.
fn connect(ends: [(&Netns, &str, [IpAddr; 2]); 2]) {
    let [(here, here_name, _), (there, there_name, _)] = ends;
    let peer = End {
        netns: there,
        name: there_name,
    };
    here.netlink().unwrap().add_veth(here_name, peer, plan::MTU).unwrap();
    for (netns, name, addresses) in ends {
        ethtool::set_tx_checksum(netns, name, false).unwrap();
        let netlink = netns.netlink().unwrap();
        let link = netlink.link(name).unwrap().index;
        netlink.up(link).unwrap();
        for (address, length) in addresses.into_iter().zip([24, 64]) {
            netlink.add_address(link, Cidr::new(address, length)).unwrap();
        }
    }
}

/// Runs `ip`, for IPv4 and for IPv6, with these arguments in which `{n}` stands for `words[n]` of the family.
fn ip<T: ToString>(netns: &Netns, args: &str, words: &[[T; 2]]) {
    for (family, flag) in ["-4", "-6"].into_iter().enumerate() {
        let mut args = args.to_owned();
        for (n, word) in words.iter().enumerate() {
            args = args.replace(&format!("{{{n}}}"), &word[family].to_string());
        }
        let mut command = Command::new("ip");
        command.arg(flag).args(args.split_whitespace()).stdin(Stdio::null());
        let status = process::spawn(command, netns, None).unwrap().wait().unwrap();
        assert!(status.success(), "ip {flag} {args}");
    }
}

impl Second {
    fn add(node: &Node) -> Self {
        let (router, far) = (netns("router"), netns("far"));
        connect([(&router, "node", near(1)), (node.netns(), UPLINK, near(11))]);
        connect([(&router, "far", beyond(1)), (&far, "eth0", beyond(5))]);
        router.set_sysctl("ipv4.ip_forward", "1").unwrap();
        router.set_sysctl("ipv6.conf.all.forwarding", "1").unwrap();
        ip(&far, "route add default via {0}", &[beyond(1)]);
        Self {
            router: Arc::new(router),
            far: Arc::new(far),
        }
    }

    fn router(&self) -> Client {
        Client::new(Arc::clone(&self.router) as _)
    }

    fn far(&self) -> Client {
        Client::new(Arc::clone(&self.far) as _)
    }
}

/// The node's NodePorts at its second uplink.
fn second_ports() -> [SocketAddr; 2] {
    near(11).map(|ip| SocketAddr::new(ip, NODE_PORT))
}

/// How many packets the filter of source addresses has dropped on a node.
fn filtered(node: &Node) -> u64 {
    let read = || fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let text = node.netns().run(read).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut counters = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = counters.find(|(name, _)| *name == "IPReversePathFilter").unwrap();
    value.parse().unwrap()
}

/// A Service with a backend on each node, and one for each backend alone, in that order.
fn services(world: &mut World) -> (Vec<Pod>, [Service; 2]) {
    let here = world.backend(1, "here", Attachment::Veth);
    let there = world.backend(2, "there", Attachment::Bridge);
    let services = [(&here, NODE_PORT), (&there, NODE_PORT + 1)].map(|(pod, port)| {
        let number = u8::try_from(port - NODE_PORT + 1).unwrap();
        Service::new(pod.name(), number, TARGET)
            .at_node_port(port)
            .with_endpoints([pod])
    });
    for service in &services {
        world.apply(service);
    }
    (vec![here, there], services)
}

/// Both backends answer at this address of the node, in each protocol.
#[track_caller]
fn both_answer(client: &Client, addresses: [IpAddr; 2]) {
    for ip in addresses {
        for (port, server) in [(NODE_PORT, "here"), (NODE_PORT + 1, "there")] {
            for protocol in BOTH {
                let to = SocketAddr::new(ip, port);
                let answer = client.ask(protocol, to).map(|answer| answer.server);
                assert_eq!(answer, Ok(server.to_owned()), "{protocol} to {to}");
            }
        }
    }
}

#[test]
fn clients_of_either_uplinks_network_are_served_by_it() {
    let mut world = World::new();
    let second = Second::add(world.node1());
    let _pods = services(&mut world);
    world.start_agent_with(1, &["--node-port-addresses", "all", "--link", AS_A_CARD]);
    let before = filtered(world.node1());
    both_answer(&world.network.outside().client(), world.node1().addresses());
    both_answer(&second.router(), near(11));
    assert_eq!(filtered(world.node1()), before);
    let log = world.agents[0].log().unwrap();
    assert!(!log.contains("eth1.rp_filter"), "there is nothing to say: {log}");
}

/// Each connection's mark is that of the uplink it came by, and its answers are routed by it.
#[test]
fn rules_by_mark_send_answers_out_by_the_uplink_that_the_client_came_by() {
    let mut world = World::new();
    let second = Second::add(world.node1());
    let node = world.node1().netns();
    ip(node, &format!("route add default via {{0}} table {TABLE}"), &[near(1)]);
    // What is on its way to a pod has the mark too, and so has what the tunnel wraps around that.
    let pods = [
        Cidr::new([10, 244, 0, 0], 16),
        Cidr::new([0xfd00, 0x244, 0, 0, 0, 0, 0, 0], 32),
    ];
    let nodes = [Cidr::new(plan::SWITCH_V4, 24), Cidr::new(plan::SWITCH_V6, 64)];
    for inside in [pods, nodes] {
        ip(node, "rule add to {0} lookup main pref 100", &[inside]);
    }
    ip::<IpAddr>(node, &format!("rule add fwmark 1/1 lookup {TABLE} pref 200"), &[]);
    node.set_sysctl(&format!("ipv4.conf.{UPLINK}.src_valid_mark"), "1")
        .unwrap();
    let marks = format!(
        "add table inet marks\n\
         add chain inet marks first {{ type filter hook prerouting priority mangle; }}\n\
         add rule inet marks first iifname {UPLINK} ct state new ct mark set 1\n\
         add rule inet marks first ct mark 1 meta mark set meta mark or 1\n"
    );
    add_rules(world.node1(), &marks);

    let _pods = services(&mut world);
    world.start_agent_with(1, &["--node-port-addresses", "all", "--link", AS_A_CARD]);
    let before = filtered(world.node1());
    both_answer(&second.far(), near(11));
    both_answer(&second.router(), near(11));
    both_answer(&world.network.outside().client(), world.node1().addresses());
    assert_eq!(filtered(world.node1()), before);
    let log = world.agents[0].log().unwrap();
    assert!(!log.contains("eth1.rp_filter"), "there is nothing to say: {log}");
}

/// What is on its way to a pod is not from the node's address, so that such a rule does not apply: with kube-proxy
/// neither.
#[test]
fn where_rules_by_source_address_let_the_filter_drop_clients_it_is_named() {
    if other_than(
        Plane::Ebpf,
        "it translates before the kernel filters source addresses, and so what is filtered is on its way to a pod",
    ) {
        return;
    }
    let mut world = World::new();
    let second = Second::add(world.node1());
    let node = world.node1().netns();
    ip(node, &format!("route add default via {{0}} table {TABLE}"), &[near(1)]);
    ip(node, &format!("rule add from {{0}} lookup {TABLE}"), &[near(11)]);
    let _pods = services(&mut world);
    world.start_agent_with(1, &["--node-port-addresses", "all", "--link", AS_A_CARD]);
    let mut agent = world.agents.pop().unwrap();
    let line = agent.wait_for_log(SOON, "net.ipv4.conf.eth1.rp_filter is 1").unwrap();
    assert!(line.contains("WARN") && line.contains("src_valid_mark"), "{line}");

    // It says the truth: packets come in as far as the filter, and with 2 they pass it.
    let far = second.far().with_timeout(BRIEFLY);
    let before = filtered(world.node1());
    assert!(far.ask(Protocol::Udp, second_ports()[0]).is_err());
    assert!(filtered(world.node1()) > before);
    world
        .node1()
        .netns()
        .set_sysctl(&format!("ipv4.conf.{UPLINK}.rp_filter"), "2")
        .unwrap();
    let before = filtered(world.node1());
    // Its answer goes by the main table, where nobody knows this client.
    assert!(far.ask(Protocol::Udp, second_ports()[0]).is_err());
    assert_eq!(filtered(world.node1()), before);

    // Whoever is in the uplink's own network is served all the same.
    both_answer(&second.router(), near(11));
}

/// The network does not masquerade what pods send to nodes: the request comes to the other node by its uplink from an
/// address that is behind the tunnel, and the answer comes by the tunnel from one that is behind the uplink.
#[test]
fn where_strict_filters_drop_what_pods_send_to_other_nodes_they_are_named_and_can_be_set() {
    let mut world = World::new();
    let (_pods, services) = services(&mut world);
    let client = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let to = node_ports(&services[1], world.network.node2())[0];
    let strict = ["eth0", "vx0"].map(|link| format!("net.ipv4.conf.{link}.rp_filter"));
    for node in [1, 2] {
        world.start_agent(node);
        let agent = world.agents.last_mut().unwrap();
        for name in &strict {
            let line = agent.wait_for_log(SOON, &format!("{name} is 1")).unwrap();
            assert!(line.contains("WARN") && line.contains("--set-sysctls"), "{line}");
        }
    }
    // The other node's uplink drops the request; once that is set, this one's tunnel drops the answer.
    let ask = || client.client().with_timeout(BRIEFLY).ask(Protocol::Udp, to);
    for (place, node) in [(1, 2), (0, 1)] {
        let [one, two] = world.network.nodes();
        let asked = if node == 1 { one } else { two };
        let before = filtered(asked);
        assert!(ask().is_err());
        // With IPVS it is the ARP request for the way back that has the node's address already, and that is dropped
        // without being counted.
        let is_counted = node == 2 || plane::is(Plane::Ebpf);
        assert!(!is_counted || filtered(asked) > before, "at node {node}");

        world.agents.remove(place).stop().unwrap();
        world.start_agent_with(node, &["--set-sysctls"]);
        let agent = world.agents.last_mut().unwrap();
        for name in &strict {
            agent.wait_for_log(SOON, &format!("set sysctl=\"{name}\"")).unwrap();
        }
    }
    let before = world.network.nodes().each_ref().map(filtered);
    for protocol in BOTH {
        let answer = client.client().ask(protocol, to).map(|answer| answer.server);
        assert_eq!(answer, Ok("there".to_owned()), "{protocol}");
    }
    assert_eq!(world.network.nodes().each_ref().map(filtered), before);
}
