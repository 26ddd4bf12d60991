//! A service port and its endpoints, and their rows in the maps.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use lb_common::{
    Address, BackendValue, Port, PrefixKey, Range, ServiceKey, ServiceValue, Verdict,
    backend::{DRAINING, FREE, IN_CLUSTER_SET, IN_LOCAL_SET, LOCAL, SERVING},
    maps::SOURCE_RANGES,
    prefix::INSIDE,
    service::{MASQUERADE_ALL, RESTRICTED},
};

use super::{Family, MOST_BACKENDS, NODE_PORT, network};
use crate::fuzz::programs::Programs;

/// An endpoint of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backend {
    /// Where it is.
    pub address: SocketAddr,
    /// On this node.
    pub is_local: bool,
    /// As in the map.
    pub(super) state: u8,
    pub(super) number: u32,
    pub(super) generation: u32,
}

impl Backend {
    /// Whether new flows may go there.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.state == SERVING
    }

    pub(super) fn change(&mut self, to: BackendChange) {
        match to {
            BackendChange::Drain => self.state = DRAINING,
            BackendChange::Free => self.state = FREE,
            BackendChange::Serve => {
                // A number that was nobody's is given anew.
                self.generation += u32::from(self.state == FREE);
                self.state = SERVING;
            }
            BackendChange::Replace => {
                self.generation += 1;
                self.state = SERVING;
                let family = Family::of(self.address.ip());
                // Few enough that one comes again, and none that another of the service has.
                let nth = self.number % MOST_BACKENDS as u32;
                let host = (10 + 10 * nth + self.generation % 5) as u8;
                self.address.set_ip(family.address(network::BACKENDS, host));
            }
        }
    }
}

/// A service port of one family.
#[derive(Clone, Debug)]
pub struct Service {
    /// Kind, family and protocol.
    pub name: String,
    /// IANA protocol number.
    pub protocol: u8,
    /// Where it can be dialled.
    pub frontends: Vec<SocketAddr>,
    /// Where its flows go.
    pub backends: Vec<Backend>,
    /// What becomes of clients while it has no backend.
    pub verdict: Verdict,
    /// Of its row in `SERVICES`.
    pub flags: u32,
    /// Whether it is there at all.
    pub is_present: bool,
    pub(super) number: u32,
    pub(super) affinity: u32,
    /// Where its range of slots starts.
    pub(super) base: u32,
}

impl Service {
    /// Whether a client is one of those that it is there for.
    #[must_use]
    pub fn may_be_dialled_by(&self, client: IpAddr) -> bool {
        let family = Family::of(client);
        self.flags & RESTRICTED == 0 || client == family.address(network::CLIENTS, 1)
    }

    /// Whether every client loses its address.
    #[must_use]
    pub fn masquerades_all(&self) -> bool {
        self.flags & MASQUERADE_ALL != 0
    }
}

/// What happens to a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackendChange {
    /// It takes new flows.
    Serve,
    /// It takes no new ones.
    Drain,
    /// It is gone.
    Free,
    /// It is gone, and its number is another's, which serves.
    Replace,
}

impl BackendChange {
    /// All of them, with their names.
    pub const ALL: [(Self, &str); 4] = [
        (Self::Serve, "serves"),
        (Self::Drain, "drains"),
        (Self::Free, "goes"),
        (Self::Replace, "is-replaced"),
    ];
}

impl Service {
    pub(super) fn write(&self, programs: &mut Programs) -> Result<()> {
        for (slot, backend) in (self.base..).zip(&self.backends) {
            programs.set_backend(backend.number, self.row(backend))?;
            programs.set_slot(slot, backend.number)?;
        }
        let range = match u32::try_from(self.backends.len())? {
            0 => Range::empty(self.verdict),
            count => Range { base: self.base, count },
        };
        let value = ServiceValue {
            service: self.number,
            near: range,
            far: range,
            flags: self.flags,
            affinity: self.affinity,
        };
        for key in self.keys() {
            if self.is_present {
                programs.set_service(key, value)?;
            } else {
                programs.remove_service(key)?;
            }
        }
        if self.flags & RESTRICTED != 0
            && let Some(frontend) = self.frontends.first()
        {
            let client = Family::of(frontend.ip()).address(network::CLIENTS, 1);
            let length = if client.is_ipv4() { 32 } else { 128 };
            let key = PrefixKey::new(self.number, client.into(), length);
            programs.set_prefix(SOURCE_RANGES, key, INSIDE)?;
        }
        Ok(())
    }

    fn row(&self, backend: &Backend) -> BackendValue {
        BackendValue {
            address: backend.address.ip().into(),
            port: Port::new(backend.address.port()),
            state: backend.state,
            flags: IN_CLUSTER_SET | if backend.is_local { LOCAL | IN_LOCAL_SET } else { 0 },
            generation: backend.generation,
            service: self.number,
        }
    }

    fn keys(&self) -> impl Iterator<Item = ServiceKey> {
        self.frontends.iter().map(|frontend| {
            let address = match (frontend.port(), frontend.ip()) {
                (NODE_PORT, IpAddr::V4(_)) => Address::ANY_V4,
                (NODE_PORT, IpAddr::V6(_)) => Address::ANY_V6,
                (_, ip) => ip.into(),
            };
            ServiceKey::new(address, Port::new(frontend.port()), self.protocol)
        })
    }
}
