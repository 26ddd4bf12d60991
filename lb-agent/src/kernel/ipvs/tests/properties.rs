//! Whatever bytes come, they are read or they are an error; and what is written is read as it was.

use std::net::{IpAddr, SocketAddr};

use proptest::{collection::vec, option, prelude::*, sample::select};

use super::*;

fn any_family() -> impl Strategy<Value = Family> {
    select(&[Family::V4, Family::V6][..])
}

fn any_address(family: Family) -> BoxedStrategy<SocketAddr> {
    let ip = match family {
        Family::V4 => any::<[u8; 4]>().prop_map(IpAddr::from).boxed(),
        Family::V6 => any::<[u8; 16]>().prop_map(IpAddr::from).boxed(),
    };
    (ip, any::<u16>()).prop_map(SocketAddr::from).boxed()
}

fn any_key() -> impl Strategy<Value = ServiceKey> {
    any_family().prop_flat_map(|family| {
        let protocol = select(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp][..]);
        prop_oneof![
            (protocol, any_address(family)).prop_map(|(protocol, address)| ServiceKey::Address { protocol, address }),
            any::<NonZeroU32>().prop_map(move |mark| ServiceKey::Mark { family, mark }),
        ]
    })
}

fn any_config() -> impl Strategy<Value = ServiceConfig> {
    let other = "[a-z]{1,15}".prop_map(|name| SchedulerName::new(name.as_bytes()).unwrap());
    let scheduler = prop_oneof![select(&Scheduler::ALL[..]).prop_map(SchedulerName::from), other];
    let persistence = option::of(any::<NonZeroU32>());
    (scheduler, persistence, any::<[bool; 3]>()).prop_map(|(scheduler, persistence, [port, fallback, one_packet])| {
        ServiceConfig {
            persistence,
            flags: ServiceFlags {
                port,
                fallback,
                one_packet,
            },
            ..ServiceConfig::new(scheduler)
        }
    })
}

fn any_destination() -> impl Strategy<Value = Destination> {
    let address = any_family().prop_flat_map(any_address);
    (address, any::<u32>()).prop_map(|(address, weight)| Destination { address, weight })
}

fn any_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        (any_key(), any_config()).prop_map(|(key, config)| Command::AddService(key, config)),
        (any_key(), any_destination()).prop_map(|(key, destination)| Command::AddDestination(key, destination)),
    ]
}

/// A message of the kernel is one that could be sent to it: both have the same attributes.
fn message(command: &Command) -> Vec<u8> {
    let header = Header {
        family: FAMILY,
        version: uapi::FAMILY_VERSION,
        command: command.number(),
        flags: 0,
        sequence: 7,
    };
    let mut bytes = Vec::new();
    wire::write_request(&mut bytes, header, |attributes| command.write(attributes));
    bytes
}

/// A refusal with words, which says something about a request.
fn refusal(request: &[u8]) -> Vec<u8> {
    let rest = [&(-22_i32).to_ne_bytes(), request, b"\x09\0\x01\0nope\0\0\0\0"].concat();
    let length = u32::try_from(16 + rest.len()).unwrap().to_ne_bytes();
    [&length[..], &[2, 0, 0x00, 0x02, 7, 0, 0, 0, 0, 0, 0, 0], &rest].concat()
}

/// Reads bytes in every way that there is. Says how many messages there were.
fn read(bytes: &[u8]) -> usize {
    let read_attributes = |attributes: &[u8]| {
        let _ = decode::service(attributes);
        let _ = decode::destination(Family::V4, attributes);
        let _ = decode::destination(Family::V6, attributes);
        let _ = decode::timeouts(attributes);
        let _ = decode::version(attributes);
        let _ = wire::family_number(attributes);
    };
    read_attributes(bytes);
    wire::answers(FAMILY, bytes)
        .inspect(|answer| {
            if let Ok(wire::Answer {
                content: Content::Attributes(attributes),
                ..
            }) = answer
            {
                read_attributes(attributes);
            }
        })
        .count()
}

/// The attributes of the only message.
fn attributes(bytes: &[u8]) -> &[u8] {
    let answers: Vec<_> = wire::answers(FAMILY, bytes).map(Result::unwrap).collect();
    match answers[..] {
        [
            wire::Answer {
                sequence: 7,
                content: Content::Attributes(attributes),
                ..
            },
        ] => attributes,
        _ => panic!("{answers:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_read_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        read(&bytes);
    }

    #[test]
    fn any_bytes_within_a_service_or_a_destination_are_read_or_an_error(
        content in vec(any::<u8>(), 0..200),
        kind in 1..3_u16,
    ) {
        let mut bytes = Vec::new();
        let header = Header { family: FAMILY, version: 1, command: 1, flags: 0, sequence: 7 };
        wire::write_request(&mut bytes, header, |attributes| attributes.put(kind, &content));
        prop_assert_eq!(read(&bytes), 1);
    }

    #[test]
    fn real_messages_that_are_cut_off_or_have_wrong_bits_are_read_or_an_error(
        commands in vec(any_command(), 1..4),
        end in any::<prop::sample::Index>(),
        flips in vec((any::<prop::sample::Index>(), 0..8), 0..6),
    ) {
        let mut bytes: Vec<u8> = commands.iter().flat_map(|command| {
            let message = message(command);
            [refusal(&message), message].concat()
        }).collect();
        prop_assert_eq!(read(&bytes), 2 * commands.len());
        for (byte, bit) in flips {
            let byte = byte.index(bytes.len());
            bytes[byte] ^= 1_u8 << bit;
        }
        bytes.truncate(end.index(bytes.len() + 1));
        read(&bytes);
    }

    #[test]
    fn a_service_is_read_as_it_was_written(key in any_key(), config in any_config()) {
        let message = message(&Command::AddService(key, config));
        prop_assert_eq!(decode::service(attributes(&message)).unwrap(), Some((key, config)));
    }

    #[test]
    fn a_destination_is_read_as_it_was_written(key in any_key(), destination in any_destination()) {
        let message = message(&Command::AddDestination(key, destination));
        let expected = DestinationState {
            destination,
            forward: Forward::Masquerade,
            active: 0,
            inactive: 0,
            persistent: 0,
        };
        prop_assert_eq!(decode::destination(key.family(), attributes(&message)).unwrap(), expected);
    }
}
