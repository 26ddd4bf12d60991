//! Attaching to links below kernel 6.6: one `bpf` filter a direction on the clsact qdisc.
//!
//! A filter is not a BPF link and has no pin: it stays on its link until it is deleted. It is known
//! as ours by its name, and sits at one place in the chain, so that putting it there again replaces
//! the program and never adds a second one.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption},
};
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::sys::Direction;
use crate::kernel::netlink::Requests;

/// Before the name of the program in the name of each of our filters.
const NAME_PREFIX: &str = "lb-agent/";
/// The first place in the chain.
const PRIORITY: u16 = 1;
/// Our place among the bpf filters of one priority: "lb".
const HANDLE: u32 = 0x6c62;
/// `ETH_P_ALL`.
const ALL_PROTOCOLS: u16 = 3;

/// Who made the clsact qdisc of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Qdisc {
    /// We did.
    Made,
    /// It was there.
    Found,
}

/// One filter of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Filter {
    /// What the filter is called, or its kind where it has no name.
    pub(super) name: String,
    /// Number of its program, if it is one with a program.
    pub(super) program: Option<u32>,
    kind: String,
    priority: u16,
    handle: TcHandle,
}

impl Filter {
    /// Whether we put it there.
    pub(super) fn is_ours(&self) -> bool {
        self.name.starts_with(NAME_PREFIX)
    }

    /// The name of its program, if it is ours.
    pub(super) fn our_program(&self) -> Option<&str> {
        self.name.strip_prefix(NAME_PREFIX)
    }

    /// Its priority, from 1; a smaller one comes first.
    pub(super) const fn priority(&self) -> u16 {
        self.priority
    }
}

/// Puts the program on the link, first in the chain, or in the place of ours that is there.
pub(super) fn attach(ifindex: u32, direction: Direction, program: BorrowedFd<'_>, name: &str) -> io::Result<Qdisc> {
    let mut requests = Requests::open()?;
    let qdisc = add_qdisc(&mut requests, ifindex)?;
    let chain = filters(&mut requests, ifindex, direction)?;
    let (priority, handle) = match chain.iter().find(|filter| filter.is_ours()) {
        Some(ours) => (ours.priority, ours.handle),
        None => free_place(&chain),
    };
    let mut message = filter_message(ifindex, direction, priority, handle)?;
    let options = [
        TcFilterBpfOption::ProgFd(program.as_raw_fd().unsigned_abs()),
        TcFilterBpfOption::ProgName(format!("{NAME_PREFIX}{name}")),
        TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
    ];
    message.attributes = vec![
        TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
        TcAttribute::Options(options.into_iter().map(TcOption::Bpf).collect()),
    ];
    requests.request(RouteNetlinkMessage::NewTrafficFilter(message), NLM_F_CREATE)?;
    Ok(qdisc)
}

/// The filters of the link, in the order in which they run.
pub(super) fn chain(ifindex: u32, direction: Direction) -> io::Result<Vec<Filter>> {
    filters(&mut Requests::open()?, ifindex, direction)
}

