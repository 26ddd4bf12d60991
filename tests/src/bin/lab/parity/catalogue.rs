//! Which Services there are: every state of endpoints with every pair of policies, and one for each other rule.

mod endpoints;
mod frontends;

use super::actors::{Backend, Source};
use super::probe::{Entry, Frontend};
use super::service::{Endpoint, Service};

/// The number of the Service whose load balancer's address the node has itself.
pub(crate) const OWNED: u8 = 250;

/// The number of the Service that shows how far the proxies have come.
pub(crate) const CANARY: u8 = 240;

/// The zone of the first node, and of what is on it.
pub(crate) const ZONE_HERE: &str = "zone-here";
/// The zone of the second.
pub(crate) const ZONE_THERE: &str = "zone-there";

/// Who has which number. A Service object is its number, so between the two every object becomes another Service, but
/// for its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Generation {
    /// In the order in which they are written down here.
    First,
    /// In the same order from elsewhere on.
    Second,
}

impl Generation {
    /// What comes after it.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// Who answers for the Service that is written last.
    pub(crate) fn canary(self) -> Backend {
        match self {
            Self::First => Backend::HereBridge,
            Self::Second => Backend::ThereBridge,
        }
    }
}

/// How far numbers move between generations. No Service is like one that is so many further on.
const SHIFT: usize = 37;

/// All of them.
pub(crate) fn all(generation: Generation) -> Vec<Entry> {
    let count = build(|at| at + 1).len();
    match generation {
        Generation::First => build(|at| at + 1),
        Generation::Second => build(move |at| (at + SHIFT) % count + 1),
    }
}

fn build(number: impl Fn(usize) -> usize + 'static) -> Vec<Entry> {
    let mut catalogue = Catalogue {
        entries: Vec::new(),
        number: Box::new(number),
    };
    catalogue.states_and_policies();
    catalogue.hairpin();
    catalogue.ports();
    catalogue.slices();
    catalogue.topology();
    catalogue.affinity();
    catalogue.source_ranges();
    catalogue.ingress();
    catalogue.node_addresses();
    catalogue.other_kinds();
    catalogue.families();
    catalogue.entries
}

struct Catalogue {
    entries: Vec<Entry>,
    /// The number of the Service at this place.
    number: Box<dyn Fn(usize) -> usize>,
}

impl Catalogue {
    /// The number of the Service that comes next. Small enough for a catalogue of two hundred.
    fn number(&self) -> u8 {
        u8::try_from((self.number)(self.entries.len())).unwrap_or(u8::MAX)
    }

    /// Adds a Service with the usual frontends, dialled by everybody.
    fn add(
        &mut self,
        name: impl Into<String>,
        endpoints: Vec<Endpoint>,
        change: impl FnOnce(Service) -> Service,
    ) -> &mut Entry {
        let service = change(Service::new(name, self.number(), endpoints));
        self.entries.push(Entry {
            service,
            frontends: Frontend::USUAL.to_vec(),
            sources: Source::ALL.to_vec(),
        });
        self.entries.last_mut().expect("one has just been added")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::parity::probe::Probe;

    #[test]
    fn names_and_numbers_are_whose_they_are() {
        for generation in [Generation::First, Generation::Second] {
            let all = all(generation);
            let names: BTreeSet<_> = all.iter().map(|entry| &entry.service.name).collect();
            let numbers: BTreeSet<_> = all.iter().map(|entry| entry.service.number).collect();
            assert_eq!((names.len(), numbers.len()), (all.len(), all.len()));
            assert!(!numbers.contains(&OWNED) && !numbers.contains(&CANARY));
        }
    }

    #[test]
    fn every_object_becomes_another_service() {
        let [first, second] = [Generation::First, Generation::Second].map(all);
        for old in &first {
            let new = second
                .iter()
                .find(|new| new.service.number == old.service.number)
                .unwrap();
            let renamed = Service {
                name: old.service.name.clone(),
                ..new.service.clone()
            };
            assert_ne!(renamed, old.service);
        }
    }

    #[test]
    fn the_matrix_is_as_big_as_promised() {
        assert!(all(Generation::First).iter().flat_map(Probe::of).count() >= super::super::FEWEST);
    }
}
