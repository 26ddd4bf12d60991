//! Makes up packets: of flows that go on, to services, about either, and of nothing that is ours.

use std::net::SocketAddr;

use rand::seq::{IndexedMutRandom as _, IndexedRandom as _, IteratorRandom as _, SliceRandom as _};
use rand::{Rng, RngExt as _};

use super::anatomy::{Anatomy, ETHERNET, protocol};
use super::oracle::Sent;
use super::programs::Program;
use super::shadow::{Flow, Shadow};
use super::world::{ANOTHERS, BackendChange, Change, Family, NODE_PORT, PROTOCOLS, UNALLOCATED, World, network};
use super::{build, mutate};
use crate::packet::fragments;

/// TCP flags: what opens, goes on, ends, and means nothing.
const FLAGS: [u8; 10] = [0x02, 0x02, 0x02, 0x10, 0x18, 0x12, 0x11, 0x04, 0x14, 0x00];
/// SCTP: types of the first chunk, that open, go on and end.
const CHUNKS: [u8; 10] = [1, 1, 1, 0, 0, 2, 6, 10, 14, 3];
/// Ports of clients: few, so that they meet again.
const PORTS: [u16; 6] = [40_000, 40_001, 40_002, NODE_PORT, 53, 12_345];

/// A packet, and where it passes.
pub fn packet(rng: &mut impl Rng, world: &World, shadow: &Shadow, seeds: &[Sent]) -> Sent {
    let mut sent = match rng.random_range(0..100) {
        0..38 => request(rng, world, shadow),
        38..58 => answer(rng, world, shadow),
        58..75 => error(rng, world, shadow),
        75..85 => of_strangers(rng),
        85..92 => of_other_protocols(rng),
        92..95 => of_noise(rng),
        _ => seeds.choose(rng).cloned().unwrap_or_else(|| of_noise(rng)),
    };
    if rng.random_ratio(1, 20) {
        // Where nobody expects it.
        sent = at(rng, &Program::ALL, frame(sent));
    }
    sent.mark = *[0, 0, 0, 0x10, 0x4000, u32::MAX].choose(rng).unwrap_or(&0);
    if rng.random_ratio(1, 30) {
        sent.gso_size = rng.random_range(1..1400);
    }
    if rng.random_ratio(2, 5) {
        mutate::packet(rng, &mut sent);
    }
    sent
}

/// A datagram in pieces, in the order in which they come: as they were sent, the other way round, mixed, one of them
/// twice, or without one that is lost, which may be the first. Their identification is one of few.
pub fn pieces(rng: &mut impl Rng, world: &World, shadow: &Shadow) -> Vec<Sent> {
    let whole = match rng.random_range(0..10) {
        0..6 => request(rng, world, shadow),
        6..9 => answer(rng, world, shadow),
        _ => of_strangers(rng),
    };
    let program = whole.program;
    let size = *[8, 16, 24, 24, 32, 40, 1400].choose(rng).unwrap_or(&24);
    let Ok(mut frames) = fragments(&frame(whole), size, rng.random_range(0..4)) else {
        return Vec::new();
    };
    match rng.random_range(0..6) {
        0 => frames.reverse(),
        1 => frames.shuffle(rng),
        2 => {
            let lost = rng.random_range(0..frames.len());
            frames.remove(lost);
        }
        3 => {
            let twice = rng.random_range(0..frames.len());
            frames.insert(rng.random_range(0..=frames.len()), frames[twice].clone());
        }
        _ => {}
    }
    let mut pieces: Vec<Sent> = frames.into_iter().map(|frame| at(rng, &[program], frame)).collect();
    let mark = *[0, 0, 0, 0x4000].choose(rng).unwrap_or(&0);
    pieces.iter_mut().for_each(|piece| piece.mark = mark);
    if rng.random_ratio(1, 6)
        && let Some(piece) = pieces.choose_mut(rng)
    {
        mutate::packet(rng, piece);
    }
    pieces
}

/// Something that happens beside.
pub fn change(rng: &mut impl Rng, world: &World) -> Change {
    let service = world.services().choose(rng);
    let Some(service) = service else { return Change::Expire };
    match rng.random_range(0..10) {
        0 => Change::Expire,
        1 => Change::Evict(rng.random_range(0..1000)),
        2..5 if service.is_present => Change::Service(service.name.clone(), false),
        2..5 => Change::Service(service.name.clone(), true),
        _ if service.backends.is_empty() => Change::Service(service.name.clone(), true),
        _ => {
            let index = rng.random_range(0..service.backends.len());
            // What went comes again more often than not, or soon there would be nothing left.
            let change = match service.backends[index].is_serving() {
                true => BackendChange::ALL
                    .choose(rng)
                    .map_or(BackendChange::Serve, |change| change.0),
                false => BackendChange::Serve,
            };
            Change::Backend(service.name.clone(), index, change)
        }
    }
}

