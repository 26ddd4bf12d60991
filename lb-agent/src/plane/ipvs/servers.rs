//! The virtual services that IPVS holds of ours, and what it takes to make them as wanted.
//!
//! A destination that is wanted no more gets no new connection (weight 0) and goes once it has none left; of
//! UDP, which has none, it goes at once. So does a virtual service. [`Servers::drained`] is told what the kernel
//! counts and says what may go.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    num::NonZeroU32,
};

use super::{rules::Mark, wanted::Server};
use crate::{
    desired::{Family, Protocol},
    kernel::ipvs::{Command, Destination, DestinationState, ServiceConfig, ServiceKey},
};

/// Of a destination that takes new connections.
const SERVING: u32 = 1;
/// Of one that takes none.
const DRAINING: u32 = 0;

/// A virtual service as the kernel holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Held {
    config: ServiceConfig,
    /// Weights.
    destinations: BTreeMap<SocketAddr, u32>,
    protocol: Protocol,
    /// Nobody wants it: it goes with its last connection.
    is_leaving: bool,
}

/// All of ours.
#[derive(Debug, Default)]
pub(super) struct Servers {
    held: HashMap<ServiceKey, Held>,
    /// Those that leave or have a destination that drains.
    draining: BTreeSet<ServiceKey>,
}

impl Servers {
    /// Notes what an earlier agent left. What it was draining goes on draining.
    pub(super) fn adopt(
        &mut self,
        key: ServiceKey,
        config: ServiceConfig,
        protocol: Protocol,
        destinations: &[DestinationState],
    ) {
        let weights = destinations
            .iter()
            .map(|state| (state.destination.address, state.destination.weight));
        let held = Held {
            config,
            destinations: weights.collect(),
            protocol,
            is_leaving: false,
        };
        if held.destinations.values().any(|weight| *weight == DRAINING) {
            self.draining.insert(key);
        }
        self.held.insert(key, held);
    }

