//! The pieces of a datagram.

use std::net::IpAddr;

use lb_common::config::DEFAULT_MASQUERADE_MARK as MASQUERADE;

use super::{DROP, Fate, Fault, Oracle, PASS, Sent};
use crate::fuzz::anatomy::{Anatomy, protocol};
use crate::fuzz::compare::{Edits, same_but_for};
use crate::fuzz::pieces::{Datagram, State};
use crate::fuzz::programs::Outcome;
use crate::fuzz::shadow::Flow;
use crate::fuzz::world::{Service, World};

impl Oracle<'_> {
    /// What became of a piece, if that was right and if it goes by what became of others: `None` for the first piece of
    /// a datagram that none waits for.
    pub(super) fn piece(
        &mut self,
        sent: &Sent,
        packet: &Anatomy,
        datagram: Datagram,
        out: &Outcome,
    ) -> Result<Option<Fate>, Fault> {
        if packet.is_later_piece() {
            return self.later(sent, packet, datagram, out).map(Some);
        }
        if !packet.is_read(&sent.bytes) {
            return Ok(None);
        }
        match (self.shadow.datagrams.state(&datagram, self.at), out.verdict) {
            (Some(State::Waits(_)), DROP) => Ok(Some(Fate::Released)),
            (Some(State::Waits(_)), _) => Err("a first piece went on without those that wait for it".into()),
            (Some(State::Unknown), DROP) => {
                self.may_have_begun(packet, &sent.bytes);
                Ok(Some(Fate::Released))
            }
            (Some(State::Lost(waiting)), DROP) => {
                let is_all = waiting.is_empty();
                self.lost(packet, &sent.bytes, datagram, is_all).map(Some)
            }
            (Some(State::Lost(_)), PASS) if out.bytes != sent.bytes => {
                Err("a first piece was translated, and one of the others is lost".into())
            }
            _ => Ok(None),
        }
    }

    /// The first piece was not sent on, when one of the others could not be held: what is ours is dropped as a whole, and
    /// what is none of ours comes again, with those that `is_all` says that there are not.
    fn lost(&mut self, packet: &Anatomy, bytes: &[u8], datagram: Datagram, is_all: bool) -> Result<Fate, Fault> {
        let (from, to) = packet.ends(bytes).ok_or("a packet without ports was dropped")?;
        let ends = (packet.protocol, from, to);
        let is_to_service = self.world.service_at(packet.protocol, to).is_some() || World::is_cluster_ip(to.ip());
        let begins = is_to_service && Oracle::opens(packet, bytes);
        let is_ours = match (self.shadow.guarded(&ends), self.shadow.by_request(&ends)) {
            (Some(true), _) => Some(false),
            (None, Some(flow)) if flow.is_certain => Some(true),
            (None, None) if !self.shadow.is_unseen(&ends) => Some(begins),
            _ => None,
        };
        if is_all && is_ours == Some(false) {
            return Err("a piece of a datagram to nothing of ours was dropped".into());
        }
        if is_ours == Some(false) {
            return Ok(Fate::Released);
        }
        self.may_have_begun(packet, bytes);
        if is_ours == Some(true) || is_all {
            self.shadow.datagrams.learn(datagram, self.at, State::Dropped);
            return Ok(Fate::Dropped);
        }
        self.shadow.datagrams.learn(datagram, self.at, State::Unknown);
        Ok(Fate::Released)
    }

    /// A piece behind the first.
    fn later(&mut self, sent: &Sent, packet: &Anatomy, datagram: Datagram, out: &Outcome) -> Result<Fate, Fault> {
        let is_ours = !datagram.is_egress && World::is_frontend(packet.destination);
        if !packet.is_within_bounds() {
            return is_untouched(sent, out);
        }
        match self.shadow.datagrams.state(&datagram, self.at).cloned() {
            Some(State::Goes(address, is_masqueraded)) => goes(sent, packet, out, address, is_masqueraded),
            Some(State::Passes) => is_untouched(sent, out),
            Some(State::Dropped) => is_dropped(out),
            Some(State::Lost(_)) => is_lost(sent, packet, out),
            Some(State::Waits(_)) | None if is_ours => {
                if self.shadow.datagrams.hold(datagram, self.at, &sent.bytes) {
                    is_dropped(out)
                } else {
                    is_lost(sent, packet, out)
                }
            }
            Some(State::Waits(_)) | None => is_untouched(sent, out),
            Some(State::Unknown) => match out.verdict {
                DROP => Ok(Fate::Dropped),
                _ if out.bytes == sent.bytes => Ok(Fate::Untouched),
                _ => Ok(Fate::Piece),
            },
        }
    }

    /// This became of the first piece, so it becomes of all.
    pub(super) fn learn_first(&mut self, packet: &Anatomy, datagram: Datagram, bytes: &[u8], fate: &Fate) {
        let state = match fate {
            Fate::Request(ends) => self
                .shadow
                .by_request(ends)
                .map(|flow| State::Goes(flow.backend.ip(), flow.is_masqueraded)),
            Fate::Answer => packet
                .ends(bytes)
                .and_then(|(from, to)| self.shadow.by_answer(&(packet.protocol, from, to)))
                .map(|flow| State::Goes(flow.frontend.ip(), None)),
            Fate::Untouched => Some(State::Passes),
            Fate::Dropped | Fate::Refused => {
                if is_without_checksum(packet) {
                    self.is_cut(packet, datagram.is_egress, bytes);
                }
                Some(State::Dropped)
            }
            Fate::Error | Fate::Piece | Fate::Released => None,
        };
        self.shadow
            .datagrams
            .learn(datagram, self.at, state.unwrap_or(State::Unknown));
    }

    /// A piece of an SCTP packet was dropped, when what it says had been noted.
    fn is_cut(&mut self, packet: &Anatomy, is_egress: bool, bytes: &[u8]) {
        if !is_egress {
            self.may_have_begun(packet, bytes);
        } else if packet.closes(bytes)
            && let Some((from, to)) = packet.ends(bytes)
        {
            self.shadow.close_answer(&(packet.protocol, from, to));
        }
    }

    /// A packet was dropped after its flow was decided on.
    fn may_have_begun(&mut self, packet: &Anatomy, bytes: &[u8]) {
        if let Some((from, to)) = packet.ends(bytes) {
            self.shadow.begin_unseen((packet.protocol, from, to));
        }
    }
}