fn request(rng: &mut impl Rng, world: &World, shadow: &Shadow) -> Sent {
    let programs = [
        Program::FromPod,
        Program::FromPodL3,
        Program::FromOutside,
        Program::FromOutsideL3,
    ];
    if let Some(flow) = flow(rng, shadow).filter(|_| rng.random_ratio(1, 2)) {
        let payload = payload(rng);
        let mut bytes = build::transport(
            flow.protocol,
            flow.client,
            flow.frontend,
            flags(rng, flow.protocol),
            &payload,
        );
        if rng.random_ratio(1, 8) {
            aim_at_zero(&mut bytes, flow.sent_as, flow.backend);
        }
        return at(rng, &programs, bytes);
    }
    let Some(service) = world.services().choose(rng) else {
        return of_noise(rng);
    };
    let Some(&frontend) = service.frontends.choose(rng) else {
        return of_noise(rng);
    };
    let client = client(rng, Family::of(frontend.ip()));
    let bytes = build::transport(
        service.protocol,
        client,
        frontend,
        flags(rng, service.protocol),
        &payload(rng),
    );
    at(rng, &programs, bytes)
}

fn answer(rng: &mut impl Rng, world: &World, shadow: &Shadow) -> Sent {
    let Some(flow) = flow(rng, shadow) else {
        return request(rng, world, shadow);
    };
    let mut bytes = build::transport(
        flow.protocol,
        flow.backend,
        flow.sent_as,
        flags(rng, flow.protocol),
        &payload(rng),
    );
    if rng.random_ratio(1, 8) {
        aim_at_zero(&mut bytes, flow.frontend, flow.client);
    }
    at(rng, &[Program::ToLink, Program::ToLinkL3], bytes)
}

/// An error about a packet of a flow as it was sent on, from somebody on its way or from its receiver.
fn error(rng: &mut impl Rng, world: &World, shadow: &Shadow) -> Sent {
    let Some(flow) = flow(rng, shadow) else {
        return request(rng, world, shadow);
    };
    let family = Family::of(flow.client.ip());
    let router = family.address(network::ROUTERS, 1);
    let kinds: &[(u8, u8)] = match family {
        Family::V4 => &[(3, 1), (3, 3), (3, 4), (11, 0), (12, 0), (8, 0)],
        Family::V6 => &[(1, 0), (1, 4), (2, 0), (3, 0), (4, 0), (128, 0)],
    };
    let kind = *kinds.choose(rng).unwrap_or(&kinds[0]);
    let is_about_request = rng.random_bool(0.5);
    let (from, to) = if is_about_request {
        (flow.sent_as, flow.backend)
    } else {
        (flow.frontend, flow.client)
    };
    let quoted = build::transport(flow.protocol, from, to, flags(rng, flow.protocol), &payload(rng));
    let header = if family == Family::V4 { 20 } else { 40 };
    let lengths = [quoted.len(), header + 8, rng.random_range(header..quoted.len())];
    let length = *lengths.choose(rng).unwrap_or(&header);
    let source = *[router, to.ip()].choose(rng).unwrap_or(&router);
    let bytes = build::error(source, from.ip(), kind, &quoted, length);
    let programs: &[Program] = if is_about_request {
        &[Program::ToLink, Program::ToLinkL3]
    } else {
        &[
            Program::FromPod,
            Program::FromPodL3,
            Program::FromOutside,
            Program::FromOutsideL3,
        ]
    };
    at(rng, programs, bytes)
}

/// Between ends that are no frontend, or that nobody is at.
fn of_strangers(rng: &mut impl Rng) -> Sent {
    let family = *Family::BOTH.choose(rng).unwrap_or(&Family::V4);
    let ends: [(u8, u8); 8] = [
        (network::BACKENDS, rng.random_range(1..5)),
        (network::NODE, 1),
        (network::NODE, 2),
        (network::FRONTENDS, UNALLOCATED),
        (network::FRONTENDS, ANOTHERS),
        (network::FRONTENDS, rng.random_range(1..10)),
        (network::EXTERNAL, 1),
        (network::STRANGERS, 7),
    ];
    let (to_network, host) = *ends.choose(rng).unwrap_or(&ends[0]);
    let port = *[22, 53, 80, 8080, NODE_PORT].choose(rng).unwrap_or(&22);
    let to = SocketAddr::new(family.address(to_network, host), port);
    let (protocol, _) = *PROTOCOLS.choose(rng).unwrap_or(&PROTOCOLS[0]);
    let from = if rng.random_ratio(1, 4) {
        // As the node itself may ask, from a port that is a NodePort.
        SocketAddr::new(family.address(network::NODE, 1), NODE_PORT)
    } else {
        client(rng, family)
    };
    let to = if rng.random_ratio(1, 3) {
        client(rng, family)
    } else {
        to
    };
    let bytes = build::transport(protocol, from, to, flags(rng, protocol), &payload(rng));
    at(rng, &Program::ALL, bytes)
}

