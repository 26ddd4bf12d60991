//! Which service port holds a frontend that more than one claims.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use crate::desired::{Frontend, ServicePortName};

/// A frontend that a service port claims while another one holds it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Conflict {
    /// What both claim.
    pub frontend: Frontend,
    /// Who serves it.
    pub holder: ServicePortName,
    /// Who does not, until the holder lets go.
    pub loser: ServicePortName,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            frontend,
            holder,
            loser,
        } = self;
        write!(f, "{frontend} of {loser} is not served: {holder} holds it")
    }
}

/// Each frontend's holder and those who wait for it.
///
/// The rule: who holds a frontend keeps it for as long as it claims it. A frontend without holder
/// goes to the claimant with the smallest name. Releases and claims of one batch are settled
/// together, so that their order does not matter.
#[derive(Debug, Default)]
pub(super) struct Claims {
    frontends: HashMap<Frontend, Claimants>,
    unsettled: BTreeSet<Frontend>,
}

#[derive(Debug, Default)]
struct Claimants {
    holder: Option<ServicePortName>,
    waiting: BTreeSet<ServicePortName>,
}

impl Claims {
    /// A service port begins to claim a frontend.
    pub(super) fn claim(&mut self, frontend: Frontend, name: &ServicePortName) {
        let claimants = self.frontends.entry(frontend).or_default();
        claimants.waiting.insert(name.clone());
        if claimants.holder.is_none() {
            self.unsettled.insert(frontend);
        }
    }

    /// A service port does not claim a frontend any more.
    pub(super) fn release(&mut self, frontend: Frontend, name: &ServicePortName) {
        let Some(claimants) = self.frontends.get_mut(&frontend) else {
            return;
        };
        if claimants.holder.as_ref() == Some(name) {
            claimants.holder = None;
            self.unsettled.insert(frontend);
        } else {
            claimants.waiting.remove(name);
        }
    }

    /// Gives each frontend without holder to its next one; says who they are.
    pub(super) fn settle(&mut self) -> BTreeSet<ServicePortName> {
        let mut winners = BTreeSet::new();
        for frontend in std::mem::take(&mut self.unsettled) {
            let Some(claimants) = self.frontends.get_mut(&frontend) else {
                continue;
            };
            match claimants.waiting.pop_first() {
                Some(name) => {
                    winners.insert(name.clone());
                    claimants.holder = Some(name);
                }
                None => {
                    self.frontends.remove(&frontend);
                }
            }
        }
        winners
    }

    /// Who holds a frontend.
    pub(super) fn holder(&self, frontend: &Frontend) -> Option<&ServicePortName> {
        self.frontends.get(frontend)?.holder.as_ref()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.unsettled.is_empty()
    }
}
