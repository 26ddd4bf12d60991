//! What is written.

use super::*;

/// A command as it is sent.
fn request(command: Command) -> Vec<u8> {
    written(command.number(), NLM_F_ACK, |attributes| command.write(attributes))
}

/// A request of number 0x0102.
fn written(command: u8, flags: u16, fill: impl FnOnce(&mut Attributes<'_>)) -> Vec<u8> {
    let header = Header {
        family: FAMILY,
        version: uapi::FAMILY_VERSION,
        command,
        flags,
        sequence: 0x0102,
    };
    let mut bytes = Vec::new();
    wire::write_request(&mut bytes, header, fill);
    bytes
}

#[test]
fn add_a_service_of_ipv4() {
    let command = Command::AddService(
        service(Protocol::Tcp, "10.96.0.1:80"),
        ServiceConfig::new(Scheduler::RoundRobin),
    );
    let expected = fields(&[
        &[104, 0, 0, 0],           // nlmsg_len
        &[0x1c, 0],                // nlmsg_type: the family
        &[0x05, 0],                // nlmsg_flags: NLM_F_REQUEST | NLM_F_ACK
        &[0x02, 0x01, 0, 0],       // nlmsg_seq
        &[0, 0, 0, 0],             // nlmsg_pid: to the kernel
        &[1, 1, 0, 0],             // IPVS_CMD_NEW_SERVICE, version 1
        &[84, 0, 0x01, 0x80],      // IPVS_CMD_ATTR_SERVICE, nested
        &[6, 0, 1, 0, 2, 0, 0, 0], // IPVS_SVC_ATTR_AF: AF_INET
        &[6, 0, 2, 0, 6, 0, 0, 0], // IPVS_SVC_ATTR_PROTOCOL: IPPROTO_TCP
        &[20, 0, 3, 0],            // IPVS_SVC_ATTR_ADDR
        &[10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 4, 0, 0, 80, 0, 0],            // IPVS_SVC_ATTR_PORT: 80, big-endian
        &[7, 0, 6, 0, b'r', b'r', 0, 0],       // IPVS_SVC_ATTR_SCHED_NAME
        &[12, 0, 7, 0],                        // IPVS_SVC_ATTR_FLAGS
        &[0, 0, 0, 0],                         // none
        &[0xff, 0xff, 0xff, 0xff],             // of all
        &[8, 0, 8, 0, 0, 0, 0, 0],             // IPVS_SVC_ATTR_TIMEOUT
        &[8, 0, 9, 0, 0xff, 0xff, 0xff, 0xff], // IPVS_SVC_ATTR_NETMASK: 255.255.255.255
    ]);
    assert_eq!(request(command), expected);
}

#[test]
fn add_a_service_of_ipv6_with_everything() {
    let config = ServiceConfig {
        persistence: NonZeroU32::new(10_800),
        flags: ServiceFlags {
            port: true,
            fallback: true,
            one_packet: true,
        },
        ..ServiceConfig::new(Scheduler::Maglev)
    };
    let command = Command::AddService(service(Protocol::Udp, "[fd00::a]:53"), config);
    let expected = fields(&[
        &[104, 0, 0, 0, 0x1c, 0, 0x05, 0, 0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[1, 1, 0, 0],              // IPVS_CMD_NEW_SERVICE
        &[84, 0, 0x01, 0x80],       // IPVS_CMD_ATTR_SERVICE
        &[6, 0, 1, 0, 10, 0, 0, 0], // IPVS_SVC_ATTR_AF: AF_INET6
        &[6, 0, 2, 0, 17, 0, 0, 0], // IPVS_SVC_ATTR_PROTOCOL: IPPROTO_UDP
        &[20, 0, 3, 0],             // IPVS_SVC_ATTR_ADDR
        &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a],
        &[6, 0, 4, 0, 0, 53, 0, 0],      // IPVS_SVC_ATTR_PORT
        &[7, 0, 6, 0, b'm', b'h', 0, 0], // IPVS_SVC_ATTR_SCHED_NAME
        &[12, 0, 7, 0],                  // IPVS_SVC_ATTR_FLAGS
        // PERSISTENT 1 | ONEPACKET 4 | SCHED_MH_FALLBACK 8 | SCHED_MH_PORT 16
        &[0x1d, 0, 0, 0],
        &[0xff, 0xff, 0xff, 0xff],
        &[8, 0, 8, 0, 0x30, 0x2a, 0, 0], // IPVS_SVC_ATTR_TIMEOUT: 0x2a30 seconds
        &[8, 0, 9, 0, 128, 0, 0, 0],     // IPVS_SVC_ATTR_NETMASK: a prefix
    ]);
    assert_eq!(request(command), expected);
}

#[test]
fn set_a_service_of_a_mark() {
    let command = Command::SetService(
        marked(Family::V6, 0x6c62_0001),
        ServiceConfig::new(Scheduler::WeightedLeastConnections),
    );
    let expected = fields(&[
        &[76, 0, 0, 0, 0x1c, 0, 0x05, 0, 0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[2, 1, 0, 0],                                      // IPVS_CMD_SET_SERVICE
        &[56, 0, 0x01, 0x80],                               // IPVS_CMD_ATTR_SERVICE
        &[6, 0, 1, 0, 10, 0, 0, 0],                         // IPVS_SVC_ATTR_AF: AF_INET6
        &[8, 0, 5, 0, 0x01, 0x00, 0x62, 0x6c],              // IPVS_SVC_ATTR_FWMARK
        &[8, 0, 6, 0, b'w', b'l', b'c', 0],                 // IPVS_SVC_ATTR_SCHED_NAME
        &[12, 0, 7, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], // IPVS_SVC_ATTR_FLAGS
        &[8, 0, 8, 0, 0, 0, 0, 0],                          // IPVS_SVC_ATTR_TIMEOUT
        &[8, 0, 9, 0, 128, 0, 0, 0],                        // IPVS_SVC_ATTR_NETMASK
    ]);
    assert_eq!(request(command), expected);
}

#[test]
fn set_a_service_takes_away_what_somebody_else_gave_it() {
    let ours = ServiceConfig::new(Scheduler::SourceHash);
    let theirs = ServiceConfig {
        foreign: Foreign {
            netmask: Some(0xffff_ff00),
            persistence_engine: true,
            flags: 0x20,
        },
        ..ours
    };
    let key = service(Protocol::Tcp, "10.96.0.1:80");
    assert_eq!(
        request(Command::SetService(key, theirs)),
        request(Command::SetService(key, ours))
    );
}

#[test]
fn delete_a_service() {
    let expected = fields(&[
        &[68, 0, 0, 0, 0x1c, 0, 0x05, 0, 0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[3, 1, 0, 0],               // IPVS_CMD_DEL_SERVICE
        &[48, 0, 0x01, 0x80],        // IPVS_CMD_ATTR_SERVICE
        &[6, 0, 1, 0, 2, 0, 0, 0],   // IPVS_SVC_ATTR_AF: AF_INET
        &[6, 0, 2, 0, 132, 0, 0, 0], // IPVS_SVC_ATTR_PROTOCOL: IPPROTO_SCTP
        &[20, 0, 3, 0],              // IPVS_SVC_ATTR_ADDR
        &[192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 4, 0, 0x13, 0xc4, 0, 0], // IPVS_SVC_ATTR_PORT: 5060
    ]);
    let key = service(Protocol::Sctp, "192.0.2.7:5060");
    assert_eq!(request(Command::DeleteService(key)), expected);
}

#[test]
fn add_a_destination_of_ipv4() {
    let command = Command::AddDestination(
        service(Protocol::Tcp, "10.96.0.1:80"),
        destination("10.244.1.9:8080", 0x0001_0002),
    );
    let expected = fields(&[
        &[140, 0, 0, 0, 0x1c, 0, 0x05, 0, 0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[5, 1, 0, 0],             // IPVS_CMD_NEW_DEST
        &[48, 0, 0x01, 0x80],      // IPVS_CMD_ATTR_SERVICE
        &[6, 0, 1, 0, 2, 0, 0, 0], // IPVS_SVC_ATTR_AF
        &[6, 0, 2, 0, 6, 0, 0, 0], // IPVS_SVC_ATTR_PROTOCOL
        &[20, 0, 3, 0],            // IPVS_SVC_ATTR_ADDR
        &[10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 4, 0, 0, 80, 0, 0], // IPVS_SVC_ATTR_PORT
        &[72, 0, 0x02, 0x80],       // IPVS_CMD_ATTR_DEST
        &[20, 0, 1, 0],             // IPVS_DEST_ATTR_ADDR
        &[10, 244, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 2, 0, 0x1f, 0x90, 0, 0], // IPVS_DEST_ATTR_PORT: 8080
        &[6, 0, 11, 0, 2, 0, 0, 0],      // IPVS_DEST_ATTR_ADDR_FAMILY: AF_INET
        &[8, 0, 3, 0, 0, 0, 0, 0],       // IPVS_DEST_ATTR_FWD_METHOD: IP_VS_CONN_F_MASQ
        &[8, 0, 4, 0, 2, 0, 1, 0],       // IPVS_DEST_ATTR_WEIGHT
        &[8, 0, 5, 0, 0, 0, 0, 0],       // IPVS_DEST_ATTR_U_THRESH
        &[8, 0, 6, 0, 0, 0, 0, 0],       // IPVS_DEST_ATTR_L_THRESH
    ]);
    assert_eq!(request(command), expected);
}

#[test]
fn set_a_destination_of_ipv6() {
    let command = Command::SetDestination(
        service(Protocol::Udp, "[fd00::a]:53"),
        destination("[fd01::1:2]:5353", 0),
    );
    let expected = fields(&[
        &[140, 0, 0, 0, 0x1c, 0, 0x05, 0, 0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[6, 1, 0, 0],              // IPVS_CMD_SET_DEST
        &[48, 0, 0x01, 0x80],       // IPVS_CMD_ATTR_SERVICE
        &[6, 0, 1, 0, 10, 0, 0, 0], // IPVS_SVC_ATTR_AF
        &[6, 0, 2, 0, 17, 0, 0, 0], // IPVS_SVC_ATTR_PROTOCOL
        &[20, 0, 3, 0],             // IPVS_SVC_ATTR_ADDR
        &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a],
        &[6, 0, 4, 0, 0, 53, 0, 0], // IPVS_SVC_ATTR_PORT
        &[72, 0, 0x02, 0x80],       // IPVS_CMD_ATTR_DEST
        &[20, 0, 1, 0],             // IPVS_DEST_ATTR_ADDR
        &[0xfd, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2],
        &[6, 0, 2, 0, 0x14, 0xe9, 0, 0], // IPVS_DEST_ATTR_PORT: 5353
        &[6, 0, 11, 0, 10, 0, 0, 0],     // IPVS_DEST_ATTR_ADDR_FAMILY: AF_INET6
        &[8, 0, 3, 0, 0, 0, 0, 0],       // IPVS_DEST_ATTR_FWD_METHOD
        &[8, 0, 4, 0, 0, 0, 0, 0],       // IPVS_DEST_ATTR_WEIGHT
        &[8, 0, 5, 0, 0, 0, 0, 0],       // IPVS_DEST_ATTR_U_THRESH
        &[8, 0, 6, 0, 0, 0, 0, 0],       // IPVS_DEST_ATTR_L_THRESH
    ]);
    assert_eq!(request(command), expected);
}

#[test]
fn delete_a_destination_of_a_mark() {
    let command = Command::DeleteDestination(marked(Family::V4, 7), "10.244.1.9:8080".parse().unwrap());
    let expected = fields(&[
        &[80, 0, 0, 0, 0x1c, 0, 0x05, 0, 0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[7, 1, 0, 0],             // IPVS_CMD_DEL_DEST
        &[20, 0, 0x01, 0x80],      // IPVS_CMD_ATTR_SERVICE
        &[6, 0, 1, 0, 2, 0, 0, 0], // IPVS_SVC_ATTR_AF
        &[8, 0, 5, 0, 7, 0, 0, 0], // IPVS_SVC_ATTR_FWMARK
        &[40, 0, 0x02, 0x80],      // IPVS_CMD_ATTR_DEST
        &[20, 0, 1, 0],            // IPVS_DEST_ATTR_ADDR
        &[10, 244, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 2, 0, 0x1f, 0x90, 0, 0], // IPVS_DEST_ATTR_PORT
        &[6, 0, 11, 0, 2, 0, 0, 0],      // IPVS_DEST_ATTR_ADDR_FAMILY
    ]);
    assert_eq!(request(command), expected);
}

#[test]
fn set_some_of_the_timeouts() {
    let timeouts = Timeouts {
        tcp: NonZeroU32::new(900),
        tcp_fin: None,
        udp: NonZeroU32::new(300),
    };
    let expected = fields(&[
        &[36, 0, 0, 0, 0x1c, 0, 0x05, 0, 0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[12, 1, 0, 0],                  // IPVS_CMD_SET_CONFIG
        &[8, 0, 4, 0, 0x84, 0x03, 0, 0], // IPVS_CMD_ATTR_TIMEOUT_TCP
        &[8, 0, 6, 0, 0x2c, 0x01, 0, 0], // IPVS_CMD_ATTR_TIMEOUT_UDP
    ]);
    let fill = |attributes: &mut Attributes<'_>| encode::write_timeouts(attributes, &timeouts);
    assert_eq!(written(uapi::command::SET_CONFIG, NLM_F_ACK, fill), expected);
}

#[test]
fn dump_the_services_and_the_destinations_of_one() {
    let expected = fields(&[
        &[20, 0, 0, 0, 0x1c, 0],
        &[0x01, 0x03], // NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH
        &[0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[4, 1, 0, 0], // IPVS_CMD_GET_SERVICE
    ]);
    assert_eq!(written(uapi::command::GET_SERVICE, NLM_F_DUMP, |_| ()), expected);
    let expected = fields(&[
        &[40, 0, 0, 0, 0x1c, 0, 0x01, 0x03, 0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[8, 1, 0, 0],             // IPVS_CMD_GET_DEST
        &[20, 0, 0x01, 0x80],      // IPVS_CMD_ATTR_SERVICE
        &[6, 0, 1, 0, 2, 0, 0, 0], // IPVS_SVC_ATTR_AF
        &[8, 0, 5, 0, 7, 0, 0, 0], // IPVS_SVC_ATTR_FWMARK
    ]);
    let key = marked(Family::V4, 7);
    let fill = |attributes: &mut Attributes<'_>| encode::write_service(attributes, &key);
    assert_eq!(written(uapi::command::GET_DESTINATION, NLM_F_DUMP, fill), expected);
}

#[test]
fn look_for_the_family() {
    let expected = fields(&[
        &[32, 0, 0, 0],
        &[0x10, 0], // GENL_ID_CTRL
        &[0x01, 0, 0x02, 0x01, 0, 0, 0, 0, 0, 0],
        &[3, 1, 0, 0], // CTRL_CMD_GETFAMILY
        &[9, 0, 2, 0], // CTRL_ATTR_FAMILY_NAME
        b"IPVS\0\0\0\0",
    ]);
    let header = Header {
        family: uapi::CONTROL_FAMILY,
        version: uapi::CONTROL_VERSION,
        command: uapi::CONTROL_GET_FAMILY,
        flags: 0,
        sequence: 0x0102,
    };
    let mut bytes = Vec::new();
    wire::write_request(&mut bytes, header, |attributes| {
        attributes.put(uapi::CONTROL_FAMILY_NAME, uapi::FAMILY_NAME);
    });
    assert_eq!(bytes, expected);
}

#[test]
fn requests_are_one_behind_the_other() {
    let header = |sequence| Header {
        family: FAMILY,
        version: 1,
        command: 3,
        flags: 0,
        sequence,
    };
    let mut bytes = Vec::new();
    wire::write_request(&mut bytes, header(1), |attributes| attributes.put(1, &[9]));
    wire::write_request(&mut bytes, header(2), |_| ());
    let expected = fields(&[
        &[28, 0, 0, 0, 0x1c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0],
        &[5, 0, 1, 0, 9, 0, 0, 0],
        &[20, 0, 0, 0, 0x1c, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0],
    ]);
    assert_eq!(bytes, expected);
}
