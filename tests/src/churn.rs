//! Links of pods that come and go fast.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::interrupt;
use crate::netlink::{End, Link};
use crate::netns::Netns;
use crate::network::{Node, plan};

/// How often links come and go: those of one such time together, as when namespaces are cleaned up.
const BEAT: Duration = Duration::from_millis(50);

/// How many links, how fast, and for how long each.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// How many come each second.
    pub a_second: u32,
    /// How long each stays.
    pub lifetime: Duration,
}

/// Links whose other ends are in a namespace of their own. Dropping it removes those that are left.
#[derive(Debug)]
pub struct Churn {
    pods: Netns,
    /// When each group of links came.
    groups: BTreeMap<u32, Instant>,
    next: u32,
}

impl Churn {
    /// None yet.
    pub fn new() -> Result<Self> {
        Ok(Self {
            pods: Netns::new("churn")?,
            groups: BTreeMap::new(),
            next: 1,
        })
    }

    /// How many have been made so far.
    #[must_use]
    pub fn made(&self) -> u32 {
        self.next - 1
    }

    /// Has links come and go on a node for so long, and calls `told` with each that has come. Those that came last
    /// stay. If links cannot come as fast as that, fewer come.
    pub fn run(&mut self, node: &Node, rate: Rate, time: Duration, mut told: impl FnMut(u32)) -> Result<()> {
        let begun = Instant::now();
        let first = self.next;
        while begun.elapsed() < time {
            let beat = Instant::now();
            let due = u128::from(rate.a_second) * begun.elapsed().as_millis() / 1000;
            let behind = u32::try_from(due)?.saturating_sub(self.next - first);
            // Whatever could not be done in time is not made up for.
            let most = rate.a_second.div_ceil(1000 / u32::try_from(BEAT.as_millis())?) * 2;
            let group = self.next;
            for _ in 0..behind.min(most) {
                self.add(node, group)?;
                told(self.next - 1);
            }
            if group != self.next {
                self.groups.insert(group, Instant::now());
            }
            let old: Vec<u32> = self
                .groups
                .iter()
                .filter(|(_, came)| came.elapsed() >= rate.lifetime)
                .map(|(group, _)| *group)
                .collect();
            for group in old {
                node.netns().netlink()?.remove_group(group)?;
                self.groups.remove(&group);
            }
            interrupt::check()?;
            std::thread::sleep(BEAT.saturating_sub(beat.elapsed()));
        }
        Ok(())
    }

    fn add(&mut self, node: &Node, group: u32) -> Result<()> {
        let name = name(self.next);
        let peer = End {
            netns: &self.pods,
            name: &name,
        };
        // Plugins attach pods in one way or the other.
        let bridge = self.next.is_multiple_of(2).then_some(node.bridge().index);
        node.netns()
            .netlink()?
            .add_veth_in_group(&name, peer, plan::POD_MTU, group, bridge)?;
        self.next += 1;
        Ok(())
    }

    /// Those that are there now.
    pub fn living(&self, node: &Node) -> Result<Vec<Link>> {
        let mut links = node.netns().netlink()?.links()?;
        links.retain(|link| link.name.starts_with(PREFIX));
        Ok(links)
    }
}

/// How their names begin; a number follows.
pub const PREFIX: &str = "churn";

/// The name of the link with this number, on the node.
#[must_use]
pub fn name(number: u32) -> String {
    format!("{PREFIX}{number}")
}
