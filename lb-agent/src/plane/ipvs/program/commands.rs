//! Commands to IPVS, and what their answers come to.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{debug, warn};

use super::{
    super::rules::{Key, Mark},
    Programmed, foreign,
};
use crate::{
    desired::Protocol,
    kernel::{
        conntrack::{self, Datagrams},
        ipvs::{Command, Ipvs, ServiceKey},
    },
    plane::PlaneError,
};

impl Programmed {
    /// Sends commands and notes what came of them. Returns the first error of each virtual service.
    pub(super) fn send(&mut self, commands: &[Command]) -> BTreeMap<ServiceKey, PlaneError> {
        // A destination must not come to a virtual service that turns out to be somebody else's.
        let (first, then): (Vec<Command>, Vec<Command>) = commands
            .iter()
            .partition(|command| matches!(command, Command::AddService(..)));
        let mut failed = self.send_at_once(&first);
        let then: Vec<Command> = then
            .into_iter()
            .filter(|command| !failed.contains_key(command.service()))
            .collect();
        for (key, error) in self.send_at_once(&then) {
            failed.entry(key).or_insert(error);
        }
        failed
    }

    fn send_at_once(&mut self, commands: &[Command]) -> BTreeMap<ServiceKey, PlaneError> {
        let mut failed = BTreeMap::new();
        if commands.is_empty() {
            return failed;
        }
        let answers = match self.ipvs.send(commands) {
            Ok(answers) => answers,
            Err(error) => {
                // What was done is not known: the kernel is asked, by another socket.
                let text = error.to_string();
                match Ipvs::open() {
                    Ok(ipvs) => self.ipvs = ipvs,
                    Err(error) => warn!("IPVS cannot be asked: {error}"),
                }
                let keys: BTreeSet<ServiceKey> = commands.iter().map(|command| *command.service()).collect();
                self.ask(&keys);
                for key in keys {
                    failed.insert(key, PlaneError::kernel(key.to_string(), text.clone()));
                }
                return failed;
            }
        };
        for (command, answer) in commands.iter().zip(answers) {
            let key = *command.service();
            let error = match answer {
                Ok(()) => {
                    self.note(command);
                    continue;
                }
                Err(error) => error,
            };
            if failed.contains_key(&key) {
                continue;
            }
            let error = match command {
                Command::DeleteService(_) | Command::DeleteDestination(..) if error.is_gone() => {
                    self.note(command);
                    continue;
                }
                Command::AddService(..) if error.is_exists() => {
                    if let ServiceKey::Address { protocol, address } = key {
                        self.foreign.insert(Key { protocol, address });
                    }
                    foreign(key)
                }
                _ => PlaneError::kernel(format!("IPVS service {key}"), error),
            };
            failed.insert(key, error);
        }
        if !failed.is_empty() {
            self.ask(&failed.keys().copied().collect());
        }
        failed
    }

    pub(super) fn note(&mut self, command: &Command) {
        let key = *command.service();
        let protocol = self.ports.server(key).map_or(Protocol::Tcp, |server| server.protocol);
        self.servers.done(command, protocol);
        if let (Command::DeleteService(_), ServiceKey::Mark { family, mark }) = (command, key)
            && let Some(mark) = Mark::of(mark.get())
            && !self.servers.has_mark(family, mark)
        {
            self.ports.free_mark(mark);
        }
    }

    /// Takes from the kernel what it holds of these virtual services of ours.
    pub(super) fn ask(&mut self, keys: &BTreeSet<ServiceKey>) {
        // Of one that is not there the kernel tells no destination, and no error.
        let there: BTreeSet<ServiceKey> = match self.ipvs.services() {
            Ok(services) => services.into_iter().map(|(key, _)| key).collect(),
            Err(error) => {
                debug!("IPVS does not say what it holds: {error}");
                return;
            }
        };
        for key in keys {
            match there.contains(key).then(|| self.ipvs.destinations(key)).transpose() {
                Ok(found) => self.servers.correct(*key, found.as_deref()),
                Err(error) => debug!("IPVS does not say what it holds of {key}: {error}"),
            }
        }
    }
}

/// Of datagrams that were sent before the change, to nobody or to an endpoint that is gone, nothing is to stay: the
/// kernel would take the next ones for more of the same.
pub(super) fn forget_datagrams(commands: &[Command]) {
    let of_frontend = |key: &ServiceKey| match *key {
        ServiceKey::Address {
            protocol: Protocol::Udp,
            address,
        } => Some(Some(address)),
        ServiceKey::Address { .. } => None,
        ServiceKey::Mark { .. } => Some(None),
    };
    let gone = |command: &Command| match *command {
        Command::AddService(key, _) | Command::DeleteService(key) => of_frontend(&key)?.map(Datagrams::To),
        Command::DeleteDestination(key, backend) => Some(match of_frontend(&key)? {
            Some(frontend) => Datagrams::Between(frontend, backend),
            None => Datagrams::TranslatedTo(backend),
        }),
        Command::SetService(..) | Command::AddDestination(..) | Command::SetDestination(..) => None,
    };
    let gone: BTreeSet<Datagrams> = commands.iter().filter_map(gone).collect();
    if gone.is_empty() {
        return;
    }
    match conntrack::forget(&gone) {
        Ok(0) => {}
        Ok(connections) => debug!(connections, "forgotten: their datagrams go elsewhere now"),
        Err(error) => warn!("clients that go on sending datagrams may stay with endpoints that are gone: {error}"),
    }
}
