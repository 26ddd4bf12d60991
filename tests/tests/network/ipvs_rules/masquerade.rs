//! Marks, and whose address gives way to the node's.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use lb_agent::desired::Masquerade;
use lb_agent::plane::ipvs::rules::{Mark, Row, Table, Verdict::*};
use lb_tests::client::Client;
use lb_tests::netns::Netns;
use lb_tests::network::{Attachment, Pod, plan};
use lb_tests::stage::TARGET;

use super::{BIT, SERVICE, Scene, at, nft, row, scene, table};
use crate::fixture::BOTH;

/// A table of the test that notes ports and marks right where IPVS would see them.
const WITNESS: &str = "table inet witness {
    set seen { type inet_service . mark; flags dynamic; size 1000; }
    chain input { type filter hook input priority 98; th dport 81-89 iif != lo update @seen { th dport . meta mark }; }
    chain output { type filter hook output priority -100; th dport 81-89 update @seen { th dport . meta mark }; }
}";

/// The marks that packets to a port had since the last time.
fn marks(netns: &Netns, port: u16) -> BTreeSet<u32> {
    let listed = nft(netns, "list set inet witness seen");
    nft(netns, "flush set inet witness seen");
    let prefix = format!("{port} . 0x");
    let marks = listed.split(&prefix).skip(1).map(|rest| {
        let digits = rest.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap();
        u32::from_str_radix(digits, 16).unwrap()
    });
    marks.collect()
}

#[track_caller]
fn has_mark(scene: &Scene, who: &str, client: &Client, port: u16, mark: u32) {
    for to in at(port) {
        for protocol in BOTH {
            client.ask(protocol, to).unwrap();
            let seen = marks(scene.node(), port);
            assert!(
                seen.contains(&mark) && seen.iter().all(|seen| *seen == mark || *seen == 0),
                "{who}, {protocol} to {to}: {seen:x?} and not {mark:x}"
            );
        }
    }
}

#[test]
fn a_client_has_the_mark_of_its_service_and_of_whether_answers_come_back() {
    let scene = scene();
    nft(scene.node(), WITNESS);
    let _servers = [81, 82, 83, 84].map(|port| scene.serve(port));
    let (one, two) = (Mark::new(1).unwrap(), Mark::new(2).unwrap());
    let always = |row| Row {
        masquerade: Masquerade::Always,
        ..row
    };
    let ports = [
        (81, row(Serve, Serve)),
        (82, row(Select(one), Select(two))),
        (83, always(row(Serve, Serve))),
        (84, always(row(Select(one), Select(two)))),
    ];
    scene.replace(table(&ports));
    let expected = |near: bool, behind_us: bool, node: bool| {
        [
            (81, if behind_us && !node { 0 } else { BIT }),
            (
                82,
                match (near, behind_us) {
                    (true, true) => 0x6c62_0002,
                    (true, false) => 0x6c62_0003,
                    (false, _) => 0x6c62_0005,
                },
            ),
            (83, 0x6c62_8001),
            (84, if near { 0x6c62_8003 } else { 0x6c62_8005 }),
        ]
    };
    for (who, client) in scene.clients() {
        let near = who != "outside";
        for (port, mark) in expected(near, near, who == "node") {
            has_mark(&scene, who, &client, port, mark);
        }
    }
    // The client outside is a pod by its address, and the pod is none.
    scene.replace(Table {
        pod_cidrs: scene.network.outside().addresses().map(Into::into).into(),
        ..table(&ports)
    });
    for (who, client) in scene.clients() {
        for (port, mark) in expected(who != "pod", who == "node", who == "node") {
            has_mark(&scene, who, &client, port, mark);
        }
    }
}

/// Stands for IPVS: what comes to a port of the Service goes to a pod, with this mark.
fn translate(scene: &Scene, port: u16, mark: u32, to: &Pod) {
    let rule = |chain: &str, set_mark: &str| {
        let families = [
            ("ip", plan::service_addresses(SERVICE)[0]),
            ("ip6", plan::service_addresses(SERVICE)[1]),
        ];
        for ((family, service), backend) in families.into_iter().zip(to.addresses()) {
            let backend = SocketAddr::new(backend, TARGET);
            for protocol in ["tcp", "udp"] {
                let rule =
                    format!("{family} daddr {service} {protocol} dport {port} {set_mark} dnat {family} to {backend}");
                nft(scene.node(), &format!("add rule inet instead_of_ipvs {chain} {rule}"));
            }
        }
    };
    nft(
        scene.node(),
        "table inet instead_of_ipvs {
            chain input { type nat hook prerouting priority -100; }
            chain output { type nat hook output priority -100; }
            set seen { type inet_service . mark; flags dynamic; size 1000; }
            chain leaving {
                type filter hook postrouting priority 110;
                th dport 8080 update @seen { th dport . meta mark };
            }
        }",
    );
    rule("input", &format!("meta mark set {mark:#x}"));
    rule("output", "");
}

/// Asks by every protocol and family, and says as whom the server has seen the client.
#[track_caller]
fn seen_as(who: &str, client: &Client, port: u16) -> BTreeSet<IpAddr> {
    let ask = |to: SocketAddr| {
        BOTH.map(|protocol| match client.ask(protocol, to) {
            Ok(answer) => answer.seen.ip(),
            Err(failure) => panic!("{who}, {protocol} to {to}: {failure}"),
        })
    };
    at(port).into_iter().flat_map(ask).collect()
}

#[test]
fn a_client_keeps_its_address_unless_the_answer_would_not_come_back() {
    let scene = scene();
    let node = scene.network.node1();
    let here = node.add_pod("here", Attachment::Veth).unwrap();
    let there = scene.network.node2().add_pod("there", Attachment::Veth).unwrap();
    let _servers = [&scene.pod, &here, &there].map(|pod| pod.serve(TARGET).unwrap());
    scene.replace(Table {
        local_endpoints: [&scene.pod, &here].into_iter().flat_map(Pod::addresses).collect(),
        ..table(&[(81, row(Serve, Serve))])
    });
    let one = Mark::new(1).unwrap();
    let is_node = |address: &IpAddr| node.has_address(*address);
    // The mark of a client, the pod that it reaches, and whether it keeps its address.
    let cases = [
        (0, &here, true),
        (0, &there, true),
        (0, &scene.pod, false),
        (BIT, &here, true),
        (BIT, &there, false),
        (one.plain(), &there, true),
        (one.plain(), &scene.pod, false),
        (one.masquerade(), &here, true),
        (one.masquerade(), &there, false),
        (one.masquerade_always(), &here, false),
        (one.masquerade_always(), &there, false),
        (0x6c62_8001, &here, false),
    ];
    for (mark, backend, keeps) in cases {
        let who = format!("mark {mark:x} to {}", backend.name());
        translate(&scene, 81, mark, backend);
        let seen = seen_as(&who, &scene.pod.client(), 81);
        if keeps {
            assert_eq!(seen, scene.pod.addresses().into(), "{who}");
        } else {
            assert!(seen.iter().all(is_node), "{who}: seen as {seen:?}");
        }
        // A process of the node has the Service's address as its own until then.
        let seen = seen_as(&who, &scene.host, 81);
        assert!(seen.iter().all(is_node), "{who}: the node is seen as {seen:?}");
        // And no mark leaves the node.
        let left = nft(scene.node(), "list set inet instead_of_ipvs seen");
        assert!(left.contains("8080 . 0x00000000"), "{left}");
        assert_eq!(left.matches("8080 . ").count(), 1, "{left}");
        nft(scene.node(), "delete table inet instead_of_ipvs");
    }
}
