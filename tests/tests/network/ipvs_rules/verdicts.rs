//! Who is served, refused and dropped.

use std::net::{IpAddr, SocketAddr};

use lb_agent::desired::ServedBy;
use lb_agent::plane::ipvs::rules::{Change, Row, Table, Verdict::*};
use lb_tests::client::{Client, Failure, Outcome, Protocol};
use lb_tests::netlink::{Cidr, Route};
use lb_tests::network::plan;
use lb_tests::server::Server;

use super::{Scene, allowed, at, frontends, inside, key, row, scene, table};
use crate::fixture::{BOTH, BRIEFLY, is_silence};

/// What comes of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Comes {
    Answer,
    Refusal,
    Nothing,
}

fn what(outcome: &Outcome) -> Option<Comes> {
    match outcome {
        Ok(_) => Some(Comes::Answer),
        Err(Failure::Refused) => Some(Comes::Refusal),
        outcome if is_silence(outcome) => Some(Comes::Nothing),
        Err(_) => None,
    }
}

/// Asks by both protocols at these addresses.
#[track_caller]
fn comes(who: &str, client: &Client, to: [SocketAddr; 2], expected: Comes) {
    // Where nothing is to come, it is not waited for as long as where something is.
    let client = match expected {
        Comes::Nothing => client.with_timeout(BRIEFLY),
        _ => client.clone(),
    };
    for to in to {
        for protocol in BOTH {
            let outcome = client.ask(protocol, to);
            assert_eq!(what(&outcome), Some(expected), "{who}, {protocol} to {to}: {outcome:?}");
        }
    }
}

#[test]
fn near_and_far_clients_get_what_the_frontend_has_for_them() {
    let scene = scene();
    let ports = [
        (81, row(Serve, Serve), [Comes::Answer, Comes::Answer]),
        (82, row(Serve, Drop), [Comes::Answer, Comes::Nothing]),
        (83, row(Reject, Reject), [Comes::Refusal, Comes::Refusal]),
        (84, row(Drop, Serve), [Comes::Nothing, Comes::Answer]),
        (85, row(Drop, Reject), [Comes::Nothing, Comes::Refusal]),
    ];
    // Somebody listens at each, and at a port that is no frontend.
    let _servers: Vec<Server> = (81..=86).map(|port| scene.serve(port)).collect();
    for (who, client) in scene.clients() {
        comes(who, &client, at(86), Comes::Answer);
    }
    scene.replace(table(&ports.clone().map(|(port, row, _)| (port, row))));
    for (who, client) in scene.clients() {
        for (port, _, [near, far]) in &ports {
            comes(who, &client, at(*port), if who == "outside" { *far } else { *near });
        }
        comes(who, &client, at(86), Comes::Refusal);
    }
}

#[test]
fn with_networks_of_pods_it_is_the_address_that_makes_a_client_near() {
    let scene = scene();
    let _server = scene.serve(81);
    let of_outside = Table {
        pod_cidrs: scene.network.outside().addresses().map(Into::into).into(),
        ..table(&[(81, row(Serve, Drop))])
    };
    scene.replace(of_outside);
    for (who, client) in scene.clients() {
        let is_pod = who == "pod";
        comes(
            who,
            &client,
            at(81),
            if is_pod { Comes::Nothing } else { Comes::Answer },
        );
    }
    // One family of them: in the other it is the link.
    let change = Change {
        pod_cidrs: Some([scene.network.outside().addresses()[0].into()].into()),
        ..Change::default()
    };
    inside(scene.node(), || scene.rules.apply(change)).unwrap();
    let ([v4, v6], pod) = (at(81), scene.pod.client());
    comes("outside", &scene.outside, [v4; 2], Comes::Answer);
    comes("outside", &scene.outside, [v6; 2], Comes::Nothing);
    comes("pod", &pod, [v4; 2], Comes::Nothing);
    comes("pod", &pod, [v6; 2], Comes::Answer);
}

#[test]
fn ranges_say_who_may_dial_before_it_matters_whether_anybody_is_there() {
    let scene = scene();
    let _servers = [81, 82, 83, 84].map(|port| scene.serve(port));
    let outside = || scene.network.outside().addresses();
    let restricted = |row, allowed| Row { allowed, ..row };
    let ports = [
        (81, restricted(row(Serve, Serve), allowed(outside(), false))),
        (82, restricted(row(Serve, Serve), allowed(scene.pod.addresses(), true))),
        (
            83,
            restricted(row(Reject, Reject), allowed(scene.pod.addresses(), false)),
        ),
        (84, restricted(row(Serve, Serve), allowed([], false))),
    ];
    scene.replace(table(&ports));
    let expected = |who, port| match (port, who) {
        (81, "outside") | (82, "pod" | "node") => Comes::Answer,
        (83, "pod") => Comes::Refusal,
        _ => Comes::Nothing,
    };
    for (who, client) in scene.clients() {
        for port in 81..=84 {
            comes(who, &client, at(port), expected(who, port));
        }
    }
    // Others come in their place, and nobody has to go for those who stay.
    let all = outside().into_iter().chain(scene.pod.addresses());
    let row = restricted(row(Serve, Serve), allowed(all, false));
    let change = Change {
        frontends: frontends(81, &row).map(|(key, row)| (key, Some(row))).collect(),
        ..Change::default()
    };
    inside(scene.node(), || scene.rules.apply(change)).unwrap();
    for (who, client) in scene.clients() {
        let is_node = who == "node";
        comes(
            who,
            &client,
            at(81),
            if is_node { Comes::Nothing } else { Comes::Answer },
        );
    }
}

