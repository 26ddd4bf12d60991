//! Session affinity: a client of a service port that gets the same backend again.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use lb_common::{
    BackendValue, Range, ServiceValue,
    backend::{DRAINING, IN_LOCAL_SET},
    service::FAR_IS_LOCAL,
};

use crate::{
    Family, backend, client,
    datapath::{DROP, Datapath, Hook, each},
    frame::{SYN, Transport, frame, read},
    frontend,
};

/// The one that the backends of a data path are of.
const SERVICE: u32 = 1;
/// Seconds.
const TIMEOUT: u32 = 6;
const SECOND: u64 = 1_000_000_000;
/// Backends of the tests: so many that the same one again is no chance.
const BACKENDS: u8 = 60;

/// Waits until the kernel's clock has room for times longer ago than the timeout: a virtual machine may be younger.
fn wait_for_a_past() {
    let needed = Duration::from_secs(2 * u64::from(TIMEOUT));
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let up = Duration::from_secs_f64(uptime.split(' ').next().unwrap().parse().unwrap());
    std::thread::sleep(needed.saturating_sub(up));
}

fn serve(datapath: &mut Datapath, transport: Transport, frontend: SocketAddr, range: Range, flags: u32) {
    let value = ServiceValue {
        service: SERVICE,
        near: range,
        far: range,
        flags,
        affinity: TIMEOUT,
    };
    datapath.set_service(transport, frontend, value);
}

/// A service with affinity behind `frontend`, with [`BACKENDS`] on this node or elsewhere.
fn sticky(datapath: &mut Datapath, family: Family, transport: Transport, local: bool) -> Range {
    let numbers = (1..=BACKENDS).map(|n| datapath.backend(n.into(), backend(family, n), local));
    let numbers: Vec<u32> = numbers.collect();
    let range = datapath.slots(&numbers);
    serve(datapath, transport, frontend(family), range, 0);
    range
}

/// Opens flows from some ports of a client and tells where they go.
fn dial(datapath: &Datapath, transport: Transport, client: IpAddr, frontend: SocketAddr) -> BTreeSet<SocketAddr> {
    dial_from(41_000, datapath, transport, client, frontend)
}

fn dial_from(
    first_port: u16,
    datapath: &Datapath,
    transport: Transport,
    client: IpAddr,
    frontend: SocketAddr,
) -> BTreeSet<SocketAddr> {
    (first_port..first_port + 8)
        .map(|port| {
            let sent = frame(transport, SocketAddr::new(client, port), frontend, SYN);
            read(&datapath.run(Hook::PodIngress, &sent).frame).to()
        })
        .collect()
}

#[test]
fn every_flow_of_a_client_goes_to_one_backend() {
    each(|mut datapath, family, transport| {
        sticky(&mut datapath, family, transport, false);
        let went = dial(&datapath, transport, client(family).ip(), frontend(family));
        assert_eq!(went.len(), 1, "{went:?}");
    });
}

#[test]
fn clients_do_not_share_a_backend() {
    each(|mut datapath, family, transport| {
        sticky(&mut datapath, family, transport, false);
        let mut went = BTreeSet::new();
        for n in 10..30 {
            let client: SocketAddr = family.pick(&format!("10.244.1.{n}:1"), &format!("[fd00:244:1::{n:x}]:1"));
            went.extend(dial(&datapath, transport, client.ip(), frontend(family)));
        }
        assert!(went.len() > 1);
    });
}

#[test]
fn the_frontends_of_a_service_port_share_what_is_remembered() {
    each(|mut datapath, family, transport| {
        let range = sticky(&mut datapath, family, transport, false);
        let other = SocketAddr::new(crate::node(family), 81);
        serve(&mut datapath, transport, other, range, 0);
        let client = client(family).ip();
        let went = dial(&datapath, transport, client, frontend(family));
        assert_eq!(dial(&datapath, transport, client, other), went);
    });
}

#[test]
fn a_new_flow_keeps_it_alive_and_an_expired_one_is_drawn_afresh() {
    wait_for_a_past();
    each(|mut datapath, family, transport| {
        sticky(&mut datapath, family, transport, false);
        let client = client(family).ip();
        let before = dial(&datapath, transport, client, frontend(family));
        let mut row = datapath.affinity(SERVICE, client).unwrap();
        let began = row.last_used;

        // Half of the timeout ago: the same again, and the clock starts anew.
        row.last_used -= u64::from(TIMEOUT) * SECOND / 2;
        datapath.set_affinity(SERVICE, client, row);
        let sent = frame(transport, SocketAddr::new(client, 50_000), frontend(family), SYN);
        let again = read(&datapath.run(Hook::PodIngress, &sent).frame).to();
        assert_eq!(BTreeSet::from([again]), before);
        row = datapath.affinity(SERVICE, client).unwrap();
        assert!(row.last_used >= began);

        // Longer ago than the timeout: so many draws of so many backends are not all the one before.
        let mut drawn = BTreeSet::new();
        for port in 51_000..51_010 {
            row.last_used = row.last_used.min(began - (u64::from(TIMEOUT) + 1) * SECOND);
            datapath.set_affinity(SERVICE, client, row);
            let sent = frame(transport, SocketAddr::new(client, port), frontend(family), SYN);
            drawn.insert(read(&datapath.run(Hook::PodIngress, &sent).frame).to());
        }
        assert_ne!(drawn, before);
    });
}