/// Whether a filter of ours is on the link.
pub(super) fn has_ours(ifindex: u32) -> io::Result<bool> {
    let mut requests = Requests::open()?;
    for direction in Direction::ALL {
        if filters(&mut requests, ifindex, direction)?.iter().any(Filter::is_ours) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes our filters off the link, and its clsact qdisc with the last filter if we made it. Returns the
/// names of those taken off.
pub(super) fn detach(ifindex: u32, qdisc: Qdisc) -> io::Result<Vec<String>> {
    let mut requests = Requests::open()?;
    let mut removed = Vec::new();
    let mut others = false;
    for direction in Direction::ALL {
        for filter in filters(&mut requests, ifindex, direction)? {
            if !filter.is_ours() {
                others = true;
                continue;
            }
            let mut message = filter_message(ifindex, direction, filter.priority, filter.handle)?;
            message.attributes = vec![TcAttribute::Kind(filter.kind)];
            requests.request(RouteNetlinkMessage::DelTrafficFilter(message), 0)?;
            removed.push(filter.name);
        }
    }
    if qdisc == Qdisc::Made && !removed.is_empty() && !others {
        let message = qdisc_message(ifindex)?;
        requests.request(RouteNetlinkMessage::DelQueueDiscipline(message), 0)?;
    }
    Ok(removed)
}

/// The first place that a new filter can have: a priority is of one kind only.
fn free_place(chain: &[Filter]) -> (u16, TcHandle) {
    let is_taken = |priority| {
        chain.iter().any(|filter| {
            filter.priority == priority && (filter.kind != TcFilterBpf::KIND || filter.handle == TcHandle::from(HANDLE))
        })
    };
    let priority = (PRIORITY..u16::MAX).find(|priority| !is_taken(*priority));
    (priority.unwrap_or(u16::MAX), TcHandle::from(HANDLE))
}

fn parent(direction: Direction) -> TcHandle {
    TcHandle {
        major: TcHandle::CLSACT.major,
        minor: match direction {
            Direction::Ingress => TcHandle::MIN_INGRESS,
            Direction::Egress => TcHandle::MIN_EGRESS,
        },
    }
}

fn message(ifindex: u32) -> io::Result<TcMessage> {
    Ok(TcMessage::with_index(i32::try_from(ifindex).map_err(io::Error::other)?))
}

fn qdisc_message(ifindex: u32) -> io::Result<TcMessage> {
    let mut message = message(ifindex)?;
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle {
        major: TcHandle::CLSACT.major,
        minor: 0,
    };
    message.attributes = vec![TcAttribute::Kind("clsact".to_owned())];
    Ok(message)
}

fn filter_message(ifindex: u32, direction: Direction, priority: u16, handle: TcHandle) -> io::Result<TcMessage> {
    let mut message = message(ifindex)?;
    message.header.parent = parent(direction);
    message.header.handle = handle;
    message.header.info = (u32::from(priority) << 16) | u32::from(ALL_PROTOCOLS.to_be());
    Ok(message)
}

/// What a dump says of one filter. The kernel also names each priority by itself, without options:
/// that is none.
fn filter(header: &TcHeader, attributes: &[TcAttribute]) -> Option<Filter> {
    let [high, low, ..] = header.info.to_be_bytes();
    let kind = attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(kind.clone()),
        _ => None,
    })?;
    let options = attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let name = options.iter().find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => Some(name.clone()),
        _ => None,
    });
    let program = options.iter().find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(*id),
        _ => None,
    });
    Some(Filter {
        program,
        name: name.unwrap_or_else(|| kind.clone()),
        kind,
        priority: u16::from_be_bytes([high, low]),
        handle: header.handle,
    })
}

fn add_qdisc(requests: &mut Requests, ifindex: u32) -> io::Result<Qdisc> {
    let message = RouteNetlinkMessage::NewQueueDiscipline(qdisc_message(ifindex)?);
    match requests.request(message, NLM_F_CREATE | NLM_F_EXCL) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Qdisc::Found),
        result => result.map(|()| Qdisc::Made),
    }
}

fn filters(requests: &mut Requests, ifindex: u32, direction: Direction) -> io::Result<Vec<Filter>> {
    let mut message = message(ifindex)?;
    message.header.parent = parent(direction);
    match requests.dump(&RouteNetlinkMessage::GetTrafficFilter(message)) {
        // No clsact qdisc, so no filters.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Vec::new()),
        result => Ok(result?.iter().filter_map(listed_filter).collect()),
    }
}

fn listed_filter(answer: &RouteNetlinkMessage) -> Option<Filter> {
    match answer {
        RouteNetlinkMessage::NewTrafficFilter(message) => filter(&message.header, &message.attributes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(kind: &str, priority: u16, handle: u32) -> Filter {
        Filter {
            name: "foreign".to_owned(),
            program: None,
            kind: kind.to_owned(),
            priority,
            handle: TcHandle::from(handle),
        }
    }

    #[test]
    fn a_new_filter_goes_first_where_it_can() {
        let at = |chain: &[Filter]| free_place(chain).0;
        assert_eq!(at(&[]), 1);
        assert_eq!(at(&[filter("bpf", 1, 1)]), 1, "bpf filters share a priority");
        assert_eq!(at(&[filter("bpf", 1, HANDLE)]), 2, "not over another's");
        assert_eq!(at(&[filter("flower", 1, 1), filter("bpf", 2, 1)]), 2);
    }

    #[test]
    fn ours_is_known_by_its_name() {
        let mut ours = filter("bpf", 1, HANDLE);
        assert!(!ours.is_ours());
        ours.name = format!("{NAME_PREFIX}from_pod");
        assert!(ours.is_ours());
    }
}
