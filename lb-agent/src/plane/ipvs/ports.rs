//! Which service port wants what, and whose each row and each virtual service is.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use super::{
    counted::Counted,
    limit::Limit,
    marks::{Marks, OutOfMarks},
    rules::{Key, Mark, Row},
    wanted::{Server, Surroundings, Wanted},
};
use crate::{
    desired::{Frontend, FrontendAddress, ServicePort, ServicePortName},
    kernel::ipvs::ServiceKey,
};

/// All service ports.
#[derive(Debug, Default)]
pub(super) struct Ports {
    ports: HashMap<ServicePortName, Port>,
    /// Within one change a frontend may pass from one service port to another.
    rows: HashMap<Key, ServicePortName>,
    by_mark: HashMap<Mark, ServicePortName>,
    addresses: Counted<IpAddr>,
    endpoints: Counted<IpAddr>,
    marks: Marks,
}

#[derive(Debug)]
struct Port {
    /// For when the addresses of the node change.
    service: ServicePort,
    wanted: Wanted,
    mark: Option<Mark>,
}

/// What is to be looked at, since a service port has changed that had it or is to have it.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) rows: BTreeSet<Key>,
    pub(super) servers: BTreeSet<ServiceKey>,
    pub(super) addresses: BTreeSet<IpAddr>,
    pub(super) endpoints: BTreeSet<IpAddr>,
}

impl Touched {
    fn note(&mut self, wanted: &Wanted) {
        self.rows.extend(wanted.rows.keys());
        self.servers.extend(wanted.servers.keys());
        self.addresses.extend(&wanted.addresses);
        self.endpoints.extend(&wanted.local_endpoints);
    }
}

impl Ports {
    /// Notes what a service port wants now, and what that touches. Without a mark it keeps the state it had.
    pub(super) fn set(
        &mut self,
        name: &ServicePortName,
        service: Option<&ServicePort>,
        around: &Surroundings,
        touched: &mut Touched,
    ) -> Result<(), OutOfMarks> {
        let before = self.ports.get(name).and_then(|port| port.mark);
        let mark = match service.filter(|service| Wanted::needs_mark(service)) {
            Some(_) => Some(match before {
                Some(mark) => mark,
                None => self.marks.give()?,
            }),
            None => None,
        };
        self.remove(name, touched);
        let Some(service) = service else {
            return Ok(());
        };
        let wanted = Wanted::new(service, name.protocol, name.family, mark, around);
        touched.note(&wanted);
        self.addresses.add(&wanted.addresses);
        self.endpoints.add(&wanted.local_endpoints);
        let keys = wanted.rows.keys().map(|key| (*key, name.clone()));
        self.rows.extend(keys);
        self.by_mark.extend(mark.map(|mark| (mark, name.clone())));
        let port = Port {
            service: service.clone(),
            wanted,
            mark,
        };
        self.ports.insert(name.clone(), port);
        Ok(())
    }

    fn remove(&mut self, name: &ServicePortName, touched: &mut Touched) {
        let Some(port) = self.ports.remove(name) else {
            return;
        };
        touched.note(&port.wanted);
        self.addresses.remove(&port.wanted.addresses);
        self.endpoints.remove(&port.wanted.local_endpoints);
        for key in port.wanted.rows.keys() {
            if self.rows.get(key) == Some(name) {
                self.rows.remove(key);
            }
        }
        if let Some(mark) = port.mark {
            self.by_mark.remove(&mark);
        }
    }

    /// A mark that an earlier agent gave to this service port.
    pub(super) fn adopt_mark(&mut self, name: &ServicePortName, service: &ServicePort, mark: Mark) {
        if Wanted::needs_mark(service) && !self.ports.contains_key(name) && self.marks.take(mark) {
            let port = Port {
                service: service.clone(),
                wanted: Wanted::default(),
                mark: Some(mark),
            };
            self.ports.insert(name.clone(), port);
        }
    }

    /// A mark that an earlier agent gave, and that leads somewhere still.
    pub(super) fn keep_mark(&mut self, mark: Mark) {
        self.marks.take(mark);
    }

    /// No virtual service has it any more.
    pub(super) fn free_mark(&mut self, mark: Mark) {
        if !self.by_mark.contains_key(&mark) {
            self.marks.free(mark);
        }
    }

    /// Those to which it matters where NodePorts are served, or which pods are known by their addresses.
    pub(super) fn depending_on_node(&self) -> Vec<(ServicePortName, ServicePort)> {
        let is_node_port = |frontend: &Frontend| matches!(frontend.address, FrontendAddress::NodePort(_));
        let depends = |port: &Port| port.mark.is_some() || port.service.frontends.keys().any(is_node_port);
        let ports = self.ports.iter().filter(|(_, port)| depends(port));
        ports.map(|(name, port)| (name.clone(), port.service.clone())).collect()
    }

    /// The row that somebody wants there.
    pub(super) fn row(&self, key: Key) -> Option<&Row> {
        self.owner(key)?.wanted.rows.get(&key)
    }

    /// The virtual service that somebody wants there.
    pub(super) fn server(&self, key: ServiceKey) -> Option<&Server> {
        self.ports.get(self.owner_of_server(key)?)?.wanted.servers.get(&key)
    }

    /// Whose it is.
    pub(super) fn owner_of_server(&self, key: ServiceKey) -> Option<&ServicePortName> {
        match key {
            ServiceKey::Address { protocol, address } => self.rows.get(&Key { protocol, address }),
            ServiceKey::Mark { mark, .. } => self.by_mark.get(&Mark::of(mark.get())?),
        }
    }

    fn owner(&self, key: Key) -> Option<&Port> {
        self.ports.get(self.rows.get(&key)?)
    }

    /// Whether somebody wants packets for that address.
    pub(super) fn wants_address(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip)
    }

    /// Whether an endpoint on this node has it.
    pub(super) fn has_endpoint(&self, ip: IpAddr) -> bool {
        self.endpoints.contains(&ip)
    }

    /// Endpoints on this node.
    pub(super) fn endpoints(&self) -> BTreeSet<IpAddr> {
        self.endpoints.all().collect()
    }

    /// Addresses that somebody wants.
    pub(super) fn all_addresses(&self) -> BTreeSet<IpAddr> {
        self.addresses.all().collect()
    }

    /// Virtual services that somebody wants.
    pub(super) fn all_servers(&self) -> impl Iterator<Item = ServiceKey> + '_ {
        self.ports.values().flat_map(|port| port.wanted.servers.keys().copied())
    }

    /// All rows.
    pub(super) fn all_rows(&self) -> BTreeMap<Key, Row> {
        let rows = self.rows.keys().filter_map(|key| Some((*key, self.row(*key)?.clone())));
        rows.collect()
    }

    /// All service ports.
    pub(super) fn names(&self) -> impl Iterator<Item = &ServicePortName> {
        self.ports.keys()
    }

    /// What is served otherwise than asked.
    pub(super) fn limits(&self) -> BTreeMap<&ServicePortName, &BTreeSet<Limit>> {
        let all = self.ports.iter().map(|(name, port)| (name, &port.wanted.limits));
        all.filter(|(_, limits)| !limits.is_empty()).collect()
    }

    /// How many frontends there are, a NodePort one at each address of the node.
    pub(super) fn frontends(&self) -> usize {
        self.rows.len()
    }
}
