//! What is read of services, destinations and what is the same for all. The kernel does not mark what is nested.

use super::*;

/// A service with a mark or a protocol, address and port, and the rest.
fn service_of(key: &[&[u8]], rest: &[&[u8]]) -> Vec<u8> {
    nested(1, &[fields(key), fields(rest)].concat())
}

/// An attribute that holds others.
fn nested(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len() + 4).unwrap();
    fields(&[&[length, 0, kind, 0], content])
}

const IPV4: &[u8] = &[6, 0, 1, 0, 2, 0, 0, 0]; // IPVS_SVC_ATTR_AF
const IPV6: &[u8] = &[6, 0, 1, 0, 10, 0, 0, 0];
const TCP: &[u8] = &[6, 0, 2, 0, 6, 0, 0, 0]; // IPVS_SVC_ATTR_PROTOCOL
const ADDRESS: &[u8] = &[20, 0, 3, 0, 10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]; // IPVS_SVC_ATTR_ADDR
const PORT: &[u8] = &[6, 0, 4, 0, 0x01, 0xbb, 0, 0]; // IPVS_SVC_ATTR_PORT: 443
const MARK: &[u8] = &[8, 0, 5, 0, 0x01, 0x00, 0x62, 0x6c]; // IPVS_SVC_ATTR_FWMARK
const RR: &[u8] = &[7, 0, 6, 0, b'r', b'r', 0, 0]; // IPVS_SVC_ATTR_SCHED_NAME
const HASHED: &[u8] = &[12, 0, 7, 0, 2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]; // IPVS_SVC_ATTR_FLAGS
const NO_TIMEOUT: &[u8] = &[8, 0, 8, 0, 0, 0, 0, 0]; // IPVS_SVC_ATTR_TIMEOUT
const FULL_IPV4: &[u8] = &[8, 0, 9, 0, 0xff, 0xff, 0xff, 0xff]; // IPVS_SVC_ATTR_NETMASK
const FULL_IPV6: &[u8] = &[8, 0, 9, 0, 128, 0, 0, 0];
/// IPVS_SVC_ATTR_STATS with IPVS_STATS_ATTR_CONNS, and an attribute of the future.
const UNKNOWN: &[u8] = &[12, 0, 10, 0, 8, 0, 1, 0, 5, 0, 0, 0, 5, 0, 99, 0, 1, 0, 0, 0];

fn is_read(attributes: &[u8]) -> (ServiceKey, ServiceConfig) {
    decode::service(attributes).unwrap().unwrap()
}

#[test]
fn a_service_of_ours() {
    let attributes = service_of(
        &[IPV4, TCP, ADDRESS, PORT],
        &[RR, HASHED, NO_TIMEOUT, FULL_IPV4, UNKNOWN],
    );
    let expected = (
        service(Protocol::Tcp, "10.96.0.1:443"),
        ServiceConfig::new(Scheduler::RoundRobin),
    );
    assert_eq!(is_read(&attributes), expected);
}