/// What has a checksum over all of it, of which this is a piece only.
pub(super) fn is_without_checksum(packet: &Anatomy) -> bool {
    packet.protocol == protocol::SCTP && packet.fragment.is_some()
}

/// The checksum cannot follow the ports that the flow has.
pub(super) fn has_other_ports(packet: &Anatomy, flow: &Flow) -> bool {
    let ports = (flow.client.port(), flow.frontend.port());
    is_without_checksum(packet) && ports != (flow.sent_as.port(), flow.backend.port())
}

/// The same of a packet that may begin another flow.
pub(super) fn may_have_other_ports(packet: &Anatomy, flow: Option<&Flow>, service: Option<&Service>) -> bool {
    match flow {
        Some(flow) if flow.is_certain => has_other_ports(packet, flow),
        _ => is_without_checksum(packet) && (flow.is_some() || service.is_some()),
    }
}

fn is_untouched(sent: &Sent, out: &Outcome) -> Result<Fate, Fault> {
    if out.verdict == PASS && out.bytes == sent.bytes {
        return Ok(Fate::Untouched);
    }
    Err("a piece of a datagram that is none of ours was not left alone".into())
}

fn is_dropped(out: &Outcome) -> Result<Fate, Fault> {
    if out.verdict == DROP {
        return Ok(Fate::Dropped);
    }
    Err("a piece of a datagram went on without the first".into())
}

/// Where every port is a service's, the first one will be dropped too.
fn is_lost(sent: &Sent, packet: &Anatomy, out: &Outcome) -> Result<Fate, Fault> {
    if World::is_cluster_ip(packet.destination) {
        is_dropped(out)
    } else {
        is_untouched(sent, out)
    }
}

/// It goes where the first went, and nothing else of it changes.
fn goes(
    sent: &Sent,
    packet: &Anatomy,
    out: &Outcome,
    address: IpAddr,
    is_masqueraded: Option<bool>,
) -> Result<Fate, Fault> {
    if out.verdict != PASS {
        return Err("a piece of a datagram was dropped, and the first was not".into());
    }
    let is_egress = sent.program.is_egress();
    let is = Anatomy::of(&out.bytes, sent.program.has_link_header()).ok_or("it is no IP any more")?;
    let (source, destination) = match is_egress {
        true => (address, packet.destination),
        false => (packet.source, address),
    };
    let mut edits = Edits::default();
    edits.addresses(packet, source, destination);
    same_but_for(&edits, &[(packet, &is)], &sent.bytes, &out.bytes)?;
    let is_marked = out.mark & MASQUERADE != 0;
    if !is_egress && sent.mark & MASQUERADE == 0 && is_masqueraded.is_some_and(|expected| expected != is_marked) {
        return Err(format!("the mark of a piece of a datagram is {is_marked}"));
    }
    Ok(Fate::Piece)
}
