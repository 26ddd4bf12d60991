//! Pods whose links hang on one of the node's own: macvlan, ipvlan. Such a pod has no side on the node that
//! programs could be on; what reaches services for it is its sockets, or nothing. Told once for each link.
//!
//! The kernel tells of such a link if it is made on the node and then moved. Plugins make it in the pod's
//! namespace right away, of which the node sees that its own link is to take in frames for one Ethernet address
//! more, which none of its links has. (An ipvlan has the address of the link that it hangs on: one that is
//! made in the pod's namespace cannot be seen.)

use std::{collections::BTreeSet, io};

use futures::TryStreamExt as _;
use netlink_packet_route::{
    AddressFamily,
    link::{LinkAttribute, LinkMessage},
    neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage},
};
use tracing::warn;

use super::classify::Facts;
use crate::kernel::netlink::{Connection, within};

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// What has been told.
#[derive(Debug, Default)]
pub(super) struct Stacked(BTreeSet<u32>);

impl Stacked {
    /// Pods hang on this link.
    pub(super) fn found(&mut self, index: u32, name: &str) {
        if self.0.insert(index) {
            warn!(
                link = name,
                "pods hang on this link by macvlan or ipvlan, where no program sees what they send to services: \
                 their sockets are translated, with --socket-lb all, or nothing is"
            );
        }
    }

    /// The link is gone, and another may have its index.
    pub(super) fn gone(&mut self, index: u32) {
        self.0.remove(&index);
    }
}

/// The link that one hangs on which has just moved to another network namespace.
pub(super) fn moved_from(message: &LinkMessage, facts: &Facts) -> Option<u32> {
    let moves = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::NewNetnsId(_));
    let is_stacked = matches!(facts.kind.as_deref(), Some("macvlan" | "macvtap" | "ipvlan" | "ipvtap"));
    let has_moved = message.attributes.iter().any(moves);
    facts
        .peer
        .filter(|_| is_stacked && has_moved && !facts.is_peer_elsewhere)
}

/// The links that take in frames for an Ethernet address that is none of `known`.
pub(super) async fn with_strangers(connection: &Connection, known: &BTreeSet<Mac>) -> io::Result<BTreeSet<u32>> {
    let request = connection.handle.neighbours().get();
    let request = request.set_address_family(AddressFamily::Bridge);
    let entries: Vec<_> = within(request.execute().try_collect()).await?;
    Ok(entries.iter().filter_map(|entry| stranger(entry, known)).collect())
}

fn stranger(entry: &NeighbourMessage, known: &BTreeSet<Mac>) -> Option<u32> {
    // What a bridge, a tunnel or a switch has learnt is none of its own.
    let flags = entry.header.flags;
    let is_own = flags.contains(NeighbourFlags::Own) && !flags.contains(NeighbourFlags::ExtLearned);
    let of_a_bridge = |attribute: &NeighbourAttribute| {
        matches!(
            attribute,
            NeighbourAttribute::Controller(_) | NeighbourAttribute::Destination(_)
        )
    };
    if !is_own || entry.attributes.iter().any(of_a_bridge) {
        return None;
    }
    let mac = entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => Mac::try_from(bytes.as_slice()).ok(),
        _ => None,
    })?;
    let is_one_machines = mac[0] & 1 == 0;
    (is_one_machines && !known.contains(&mac)).then_some(entry.header.ifindex)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Mac = [2, 0, 0, 0, 0, 1];
    const THEIRS: Mac = [2, 0, 0, 0, 0, 2];

    fn entry(mac: Mac, flags: NeighbourFlags, more: &[NeighbourAttribute]) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = 7;
        message.header.flags = flags;
        message.attributes = vec![NeighbourAttribute::LinkLayerAddress(mac.to_vec())];
        message.attributes.extend(more.iter().cloned());
        message
    }

    #[test]
    fn an_address_that_no_link_of_the_node_has_is_a_strangers() {
        let known = BTreeSet::from([OURS]);
        let own = NeighbourFlags::Own;
        let found = |entry| stranger(&entry, &known);
        assert_eq!(found(entry(THEIRS, own, &[])), Some(7));
        assert_eq!(
            found(entry(OURS, own, &[])),
            None,
            "another link of the node, as of keepalived"
        );
        assert_eq!(
            found(entry([0x33, 0x33, 0, 0, 0, 1], own, &[])),
            None,
            "a group of machines"
        );
        assert_eq!(
            found(entry(THEIRS, NeighbourFlags::empty(), &[])),
            None,
            "learnt by a bridge"
        );
        assert_eq!(found(entry(THEIRS, own, &[NeighbourAttribute::Controller(3)])), None);
        assert_eq!(found(entry(THEIRS, own | NeighbourFlags::ExtLearned, &[])), None);
    }

    #[test]
    fn one_that_moves_away_names_the_link_that_it_hangs_on() {
        let facts = |kind: &str| Facts {
            index: 9,
            kind: Some(kind.to_owned()),
            peer: Some(7),
            ..Facts::default()
        };
        let message = |attributes: Vec<LinkAttribute>| {
            let mut message = LinkMessage::default();
            message.attributes = attributes;
            message
        };
        let moved = message(vec![LinkAttribute::NewNetnsId(1)]);
        for kind in ["macvlan", "macvtap", "ipvlan", "ipvtap"] {
            assert_eq!(moved_from(&moved, &facts(kind)), Some(7), "{kind}");
        }
        assert_eq!(moved_from(&moved, &facts("vlan")), None);
        assert_eq!(moved_from(&message(Vec::new()), &facts("macvlan")), None, "deleted");
    }
}
