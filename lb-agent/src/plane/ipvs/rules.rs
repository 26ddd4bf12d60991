//! The nft table of the plane: everything of a service that IPVS does not know.
//!
//! Who is served, refused or dropped is decided right before IPVS, at `input` for packets that come in and at
//! `output` for those of the node's own processes. What is behind that decision is in sets and maps, and a change of
//! services touches their elements only; the chains are the same for every node ([`chains`]). One transaction writes a
//! change, so that no packet sees half of it, and its text holds nothing of what stays.

mod chains;
mod elements;
mod listing;
mod sets;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tracing::warn;

use self::{chains::Settings, elements::Elements};
use crate::kernel::nft::program::{self, Detail};

pub use self::table::{Change, Key, Mark, Members, Row, Table, Verdict};
pub use crate::kernel::nft::NftError;

/// Family and name of the table.
pub const TABLE: &str = "inet lb-agent-ipvs";

/// The table and what it holds. Clones are the same one: services and links come from threads of their own.
#[derive(Clone, Debug)]
pub struct Rules(Arc<Mutex<Held>>);

/// What the kernel holds.
#[derive(Debug)]
struct Held {
    masquerade_mark: u32,
    /// Frontends in the table: until the first [`Rules::replace`] those of an earlier agent.
    adopted: BTreeSet<Key>,
    /// `None` before the first [`Rules::replace`].
    table: Option<Table>,
    pod_links: BTreeSet<u32>,
    /// The table without elements as `nft` lists it, to know it again.
    skeleton: Option<String>,
}

impl Rules {
    /// Asks the kernel whether it would take the table. Changes nothing.
    pub fn check(masquerade_mark: u32) -> Result<(), NftError> {
        let settings = Settings::new(masquerade_mark, &BTreeSet::new());
        program::check("the rules of services", &chains::table(settings))
    }

    /// Takes over the table of an earlier agent, as it is, if there is one. `masquerade_mark` is the bit of the
    /// packet's mark that asks to masquerade. A table that this version cannot read is named in the log and counts as
    /// empty; [`Rules::replace`] will take its place.
    pub fn adopt(masquerade_mark: u32) -> Result<Self, NftError> {
        let found = match listing::read() {
            Err(NftError::Foreign { table, what }) => {
                warn!("the nftables table {table} is of another version and is not taken over: {what}");
                None
            }
            found => found?,
        };
        let (table, pod_links) = found.unwrap_or_default();
        Ok(Self(Arc::new(Mutex::new(Held {
            masquerade_mark,
            adopted: table.frontends.into_keys().collect(),
            table: None,
            pod_links,
            skeleton: None,
        }))))
    }