#[test]
fn a_timeout_that_changes_holds_at_once_for_what_is_remembered() {
    wait_for_a_past();
    each(|mut datapath, family, transport| {
        let range = sticky(&mut datapath, family, transport, false);
        let client = client(family).ip();
        dial(&datapath, transport, client, frontend(family));
        let mut row = datapath.affinity(SERVICE, client).unwrap();
        row.last_used -= 5 * SECOND;
        row.backend = 1;
        let mut first = |affinity, port| {
            datapath.set_affinity(SERVICE, client, row);
            let value = ServiceValue {
                service: SERVICE,
                near: range,
                far: range,
                flags: 0,
                affinity,
            };
            datapath.set_service(transport, frontend(family), value);
            let sent = frame(transport, SocketAddr::new(client, port), frontend(family), SYN);
            read(&datapath.run(Hook::PodIngress, &sent).frame).to()
        };
        assert_eq!(first(3600, 52_000), backend(family, 1));
        let drawn: BTreeSet<_> = (52_001..52_011).map(|port| first(4, port)).collect();
        assert_ne!(drawn, BTreeSet::from([backend(family, 1)]));
        let drawn: BTreeSet<_> = (52_011..52_021).map(|port| first(0, port)).collect();
        assert_ne!(drawn, BTreeSet::from([backend(family, 1)]));
    });
}

#[test]
fn a_backend_that_does_not_serve_or_is_anothers_is_not_remembered() {
    let changes: [fn(&mut BackendValue); 3] = [
        |value| value.state = DRAINING,
        |value| value.service += 1,
        // Still serving, but not for this client: only in the local set.
        |value| value.flags = IN_LOCAL_SET,
    ];
    for change in changes {
        each(|mut datapath, family, transport| {
            sticky(&mut datapath, family, transport, false);
            let client = client(family).ip();
            dial(&datapath, transport, client, frontend(family));
            let number = datapath.affinity(SERVICE, client).unwrap().backend;
            let mut value = datapath.get_backend(number);
            change(&mut value);
            datapath.set_backend(number, value);
            // Its slot is gone too, or it could be drawn again.
            let others: Vec<u32> = (1..=BACKENDS.into()).filter(|n| *n != number).collect();
            let range = datapath.slots(&others);
            serve(&mut datapath, transport, frontend(family), range, 0);
            let went = dial_from(42_000, &datapath, transport, client, frontend(family));
            assert_eq!(went.len(), 1, "another one is remembered: {went:?}");
            let row = datapath.affinity(SERVICE, client).unwrap();
            assert_ne!(row.backend, number);
        });
    }
}

#[test]
fn what_is_remembered_stays_when_the_backend_is_another_generation() {
    each(|mut datapath, family, transport| {
        sticky(&mut datapath, family, transport, false);
        let client = client(family).ip();
        let before = dial(&datapath, transport, client, frontend(family));
        let number = datapath.affinity(SERVICE, client).unwrap().backend;
        let mut value = datapath.get_backend(number);
        value.generation += 1;
        datapath.set_backend(number, value);
        let after = dial_from(42_000, &datapath, transport, client, frontend(family));
        assert_eq!(after, before);
    });
}

#[test]
fn a_client_that_must_stay_on_this_node_is_not_sent_where_it_went_by_another_frontend() {
    each(|mut datapath, family, transport| {
        let client = client(family).ip();
        let remote = datapath.backend(1, backend(family, 1), false);
        let local = datapath.backend(2, backend(family, 2), true);
        let anywhere = datapath.slots(&[remote]);
        let here = datapath.slots(&[local]);
        serve(&mut datapath, transport, frontend(family), anywhere, 0);
        let external = SocketAddr::new(crate::node(family), 81);
        serve(&mut datapath, transport, external, here, FAR_IS_LOCAL);
        let dial = |frontend, port| {
            let sent = frame(transport, SocketAddr::new(client, port), frontend, SYN);
            read(&datapath.run(Hook::OutsideIngress, &sent).frame).to()
        };
        assert_eq!(dial(frontend(family), 41_000), backend(family, 1));
        assert_eq!(dial(external, 41_001), backend(family, 2));
    });
}

#[test]
fn without_affinity_nothing_is_remembered() {
    each(|mut datapath, family, transport| {
        datapath.simple(transport, frontend(family), &[backend(family, 1)]);
        let sent = frame(transport, client(family), frontend(family), SYN);
        assert_ne!(datapath.run(Hook::PodIngress, &sent).verdict, DROP);
        assert_eq!(datapath.affinity(1, client(family).ip()), None);
    });
}