/// An address that could be a Service's and is answered by a machine beside the nodes.
fn answered_outside(scene: &Scene, number: u8) -> ([SocketAddr; 2], Server) {
    let addresses = plan::service_addresses(number);
    let outside = scene.network.outside();
    let theirs = outside.netns().netlink().unwrap();
    let loopback = theirs.link("lo").unwrap().index;
    for (address, via) in addresses.into_iter().zip(outside.addresses()) {
        theirs.add_address(loopback, Cidr::host(address)).unwrap();
        let route = Route {
            to: Cidr::host(address),
            via: Some(via),
            link: scene.network.node1().uplink().index,
            onlink: false,
        };
        scene.node().netlink().unwrap().add_route(route).unwrap();
    }
    // What pods send is not masqueraded here, and the answers have to find them.
    for (address, via) in scene.pod.addresses().into_iter().zip(scene.network.node1().addresses()) {
        let route = Route {
            to: Cidr::host(address),
            via: Some(via),
            link: outside.uplink().index,
            onlink: false,
        };
        theirs.add_route(route).unwrap();
    }
    let server = Server::start_at(outside.netns(), "outside", addresses, 80).unwrap();
    (addresses.map(|ip| SocketAddr::new(ip, 80)), server)
}

#[test]
fn who_dials_what_could_be_a_service_and_is_nobodys_gets_no_answer() {
    let scene = scene();
    let (to, _server) = answered_outside(&scene, 77);
    let on_this_side = || scene.clients().into_iter().filter(|(who, _)| *who != "outside");
    for (who, client) in on_this_side() {
        comes(who, &client, to, Comes::Answer);
    }
    let networks = plan::SERVICE_CIDRS.map(|cidr| ipnet::IpNet::new(cidr.address, cidr.length).unwrap());
    scene.replace(Table {
        service_cidrs: networks.into(),
        ..table(&[])
    });
    for (who, client) in on_this_side() {
        comes(who, &client, to, Comes::Nothing);
    }
    // It is another proxy's.
    let change = Change {
        cluster_ips: to.map(|to| (to.ip(), Some(ServedBy::AnotherProxy))).into(),
        ..Change::default()
    };
    inside(scene.node(), || scene.rules.apply(change)).unwrap();
    for (who, client) in on_this_side() {
        comes(who, &client, to, Comes::Answer);
    }
}

#[test]
fn an_address_of_the_node_that_is_no_service_is_left_alone() {
    let scene = scene();
    let addresses = scene.network.node1().addresses();
    let _server = Server::start_at(scene.node(), "node", addresses, 80).unwrap();
    // Somebody has given ServiceCIDRs that have the node in them.
    scene.replace(Table {
        service_cidrs: addresses.map(Into::into).into(),
        ..table(&[])
    });
    for (who, client) in scene.clients() {
        comes(
            who,
            &client,
            addresses.map(|ip: IpAddr| SocketAddr::new(ip, 80)),
            Comes::Answer,
        );
    }
}

#[test]
fn connections_stand_when_the_last_endpoint_goes_and_datagrams_do_not() {
    let scene = scene();
    let _server = scene.serve(81);
    scene.replace(table(&[(81, row(Serve, Serve))]));
    for (who, client) in scene.clients() {
        for to in at(81) {
            let mut connections = BOTH.map(|protocol| client.connect(protocol, to).unwrap());
            for connection in &mut connections {
                connection.ask("before").unwrap();
            }
            let change = |row: Row| Change {
                frontends: BOTH.map(|protocol| (key(protocol, to), Some(row.clone()))).into(),
                ..Change::default()
            };
            inside(scene.node(), || scene.rules.apply(change(row(Reject, Reject)))).unwrap();
            let [mut tcp, mut udp] = connections;
            assert_eq!(tcp.ask("after").unwrap().server, "node", "{who} to {to}");
            assert_eq!(udp.ask("after"), Err(Failure::Refused), "{who} to {to}");
            assert_eq!(client.ask(Protocol::Tcp, to), Err(Failure::Refused), "{who} to {to}");
            // "No" is not remembered, of the same socket either.
            inside(scene.node(), || scene.rules.apply(change(row(Serve, Serve)))).unwrap();
            assert_eq!(udp.ask("again").unwrap().server, "node", "{who} to {to}");
        }
    }
}
