//! Connections that the kernel tracks: those that are to be forgotten, and whether it translates any.
//!
//! To the kernel a datagram belongs to the connection of those before it, and where that one leads was settled with the
//! first. A client that goes on sending from one port would not find out that a service has come, or that its backend is
//! gone.

use std::{collections::BTreeSet, io, net::SocketAddr};

use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    conntrack::{ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Protocol, Tuple},
};

use super::netlink::Requests;
use crate::desired::Family;

/// Connections of datagrams, by where they lead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Datagrams {
    /// What is sent there, wherever it comes to in the end.
    To(SocketAddr),
    /// What is sent there and answered by the other one.
    Between(SocketAddr, SocketAddr),
    /// What is answered by this one and was sent to another.
    TranslatedTo(SocketAddr),
}

impl Datagrams {
    fn family(&self) -> Family {
        match self {
            Self::To(address) | Self::Between(address, _) | Self::TranslatedTo(address) => Family::of(address.ip()),
        }
    }
}

/// Has the kernel forget connections. Returns how many there were. All that it tracks of a family is looked at.
///
/// # Errors
/// The kernel does not tell what it tracks, or does not forget.
pub fn forget(connections: &BTreeSet<Datagrams>) -> io::Result<usize> {
    let mut requests = Requests::<NetfilterMessage>::open()?;
    let mut forgotten = 0;
    for family in [Family::V4, Family::V6] {
        let wanted: BTreeSet<_> = connections
            .iter()
            .filter(|some| some.family() == family)
            .copied()
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let all = requests.dump(&message(family, ConntrackMessage::Get(Vec::new())))?;
        let originals: Vec<Vec<Tuple>> = all.iter().filter_map(|found| matching(found, &wanted)).collect();
        let deletions = originals.into_iter().map(|original| {
            let original = ConntrackAttribute::CtaTupleOrig(original);
            message(family, ConntrackMessage::Delete(vec![original]))
        });
        let deletions: Vec<_> = deletions.collect();
        forgotten += deletions.len();
        let failed = requests.request_all(deletions, 0);
        // It may have ended by itself.
        if let Some((_, error)) = failed
            .into_iter()
            .find(|(_, error)| error.raw_os_error() != Some(libc::ENOENT))
        {
            return Err(error);
        }
    }
    Ok(forgotten)
}

/// Whether the kernel translates any connection, by whosever rules. All that it tracks is looked at.
///
/// # Errors
/// The kernel does not tell what it tracks.
pub fn has_translated() -> io::Result<bool> {
    let mut requests = Requests::<NetfilterMessage>::open()?;
    for family in [Family::V4, Family::V6] {
        let all = requests.dump(&message(family, ConntrackMessage::Get(Vec::new())))?;
        if all.iter().any(is_translated) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_translated(found: &NetfilterMessage) -> bool {
    let tuples = tuples(found).and_then(|(original, reply)| Some((ends(original)?, ends(reply)?)));
    // Translated: the answer goes somewhere else than where the question came from, or comes from somewhere else.
    tuples.is_some_and(|((_, from, to), (_, by, back))| (from, to) != (back, by))
}

/// Of a connection with ports: how it was begun, and how it is answered.
fn tuples(found: &NetfilterMessage) -> Option<(&Vec<Tuple>, &Vec<Tuple>)> {
    let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = &found.inner else {
        return None;
    };
    let original = attributes.iter().find_map(|attribute| match attribute {
        ConntrackAttribute::CtaTupleOrig(tuple) => Some(tuple),
        _ => None,
    })?;
    let reply = attributes.iter().find_map(|attribute| match attribute {
        ConntrackAttribute::CtaTupleReply(tuple) => Some(tuple),
        _ => None,
    })?;
    Some((original, reply))
}

fn message(family: Family, message: ConntrackMessage) -> NetfilterMessage {
    let family = match family {
        Family::V4 => NetfilterProtoFamily::IPv4,
        Family::V6 => NetfilterProtoFamily::IPv6,
    };
    NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), message)
}

