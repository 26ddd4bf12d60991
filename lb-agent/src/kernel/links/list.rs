//! All links at once, for who looks and goes.

use std::io;

use netlink_packet_route::{RouteNetlinkMessage, link::LinkMessage};

use super::{Facts, link_facts};
use crate::kernel::netlink::Requests;

/// What the kernel says of each link of this network namespace.
///
/// # Errors
/// The kernel does not tell.
pub fn list() -> io::Result<Vec<Facts>> {
    let answers = Requests::open()?.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let facts = answers.iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(message) => link_facts(message),
        _ => None,
    });
    Ok(facts.collect())
}