fn of_other_protocols(rng: &mut impl Rng) -> Sent {
    let family = *Family::BOTH.choose(rng).unwrap_or(&Family::V4);
    let to = SocketAddr::new(family.address(network::FRONTENDS, rng.random_range(1..10)), 80);
    let from = client(rng, family);
    let bytes = match rng.random_range(0..2) {
        0 => build::error(from.ip(), to.ip(), (rng.random(), rng.random()), &payload(rng), 40),
        _ => build::ip(from.ip(), to.ip(), rng.random(), &payload(rng)),
    };
    at(rng, &Program::ALL, bytes)
}

fn of_noise(rng: &mut impl Rng) -> Sent {
    let mut bytes = vec![0; rng.random_range(15..200)];
    rng.fill(&mut bytes[..]);
    let kind: [u8; 2] = *[[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06], [0x81, 0x00]]
        .choose(rng)
        .unwrap_or(&[0, 0]);
    bytes[12..14].copy_from_slice(&kind);
    at(rng, &Program::ALL, bytes)
}

/// A flow that was seen, the latest ones above all.
fn flow<'a>(rng: &mut impl Rng, shadow: &'a Shadow) -> Option<&'a Flow> {
    if rng.random_bool(0.5) {
        return shadow.flows().choose(rng);
    }
    shadow.flows().iter().rev().take(8).choose(rng)
}

fn client(rng: &mut impl Rng, family: Family) -> SocketAddr {
    let port = match rng.random_range(0..12) {
        0 => rng.random(),
        _ => *PORTS.choose(rng).unwrap_or(&PORTS[0]),
    };
    let (network, host) = match rng.random_range(0..24) {
        // Whose packets come from no link.
        0 => *[
            (network::NODE, 1),
            (network::NODE, 2),
            (network::FRONTENDS, 1),
            (network::FRONTENDS, ANOTHERS),
        ]
        .choose(rng)
        .unwrap_or(&(network::NODE, 1)),
        _ => (network::CLIENTS, rng.random_range(1..5)),
    };
    SocketAddr::new(family.address(network, host), port)
}

/// TCP flags, or the type of an SCTP packet's first chunk.
fn flags(rng: &mut impl Rng, protocol: u8) -> u8 {
    let all = if protocol == protocol::SCTP { CHUNKS } else { FLAGS };
    *all.choose(rng).unwrap_or(&all[0])
}

fn payload(rng: &mut impl Rng) -> Vec<u8> {
    let longest = if rng.random_ratio(1, 50) { 1400 } else { 40 };
    let mut payload = vec![0; rng.random_range(0..longest)];
    rng.fill(&mut payload[..]);
    payload
}

/// The packet for one of these programs.
fn at(rng: &mut impl Rng, programs: &[Program], mut frame: Vec<u8>) -> Sent {
    let program = *programs.choose(rng).unwrap_or(&Program::FromPod);
    if !program.has_link_header() && frame.len() > ETHERNET {
        frame.drain(..ETHERNET);
    }
    Sent {
        program,
        mark: 0,
        gso_size: 0,
        bytes: frame,
    }
}

/// With an Ethernet header again.
fn frame(sent: Sent) -> Vec<u8> {
    if sent.program.has_link_header() {
        return sent.bytes;
    }
    let kind = sent.bytes.get(12..14).unwrap_or(&[0x08, 0]).to_vec();
    [&[2; 12], &kind[..], &sent.bytes].concat()
}

/// Gives a frame such a payload that its checksum comes to zero once it goes between these ends: zero has two faces
/// there, and UDP means something else by one of them.
fn aim_at_zero(frame: &mut [u8], from: SocketAddr, to: SocketAddr) {
    let Some(packet) = Anatomy::of(frame, true) else { return };
    let Some(checksum) = packet.transport_checksum(frame) else {
        return;
    };
    let payload = packet.transport + if packet.protocol == protocol::TCP { 20 } else { 8 };
    if frame.len() < payload + 2 {
        return;
    }
    let mut later = build::transport(packet.protocol, from, to, 0, &[]);
    later.truncate(packet.transport);
    later.extend(&frame[packet.transport..]);
    later[packet.transport..packet.transport + 2].copy_from_slice(&from.port().to_be_bytes());
    later[packet.transport + 2..packet.transport + 4].copy_from_slice(&to.port().to_be_bytes());
    later[checksum..checksum + 2].fill(0);
    later[payload..payload + 2].fill(0);
    let Some(there) = Anatomy::of(&later, true) else { return };
    // What is missing to a sum of all ones.
    let word = there.transport_error(&later);
    frame[payload..payload + 2].copy_from_slice(&word.to_be_bytes());
    build::repair_checksums(frame, &packet);
}
