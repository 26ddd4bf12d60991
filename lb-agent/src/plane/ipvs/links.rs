//! The plane's side on the links: it has nothing to do there, but it tells the rules which packets come from
//! pods of this node.

use std::collections::{BTreeMap, BTreeSet};

use super::rules::Rules;
use crate::{
    kernel::links::{Link, LinkEvent, Role},
    plane::{LinkPlane, LinkState, Pace, PlaneError},
};

/// Which links' packets are of pods.
pub struct IpvsLinks {
    rules: Rules,
    links: PodLinks,
}

/// By index of a pod's link, the index of the link by which its packets come to IP: the bridge's, if it is a
/// port of one.
#[derive(Debug, Default)]
struct PodLinks(BTreeMap<u32, u32>);

impl IpvsLinks {
    pub(super) const fn new(rules: Rules) -> Self {
        Self {
            rules,
            links: PodLinks(BTreeMap::new()),
        }
    }
}

impl PodLinks {
    fn note(&mut self, event: &LinkEvent) {
        match event {
            LinkEvent::Is(link) if link.role == Role::Pod => match entrance(link) {
                Some(entrance) => self.0.insert(link.index, entrance),
                None => self.0.remove(&link.index),
            },
            LinkEvent::Is(_) | LinkEvent::Gone { .. } => self.0.remove(&event.index()),
        };
    }

    fn entrances(&self) -> BTreeSet<u32> {
        self.0.values().copied().collect()
    }
}

/// The link by which packets of a pod's link come to IP. None if those of others come by it as well: by a
/// bridge that has an uplink.
fn entrance(link: &Link) -> Option<u32> {
    match link.bridge {
        None => Some(link.index),
        Some(bridge) => bridge.has_only_pods.then_some(bridge.index),
    }
}

impl LinkPlane for IpvsLinks {
    fn link(&mut self, event: &LinkEvent, _pace: Pace) -> Result<LinkState, PlaneError> {
        self.links.note(event);
        self.rules
            .replace_pod_links(&self.links.entrances())
            .map_err(|error| PlaneError::kernel("the links of pods in the rules beside IPVS", error))?;
        Ok(match event {
            LinkEvent::Is(_) => LinkState::Served,
            LinkEvent::Gone { .. } => LinkState::Gone,
        })
    }

    /// None ever waits.
    fn stop_waiting(&mut self) {}

    fn minds_bridges(&self) -> bool {
        true
    }

    /// Nobody else does anything on links that would matter here.
    fn look(&mut self, _link: &Link) -> bool {
        false
    }
}
