//! Netlink for threads that wait for the answer.

use std::{collections::BTreeMap, io, marker::PhantomData};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_netfilter::NetfilterMessage;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{
    Socket, SocketAddr,
    protocols::{NETLINK_NETFILTER, NETLINK_ROUTE},
};

/// How many requests are sent at once. The kernel answers all of them before the sender can read, and counts
/// about 800 bytes for each answer: these are less than half of what a socket has room for by default.
const AT_ONCE: usize = 100;
/// How often something is asked for that changes while it is told.
const DUMPS: usize = 10;

/// A message of a protocol of netlink.
pub(crate) trait Message: NetlinkSerializable + NetlinkDeserializable + Clone {
    /// The protocol's number.
    const PROTOCOL: isize;
}

impl Message for RouteNetlinkMessage {
    const PROTOCOL: isize = NETLINK_ROUTE;
}

impl Message for NetfilterMessage {
    const PROTOCOL: isize = NETLINK_NETFILTER;
}

/// A socket that asks, for the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Requests<M = RouteNetlinkMessage> {
    socket: Socket,
    sequence: u32,
    message: PhantomData<M>,
}

impl<M: Message> Requests<M> {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(M::PROTOCOL)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
            message: PhantomData,
        })
    }

    /// Has something done.
    pub(crate) fn request(&mut self, message: M, flags: u16) -> io::Result<()> {
        self.ask(message, NLM_F_ACK | flags).map(drop)
    }

    /// Has many things done, in their order; one that fails does not stop the others. Returns those that
    /// failed, by their place among the messages.
    pub(crate) fn request_all(
        &mut self,
        messages: impl IntoIterator<Item = M>,
        flags: u16,
    ) -> BTreeMap<usize, io::Error> {
        let mut failed = BTreeMap::new();
        let mut messages = messages.into_iter().enumerate().peekable();
        while messages.peek().is_some() {
            let mut bytes = Vec::new();
            let mut asked = BTreeMap::new();
            for (place, message) in messages.by_ref().take(AT_ONCE) {
                bytes.extend(self.serialize(message, NLM_F_ACK | flags));
                asked.insert(self.sequence, place);
            }
            if let Err(error) = self.answers(&bytes, &mut asked, &mut failed) {
                // Whether the others were done is not known.
                failed.extend(asked.into_values().map(|place| (place, copy(&error))));
            }
        }
        failed
    }

    /// Sends requests, and takes those out of `asked` that are answered.
    fn answers(
        &self,
        bytes: &[u8],
        asked: &mut BTreeMap<u32, usize>,
        failed: &mut BTreeMap<usize, io::Error>,
    ) -> io::Result<()> {
        self.socket.send(bytes, 0)?;
        while !asked.is_empty() {
            for message in self.receive()? {
                if let NetlinkPayload::Error(answer) = message.payload
                    && let Some(place) = asked.remove(&message.header.sequence_number)
                    && answer.code.is_some()
                {
                    failed.insert(place, answer.to_io());
                }
            }
        }
        Ok(())
    }

    /// Asks for one thing.
    pub(crate) fn get(&mut self, message: M) -> io::Result<Vec<M>> {
        self.ask(message, NLM_F_ACK).map(|(answers, _)| answers)
    }

    /// Asks for all that there is of something. Begins again where it changed meanwhile, since some of it
    /// may be missing then.
    pub(crate) fn dump(&mut self, message: &M) -> io::Result<Vec<M>> {
        for _ in 0..DUMPS {
            let (answers, is_whole) = self.ask(message.clone(), NLM_F_DUMP)?;
            if is_whole {
                return Ok(answers);
            }
        }
        Err(io::Error::other(format!(
            "it changed each of the {DUMPS} times that it was asked for"
        )))
    }

    /// Sends a request and reads the answers, up to the acknowledgement or the end of the dump. Also says
    /// whether nothing changed meanwhile.
    fn ask(&mut self, message: M, flags: u16) -> io::Result<(Vec<M>, bool)> {
        let request = self.serialize(message, flags);
        self.socket.send(&request, 0)?;
        let mut answers = Vec::new();
        let mut is_whole = true;
        loop {
            for message in self.receive()? {
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                is_whole &= message.header.flags & NLM_F_DUMP_INTR == 0;
                match message.payload {
                    NetlinkPayload::Error(answer) if answer.code.is_some() => return Err(answer.to_io()),
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code));
                    }
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok((answers, is_whole)),
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    _ => {}
                }
            }
        }
    }

    fn serialize(&mut self, message: M, flags: u16) -> Vec<u8> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(message));
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = self.sequence;
        serialize(request)
    }

    fn receive(&self) -> io::Result<Vec<NetlinkMessage<M>>> {
        let (datagram, _) = self.socket.recv_from_full()?;
        deserialize(&datagram)
    }
}

/// With its length, and room up to where a next one may begin.
fn serialize<M: NetlinkSerializable>(mut message: NetlinkMessage<M>) -> Vec<u8> {
    message.finalize();
    let length = message.buffer_len();
    let mut bytes = vec![0; length.next_multiple_of(4)];
    message.serialize(&mut bytes[..length]);
    bytes
}

fn deserialize<M: NetlinkDeserializable>(datagram: &[u8]) -> io::Result<Vec<NetlinkMessage<M>>> {
    let mut rest = datagram;
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let message = NetlinkMessage::<M>::deserialize(rest).map_err(io::Error::other)?;
        let length = (message.header.length as usize).next_multiple_of(4);
        rest = rest.get(length..).unwrap_or_default();
        messages.push(message);
    }
    Ok(messages)
}

/// The same error for another of the requests that have it.
fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
