//! When sockets of the host have to be looked at, and which of them still have their backend.

use std::{net::SocketAddr, sync::Arc};

use lb_common::{Address, Port, Translation};

use super::{
    CLUSTER, HERE, LEAVING, LOCAL_ONLY, REMOTE, assert_all_well, change, frontend, maps::Maps, service, state,
};
use crate::{
    desired::{Protocol, ServicePort},
    plane::ebpf::{host_sockets::leads, port, services::Services},
};

/// A copy of a service port of TCP.
fn udp(tcp: &ServicePort) -> ServicePort {
    let frontends = tcp.frontends.iter().map(|(frontend, route)| {
        let mut frontend = *frontend;
        frontend.protocol = Protocol::Udp;
        (frontend, *route)
    });
    ServicePort {
        frontends: frontends.collect(),
        ..tcp.clone()
    }
}

fn dns(endpoints: &[(&str, crate::desired::Endpoint)]) -> ServicePort {
    udp(&service(
        &[("10.96.0.10:53", CLUSTER), ("*:30053", LOCAL_ONLY)],
        endpoints,
    ))
}

/// Whether a change asks for a look.
fn looks(agent: &mut Services, service: Option<&ServicePort>) -> bool {
    assert_all_well(&agent.apply(&change(&[("dns", service)])));
    std::mem::take(&mut agent.has_lost_udp)
}

#[test]
fn sockets_are_looked_at_when_a_udp_backend_stops_serving_and_only_then() {
    let maps = Maps::roomy();
    let mut agent = maps.agent();
    agent.replace(&state(&[]));
    let (one, two) = (("10.0.0.1:53", REMOTE), ("10.0.0.2:53", HERE));
    assert!(!looks(&mut agent, Some(&dns(&[one, two]))), "they come");
    let draining = dns(&[("10.0.0.1:53", LEAVING), two]);
    assert!(looks(&mut agent, Some(&draining)), "one drains");
    assert!(!looks(&mut agent, Some(&draining)), "nothing changes");
    assert!(looks(&mut agent, Some(&dns(&[one]))), "one goes");
    assert!(looks(&mut agent, None), "the service goes");

    let web = service(&[("10.96.0.10:80", CLUSTER)], &[one]);
    assert!(!looks(&mut agent, Some(&web)));
    assert!(!looks(&mut agent, None), "TCP does not need it");
}

#[test]
fn a_look_waits_for_the_write() {
    let maps = Maps::roomy();
    let mut agent = maps.agent();
    agent.replace(&state(&[("dns", &dns(&[("10.0.0.1:53", REMOTE)]))]));
    // Rows are written first; then the one write of a backend.
    maps.backends.with(|memory| memory.fails_at.set(Some(0)));
    assert!(!looks(&mut agent, None));
    agent.tick();
    assert!(agent.has_lost_udp);
}

/// The row of a socket that dialled `to` and was sent to `backend`, as things are now.
fn socket(maps: &Maps, to: &str, backend: &str) -> Translation {
    let (number, value) = maps.backend(backend).unwrap();
    let mut frontend = frontend(to);
    frontend.protocol = Protocol::Udp;
    let key = port::key(&frontend);
    let backend: SocketAddr = backend.parse().unwrap();
    Translation {
        // A NodePort is dialled at an address of the node.
        frontend: if to.starts_with('*') {
            Address::from_v4(u32::from_ne_bytes([192, 0, 2, 1]))
        } else {
            key.address
        },
        backend: backend.ip().into(),
        frontend_port: Port::new(frontend.port.get()),
        backend_port: Port::new(backend.port()),
        number,
        generation: value.generation,
    }
}

fn still_leads(maps: &Maps, row: Translation) -> bool {
    let tables = maps.tables(Arc::new(|| {}));
    leads(&*tables.services, &*tables.slots, &*tables.backends, &row).unwrap()
}

#[test]
fn a_socket_has_its_backend_until_that_drains_or_goes() {
    let maps = Maps::roomy();
    let mut agent = maps.agent();
    agent.replace(&state(&[(
        "dns",
        &dns(&[("10.0.0.1:53", REMOTE), ("10.0.0.2:53", HERE)]),
    )]));
    let sockets = [
        socket(&maps, "10.96.0.10:53", "10.0.0.1:53"),
        socket(&maps, "10.96.0.10:53", "10.0.0.2:53"),
        socket(&maps, "*:30053", "10.0.0.2:53"),
    ];
    assert_eq!(sockets.map(|socket| still_leads(&maps, socket)), [true, true, true]);
    looks(
        &mut agent,
        Some(&dns(&[("10.0.0.1:53", LEAVING), ("10.0.0.2:53", HERE)])),
    );
    assert_eq!(sockets.map(|socket| still_leads(&maps, socket)), [false, true, true]);
    looks(&mut agent, Some(&dns(&[("10.0.0.3:53", HERE)])));
    assert_eq!(sockets.map(|socket| still_leads(&maps, socket)), [false, false, false]);
    looks(&mut agent, None);
    assert_eq!(sockets.map(|socket| still_leads(&maps, socket)), [false, false, false]);
}

#[test]
fn a_socket_that_dialled_another_frontend_than_the_one_that_went_keeps_its_backend() {
    let maps = Maps::roomy();
    let mut agent = maps.agent();
    agent.replace(&state(&[("dns", &dns(&[("10.0.0.2:53", HERE)]))]));
    let kept = socket(&maps, "10.96.0.10:53", "10.0.0.2:53");
    let lost = socket(&maps, "*:30053", "10.0.0.2:53");
    let less = udp(&service(&[("10.96.0.10:53", CLUSTER)], &[("10.0.0.2:53", HERE)]));
    assert!(looks(&mut agent, Some(&less)), "its backends are another generation");
    assert_ne!(maps.backend("10.0.0.2:53").unwrap().1.generation, kept.generation);
    assert!(still_leads(&maps, kept));
    assert!(!still_leads(&maps, lost));
}