#[test]
fn a_persistent_service_of_a_mark() {
    // HASHED 2 | PERSISTENT 1 | SCHED_SH_FALLBACK 8
    let flags = &[12, 0, 7, 0, 0x0b, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    let timeout = &[8, 0, 8, 0, 0x30, 0x2a, 0, 0];
    let sh = &[7, 0, 6, 0, b's', b'h', 0, 0];
    let attributes = service_of(&[IPV6, MARK], &[sh, flags, timeout, FULL_IPV6]);
    let expected = ServiceConfig {
        persistence: NonZeroU32::new(10_800),
        flags: ServiceFlags {
            fallback: true,
            ..ServiceFlags::default()
        },
        ..ServiceConfig::new(Scheduler::SourceHash)
    };
    assert_eq!(is_read(&attributes), (marked(Family::V6, 0x6c62_0001), expected));
}

#[test]
fn a_service_of_somebody_else_is_not_one_of_ours() {
    // HASHED 2 | PERSISTENT 1 | ONEPACKET 4 | SCHED2 16 | SCHED3 32
    let flags = &[12, 0, 7, 0, 0x37, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    let sip = b"\x08\0\x0b\0sip\0"; // IPVS_SVC_ATTR_PE_NAME
    let lblcr = b"\x0a\0\x06\0lblcr\0\0\0";
    let netmask = &[8, 0, 9, 0, 255, 255, 255, 0];
    let attributes = service_of(
        &[IPV4, TCP, ADDRESS, PORT],
        &[lblcr, sip, flags, &[8, 0, 8, 0, 60, 0, 0, 0], netmask],
    );
    let (_, config) = is_read(&attributes);
    assert_eq!(config.scheduler.to_string(), "lblcr");
    assert!(matches!(config.scheduler, SchedulerName::Other(_)));
    assert_eq!(config.persistence, NonZeroU32::new(60));
    assert!(config.flags.port && config.flags.one_packet && !config.flags.fallback);
    let expected = Foreign {
        netmask: Some(0xffff_ff00),
        persistence_engine: true,
        flags: 0x20,
    };
    assert_eq!(config.foreign, expected);
}

#[test]
fn a_persistence_of_no_time_is_not_none() {
    let flags = &[12, 0, 7, 0, 0x03, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    let attributes = service_of(&[IPV4, TCP, ADDRESS, PORT], &[RR, flags, NO_TIMEOUT, FULL_IPV4]);
    let (_, config) = is_read(&attributes);
    assert_eq!(config.persistence, None);
    assert_eq!(config.foreign.flags, 0x01);
}

#[test]
fn a_service_of_another_protocol_has_no_key() {
    let udplite = &[6, 0, 2, 0, 136, 0, 0, 0];
    let attributes = service_of(&[IPV4, udplite, ADDRESS, PORT], &[RR, HASHED, NO_TIMEOUT, FULL_IPV4]);
    assert_eq!(decode::service(&attributes).unwrap(), None);
}

#[test]
fn a_service_that_lacks_something_is_an_error_that_says_what() {
    let all = [IPV4, TCP, ADDRESS, PORT, RR, HASHED, NO_TIMEOUT, FULL_IPV4];
    for (missing, expected) in [
        (0, "family"),
        (2, "address"),
        (3, "port"),
        (4, "scheduler"),
        (5, "flags"),
        (6, "time"),
        (7, "netmask"),
    ] {
        let mut some = all.to_vec();
        some.remove(missing);
        let error = decode::service(&service_of(&some, &[])).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(decode::service(&[]).is_err());
    for wrong in [
        &[6, 0, 1, 0, 7, 0, 0, 0][..], // a family that is none
        &[8, 0, 3, 0, 10, 96, 0, 1],   // an address of four bytes
        &[8, 0, 7, 0, 2, 0, 0, 0],     // flags without those that are meant
        &[
            20, 0, 6, 0, b'a', b'a', b'a', b'a', b'a', b'a', b'a', b'a', b'a', b'a', b'a', b'a', b'a', b'a', b'a', b'a',
        ],
        &[7, 0, 8, 0, 1, 2, 3, 0], // a number of three bytes
    ] {
        let attributes = service_of(&[&all.concat()], &[wrong]);
        assert!(decode::service(&attributes).is_err(), "{wrong:?}");
    }
}

/// IPVS_DEST_ATTR_ADDR to IPVS_DEST_ATTR_PERSIST_CONNS.
fn destination_of(forward: u8) -> Vec<u8> {
    fields(&[
        &[20, 0, 1, 0, 10, 244, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 2, 0, 0x1f, 0x90, 0, 0],
        // IPVS_DEST_ATTR_FWD_METHOD: other flags of connections beside it
        &[8, 0, 3, 0, 0x80 | forward, 1, 0, 0],
        &[8, 0, 4, 0, 3, 0, 0, 0],                            // IPVS_DEST_ATTR_WEIGHT
        &[8, 0, 5, 0, 0, 0, 0, 0],                            // IPVS_DEST_ATTR_U_THRESH
        &[8, 0, 6, 0, 0, 0, 0, 0],                            // IPVS_DEST_ATTR_L_THRESH
        &[8, 0, 7, 0, 4, 0, 0, 0],                            // IPVS_DEST_ATTR_ACTIVE_CONNS
        &[8, 0, 8, 0, 5, 0, 0, 0],                            // IPVS_DEST_ATTR_INACT_CONNS
        &[8, 0, 9, 0, 6, 1, 0, 0],                            // IPVS_DEST_ATTR_PERSIST_CONNS
        &[12, 0, 10, 0, 8, 0, 1, 0, 5, 0, 0, 0],              // IPVS_DEST_ATTR_STATS
        &[16, 0, 12, 0, 12, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0], // IPVS_DEST_ATTR_STATS64
        &[5, 0, 13, 0, 1, 0, 0, 0],                           // IPVS_DEST_ATTR_TUN_TYPE
    ])
}

#[test]
fn a_destination_by_each_way_to_forward() {
    for (number, forward) in [
        (0, Forward::Masquerade),
        (1, Forward::Local),
        (2, Forward::Tunnel),
        (3, Forward::DirectRoute),
        (4, Forward::Bypass),
        (5, Forward::Other(5)),
    ] {
        let expected = DestinationState {
            destination: destination("10.244.1.9:8080", 3),
            forward,
            active: 4,
            inactive: 5,
            persistent: 0x0106,
        };
        let attributes = nested(2, &destination_of(number));
        assert_eq!(decode::destination(Family::V4, &attributes).unwrap(), expected);
    }
}

#[test]
fn a_destination_may_be_of_another_family_than_its_service() {
    let ipv4 = [&destination_of(2)[..], &[6, 0, 11, 0, 2, 0, 0, 0]].concat();
    let state = decode::destination(Family::V6, &nested(2, &ipv4)).unwrap();
    assert_eq!(state.destination, destination("10.244.1.9:8080", 3));
    let unknown = [&destination_of(2)[..], &[6, 0, 11, 0, 7, 0, 0, 0]].concat();
    assert!(decode::destination(Family::V6, &nested(2, &unknown)).is_err());
}

#[test]
fn a_destination_that_lacks_something_is_an_error() {
    let all = destination_of(0);
    for missing in [0..20, 20..28, 28..36, 36..44] {
        let mut some = all.clone();
        some.drain(missing);
        assert!(decode::destination(Family::V4, &nested(2, &some)).is_err());
    }
    assert!(decode::destination(Family::V4, &[]).is_err());
}

#[test]
fn timeouts_and_those_that_a_kernel_does_not_have() {
    let attributes = fields(&[
        &[8, 0, 4, 0, 0x84, 0x03, 0, 0], // IPVS_CMD_ATTR_TIMEOUT_TCP
        &[8, 0, 5, 0, 120, 0, 0, 0],     // IPVS_CMD_ATTR_TIMEOUT_TCP_FIN
    ]);
    let expected = Timeouts {
        tcp: NonZeroU32::new(900),
        tcp_fin: NonZeroU32::new(120),
        udp: None,
    };
    assert_eq!(decode::timeouts(&attributes).unwrap(), expected);
}

#[test]
fn the_version() {
    let attributes = fields(&[
        &[8, 0, 1, 0, 0x01, 0x02, 0x01, 0], // IPVS_INFO_ATTR_VERSION: 0x010201
        &[8, 0, 2, 0, 0, 16, 0, 0],         // IPVS_INFO_ATTR_CONN_TAB_SIZE
    ]);
    assert_eq!(decode::version(&attributes).unwrap().to_string(), "1.2.1");
    assert!(decode::version(&[]).is_err());
}
