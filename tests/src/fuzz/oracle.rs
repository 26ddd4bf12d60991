//! Says whether what became of a packet was right, from the packet, the services there are, and the flows seen so far.
//!
//! Four rules hold for every packet, however broken. What is nobody's business of ours comes out as it went in. What is
//! translated differs in the addresses and ports that it must differ in, and in checksums, which are exactly as wrong
//! as they were, so that right ones are right. A sound packet to a service, or of a flow that goes on, is never
//! left alone. And the pieces of a datagram go the way of the first, or nowhere.

mod piece;

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use lb_common::config::{DEFAULT_MASQUERADE_MARK as MASQUERADE, FIRST_SNAT_PORT, LAST_SNAT_PORT};

use super::anatomy::{Anatomy, protocol};
use super::compare::{Edits, same_but_for};
use super::pieces::Datagram;
use super::programs::{Outcome, Program};
use super::refusal;
use super::shadow::{Ends, Flow, Shadow};
use super::world::{Service, World};

/// What programs may say of a packet: go on, gone, sent elsewhere.
const PASS: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

/// A packet on its way into a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Which.
    pub program: Program,
    /// The mark that it bears.
    pub mark: u32,
    /// Bytes of the segments that it is to be cut into; 0 if it is not.
    pub gso_size: u32,
    /// From the link header on, if there is one.
    pub bytes: Vec<u8>,
}

/// What was right about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It came out as it went in.
    Untouched,
    /// It is gone.
    Dropped,
    /// It was answered with "port unreachable".
    Refused,
    /// It goes to a backend, as a request of this flow.
    Request(Ends),
    /// It comes from a frontend.
    Answer,
    /// It is an error, and speaks of what its receiver knows.
    Error,
    /// It is a later piece of a datagram, and goes where the first went.
    Piece,
    /// It is the first piece of a datagram of which others wait: all of them come again.
    Released,
}

/// What was wrong.
pub type Fault = String;

/// Judges, and learns from what it sees.
#[derive(Debug)]
pub struct Oracle<'a> {
    /// The services there are.
    pub world: &'a World,
    /// The flows seen so far.
    pub shadow: &'a mut Shadow,
    /// When the packet was sent, or before.
    pub at: Instant,
}

