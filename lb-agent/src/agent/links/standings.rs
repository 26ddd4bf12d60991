//! How many links there are of each kind, and how they stand.

use std::collections::BTreeMap;

use crate::kernel::links::Role;

/// How a link stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Standing {
    /// It is served.
    Served,
    /// It is, for now in the quickest way.
    ServedInHaste,
    /// It stays as an earlier agent left it, until there is a complete state.
    Waiting,
    /// Another service proxy serves it.
    LeftAlone,
    /// It is not served, and is tried again.
    Failed,
}

impl Standing {
    const ALL: [Self; 5] = [
        Self::Served,
        Self::ServedInHaste,
        Self::Waiting,
        Self::LeftAlone,
        Self::Failed,
    ];
}

/// How all of them stand.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standings {
    of_links: BTreeMap<u32, (Role, Standing)>,
    counts: BTreeMap<(Role, Standing), usize>,
    errors: u64,
}

impl Standings {
    /// How many there are of each kind.
    pub fn counts(&self) -> impl Iterator<Item = ((Role, Standing), usize)> {
        let kinds = [Role::Pod, Role::Uplink, Role::Tunnel]
            .into_iter()
            .flat_map(|role| Standing::ALL.map(|standing| (role, standing)));
        kinds.map(|kind| (kind, self.counts.get(&kind).copied().unwrap_or(0)))
    }

    /// How often one could not be served.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.errors
    }

    /// The link of this index stands like this.
    pub(super) fn set(&mut self, index: u32, role: Role, standing: Standing) {
        self.remove(index);
        self.errors += u64::from(standing == Standing::Failed);
        self.of_links.insert(index, (role, standing));
        *self.counts.entry((role, standing)).or_default() += 1;
    }

    /// There is none of this index, or it takes no part.
    pub(super) fn remove(&mut self, index: u32) {
        if let Some(kind) = self.of_links.remove(&index)
            && let Some(count) = self.counts.get_mut(&kind)
        {
            *count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(standings: &Standings) -> Vec<((Role, Standing), usize)> {
        standings.counts().filter(|(_, count)| *count > 0).collect()
    }

    #[test]
    fn a_link_stands_in_one_way_at_a_time() {
        let mut standings = Standings::default();
        standings.set(1, Role::Pod, Standing::Waiting);
        standings.set(2, Role::Pod, Standing::Served);
        standings.set(3, Role::Uplink, Standing::Served);
        standings.set(1, Role::Pod, Standing::Served);
        assert_eq!(
            some(&standings),
            [
                ((Role::Pod, Standing::Served), 2),
                ((Role::Uplink, Standing::Served), 1)
            ]
        );
        for _ in 0..2 {
            standings.set(2, Role::Pod, Standing::Failed);
            standings.remove(1);
        }
        assert_eq!(
            some(&standings),
            [
                ((Role::Pod, Standing::Failed), 1),
                ((Role::Uplink, Standing::Served), 1)
            ]
        );
        assert_eq!(standings.errors(), 2);
    }
}
