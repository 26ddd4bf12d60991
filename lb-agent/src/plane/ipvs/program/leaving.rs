//! What goes with its last connection, and what the kernel has lost.

use std::{collections::BTreeSet, net::IpAddr};

use tracing::warn;

use super::{
    super::{
        ports::Touched,
        rules::{Change, Key},
    },
    Failures, Programmed,
};
use crate::kernel::ipvs::ServiceKey;

/// How many virtual services are asked for their connections at one time. The others have their turn the
/// next time.
const ASKED_AT_ONCE: usize = 256;

impl Programmed {
    /// Lets go of destinations and virtual services without connections. Returns how many writes it took.
    pub(in crate::plane::ipvs) fn drain(&mut self, keys: &[ServiceKey]) -> usize {
        let mut commands = Vec::new();
        for key in keys {
            match self.ipvs.destinations(key) {
                Ok(counted) => commands.extend(self.servers.drained(*key, &counted)),
                Err(error) => warn!("IPVS does not tell the connections of {key}: {error}"),
            }
        }
        for (key, error) in self.send(&commands) {
            warn!("{key} is not rid of what nobody uses: {error}");
        }
        commands.len()
    }

    /// One round of questions about those that drain, and what follows from the answers.
    pub(in crate::plane::ipvs) fn tick(&mut self) -> usize {
        let after = |key: &ServiceKey| self.asked.is_none_or(|asked| *key > asked);
        let mut keys: Vec<ServiceKey> = self.servers.draining().filter(after).take(ASKED_AT_ONCE).collect();
        if keys.len() < ASKED_AT_ONCE {
            let others = self.servers.draining().take(ASKED_AT_ONCE - keys.len());
            let others: Vec<ServiceKey> = others.filter(|key| !keys.contains(key)).collect();
            keys.extend(others);
        }
        self.asked = keys.last().copied();
        self.drain(&keys) + self.sweep()
    }

    /// Virtual services and addresses that are wanted and that the kernel has lost: noted as such.
    pub(in crate::plane::ipvs) fn missing(&mut self) -> anyhow::Result<Touched> {
        let held: BTreeSet<ServiceKey> = self.ipvs.services()?.into_iter().map(|(key, _)| key).collect();
        let servers: BTreeSet<ServiceKey> = self.servers.keys().filter(|key| !held.contains(key)).collect();
        for key in &servers {
            self.servers.correct(*key, None);
        }
        let on_link = self.link.addresses()?;
        let addresses: BTreeSet<IpAddr> = self.addresses.difference(&on_link).copied().collect();
        self.addresses = on_link;
        Ok(Touched {
            servers,
            addresses,
            ..Touched::default()
        })
    }

    /// Takes away rows and addresses that nobody wants or uses.
    pub(in crate::plane::ipvs) fn sweep(&mut self) -> usize {
        let gone: BTreeSet<Key> = self.leaving.iter().copied().filter(|key| !self.is_held(*key)).collect();
        let staying: BTreeSet<IpAddr> = self.leaving.difference(&gone).map(|key| key.address.ip()).collect();
        let unused = gone
            .iter()
            .map(|key| key.address.ip())
            .chain(self.stale.iter().copied());
        let unused = unused.filter(|ip| !self.ports.wants_address(*ip) && !staying.contains(ip));
        let unused: BTreeSet<IpAddr> = unused.filter(|ip| self.addresses.contains(ip)).collect();

        let mut failures = Failures::default();
        let mut writes = self.change_addresses(&BTreeSet::new(), &unused, &mut failures);
        let mut edit = Change::default();
        edit.frontends.extend(gone.iter().map(|key| (*key, None)));
        edit.own_addresses.removed.clone_from(&unused);
        edit.local_endpoints.removed = std::mem::take(&mut self.lost_endpoints);
        edit.local_endpoints.removed.retain(|ip| !self.ports.has_endpoint(*ip));
        match self.rules.apply(edit) {
            Ok(applied) => {
                writes += applied;
                self.leaving.retain(|key| !gone.contains(key));
                // What is wanted goes with its last row, as any other.
                self.stale
                    .retain(|ip| self.addresses.contains(ip) && !self.ports.wants_address(*ip));
            }
            Err(error) => warn!("rows of the rules that nobody wants stay for now: {error}"),
        }
        if let Some(error) = failures.addresses {
            warn!("addresses that nobody wants stay for now: {error}");
        }
        writes
    }
}
