//! Attaching to links below kernel 6.6: one `bpf` filter a direction on the clsact qdisc.
//!
//! A filter is not a BPF link and has no pin: it stays on its link until it is deleted. It is known
//! as ours by its name, and sits at one place in the chain, so that putting it there again replaces
//! the program and never adds a second one. Only where programs drain (see [`drain`](super::drain)) there is one for
//! them too, of another [side](lb_common::stage::SIDE), which is before the one that serves.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption},
};
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use lb_common::stage::SIDES;

use super::sys::Direction;
use crate::kernel::netlink::Requests;

/// Before the name of the program in the name of each of our filters.
const NAME_PREFIX: &str = "lb-agent/";
/// The first place in the chain.
const PRIORITY: u16 = 1;
/// Our place among the bpf filters of one priority, of side 0: "lb". The others follow.
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

    fn is_of(&self, side: u32) -> bool {
        self.is_ours() && self.handle == handle(side)
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

/// Which of our filters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    /// Each.
    All,
    /// Of this side, the one that serves.
    Serving(u32),
    /// All others than that.
    Draining(u32),
    /// Of these, those of the same side: another comes between them and the one that serves.
    Former(u32),
}

/// The place in a chain of our filter that serves, if that is of this side: the last of ours.
pub(super) fn serving(chain: &[Filter], side: u32) -> Option<usize> {
    let last = chain.iter().rposition(Filter::is_ours)?;
    chain[last].is_of(side).then_some(last)
}

/// Puts the program on the link, first in the chain or behind those that drain, or in the place of ours that is there.
pub(super) fn attach(
    ifindex: u32,
    direction: Direction,
    program: BorrowedFd<'_>,
    name: &str,
    side: u32,
) -> io::Result<Qdisc> {
    let mut requests = Requests::open()?;
    let qdisc = add_qdisc(&mut requests, ifindex)?;
    let chain = filters(&mut requests, ifindex, direction)?;
    let (priority, handle) = match serving(&chain, side) {
        Some(place) => (chain[place].priority, chain[place].handle),
        None => (free_priority(&chain, side), handle(side)),
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

/// Whether filters of ours that drain are on the link, one that serves there being of this side.
pub(super) fn has_draining(ifindex: u32, direction: Direction, side: u32) -> io::Result<bool> {
    let chain = chain(ifindex, direction)?;
    Ok((0..chain.len()).any(|place| is_one(&chain, place, Which::Draining(side))))
}

/// The side of a filter of ours that is on the link, of the one that serves if there are more.
pub(super) fn side_of_ours(ifindex: u32) -> io::Result<Option<u32>> {
    let mut requests = Requests::open()?;
    for direction in Direction::ALL {
        let chain = filters(&mut requests, ifindex, direction)?;
        if let Some(ours) = chain.iter().rfind(|filter| filter.is_ours()) {
            return Ok((0..SIDES).find(|side| ours.is_of(*side)).or(Some(0)));
        }
    }
    Ok(None)
}

fn is_one(chain: &[Filter], place: usize, which: Which) -> bool {
    chain[place].is_ours()
        && match which {
            Which::All => true,
            Which::Serving(side) => serving(chain, side) == Some(place),
            Which::Draining(side) => serving(chain, side) != Some(place),
            Which::Former(side) => chain[place].is_of(side) && serving(chain, side) != Some(place),
        }
}

/// Takes filters of ours off the link, and its clsact qdisc with the last filter if we made it. Returns the
/// names of those taken off.
pub(super) fn detach(ifindex: u32, qdisc: Qdisc, which: Which) -> io::Result<Vec<String>> {
    let mut requests = Requests::open()?;
    let mut removed = Vec::new();
    let mut others = false;
    for direction in Direction::ALL {
        let chain = filters(&mut requests, ifindex, direction)?;
        let are_ones: Vec<bool> = (0..chain.len()).map(|place| is_one(&chain, place, which)).collect();
        for (filter, is_one) in chain.into_iter().zip(are_ones) {
            if !is_one {
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

/// The first priority that a new filter can have, behind those of ours: each is of one kind only.
fn free_priority(chain: &[Filter], side: u32) -> u16 {
    let last_of_ours = chain
        .iter()
        .filter(|filter| filter.is_ours())
        .map(|filter| filter.priority);
    let first = last_of_ours.max().map_or(PRIORITY, |last| last.saturating_add(1));
    let is_taken = |priority| {
        chain.iter().any(|filter| {
            filter.priority == priority && (filter.kind != TcFilterBpf::KIND || filter.handle == handle(side))
        })
    };
    let priority = (first..u16::MAX).find(|priority| !is_taken(*priority));
    priority.unwrap_or(u16::MAX)
}

fn handle(side: u32) -> TcHandle {
    TcHandle::from(HANDLE + side % SIDES)
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
        let at = |chain: &[Filter]| free_priority(chain, 0);
        assert_eq!(at(&[]), 1);
        assert_eq!(at(&[filter("bpf", 1, 1)]), 1, "bpf filters share a priority");
        assert_eq!(at(&[filter("bpf", 1, HANDLE)]), 2, "not over another's");
        assert_eq!(at(&[filter("flower", 1, 1), filter("bpf", 2, 1)]), 2);
    }

    fn ours(priority: u16, side: u32) -> Filter {
        Filter {
            name: format!("{NAME_PREFIX}from_pod"),
            ..filter("bpf", priority, HANDLE + side)
        }
    }

    #[test]
    fn a_filter_that_serves_is_behind_those_that_drain() {
        let draining = [ours(1, 0), filter("flower", 2, 1)];
        assert_eq!(serving(&draining, 1), None);
        assert_eq!(free_priority(&draining, 1), 3);

        let both = [ours(1, 0), filter("flower", 2, 1), ours(3, 1)];
        assert_eq!(serving(&both, 1), Some(2));
        let are = |which| [0, 1, 2].map(|place| is_one(&both, place, which));
        assert_eq!(are(Which::All), [true, false, true]);
        assert_eq!(are(Which::Serving(1)), [false, false, true]);
        assert_eq!(are(Which::Draining(1)), [true, false, false]);
    }

    #[test]
    fn a_filter_on_the_same_maps_as_ours_drains_where_another_is_between() {
        let chain = [ours(1, 0), ours(2, 1)];
        assert_eq!(serving(&chain, 0), None);
        assert_eq!(free_priority(&chain, 0), 3);
        let chain = [ours(1, 0), ours(2, 1), ours(3, 0)];
        assert_eq!(serving(&chain, 0), Some(2));
        assert!(is_one(&chain, 0, Which::Draining(0)));
    }

    #[test]
    fn ours_is_known_by_its_name() {
        let mut ours = filter("bpf", 1, HANDLE);
        assert!(!ours.is_ours());
        ours.name = format!("{NAME_PREFIX}from_pod");
        assert!(ours.is_ours());
    }
}
