//! IPVS of the kernel, over generic netlink: `linux/ip_vs.h`.
//!
//! The messages are our own, since no crate that has them stands a service that somebody else made. Nothing here knows
//! what our services mean: [`crate::plane`] does.
//!
//! ```text
//! Ipvs ── encode ── wire ── socket ── kernel
//!      └─ decode ──┘
//! ```

mod command;
mod decode;
mod destination;
mod encode;
mod error;
mod global;
mod scheduler;
mod service;
mod socket;
#[cfg(test)]
mod tests;
mod uapi;
mod wire;

use netlink_packet_core::{DecodeError, NLM_F_ACK, NLM_F_DUMP};

pub use self::{
    command::Command,
    destination::{Destination, DestinationState, Forward},
    error::{Doing, IpvsError, Verb},
    global::{Timeouts, Version},
    scheduler::{OtherScheduler, Scheduler, SchedulerName, UnknownScheduler},
    service::{Foreign, ServiceConfig, ServiceFlags, ServiceKey},
};
use self::{
    socket::{Connection, Received},
    wire::{Attributes, Content, Header},
};

/// Commands that are sent in one piece.
const BATCH: usize = 256;
/// Bytes of answers that the kernel keeps for us. One to a command counts as less than 2 KiB.
const RECEIVE_BUFFER: usize = 4 * BATCH * 1024;
/// How often a dump is begun.
const ATTEMPTS: usize = 32;

/// What the kernel holds of a kind.
struct Dump<T> {
    entries: Vec<T>,
    /// Of each the kernel reads at once.
    pieces: usize,
}

/// IPVS of one network namespace: that of the thread that opened it, wherever it is used. Calls block.
#[derive(Debug)]
pub struct Ipvs {
    connection: Connection,
    family: u16,
    /// Of the request before.
    sequence: u32,
}

impl Ipvs {
    /// Opens it.
    ///
    /// # Errors
    /// [`IpvsError::Missing`] from a kernel without it.
    pub fn open() -> Result<Self, IpvsError> {
        let mut ipvs = Self {
            connection: Connection::open(RECEIVE_BUFFER)?,
            family: uapi::CONTROL_FAMILY,
            sequence: 0,
        };
        let header = Header {
            version: uapi::CONTROL_VERSION,
            ..ipvs.header(uapi::CONTROL_GET_FAMILY, 0)
        };
        let fill = |attributes: &mut Attributes<'_>| attributes.put(uapi::CONTROL_FAMILY_NAME, uapi::FAMILY_NAME);
        let decode = |attributes: Option<&[u8]>| wire::family_number(attributes.unwrap_or_default());
        ipvs.family = match ipvs.ask(Doing::Lookup, header, fill, decode) {
            Err(IpvsError::Refused { error, .. }) if error.raw_os_error() == Some(libc::ENOENT) => {
                return Err(IpvsError::Missing);
            }
            result => result?,
        };
        Ok(ipvs)
    }

    /// Carries out commands, and gives one answer a command, in their order. The kernel carries each out by itself: one
    /// that it refuses stops no other.
    ///
    /// # Errors
    /// Only where the socket fails or an answer makes no sense. Which commands were carried out is not known then:
    /// open another and look.
    pub fn send(&mut self, commands: &[Command]) -> Result<Vec<Result<(), IpvsError>>, IpvsError> {
        let mut answers = Vec::with_capacity(commands.len());
        for batch in commands.chunks(BATCH) {
            answers.extend(self.send_batch(batch)?);
        }
        Ok(answers)
    }

    fn send_batch(&mut self, commands: &[Command]) -> Result<Vec<Result<(), IpvsError>>, IpvsError> {
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        for command in commands {
            let header = self.header(command.number(), NLM_F_ACK);
            wire::write_request(&mut bytes, header, |attributes| command.write(attributes));
        }
        self.connection.send(&bytes)?;
        let mut answers: Vec<_> = commands.iter().map(|_| None).collect();
        let mut missing = answers.len();
        let mut wait = true;
        while missing > 0 {
            let bytes = match self.connection.receive(wait)? {
                Received::Bytes(bytes) => bytes,
                // The kernel answers before it is done with sending: what is not there by now will not come.
                Received::Overrun => {
                    wait = false;
                    continue;
                }
                Received::Nothing => break,
            };
            for answer in wire::answers(self.family, bytes) {
                let answer = answer?;
                // Others are late answers to what was given up.
                let index = answer.sequence.wrapping_sub(first) as usize;
                let (Some(command), Content::End(result)) = (commands.get(index), answer.content) else {
                    continue;
                };
                let result = result.map_err(|refusal| IpvsError::of_command(command, refusal));
                if answers[index].replace(result).is_none() {
                    missing -= 1;
                }
            }
        }
        let answers = answers.into_iter().zip(commands);
        Ok(answers
            .map(|(answer, command)| answer.unwrap_or_else(|| Err(IpvsError::Unanswered((*command).into()))))
            .collect())
    }

    /// The services, those of others too. One that is neither of TCP, UDP or SCTP nor of a mark is left out: it cannot
    /// be ours, and has no key here.
    ///
    /// The kernel goes by the number of a service in a table that it may have in common with all network
    /// namespaces, and does not tell of changes between two pieces. So more than one piece is read until it comes the
    /// same twice.
    pub fn services(&mut self) -> Result<Vec<(ServiceKey, ServiceConfig)>, IpvsError> {
        let services = self.dump(
            Doing::Services,
            uapi::command::GET_SERVICE,
            |_| (),
            decode::service,
            PartialEq::eq,
        )?;
        Ok(services.into_iter().flatten().collect())
    }

