//! Messages and attributes of generic netlink: written, and taken apart.
//!
//! Numbers are in the byte order of the machine but where `linux/ip_vs.h` says `__be`.

use netlink_packet_core::{
    DecodeError, DoneBuffer, ErrorBuffer, NLA_ALIGNTO, NLA_F_NESTED, NLA_HEADER_SIZE, NLM_F_ACK_TLVS, NLM_F_CAPPED,
    NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer, NlasIterator,
    parse_u16, parse_u32,
};

use super::{scheduler::until_zero, uapi};

/// `struct nlmsghdr`.
const MESSAGE_HEADER: usize = 16;
/// `struct genlmsghdr`: the command, the version, two bytes of nothing.
const FAMILY_HEADER: usize = 4;

/// What a request begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// The number of the family.
    pub(super) family: u16,
    /// The version of the family.
    pub(super) version: u8,
    /// What to do.
    pub(super) command: u8,
    /// `NLM_F_*`. That it is a request goes without saying.
    pub(super) flags: u16,
    /// What the answer is known by.
    pub(super) sequence: u32,
}

/// Puts one request behind what is in `bytes`.
pub(super) fn write_request(bytes: &mut Vec<u8>, header: Header, fill: impl FnOnce(&mut Attributes<'_>)) {
    let start = bytes.len();
    bytes.resize(start + MESSAGE_HEADER, 0);
    bytes.extend([header.command, header.version, 0, 0]);
    fill(&mut Attributes(bytes));
    let message = &mut bytes[start..];
    // A request is far shorter than 4 GiB.
    let length = message.len() as u32;
    let mut buffer = NetlinkBuffer::new(message);
    buffer.set_length(length);
    buffer.set_message_type(header.family);
    buffer.set_flags(NLM_F_REQUEST | header.flags);
    buffer.set_sequence_number(header.sequence);
    buffer.set_port_number(0);
}

/// Attributes that are being written.
#[derive(Debug)]
pub(super) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    /// Adds one. Its bytes are few: a length is 16 bits.
    pub(super) fn put(&mut self, kind: u16, value: &[u8]) {
        self.begin(kind, NLA_HEADER_SIZE + value.len());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(NLA_ALIGNTO), 0);
    }

    /// Adds one that holds others.
    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.begin(NLA_F_NESTED | kind, 0);
        fill(self);
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn begin(&mut self, kind: u16, length: usize) {
        self.0.extend((length as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
    }
}

/// One message of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Answer<'a> {
    /// That of the request.
    pub(super) sequence: u32,
    /// A dump during which the kernel knows that something changed.
    pub(super) is_inconsistent: bool,
    /// What it says.
    pub(super) content: Content<'a>,
}

/// What a message of the kernel says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Content<'a> {
    /// The attributes that were asked for.
    Attributes(&'a [u8]),
    /// The request, or a dump, has ended.
    End(Result<(), Refusal>),
    /// Messages before this one are lost.
    Overrun,
}

/// Why the kernel does not do something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    /// `E*`.
    pub(super) errno: i32,
    /// In words, where it has some.
    pub(super) text: Option<String>,
}

/// Takes apart what the kernel sent in one piece. After a message that cannot be read there are no others.
pub(super) fn answers(family: u16, bytes: &[u8]) -> impl Iterator<Item = Result<Answer<'_>, DecodeError>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        loop {
            if rest.is_empty() {
                return None;
            }
            let message = match NetlinkBuffer::new_checked(rest) {
                Ok(message) => message,
                Err(error) => {
                    rest = &[];
                    return Some(Err(error));
                }
            };
            // Each begins at a multiple of four.
            let length = (message.length() as usize).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
            if let Some(answer) = answer(family, &message).transpose() {
                return Some(answer);
            }
        }
    })
}

/// None: a message without meaning.
fn answer<'a>(family: u16, message: &NetlinkBuffer<&'a [u8]>) -> Result<Option<Answer<'a>>, DecodeError> {
    let payload = message.payload();
    let flags = message.flags();
    let content = match message.message_type() {
        NLMSG_NOOP => return Ok(None),
        NLMSG_OVERRUN => Content::Overrun,
        NLMSG_ERROR => {
            let error = ErrorBuffer::new_checked(payload)?;
            let errno = error.code().map_or(0, |code| code.get().saturating_neg());
            Content::End(end(errno, || words_behind(flags, error.payload())))
        }
        NLMSG_DONE => {
            let done = DoneBuffer::new_checked(payload)?;
            let errno = done.code().saturating_neg();
            Content::End(end(errno, || words(flags, done.extended_ack())))
        }
        kind if kind == family => {
            let attributes = payload.get(FAMILY_HEADER..);
            Content::Attributes(attributes.ok_or("a message without the header of its family")?)
        }
        kind => return Err(format!("a message of type {kind}, which nobody asked for").into()),
    };
    Ok(Some(Answer {
        sequence: message.sequence_number(),
        is_inconsistent: flags & NLM_F_DUMP_INTR != 0,
        content,
    }))
}

fn end(errno: i32, text: impl FnOnce() -> Option<String>) -> Result<(), Refusal> {
    if errno == 0 {
        return Ok(());
    }
    Err(Refusal { errno, text: text() })
}

/// The words behind the request, of which the kernel repeats the header or all.
fn words_behind(flags: u16, payload: &[u8]) -> Option<String> {
    let repeated = if flags & NLM_F_CAPPED == 0 {
        parse_u32(payload.get(..4)?).ok()? as usize
    } else {
        MESSAGE_HEADER
    };
    words(flags, payload.get(repeated.checked_next_multiple_of(4)?..)?)
}

/// The words of a refusal. Those that cannot be read are no reason to lose the refusal.
fn words(flags: u16, attributes: &[u8]) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let (_, text) = read(attributes)
        .filter_map(Result::ok)
        .find(|(kind, _)| *kind == uapi::REFUSAL_TEXT)?;
    Some(String::from_utf8_lossy(until_zero(text)).into_owned())
}

/// The attributes in `bytes`, by kind and value. After one that cannot be read there are no others.
pub(super) fn read(bytes: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), DecodeError>> {
    NlasIterator::new(bytes).map(|attribute| {
        let attribute = attribute?;
        let (kind, length) = (attribute.kind(), usize::from(attribute.length()));
        let value = attribute.into_inner().get(NLA_HEADER_SIZE..length);
        Ok((kind, value.ok_or("an attribute that is longer than its message")?))
    })
}

/// The first attribute of this kind.
pub(super) fn find(bytes: &[u8], wanted: u16) -> Result<Option<&[u8]>, DecodeError> {
    for attribute in read(bytes) {
        let (kind, value) = attribute?;
        if kind == wanted {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// Reads the number of a family from the answer of the control family.
pub(super) fn family_number(attributes: &[u8]) -> Result<u16, DecodeError> {
    let value = find(attributes, uapi::CONTROL_FAMILY_ID)?.ok_or("a family without a number")?;
    parse_u16(value)
}
