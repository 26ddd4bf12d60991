//! The flows that the programs have been seen to translate: what a packet must become is read from here, and not from
//! their own table.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::anatomy::protocol;
use super::pieces::Datagrams;

/// Protocol, source and destination of a packet.
pub type Ends = (u8, SocketAddr, SocketAddr);

/// A flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flow {
    /// IANA protocol number.
    pub protocol: u8,
    /// Who dialled.
    pub client: SocketAddr,
    /// What it dialled.
    pub frontend: SocketAddr,
    /// What the backend sees of it, but for masquerading.
    pub sent_as: SocketAddr,
    /// Where it was sent.
    pub backend: SocketAddr,
    /// Whether it asks the kernel to masquerade, if that could be seen.
    pub is_masqueraded: Option<bool>,
    /// The packet of an end was seen, such as a FIN or ABORT.
    pub is_closing: bool,
    /// Nothing has happened since its last packet that could have ended it: it must go on.
    pub is_certain: bool,
    /// TCP, SCTP: nothing has happened since its first packet that lets another such begin another flow.
    pub is_undisturbed: bool,
    /// TCP, SCTP: one of its rows may be gone, and the other still there. A datagram would see to that.
    pub may_be_torn: bool,
}

impl Flow {
    /// Its requests, as the client sends them.
    #[must_use]
    pub fn request(&self) -> Ends {
        (self.protocol, self.client, self.frontend)
    }

    /// Who is told the answers. A row has no way to say "port zero", by which a client says that it wants none
    /// (RFC 768): they keep the port that they come to.
    #[must_use]
    pub fn answered(&self) -> SocketAddr {
        if self.client.port() == 0 {
            self.sent_as
        } else {
            self.client
        }
    }

    /// Whether another request must belong to it too: what happened to its
    /// backend is of account to a SYN or INIT only.
    #[must_use]
    pub fn must_go_on(&self, opens: bool) -> bool {
        self.is_certain && (self.is_undisturbed || !opens)
    }

    /// Whether it must have both its rows. A connection that is closing has no claim to its answers any more, and passes
    /// its last segments without.
    #[must_use]
    pub fn has_both_rows(&self) -> bool {
        !self.is_connected() || self.is_certain
    }

    fn is_connected(&self) -> bool {
        self.protocol != protocol::UDP
    }

    /// Its answers, as the backend sends them.
    #[must_use]
    pub fn answer(&self) -> Ends {
        (self.protocol, self.backend, self.sent_as)
    }
}

/// All of them.
#[derive(Clone, Default, Debug)]
pub struct Shadow {
    flows: Vec<Flow>,
    by_request: HashMap<Ends, usize>,
    by_answer: HashMap<Ends, usize>,
    /// Requests that are no client's: who sent from that NodePort waits for an answer. Whether that is certain.
    guards: HashMap<Ends, bool>,
    /// Requests of flows that may have begun although their packet was dropped.
    unseen: HashSet<Ends>,
    is_torn: bool,
    /// Datagrams that came in pieces.
    pub datagrams: Datagrams,
}

impl Shadow {
    /// The latest flow with these requests.
    #[must_use]
    pub fn by_request(&self, ends: &Ends) -> Option<&Flow> {
        self.by_request.get(ends).map(|&index| &self.flows[index])
    }

    /// The latest flow with these answers.
    #[must_use]
    pub fn by_answer(&self, ends: &Ends) -> Option<&Flow> {
        self.by_answer.get(ends).map(|&index| &self.flows[index])
    }

    /// All that ever were.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// A flow has been seen, for the first time or as it is by now.
    pub fn learn(&mut self, flow: Flow) {
        let index = self.flows.len();
        self.guards.remove(&flow.request());
        self.unseen.remove(&flow.request());
        self.by_request.insert(flow.request(), index);
        self.by_answer.insert(flow.answer(), index);
        self.flows.push(flow);
    }

    /// A packet of the flow with these requests has passed, and was seen to be masqueraded or not.
    pub fn confirm(&mut self, request: &Ends, opens: bool, is_masqueraded: Option<bool>) {
        if let Some(&index) = self.by_request.get(request) {
            self.guards.remove(request);
            let flow = &mut self.flows[index];
            if !flow.must_go_on(opens) || flow.is_masqueraded.is_none() {
                // Unseen, it may have become another between the same ends.
                flow.is_masqueraded = is_masqueraded;
            }
            flow.is_undisturbed |= opens;
            flow.is_certain =
                !flow.is_closing && !flow.may_be_torn && self.by_answer.get(&flow.answer()) == Some(&index);
        }
    }

    /// The flow with these requests is coming to its end.
    pub fn close(&mut self, request: &Ends) {
        if let Some(&index) = self.by_request.get(request) {
            self.flows[index].is_closing = true;
            self.flows[index].is_certain = false;
        }
    }

    /// The flow with these answers is coming to its end, which need not be the latest of its requests.
    pub fn close_answer(&mut self, answer: &Ends) {
        if let Some(&index) = self.by_answer.get(answer) {
            self.flows[index].is_closing = true;
            self.flows[index].is_certain = false;
        }
    }

    /// Something has happened that may have ended any flow.
    pub fn doubt(&mut self) {
        for flow in &mut self.flows {
            flow.is_certain = false;
            flow.is_undisturbed = false;
        }
        self.guards.values_mut().for_each(|is_certain| *is_certain = false);
    }

    /// A row has been evicted, of whichever flow.
    pub fn tear(&mut self) {
        for flow in &mut self.flows {
            flow.may_be_torn = flow.is_connected();
        }
        self.is_torn = true;
    }

    /// The client of the flow with these answers has opened a connection to its backend itself, from the same port.
    pub fn clash(&mut self, answer: &Ends) {
        if let Some(&index) = self.by_answer.get(answer) {
            self.flows[index].is_certain = false;
            self.flows[index].may_be_torn = true;
        }
    }

    /// A datagram has left from a NodePort: its answer, which comes with these ends, is no request.
    pub fn guard(&mut self, answer: Ends) {
        match self.by_request(&answer) {
            None => {
                self.guards.insert(answer, true);
            }
            // It is the answer to a client, whose row stays, if it is there still.
            Some(_) if self.is_torn => {
                self.guards.insert(answer, false);
            }
            Some(_) => {}
        }
    }

    /// Whether a packet must not be taken for a request, if there is any sign of that.
    #[must_use]
    pub fn guarded(&self, ends: &Ends) -> Option<bool> {
        self.guards.get(ends).copied()
    }

    /// A packet was dropped after its flow may have begun, or begun anew.
    pub fn begin_unseen(&mut self, request: Ends) {
        if let Some(&index) = self.by_request.get(&request) {
            self.flows[index].is_certain = false;
            self.flows[index].may_be_torn = true;
        }
        self.unseen.insert(request);
    }

    /// Whether a client may have any such flow, whose backend and ports are then unknown.
    #[must_use]
    pub fn has_unseen(&self, protocol: u8, client: IpAddr) -> bool {
        self.unseen
            .iter()
            .any(|ends| ends.0 == protocol && ends.1.ip() == client)
    }

    /// Whether there may be such a flow.
    #[must_use]
    pub fn is_unseen(&self, request: &Ends) -> bool {
        self.unseen.contains(request)
    }
}