    /// The destinations of a service. A kernel does not say that there is no such service: it has no destinations.
    pub fn destinations(&mut self, service: &ServiceKey) -> Result<Vec<DestinationState>, IpvsError> {
        self.dump(
            Doing::Destinations(*service),
            uapi::command::GET_DESTINATION,
            |attributes| encode::write_service(attributes, service),
            |attributes| decode::destination(service.family(), attributes),
            // Its connections come and go.
            |one, other| one.destination == other.destination,
        )
    }

    /// How long connections without packets are remembered.
    pub fn timeouts(&mut self) -> Result<Timeouts, IpvsError> {
        let header = self.header(uapi::command::GET_CONFIG, 0);
        let decode = |attributes: Option<&[u8]>| decode::timeouts(attributes.unwrap_or_default());
        self.ask(Doing::Timeouts, header, |_| (), decode)
    }

    /// Sets how long connections without packets are remembered. Those that have packets from now on are.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), IpvsError> {
        let header = self.header(uapi::command::SET_CONFIG, NLM_F_ACK);
        let fill = |attributes: &mut Attributes<'_>| encode::write_timeouts(attributes, timeouts);
        self.ask(Doing::SetTimeouts, header, fill, |_| Ok(()))
    }

    /// The version that the kernel gives IPVS.
    pub fn version(&mut self) -> Result<Version, IpvsError> {
        let header = self.header(uapi::command::GET_INFO, 0);
        let decode = |attributes: Option<&[u8]>| decode::version(attributes.unwrap_or_default());
        self.ask(Doing::Version, header, |_| (), decode)
    }

    /// Of the next request.
    fn header(&mut self, command: u8, flags: u16) -> Header {
        self.sequence = self.sequence.wrapping_add(1);
        Header {
            family: self.family,
            version: uapi::FAMILY_VERSION,
            command,
            flags,
            sequence: self.sequence,
        }
    }

    /// Asks for one answer: attributes, or none where there is only a request to be confirmed.
    fn ask<T>(
        &mut self,
        doing: Doing,
        header: Header,
        fill: impl FnOnce(&mut Attributes<'_>),
        decode: impl FnOnce(Option<&[u8]>) -> Result<T, DecodeError>,
    ) -> Result<T, IpvsError> {
        let mut bytes = Vec::new();
        wire::write_request(&mut bytes, header, fill);
        self.connection.send(&bytes)?;
        loop {
            let Received::Bytes(bytes) = self.connection.receive(true)? else {
                return Err(IpvsError::Unanswered(doing));
            };
            for answer in wire::answers(self.family, bytes) {
                let answer = answer?;
                if answer.sequence != header.sequence {
                    continue;
                }
                return match answer.content {
                    Content::Attributes(attributes) => Ok(decode(Some(attributes))?),
                    Content::End(Ok(())) => Ok(decode(None)?),
                    Content::End(Err(refusal)) => Err(IpvsError::of(doing, refusal)),
                    Content::Overrun => Err(IpvsError::Unanswered(doing)),
                };
            }
        }
    }

    /// Asks for everything of a kind.
    fn dump<T>(
        &mut self,
        doing: Doing,
        command: u8,
        fill: impl Fn(&mut Attributes<'_>),
        decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
        is_same: impl Fn(&T, &T) -> bool,
    ) -> Result<Vec<T>, IpvsError> {
        let mut before: Option<Vec<T>> = None;
        for _ in 0..ATTEMPTS {
            let header = self.header(command, NLM_F_DUMP);
            let mut bytes = Vec::new();
            wire::write_request(&mut bytes, header, &fill);
            self.connection.send(&bytes)?;
            let Some(Dump { entries, pieces }) = self.collect(doing, header.sequence, &decode)? else {
                continue;
            };
            let is_as_before = before.is_some_and(|before| {
                before.len() == entries.len() && before.iter().zip(&entries).all(|(one, other)| is_same(one, other))
            });
            if pieces <= 1 || is_as_before {
                return Ok(entries);
            }
            before = Some(entries);
        }
        Err(IpvsError::Inconsistent(doing))
    }

    /// Reads a dump to its end, since the kernel begins no other before. None: it is not consistent.
    fn collect<T>(
        &mut self,
        doing: Doing,
        sequence: u32,
        decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<Option<Dump<T>>, IpvsError> {
        let mut entries = Ok(Vec::new());
        let mut pieces = 0;
        let mut is_consistent = true;
        loop {
            let bytes = match self.connection.receive(true)? {
                Received::Bytes(bytes) => bytes,
                Received::Overrun => {
                    is_consistent = false;
                    continue;
                }
                Received::Nothing => return Err(IpvsError::Unanswered(doing)),
            };
            let mut has_entries = false;
            for answer in wire::answers(self.family, bytes) {
                let answer = answer?;
                if answer.sequence != sequence {
                    continue;
                }
                is_consistent &= !answer.is_inconsistent;
                match answer.content {
                    Content::Attributes(attributes) => {
                        has_entries = true;
                        entries = entries.and_then(|mut entries: Vec<T>| {
                            entries.push(decode(attributes)?);
                            Ok::<_, DecodeError>(entries)
                        });
                    }
                    Content::End(Err(refusal)) => return Err(IpvsError::of(doing, refusal)),
                    Content::End(Ok(())) if is_consistent => {
                        pieces += usize::from(has_entries);
                        return Ok(Some(Dump {
                            entries: entries?,
                            pieces,
                        }));
                    }
                    Content::End(Ok(())) => return Ok(None),
                    Content::Overrun => is_consistent = false,
                }
            }
            pieces += usize::from(has_entries);
        }
    }
}
