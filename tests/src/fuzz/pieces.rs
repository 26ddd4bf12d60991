//! Datagrams in pieces: what has become of the pieces of each so far, and so what must become of the next one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use lb_common::fragment::{FRAGMENT_TIMEOUT, HELD_MAX, HELD_PER_CPU, HELD_PER_DATAGRAM};

use super::anatomy::Anatomy;

/// What all pieces of one datagram have in common, where they pass.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Datagram {
    /// To a link.
    pub is_egress: bool,
    /// From whom.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// IANA protocol number.
    pub protocol: u8,
    /// The identification.
    pub id: u32,
}

impl Datagram {
    /// The one that a piece is of, if its protocol has ports.
    #[must_use]
    pub fn of(packet: &Anatomy, is_egress: bool) -> Option<Self> {
        let fragment = packet.fragment.filter(|_| packet.has_ports())?;
        Some(Self {
            is_egress,
            source: packet.source,
            destination: packet.destination,
            protocol: packet.protocol,
            id: fragment.id,
        })
    }
}

/// What is known of a datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Its first piece has not come yet, and these others wait for it.
    Waits(Vec<Held>),
    /// The same, and one more could not be held.
    Lost(Vec<Held>),
    /// It is sent to that address, or to a link from that one; and masqueraded, if that could be seen.
    Goes(IpAddr, Option<bool>),
    /// It is none of ours.
    Passes,
    /// It is dropped.
    Dropped,
    /// So long ago that it may be forgotten by now, and may not.
    Unknown,
}

/// A piece that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    frame: Vec<u8>,
    number: u64,
}

/// What the first piece sets free.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// What comes again, in this order.
    pub frames: Vec<Vec<u8>>,
    /// Whether all of it must come; else only the first frames may.
    pub is_certain: bool,
}

/// All of them.
#[derive(Clone, Default, Debug)]
pub struct Datagrams {
    states: HashMap<Datagram, (Instant, State)>,
    held: u64,
}

impl Datagrams {
    /// What is known of a datagram whose next piece came no earlier than `at`.
    #[must_use]
    pub fn state(&self, datagram: &Datagram, at: Instant) -> Option<&State> {
        let (since, state) = self.states.get(datagram)?;
        // Counted from before the row was written to after it was read: if that is in time, it was.
        let is_fresh = at.elapsed() + at.duration_since(*since) < Duration::from_nanos(FRAGMENT_TIMEOUT);
        Some(if is_fresh { state } else { &State::Unknown })
    }

    /// From a piece on that came no earlier than `at`, this is known.
    pub fn learn(&mut self, datagram: Datagram, at: Instant, state: State) {
        self.states.insert(datagram, (at, state));
    }

    /// A piece must be held, if it can be. Says whether it can.
    pub fn hold(&mut self, datagram: Datagram, at: Instant, frame: &[u8]) -> bool {
        let number = self.held;
        let (_, state) = self
            .states
            .entry(datagram)
            .or_insert_with(|| (at, State::Waits(Vec::new())));
        let State::Waits(waiting) = state else { return false };
        if waiting.len() >= HELD_PER_DATAGRAM.into() || frame.len() > HELD_MAX {
            *state = State::Lost(std::mem::take(waiting));
            return false;
        }
        self.held += 1;
        let frame = frame.to_vec();
        waiting.push(Held { frame, number });
        true
    }

    /// The first piece has come, no earlier than `at`: it and all that wait for it come again, the one that came last in
    /// front. Not for certain if the first can become no other packet.
    pub fn release(&mut self, datagram: Datagram, at: Instant, first: &[u8], can_become_others: bool) -> Release {
        let state = self.states.insert(datagram, (at, State::Unknown));
        let (State::Waits(waiting) | State::Lost(waiting)) = state.map_or(State::Unknown, |(_, state)| state) else {
            return Release {
                frames: Vec::new(),
                is_certain: false,
            };
        };
        // The place of what is held is another's, once the ring of a CPU has gone round.
        let is_there = |held: &Held| self.held - held.number < u64::from(HELD_PER_CPU);
        let is_certain = can_become_others && waiting.iter().all(is_there);
        if is_certain {
            self.states.remove(&datagram);
        }
        let held = waiting.into_iter().rev().map(|held| held.frame);
        Release {
            frames: std::iter::once(first.to_vec()).chain(held).collect(),
            is_certain,
        }
    }

    /// All of them are over.
    pub fn expire(&mut self) {
        self.states.clear();
    }
}
