//! Packets for whose client the node speaks, with nothing of ours beside: whatever they are, they go out as the node's or not at
//! all, unless they have no ports, and what answers them goes on to the client.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Result;
use lb_common::config::{DEFAULT_MASQUERADE_MARK as MASQUERADE, FIRST_SNAT_PORT, LAST_SNAT_PORT};
use lb_common::source::ANY_LINK;
use rand::SeedableRng as _;
use rand::rngs::Xoshiro256PlusPlus;

use super::anatomy::{Anatomy, protocol};
use super::build;
use super::compare::{Edits, same_but_for};
use super::generate;
use super::oracle::{Fault, Sent};
use super::programs::{Outcome, Program, Programs};
use super::shadow::Shadow;
use super::world::{Family, World, network};

const PASS: i32 = -1;
const DROP: i32 = 2;
/// ACK, and of SCTP DATA: begins and ends nothing.
const GOES_ON: [(u8, u8); 3] = [(protocol::TCP, 0x10), (protocol::UDP, 0), (protocol::SCTP, 0)];
/// The host part of the address of the node.
const NODE: u8 = 1;

/// What became of the packets.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Went out as the node's.
    pub masqueraded: u64,
    /// Came out as they went in.
    pub untouched: u64,
    /// Gone.
    pub dropped: u64,
}

/// The programs, and who has which port.
#[derive(Debug)]
pub struct Masquerade {
    programs: Programs,
    world: World,
    /// By protocol, backend and the node's end: the client.
    clients: BTreeMap<(u8, SocketAddr, SocketAddr), SocketAddr>,
}

impl Masquerade {
    /// Loads the programs.
    pub fn new() -> Result<Self> {
        let mut programs = Programs::load_masquerading()?;
        for family in Family::BOTH {
            programs.set_source(ANY_LINK, family.address(network::NODE, NODE).into())?;
        }
        Ok(Self {
            programs,
            world: World::new(),
            clients: BTreeMap::new(),
        })
    }

    /// Makes up `count` packets, always the same for one seed but for the ports that are drawn. The fault comes with the
    /// packet.
    pub fn play(&mut self, seed: u64, count: u64) -> Result<Result<Tally, (Fault, Sent)>> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let shadow = Shadow::default();
        let mut tally = Tally::default();
        for _ in 0..count {
            let mut sent = generate::packet(&mut rng, &self.world, &shadow, &[]);
            sent.program = match sent.program.has_link_header() {
                true => Program::ToLink,
                false => Program::ToLinkL3,
            };
            sent.mark |= MASQUERADE;
            let Some(out) = self.programs.run(sent.program, &sent.bytes, sent.mark, sent.gso_size)? else {
                continue;
            };
            if let Err(fault) = self.judge(&sent, &out, &mut tally)? {
                return Ok(Err((fault, sent)));
            }
        }
        Ok(Ok(tally))
    }

    fn judge(&mut self, sent: &Sent, out: &Outcome, tally: &mut Tally) -> Result<Result<(), Fault>> {
        if out.mark != sent.mark & !MASQUERADE {
            return Ok(Err(format!("the mark {:#x} became {:#x}", sent.mark, out.mark)));
        }
        let packet = Anatomy::of(&sent.bytes, sent.program.has_link_header());
        if packet.as_ref().is_some_and(Anatomy::is_later_piece) {
            // It goes the way of a first piece with the same identification, whatever became of that.
            tally.untouched += 1;
            return Ok(Ok(()));
        }
        let packet = packet.filter(|packet| packet.is_read(&sent.bytes));
        let ends = packet.as_ref().and_then(|packet| packet.ends(&sent.bytes));
        let Some((packet, (client, backend))) = packet.zip(ends) else {
            tally.untouched += 1;
            let is_same = out.verdict == PASS && out.bytes == sent.bytes;
            return Ok(is_same
                .then_some(())
                .ok_or_else(|| "what has no ports was changed".into()));
        };
        if World::is_node(client.ip()) {
            tally.untouched += 1;
            let is_same = out.verdict == PASS && out.bytes == sent.bytes;
            return Ok(is_same
                .then_some(())
                .ok_or_else(|| "what is the node's already was changed".into()));
        }
        if out.verdict == DROP {
            tally.dropped += 1;
            let may_be = !packet.is_sound(&sent.bytes) || packet.fragment.is_some();
            return Ok(may_be.then_some(()).ok_or_else(|| "a sound packet was dropped".into()));
        }
        tally.masqueraded += 1;
        let changed = match changed(sent, &packet, out) {
            Ok(source) if out.verdict == PASS => source,
            Ok(_) => return Ok(Err(format!("verdict {}", out.verdict))),
            Err(fault) => return Ok(Err(fault)),
        };
        let at = (packet.protocol, backend, changed);
        if let Some(other) = self.clients.insert(at, client).filter(|other| *other != client)
            && self.is_still(at, other)?
        {
            return Ok(Err(format!(
                "{changed} speaks for {client} and for {other} to {backend}"
            )));
        }
        Ok(if self.is_still(at, client)? {
            Ok(())
        } else {
            Err(format!("what answers {changed} does not go on to {client}"))
        })
    }

    /// Whether an answer of the backend goes on to the client.
    fn is_still(&self, (protocol, backend, node): (u8, SocketAddr, SocketAddr), client: SocketAddr) -> Result<bool> {
        let flags = GOES_ON
            .iter()
            .find(|(of, _)| *of == protocol)
            .map_or(0, |(_, flags)| *flags);
        let answer = build::transport(protocol, backend, node, flags, &[1, 2, 3]);
        let out = self.programs.run(Program::FromOutside, &answer, 0, 0)?;
        Ok(out.is_some_and(|out| {
            let packet = Anatomy::of(&out.bytes, true);
            let ends = packet.and_then(|packet| packet.ends(&out.bytes).filter(|_| packet.is_sound(&out.bytes)));
            out.verdict == PASS && ends == Some((backend, client))
        }))
    }
}

/// The new source, if nothing else is new.
fn changed(sent: &Sent, packet: &Anatomy, out: &Outcome) -> Result<SocketAddr, Fault> {
    let is = Anatomy::of(&out.bytes, sent.program.has_link_header()).ok_or("it is no IP any more")?;
    let (_, to) = packet.ends(&sent.bytes).ok_or("it had no ports")?;
    let (source, _) = is.ends(&out.bytes).ok_or("it has no ports any more")?;
    let mut edits = Edits::default();
    edits.ends(packet, (source, to));
    same_but_for(&edits, &[(packet, &is)], &sent.bytes, &out.bytes)?;
    if !World::is_node(source.ip()) || !(FIRST_SNAT_PORT..=LAST_SNAT_PORT).contains(&source.port()) {
        return Err(format!("it goes out as from {source}"));
    }
    Ok(source)
}