    /// Those that the kernel holds.
    pub(super) fn keys(&self) -> impl Iterator<Item = ServiceKey> + '_ {
        self.held.keys().copied()
    }

    /// Whether the kernel holds this one, leaving or not.
    pub(super) fn contains(&self, key: ServiceKey) -> bool {
        self.held.contains_key(&key)
    }

    /// Whether the kernel holds one by this mark, whichever of the three of its number.
    pub(super) fn has_mark(&self, family: Family, mark: Mark) -> bool {
        let all = [mark.plain(), mark.masquerade(), mark.masquerade_always()];
        let mut marks = all.into_iter().filter_map(NonZeroU32::new);
        marks.any(|mark| self.contains(ServiceKey::Mark { family, mark }))
    }

    /// Those whose connections are to be counted.
    pub(super) fn draining(&self) -> impl Iterator<Item = ServiceKey> + '_ {
        self.draining.iter().copied()
    }

    /// What makes one as wanted. Nothing is noted: [`Self::done`] is told what the kernel has done.
    pub(super) fn commands(&self, key: ServiceKey, wanted: Option<&Server>) -> Vec<Command> {
        match (self.held.get(&key), wanted) {
            (None, None) => Vec::new(),
            (None, Some(server)) => {
                let destinations = server.destinations.iter();
                let add = destinations.map(|address| Command::AddDestination(key, serving(*address)));
                std::iter::once(Command::AddService(key, server.config))
                    .chain(add)
                    .collect()
            }
            (Some(held), Some(server)) => {
                let mut commands = Vec::new();
                if held.config != server.config {
                    commands.push(Command::SetService(key, server.config));
                }
                // First those that come: there is always one to choose.
                for address in &server.destinations {
                    match held.destinations.get(address) {
                        None => commands.push(Command::AddDestination(key, serving(*address))),
                        Some(&SERVING) => {}
                        Some(_) => commands.push(Command::SetDestination(key, serving(*address))),
                    }
                }
                commands.extend(held.let_go(key, |address| !server.destinations.contains(&address)));
                commands
            }
            (Some(held), None) if held.protocol == Protocol::Udp => vec![Command::DeleteService(key)],
            (Some(held), None) => held.let_go(key, |_| true),
        }
    }

    /// Notes that one is wanted, or no more; to be said before its commands are sent.
    pub(super) fn want(&mut self, key: ServiceKey, is_wanted: bool) {
        if let Some(held) = self.held.get_mut(&key) {
            held.is_leaving = !is_wanted;
            if held.is_leaving {
                self.draining.insert(key);
            }
        }
    }

    /// Notes what the kernel has done.
    pub(super) fn done(&mut self, command: &Command, protocol: Protocol) {
        match *command {
            Command::AddService(key, config) => {
                let held = Held {
                    config,
                    destinations: BTreeMap::new(),
                    protocol,
                    is_leaving: false,
                };
                self.held.insert(key, held);
            }
            Command::SetService(key, config) => {
                if let Some(held) = self.held.get_mut(&key) {
                    held.config = config;
                }
            }
            Command::DeleteService(key) => {
                self.held.remove(&key);
                self.draining.remove(&key);
            }
            Command::AddDestination(key, destination) | Command::SetDestination(key, destination) => {
                if let Some(held) = self.held.get_mut(&key) {
                    held.destinations.insert(destination.address, destination.weight);
                    if destination.weight == DRAINING {
                        self.draining.insert(key);
                    }
                }
            }
            Command::DeleteDestination(key, address) => {
                if let Some(held) = self.held.get_mut(&key) {
                    held.destinations.remove(&address);
                }
            }
        }
    }

    /// What may go of a service that drains, by what the kernel counts.
    pub(super) fn drained(&mut self, key: ServiceKey, counted: &[DestinationState]) -> Vec<Command> {
        let Some(held) = self.held.get(&key) else {
            self.draining.remove(&key);
            return Vec::new();
        };
        // Somebody else may have set a weight.
        let drains = |state: &&DestinationState| {
            let Destination { address, weight } = state.destination;
            weight == DRAINING && held.destinations.get(&address) == Some(&DRAINING)
        };
        let is_done = |state: &&DestinationState| state.active == 0 && state.inactive == 0;
        let draining = counted.iter().filter(drains).count();
        let done = counted.iter().filter(drains).filter(is_done);
        let gone: Vec<SocketAddr> = done.map(|state| state.destination.address).collect();
        if held.is_leaving && gone.len() == counted.len() {
            return vec![Command::DeleteService(key)];
        }
        if gone.len() == draining && !held.is_leaving {
            self.draining.remove(&key);
        }
        gone.into_iter()
            .map(|address| Command::DeleteDestination(key, address))
            .collect()
    }

    /// Commands for one have failed, or it is not as was thought: what the kernel holds of it now.
    pub(super) fn correct(&mut self, key: ServiceKey, found: Option<&[DestinationState]>) {
        match (found, self.held.get_mut(&key)) {
            (Some(found), Some(held)) => {
                let weights = found
                    .iter()
                    .map(|state| (state.destination.address, state.destination.weight));
                held.destinations = weights.collect();
            }
            (None, _) => {
                self.held.remove(&key);
                self.draining.remove(&key);
            }
            (Some(_), None) => {}
        }
    }
}

impl Held {
    /// What takes new connections from those destinations, or the destinations away.
    fn let_go(&self, key: ServiceKey, is_unwanted: impl Fn(SocketAddr) -> bool) -> Vec<Command> {
        let unwanted = self.destinations.iter().filter(|(address, _)| is_unwanted(**address));
        unwanted
            .filter_map(|(address, weight)| match (self.protocol, *weight) {
                (Protocol::Udp, _) => Some(Command::DeleteDestination(key, *address)),
                (Protocol::Tcp | Protocol::Sctp, DRAINING) => None,
                (Protocol::Tcp | Protocol::Sctp, _) => Some(Command::SetDestination(
                    key,
                    Destination {
                        address: *address,
                        weight: DRAINING,
                    },
                )),
            })
            .collect()
    }
}

const fn serving(address: SocketAddr) -> Destination {
    Destination {
        address,
        weight: SERVING,
    }
}
