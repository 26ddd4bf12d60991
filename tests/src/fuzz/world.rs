//! The node that the packets meet: services of every kind, and how they change under way.
//!
//! All addresses begin with the bytes 8.0, or have 86dd in their third group: to a program without link header the
//! kernel tells a packet's protocol by these bytes of its source (see [`super::anatomy::Anatomy::of`]).

mod service;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use lb_common::{
    Address, PrefixKey, Verdict,
    address::{CLUSTER_IP, EXTERNAL, FOREIGN, HOST_NODE_PORTS, NODE_PORTS},
    backend::SERVING,
    maps::CIDRS,
    prefix::{INSIDE, SERVICES},
    service::{MASQUERADE_ALL, RESTRICTED},
};

pub use self::service::{Backend, BackendChange, Service};
use super::anatomy::protocol::{SCTP, TCP, UDP};
use super::programs::Programs;

/// What services are made for: a protocol that is added here is added to all there is.
pub const PROTOCOLS: [(u8, &str); 3] = [(TCP, "tcp"), (UDP, "udp"), (SCTP, "sctp")];

/// Most backends that a service has.
const MOST_BACKENDS: usize = 4;
/// Where most backends listen.
const TARGET: u16 = 8080;

/// IPv4 and IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// An address of the plan: one of a network of 250.
    #[must_use]
    pub fn address(self, network: u8, host: u8) -> IpAddr {
        match self {
            Self::V4 => [8, 0, network, host].into(),
            Self::V6 => [0xfd00, 0, 0x86dd, network.into(), 0, 0, 0, host.into()].into(),
        }
    }

    /// That of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// Networks of the plan.
pub mod network {
    /// The node, with the host number 1.
    pub const NODE: u8 = 0;
    /// Clients.
    pub const CLIENTS: u8 = 1;
    /// Pods with backends.
    pub const BACKENDS: u8 = 2;
    /// A load balancer, with the host number 1, of which the node serves some ports.
    pub const EXTERNAL: u8 = 7;
    /// Routers, which send errors.
    pub const ROUTERS: u8 = 8;
    /// Others that have nothing to do with all this.
    pub const STRANGERS: u8 = 9;
    /// Frontends: addresses for services.
    pub const FRONTENDS: u8 = 96;
}

/// An address for services that is nobody's.
pub const UNALLOCATED: u8 = 99;
/// One that another proxy serves.
pub const ANOTHERS: u8 = 200;
/// The port of the NodePort service.
pub const NODE_PORT: u16 = 30_080;

/// Something that happens between two packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A backend of a service.
    Backend(String, usize, BackendChange),
    /// A service goes, or comes.
    Service(String, bool),
    /// All flows have been silent for too long, and the pieces of all datagrams.
    Expire,
    /// A row of the flow table is evicted: the one that has this number, in the order of their keys.
    Evict(usize),
}

/// What a service is made from.
struct Kind {
    name: &'static str,
    frontends: Vec<SocketAddr>,
    backends: Vec<SocketAddr>,
    verdict: Verdict,
    flags: u32,
    affinity: u32,
}

/// Everything there is to dial.
#[derive(Clone, Debug)]
pub struct World {
    services: Vec<Service>,
}

impl World {
    /// As it is at first.
    #[must_use]
    pub fn new() -> Self {
        let mut world = Self { services: Vec::new() };
        for family in Family::BOTH {
            for (protocol, name) in PROTOCOLS {
                world.add_services(family, protocol, name);
            }
        }
        world
    }

    /// One of each kind.
    fn add_services(&mut self, family: Family, protocol: u8, protocol_name: &str) {
        let at = |host, port| SocketAddr::new(family.address(network::FRONTENDS, host), port);
        let node_port = SocketAddr::new(family.address(network::NODE, 1), NODE_PORT);
        let external = SocketAddr::new(family.address(network::EXTERNAL, 1), 80);
        let pod = |host, port| SocketAddr::new(family.address(network::BACKENDS, host), port);
        let itself = SocketAddr::new(family.address(network::CLIENTS, 1), TARGET);
        let three = [pod(1, TARGET), pod(2, TARGET), pod(3, TARGET)];
        let kind = |name, frontends: &[SocketAddr], backends: &[SocketAddr]| Kind {
            name,
            frontends: frontends.to_vec(),
            backends: backends.to_vec(),
            verdict: Verdict::Reject,
            flags: 0,
            affinity: 0,
        };
        let kinds = [
            // Several frontends: one client port may come to one backend by each of them.
            kind("web", &[at(1, 80), at(2, 80), node_port, external], &three),
            // The port stays.
            kind("dns", &[at(3, 53), at(3, 54)], &[pod(4, 53)]),
            Kind {
                flags: MASQUERADE_ALL,
                ..kind("masqueraded", &[at(4, 80)], &three[..1])
            },
            kind("hairpin", &[at(5, 80)], &[itself]),
            kind("refused", &[at(6, 80)], &[]),
            Kind {
                verdict: Verdict::Drop,
                ..kind("silent", &[at(7, 80)], &[])
            },
            Kind {
                flags: RESTRICTED,
                ..kind("restricted", &[at(8, 80)], &three)
            },
            Kind {
                affinity: 3600,
                ..kind("sticky", &[at(9, 80)], &three)
            },
        ];
        let family_name = if family == Family::V4 { "v4" } else { "v6" };
        for kind in kinds {
            let suffix = format!("{family_name}-{protocol_name}");
            self.add_service(kind, protocol, &suffix);
        }
    }