    /// The frontends that the table holds.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<Key> {
        let held = self.held();
        match &held.table {
            Some(table) => table.frontends.keys().copied().collect(),
            None => held.adopted.clone(),
        }
    }

    /// Makes the table hold this and nothing else, but for the links of pods, which stay. Returns how many elements
    /// the table has then. Where it fails, everything is as before.
    pub fn replace(&self, table: Table) -> Result<usize, NftError> {
        self.held().replace(table)
    }

    /// Makes a change, all of it or none. Returns how many elements it wrote and removed. Does nothing before the
    /// first [`Rules::replace`].
    pub fn apply(&self, change: Change) -> Result<usize, NftError> {
        self.held().apply(change)
    }

    /// Changes the links of this node's pods, by their indexes. Before the first [`Rules::replace`] they are only kept
    /// in mind.
    pub fn change_pod_links(&self, change: &Members<u32>) -> Result<usize, NftError> {
        self.held().change_pod_links(change)
    }

    /// The same, where all of them are known.
    pub fn replace_pod_links(&self, links: &BTreeSet<u32>) -> Result<usize, NftError> {
        let mut held = self.held();
        let change = Members::between(&held.pod_links, links);
        held.change_pod_links(&change)
    }

    /// Puts the table back where somebody removed, flushed or changed it, and says what was done to it. What it costs
    /// in the kernel does not grow with services: it lists the chains and tries one element of each set that is not
    /// of networks. A single element that somebody removed is found with the next change of it.
    pub fn restore(&self) -> Result<Option<&'static str>, NftError> {
        self.held().restore()
    }

    /// Removes the table; says whether there was one.
    pub fn remove() -> Result<bool, NftError> {
        program::remove(TABLE)
    }

    /// What the kernel holds, also with no agent, and the links of pods. Source ranges, and networks, may come in other
    /// pieces than they were given in.
    pub fn read() -> Result<Option<(Table, BTreeSet<u32>)>, NftError> {
        listing::read()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing is changed in here before the kernel has said yes, so that a panic leaves it right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn settings(&self, table: &Table) -> Settings {
        Settings::new(self.masquerade_mark, &table.pod_cidrs)
    }

    fn replace(&mut self, table: Table) -> Result<usize, NftError> {
        let elements = Elements::of(&table, &self.pod_links);
        let mut text = chains::table(self.settings(&table));
        text.push_str(&elements.commands_from(&Elements::default()));
        program::run("the rules of services", &text)?;
        self.table = Some(table);
        self.adopted.clear();
        self.skeleton = list_skeleton()?;
        Ok(elements.len())
    }

    fn apply(&mut self, change: Change) -> Result<usize, NftError> {
        let Some(table) = &mut self.table else {
            return Ok(0);
        };
        let (before, after) = Elements::of_change(table, &change);
        let old = Settings::new(self.masquerade_mark, &table.pod_cidrs);
        let new = change.pod_cidrs.as_ref().unwrap_or(&table.pod_cidrs);
        let new = Settings::new(self.masquerade_mark, new);
        let chains = chains::commands_from(old, new);
        let text = format!("{}{chains}", after.commands_from(&before));
        if text.is_empty() {
            table.apply(change);
            return Ok(0);
        }
        match program::run("a change of services", &text) {
            Ok(()) => table.apply(change),
            Err(error @ NftError::Refused { .. }) => {
                // What is to be removed may be gone, what is to come may be there: somebody was at the table.
                warn!("the nftables table {TABLE} is not as it was left, and is written anew: {error}");
                let mut table = table.clone();
                table.apply(change);
                return self.replace(table);
            }
            Err(error) => return Err(error),
        }
        if !chains.is_empty() {
            self.skeleton = list_skeleton()?;
        }
        Ok(after.differences(&before))
    }

    fn change_pod_links(&mut self, change: &Members<u32>) -> Result<usize, NftError> {
        let (before, after) = Elements::of_pod_links(&self.pod_links, change);
        let text = after.commands_from(&before);
        if text.is_empty() {
            return Ok(0);
        }
        let Some(table) = &self.table else {
            change.apply(&mut self.pod_links);
            return Ok(0);
        };
        match program::run("a change of links", &text) {
            Ok(()) => {
                change.apply(&mut self.pod_links);
                Ok(after.differences(&before))
            }
            Err(error @ NftError::Refused { .. }) => {
                warn!("the nftables table {TABLE} is not as it was left, and is written anew: {error}");
                let table = table.clone();
                let links = self.pod_links.clone();
                change.apply(&mut self.pod_links);
                // Where the kernel says no again, it has what it had.
                self.replace(table).inspect_err(|_| self.pod_links = links)
            }
            Err(error) => Err(error),
        }
    }

    fn restore(&mut self) -> Result<Option<&'static str>, NftError> {
        let Some(table) = &self.table else {
            return Ok(None);
        };
        let found = list_skeleton()?;
        let damage = match program::damage(self.skeleton.as_deref(), found.as_deref()) {
            Some(damage) => Some(damage),
            None => {
                let probes = Elements::of(table, &self.pod_links).probes();
                match program::run("to find elements", &probes) {
                    Ok(()) => None,
                    Err(NftError::Refused { .. }) => Some("changed"),
                    Err(error) => return Err(error),
                }
            }
        };
        if let Some(damage) = damage {
            let table = table.clone();
            self.replace(table)?;
            warn!("somebody {damage} the nftables table {TABLE}, without which services are not served: put back");
        }
        Ok(damage)
    }
}

fn list_skeleton() -> Result<Option<String>, NftError> {
    program::list(TABLE, Detail::WithoutElements)
}