impl Oracle<'_> {
    /// What became of a packet, if that was right.
    pub fn judge(&mut self, sent: &Sent, out: &Outcome) -> Result<Fate, Fault> {
        let packet = Anatomy::of(&sent.bytes, sent.program.has_link_header());
        let packet = packet.as_ref();
        let datagram = packet.and_then(|packet| Datagram::of(packet, sent.program.is_egress()));
        if let Some((packet, datagram)) = packet.zip(datagram)
            && let Some(fate) = self.piece(sent, packet, datagram, out)?
        {
            self.marked(sent, out, &fate)?;
            return Ok(fate);
        }
        let fate = match out.verdict {
            PASS if out.bytes == sent.bytes => self.untouched(sent, packet).map(|()| Fate::Untouched),
            PASS => self.changed(sent, packet.ok_or("what is no IP was changed")?, out),
            DROP => self.dropped(sent, packet).map(|()| Fate::Dropped),
            REDIRECT => self.refused(sent, packet, out).map(|()| Fate::Refused),
            other => Err(format!("{other} is no verdict of ours")),
        }?;
        self.marked(sent, out, &fate)?;
        if let Some((packet, datagram)) = packet.zip(datagram).filter(|(packet, _)| packet.is_read(&sent.bytes)) {
            self.learn_first(packet, datagram, &sent.bytes, &fate);
        }
        Ok(fate)
    }

    /// Whether the mark is right. That of what goes to a backend is looked at where the backend is.
    fn marked(&self, sent: &Sent, out: &Outcome, fate: &Fate) -> Result<(), Fault> {
        let is_right = match fate {
            _ if sent.program.is_egress() => out.mark == sent.mark & !MASQUERADE,
            Fate::Request(_) | Fate::Error | Fate::Piece => out.mark | MASQUERADE == sent.mark | MASQUERADE,
            _ => out.mark == sent.mark,
        };
        if is_right {
            Ok(())
        } else {
            Err(format!("the mark {:#x} became {:#x}: {fate:?}", sent.mark, out.mark))
        }
    }

    /// Whether a packet begins something with whom it is sent to, and is not part of something that goes on.
    fn opens(packet: &Anatomy, bytes: &[u8]) -> bool {
        packet.protocol == protocol::UDP || packet.opens(bytes)
    }

    fn untouched(&mut self, sent: &Sent, packet: Option<&Anatomy>) -> Result<(), Fault> {
        let Some(packet) = packet else { return Ok(()) };
        if packet.is_error(&sent.bytes) {
            return match self.quoted(sent, packet) {
                Some(flow) if flow.is_certain && is_sound_error(packet, &sent.bytes) => {
                    Err(format!("an error about a flow that goes on was left alone: {flow:?}"))
                }
                _ => Ok(()),
            };
        }
        let Some((from, to)) = packet.ends(&sent.bytes) else {
            return Ok(());
        };
        let ends = (packet.protocol, from, to);
        if packet.opens(&sent.bytes) && !sent.program.is_egress() {
            self.shadow.clash(&(packet.protocol, to, from));
        }
        if sent.program.is_egress() && packet.is_read(&sent.bytes) {
            self.leaves(packet.protocol, from, to);
        }
        if !packet.is_sound(&sent.bytes) {
            return Ok(());
        }
        let flow = if sent.program.is_egress() {
            self.shadow.by_answer(&ends).filter(|flow| flow.is_certain)
        } else {
            let request = self.shadow.by_request(&ends);
            request.filter(|flow| flow.must_go_on(packet.opens(&sent.bytes)))
        };
        if let Some(flow) = flow {
            return Err(format!("a packet of a flow that goes on was left alone: {flow:?}"));
        }
        if sent.program.is_egress() || !Self::opens(packet, &sent.bytes) || self.shadow.guarded(&ends).is_some() {
            return Ok(());
        }
        if self.world.service_at(packet.protocol, to).is_some() {
            return Err("a packet to a service was left alone".into());
        }
        if World::is_unallocated(to.ip()) || World::is_cluster_ip(to.ip()) {
            return Err("a packet to an address for services was left alone".into());
        }
        Ok(())
    }

    /// A packet of no flow goes out. A datagram from a NodePort is remembered: its answer is no request.
    fn leaves(&mut self, protocol: u8, from: SocketAddr, to: SocketAddr) {
        let is_from_node_port = World::is_node(from.ip()) && self.world.service_at(protocol, from).is_some();
        if protocol == protocol::UDP && is_from_node_port {
            self.shadow.guard((protocol, to, from));
        }
    }

    /// The flow that an error is about, seen from where it passes.
    fn quoted(&self, sent: &Sent, packet: &Anatomy) -> Option<&Flow> {
        let quoted = packet.of_quoted(&sent.bytes)?;
        let (from, to) = quoted.ends(&sent.bytes)?;
        let ends = (quoted.protocol, to, from);
        if sent.program.is_egress() {
            self.shadow.by_answer(&ends)
        } else {
            let is_to_frontend = packet.destination == from.ip();
            self.shadow.by_request(&ends).filter(|_| is_to_frontend)
        }
    }

    fn dropped(&self, sent: &Sent, packet: Option<&Anatomy>) -> Result<(), Fault> {
        let packet = packet.ok_or("what is no IP was dropped")?;
        if packet.is_error(&sent.bytes) {
            let flow = self
                .quoted(sent, packet)
                .ok_or("an error about nothing of ours was dropped")?;
            if is_sound_error(packet, &sent.bytes) {
                return Err(format!("an error about a flow was dropped: {flow:?}"));
            }
            return Ok(());
        }
        let (from, to) = packet.ends(&sent.bytes).ok_or("a packet without ports was dropped")?;
        let ends = (packet.protocol, from, to);
        let is_sound = packet.is_sound(&sent.bytes);
        if sent.program.is_egress() {
            if piece::is_without_checksum(packet) && self.shadow.has_unseen(packet.protocol, to.ip()) {
                return Ok(());
            }
            let flow = self.shadow.by_answer(&ends).ok_or("what goes out was dropped")?;
            return if is_sound && !piece::has_other_ports(packet, flow) {
                Err(format!("an answer was dropped: {flow:?}"))
            } else {
                Ok(())
            };
        }
        let flow = self.shadow.by_request(&ends);
        let service = self.world.service_at(packet.protocol, to);
        let is_for_services = World::is_unallocated(to.ip()) || World::is_cluster_ip(to.ip());
        if flow.is_none() && service.is_none() && !is_for_services {
            return Err("a packet to nothing of ours was dropped".into());
        }
        if self.shadow.guarded(&ends) == Some(true) {
            return Err("an answer to a NodePort was dropped".into());
        }
        if !is_sound || piece::may_have_other_ports(packet, flow, service) {
            return Ok(());
        }
        if let Some(flow) = flow.filter(|flow| flow.must_go_on(packet.opens(&sent.bytes))) {
            return Err(format!("a packet of a flow that goes on was dropped: {flow:?}"));
        }
        if !Self::opens(packet, &sent.bytes) {
            return Err("a segment of a connection was dropped".into());
        }
        let may_be = match service {
            None => World::is_unallocated(to.ip()) || !refusal::can_be_made(sent, packet),
            Some(service) if !service.may_be_dialled_by(from.ip()) || World::is_nobodys_client(from.ip()) => true,
            Some(service) if service.backends.is_empty() => {
                service.verdict == lb_common::Verdict::Drop || !refusal::can_be_made(sent, packet)
            }
            // Chance may draw one that went a moment ago, again and again.
            Some(service) => service.backends.iter().any(|backend| !backend.is_serving()),
        };
        if may_be {
            Ok(())
        } else {
            Err("a packet to a service that has backends was dropped".into())
        }
    }

    fn refused(&self, sent: &Sent, packet: Option<&Anatomy>, out: &Outcome) -> Result<(), Fault> {
        let packet = packet.ok_or("what is no IP was answered")?;
        let (from, to) = packet.ends(&sent.bytes).ok_or("a packet without ports was answered")?;
        if sent.program.is_egress() {
            return Err("what goes out was answered".into());
        }
        let flow = self.shadow.by_request(&(packet.protocol, from, to));
        if let Some(flow) = flow.filter(|flow| flow.must_go_on(packet.opens(&sent.bytes))) {
            return Err(format!("a packet of a flow that goes on was refused: {flow:?}"));
        }
        if !Self::opens(packet, &sent.bytes) {
            return Err("a segment of a connection was refused".into());
        }
        if self.shadow.guarded(&(packet.protocol, from, to)) == Some(true) {
            return Err("an answer to a NodePort was refused".into());
        }
        let is_right = match self.world.service_at(packet.protocol, to) {
            Some(_) if World::is_nobodys_client(from.ip()) => false,
            Some(service) => service.backends.is_empty() && service.verdict == lb_common::Verdict::Reject,
            None => World::is_cluster_ip(to.ip()),
        };
        if !is_right {
            return Err("what can be served, or is not ours, was refused".into());
        }
        if !sent.program.has_link_header() {
            // The kernel takes the first 14 bytes for a link header here, and makes room for the answer behind them.
            return Ok(());
        }
        refusal::verify(sent, packet, &out.bytes)
    }

    fn changed(&mut self, sent: &Sent, packet: &Anatomy, out: &Outcome) -> Result<Fate, Fault> {
        if packet.is_error(&sent.bytes) {
            return self.error(sent, packet, out);
        }
        let is = Anatomy::of(&out.bytes, sent.program.has_link_header()).ok_or("it is no IP any more")?;
        let was = packet.ends(&sent.bytes).ok_or("a packet without ports was changed")?;
        let now = is.ends(&out.bytes).ok_or("it has no ports any more")?;
        let mut edits = Edits::default();
        edits.ends(packet, now);
        same_but_for(&edits, &[(packet, &is)], &sent.bytes, &out.bytes)?;
        if piece::is_without_checksum(packet) && (was.0.port(), was.1.port()) != (now.0.port(), now.1.port()) {
            return Err("a piece of an SCTP packet got other ports, which no checksum can follow".into());
        }
        if sent.program.is_egress() {
            self.answer(sent, packet, was, now)
        } else {
            self.request(sent, packet, was, now, out.mark)
        }
    }

    /// A request became one to a backend.
    fn request(
        &mut self,
        sent: &Sent,
        packet: &Anatomy,
        (client, frontend): (SocketAddr, SocketAddr),
        (sent_as, backend): (SocketAddr, SocketAddr),
        mark: u32,
    ) -> Result<Fate, Fault> {
        let ends = (packet.protocol, client, frontend);
        // A mark that was there before tells nothing.
        let is_masqueraded = (sent.mark & MASQUERADE == 0).then_some(mark & MASQUERADE != 0);
        if self.shadow.guarded(&ends) == Some(true) {
            return Err("an answer to a NodePort was taken for a request".into());
        }
        let known = self.shadow.by_request(&ends).cloned();
        let flow = Flow {
            protocol: packet.protocol,
            client,
            frontend,
            sent_as,
            backend,
            is_masqueraded,
            is_closing: false,
            is_certain: true,
            is_undisturbed: true,
            may_be_torn: false,
        };
        let says =
            |expected: Option<bool>| expected.is_none() || is_masqueraded.is_none() || expected == is_masqueraded;
        let goes_on = known.as_ref().is_some_and(|known| {
            let is_same = known.answer() == flow.answer() && says(known.is_masqueraded);
            // What is over begins anew, and takes its answers back.
            let is_over = known.is_closing || self.shadow.by_answer(&flow.answer()) != Some(known);
            is_same && !(is_over && Self::opens(packet, &sent.bytes))
        });
        if goes_on {
            self.shadow.confirm(&ends, packet.opens(&sent.bytes), is_masqueraded);
        } else {
            if let Some(known) = known.filter(|known| known.must_go_on(packet.opens(&sent.bytes))) {
                return Err(format!("a flow that goes on became another: {known:?}, now {flow:?}"));
            }
            let is_unseen = self.shadow.is_unseen(&ends);
            // Since when an unseen one has been there, nobody knows.
            let masquerades = match is_unseen {
                true => is_masqueraded,
                false => Some(self.begins(sent, packet, &flow)?),
            };
            if let Some(masquerades) = masquerades
                && !says(Some(masquerades))
            {
                return Err(format!("masquerading should be {masquerades}: {flow:?}"));
            }
            let held = self.shadow.by_answer(&flow.answer());
            if let Some(held) = held.filter(|held| held.is_certain && held.request() != ends) {
                return Err(format!("the answers of {held:?} are now those of {flow:?}"));
            }
            self.shadow.learn(Flow {
                is_masqueraded: masquerades,
                may_be_torn: is_unseen,
                is_certain: !is_unseen,
                ..flow
            });
        }
        if packet.closes(&sent.bytes) {
            self.shadow.close(&ends);
        }
        Ok(Fate::Request(ends))
    }

    /// Whether a flow may begin like that, and if so, whether it is to be masqueraded.
    fn begins(&self, sent: &Sent, packet: &Anatomy, flow: &Flow) -> Result<bool, Fault> {
        if !Self::opens(packet, &sent.bytes) {
            return Err(format!("a segment that opens nothing began a flow: {flow:?}"));
        }
        let service = self.world.service_at(flow.protocol, flow.frontend);
        let service: &Service = service.ok_or_else(|| format!("no service is there: {flow:?}"))?;
        if !service.may_be_dialled_by(flow.client.ip()) {
            return Err(format!("the client is in no source range: {flow:?}"));
        }
        if World::is_nobodys_client(flow.client.ip()) {
            return Err(format!(
                "the client has an address of the node or of a service: {flow:?}"
            ));
        }
        let backend = service
            .backends
            .iter()
            .find(|backend| backend.is_serving() && backend.address == flow.backend)
            .ok_or_else(|| format!("{} has no such backend: {flow:?}", service.name))?;
        let is_other_port = (FIRST_SNAT_PORT..=LAST_SNAT_PORT).contains(&flow.sent_as.port());
        if flow.sent_as.ip() != flow.client.ip() || !(flow.sent_as == flow.client || is_other_port) {
            return Err(format!("the client cannot be sent as that: {flow:?}"));
        }
        let is_hairpin = flow.backend.ip() == flow.client.ip();
        Ok(is_hairpin || service.masquerades_all() || !(sent.program.is_pod() || backend.is_local))
    }

    /// An answer became one of a frontend.
    fn answer(
        &mut self,
        sent: &Sent,
        packet: &Anatomy,
        (from, to): (SocketAddr, SocketAddr),
        now: (SocketAddr, SocketAddr),
    ) -> Result<Fate, Fault> {
        let ends = (packet.protocol, from, to);
        if self.shadow.is_unseen(&(packet.protocol, now.1, now.0)) {
            return Ok(Fate::Answer);
        }
        let flow = self.shadow.by_answer(&ends).cloned();
        let flow = flow.ok_or_else(|| format!("the answer of no flow became {now:?}"))?;
        if now != (flow.frontend, flow.answered()) {
            return Err(format!("an answer became {now:?}, of {flow:?}"));
        }
        if packet.closes(&sent.bytes) {
            self.shadow.close_answer(&ends);
        }
        Ok(Fate::Answer)
    }

    /// Whether an error is about a flow that nobody has seen, so that nobody knows what it must become.
    fn is_about_unseen(&self, sent: &Sent, packet: &Anatomy, out: &Outcome) -> bool {
        let sends = if sent.program.is_egress() {
            &out.bytes
        } else {
            &sent.bytes
        };
        let Some(quoted) = packet.of_quoted(sends) else {
            return false;
        };
        quoted.ends(sends).is_some_and(|(from, to)| {
            let request = if sent.program.is_egress() {
                (from, to)
            } else {
                (to, from)
            };
            self.shadow.is_unseen(&(quoted.protocol, request.0, request.1))
        })
    }

    /// An error was changed.
    fn error(&self, sent: &Sent, packet: &Anatomy, out: &Outcome) -> Result<Fate, Fault> {
        if self.is_about_unseen(sent, packet, out) {
            return Ok(Fate::Error);
        }
        let flow = self
            .quoted(sent, packet)
            .ok_or("an error about nothing of ours was changed")?;
        let quoted = packet.of_quoted(&sent.bytes).ok_or("nothing is quoted")?;
        quoted.ends(&sent.bytes).ok_or("no ports are quoted")?;
        let (source, destination, now): (IpAddr, IpAddr, _) = if sent.program.is_egress() {
            // A router speaks for itself, a backend for the frontend.
            let speaks = packet.source == flow.backend.ip();
            let source = if speaks { flow.frontend.ip() } else { packet.source };
            (source, packet.destination, (flow.answered(), flow.frontend))
        } else {
            (packet.source, flow.backend.ip(), (flow.backend, flow.sent_as))
        };
        let mut edits = Edits::default();
        edits.addresses(packet, source, destination);
        edits.ends(&quoted, now);
        let is = Anatomy::of(&out.bytes, sent.program.has_link_header()).ok_or("it is no IP any more")?;
        let is_quoted = is.of_quoted(&out.bytes).ok_or("nothing is quoted any more")?;
        same_but_for(&edits, &[(packet, &is), (&quoted, &is_quoted)], &sent.bytes, &out.bytes)?;
        let is_marked = out.mark & MASQUERADE != 0;
        let should_be = flow
            .is_masqueraded
            .filter(|_| flow.is_certain && sent.mark & MASQUERADE == 0);
        if !sent.program.is_egress() && should_be.is_some_and(|should_be| is_marked != should_be) {
            return Err(format!("the mark of an error is {is_marked}, of {flow:?}"));
        }
        Ok(Fate::Error)
    }
}

/// Whether an error is whole, and quotes at least the eight bytes that any must quote, of something plain.
fn is_sound_error(packet: &Anatomy, bytes: &[u8]) -> bool {
    let Some(quoted) = packet.of_quoted(bytes) else {
        return false;
    };
    packet.is_plain(bytes)
        && packet.transport_error(bytes) == 0
        && packet.fragment.is_none()
        && quoted.is_within_bounds()
        && bytes.len() >= quoted.transport + 8
}