    fn add_service(&mut self, kind: Kind, protocol: u8, suffix: &str) {
        let index = u32::try_from(self.services.len()).unwrap_or(u32::MAX);
        let base = 1 + index * MOST_BACKENDS as u32;
        let backends = (base..).zip(kind.backends).enumerate();
        self.services.push(Service {
            name: format!("{}-{suffix}", kind.name),
            protocol,
            frontends: kind.frontends,
            backends: backends
                .map(|(nth, (number, address))| Backend {
                    address,
                    is_local: nth == 1,
                    state: SERVING,
                    number,
                    generation: 1,
                })
                .collect(),
            verdict: kind.verdict,
            flags: kind.flags,
            is_present: true,
            number: index + 1,
            affinity: kind.affinity,
            base,
        });
    }

    /// The services.
    #[must_use]
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// The service that is there at an address.
    #[must_use]
    pub fn service_at(&self, protocol: u8, frontend: SocketAddr) -> Option<&Service> {
        let is_it = |service: &&Service| {
            service.is_present && service.protocol == protocol && service.frontends.contains(&frontend)
        };
        self.services.iter().find(is_it)
    }

    /// Whether services may be dialled at an address.
    #[must_use]
    pub fn is_frontend(address: IpAddr) -> bool {
        let external = Family::of(address).address(network::EXTERNAL, 1);
        Self::is_cluster_ip(address) || Self::is_node(address) || address == external
    }

    /// Whether NodePorts are served at an address.
    #[must_use]
    pub fn is_node(address: IpAddr) -> bool {
        address == Family::of(address).address(network::NODE, 1)
    }

    /// Whether no client elsewhere has an address: it is the node's, or a service's.
    #[must_use]
    pub fn is_nobodys_client(address: IpAddr) -> bool {
        let family = Family::of(address);
        let others = [
            family.address(network::NODE, 2),
            family.address(network::FRONTENDS, ANOTHERS),
        ];
        Self::is_node(address) || Self::is_cluster_ip(address) || others.contains(&address)
    }

    /// Whether an address is a service's, so that its other ports are refused.
    #[must_use]
    pub fn is_cluster_ip(address: IpAddr) -> bool {
        let family = Family::of(address);
        cluster_ips().any(|host| address == family.address(network::FRONTENDS, host))
    }

    /// Whether an address could be a service's, and is nobody's.
    #[must_use]
    pub fn is_unallocated(address: IpAddr) -> bool {
        let within = match address {
            IpAddr::V4(v4) => v4.octets()[..3] == [8, 0, network::FRONTENDS],
            IpAddr::V6(v6) => v6.segments()[..7] == [0xfd00, 0, 0x86dd, network::FRONTENDS.into(), 0, 0, 0],
        };
        within && !Self::is_cluster_ip(address) && address != Family::of(address).address(network::FRONTENDS, ANOTHERS)
    }

    /// Writes all of it.
    pub fn write(&self, programs: &mut Programs) -> Result<()> {
        for service in &self.services {
            service.write(programs)?;
        }
        for family in Family::BOTH {
            programs.set_address(family.address(network::NODE, 1).into(), NODE_PORTS)?;
            programs.set_address(family.address(network::NODE, 2).into(), HOST_NODE_PORTS)?;
            programs.set_address(family.address(network::FRONTENDS, ANOTHERS).into(), FOREIGN)?;
            programs.set_address(family.address(network::EXTERNAL, 1).into(), EXTERNAL)?;
            for host in cluster_ips() {
                programs.set_address(family.address(network::FRONTENDS, host).into(), CLUSTER_IP)?;
            }
            let length = if family == Family::V4 { 24 } else { 112 };
            let services = Address::from(family.address(network::FRONTENDS, 0));
            programs.set_prefix(CIDRS, PrefixKey::new(SERVICES, services, length), INSIDE)?;
        }
        Ok(())
    }

    /// Lets something happen to a service or one of its backends. What happens to flows is not seen here.
    pub fn change(&mut self, programs: &mut Programs, change: &Change) -> Result<()> {
        let (Change::Backend(name, ..) | Change::Service(name, _)) = change else {
            return Ok(());
        };
        let service = self.services.iter_mut().find(|service| service.name == *name);
        let service = service.with_context(|| format!("there is no service {name}"))?;
        match change {
            Change::Backend(_, index, to) => service
                .backends
                .get_mut(*index)
                .with_context(|| format!("{name} has no backend {index}"))?
                .change(*to),
            Change::Service(_, is_present) => service.is_present = *is_present,
            Change::Expire | Change::Evict(_) => {}
        }
        service.write(programs)
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

/// Host numbers of the ClusterIPs.
fn cluster_ips() -> impl Iterator<Item = u8> {
    1..=9
}