/// How a tracked connection is known to the kernel, if it is one of these.
fn matching(found: &NetfilterMessage, wanted: &BTreeSet<Datagrams>) -> Option<Vec<Tuple>> {
    let (original, reply) = tuples(found)?;
    let to = ends(original).filter(|(protocol, ..)| *protocol == Protocol::Udp)?.2;
    let by = ends(reply)?.1;
    let ways = [
        Datagrams::To(to),
        Datagrams::Between(to, by),
        Datagrams::TranslatedTo(by),
    ];
    let is_wanted = |way: &Datagrams| match way {
        Datagrams::TranslatedTo(_) => to != by && wanted.contains(way),
        Datagrams::To(_) | Datagrams::Between(..) => wanted.contains(way),
    };
    ways.iter().any(is_wanted).then(|| original.clone())
}

/// Protocol, source and destination of what has ports.
fn ends(tuple: &[Tuple]) -> Option<(Protocol, SocketAddr, SocketAddr)> {
    let (mut addresses, mut ports, mut protocol) = ([None; 2], [None; 2], None);
    for part in tuple {
        match part {
            Tuple::Ip(parts) => parts.iter().for_each(|part| match part {
                IPTuple::SourceAddress(ip) => addresses[0] = Some(*ip),
                IPTuple::DestinationAddress(ip) => addresses[1] = Some(*ip),
                _ => {}
            }),
            Tuple::Proto(parts) => parts.iter().for_each(|part| match part {
                ProtoTuple::Protocol(is) => protocol = Some(*is),
                ProtoTuple::SourcePort(port) => ports[0] = Some(*port),
                ProtoTuple::DestinationPort(port) => ports[1] = Some(*port),
                _ => {}
            }),
            _ => {}
        }
    }
    let end = |which: usize| Some(SocketAddr::new(addresses[which]?, ports[which]?));
    Some((protocol?, end(0)?, end(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracked(protocol: Protocol, [from, to, by, back]: [&str; 4]) -> NetfilterMessage {
        let tuple = |from: &str, to: &str| {
            let [from, to] = [from, to].map(|end| end.parse::<SocketAddr>().unwrap());
            vec![
                Tuple::Ip(vec![
                    IPTuple::SourceAddress(from.ip()),
                    IPTuple::DestinationAddress(to.ip()),
                ]),
                Tuple::Proto(vec![
                    ProtoTuple::Protocol(protocol),
                    ProtoTuple::SourcePort(from.port()),
                    ProtoTuple::DestinationPort(to.port()),
                ]),
            ]
        };
        let attributes = vec![
            ConntrackAttribute::CtaTupleOrig(tuple(from, to)),
            ConntrackAttribute::CtaTupleReply(tuple(by, back)),
        ];
        message(Family::V4, ConntrackMessage::New(attributes))
    }

    #[test]
    fn datagrams_are_known_by_where_they_were_sent_and_who_answers() {
        let [client, frontend, backend] = ["10.0.0.1:4000", "10.96.0.1:53", "10.0.1.1:5353"];
        let [to, by] = [frontend, backend].map(|end| end.parse().unwrap());
        let translated = [client, frontend, backend, client];
        let direct = [client, backend, backend, client];
        for (connection, wanted, is_it) in [
            (translated, Datagrams::To(to), true),
            (translated, Datagrams::Between(to, by), true),
            (translated, Datagrams::TranslatedTo(by), true),
            (translated, Datagrams::To(by), false),
            (translated, Datagrams::Between(by, to), false),
            (direct, Datagrams::TranslatedTo(by), false),
            (direct, Datagrams::To(to), false),
        ] {
            let wanted = BTreeSet::from([wanted]);
            let found = matching(&tracked(Protocol::Udp, connection), &wanted);
            assert_eq!(found.is_some(), is_it, "{connection:?} {wanted:?}");
            assert_eq!(matching(&tracked(Protocol::Tcp, connection), &wanted), None);
        }
    }
    #[test]
    fn a_connection_is_translated_where_its_answer_does_not_mirror_its_question() {
        let [client, frontend, backend, node] = ["10.0.0.1:4000", "10.96.0.1:53", "10.0.1.1:53", "10.0.0.9:12345"];
        for (connection, is_it) in [
            ([client, backend, backend, client], false),
            ([client, frontend, backend, client], true),
            ([client, backend, backend, node], true),
        ] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                assert_eq!(is_translated(&tracked(protocol, connection)), is_it, "{connection:?}");
            }
        }
    }
}
