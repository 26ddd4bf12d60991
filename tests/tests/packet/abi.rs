//! What a BPF program wrote, decoded from the raw bytes of the map field by field: a layout that
//! both sides got wrong in the same way would not be seen by comparing structs.

use std::net::SocketAddr;

use lb_common::{FlowKey, FlowValue};

use crate::{
    Family,
    datapath::{Datapath, Hook},
    frame::{Transport, frame},
};

fn bytes<T: aya::Pod>(value: &T) -> &[u8] {
    // SAFETY: `Pod` has no padding and any bytes are a value of it.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn the_rows_of_an_ipv4_flow_byte_by_byte() {
    let mut datapath = Datapath::new();
    let client: SocketAddr = "10.244.1.2:40000".parse().unwrap();
    let frontend: SocketAddr = "10.96.0.10:80".parse().unwrap();
    let backend: SocketAddr = "10.244.2.7:8080".parse().unwrap();
    let number = datapath.backend(0x0203, backend, false);
    let mut value = datapath.get_backend(number);
    value.generation = 0x0506_0708;
    datapath.set_backend(number, value);
    let range = datapath.slots(&[number]);
    datapath.service(Transport::Udp, frontend, range, lb_common::service::MASQUERADE_ALL);
    datapath.run(Hook::PodIngress, &frame(Transport::Udp, client, frontend, 0));

    let mut rows: Vec<(FlowKey, FlowValue)> = datapath.flows();
    rows.sort_by_key(|(key, _)| key.direction);
    let (key, row) = (bytes(&rows[0].0), bytes(&rows[0].1));
    let mapped = |last: [u8; 4]| [[0; 10].as_slice(), &[0xff, 0xff], &last].concat();
    assert_eq!(key.len(), 40);
    assert_eq!(key[0..16], mapped([10, 244, 1, 2]), "source");
    assert_eq!(key[16..32], mapped([10, 96, 0, 10]), "destination");
    assert_eq!(key[32..34], [0x9c, 0x40], "source port 40000");
    assert_eq!(key[34..36], [0, 80], "destination port");
    assert_eq!(key[36..40], [17, 0, 0, 0], "protocol, direction, padding");
    assert_eq!(row.len(), 48);
    let last_seen = u64::from_ne_bytes(row[0..8].try_into().unwrap());
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    let age = seconds - last_seen as f64 / 1e9;
    assert!((-1.0..60.0).contains(&age), "last seen {age} s ago");
    assert_eq!(row[8..24], mapped([10, 244, 2, 7]), "backend");
    assert_eq!(row[24..26], [0x1f, 0x90], "backend port 8080");
    assert_eq!(row[26..28], [0, 0], "the client keeps its port");
    assert_eq!(u32_at(row, 28), 0x0203, "number of the backend");
    assert_eq!(u32_at(row, 32), 0x0506_0708, "generation");
    assert_eq!(u32_at(row, 36), 1, "service");
    assert_eq!(row[40..48], [1, 0, 0, 0, 0, 0, 0, 0], "masquerade, padding");

    let (key, row) = (bytes(&rows[1].0), bytes(&rows[1].1));
    assert_eq!(key[0..16], mapped([10, 244, 2, 7]), "source of the answer");
    assert_eq!(key[16..32], mapped([10, 244, 1, 2]), "destination of the answer");
    assert_eq!(
        key[32..40],
        [0x1f, 0x90, 0x9c, 0x40, 17, 1, 0, 0],
        "ports, protocol, direction"
    );
    assert_eq!(row[8..24], mapped([10, 96, 0, 10]), "frontend");
    assert_eq!(row[24..28], [0, 80, 0, 0], "frontend port, the client keeps its port");
}

#[test]
fn ipv6_addresses_stand_as_in_the_packet() {
    let mut datapath = Datapath::new();
    let (client, frontend) = (crate::client(Family::V6), crate::frontend(Family::V6));
    datapath.simple(Transport::Udp, frontend, &[crate::backend(Family::V6, 7)]);
    datapath.run(Hook::PodIngress, &frame(Transport::Udp, client, frontend, 0));
    let mut rows = datapath.flows();
    rows.sort_by_key(|(key, _)| key.direction);
    let octets = |address: SocketAddr| match address {
        SocketAddr::V6(v6) => v6.ip().octets(),
        SocketAddr::V4(_) => unreachable!("an IPv6 test"),
    };
    assert_eq!(bytes(&rows[0].0)[0..16], octets(client));
    assert_eq!(bytes(&rows[0].0)[16..32], octets(frontend));
    assert_eq!(bytes(&rows[0].1)[8..24], octets(crate::backend(Family::V6, 7)));
}
