//! Service ports that clients wait at in vain: their traffic policy is Local, and their endpoints are elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{
    desired::{Change, Family, FrontendAddress, ServedBy, ServicePort, ServicePortName, State, Target},
    metrics::Metrics,
};

/// Those of them that there are.
#[derive(Debug, Default)]
pub(super) struct WithoutLocalEndpoint {
    internal: BTreeSet<ServicePortName>,
    external: BTreeSet<ServicePortName>,
}

impl WithoutLocalEndpoint {
    /// Takes note of all service ports.
    pub(super) fn replace(&mut self, state: &State) {
        *self = Self::default();
        for (name, service) in &state.services {
            self.set(name, Some(service), &state.cluster_ips);
        }
    }

    /// Takes note of a change, after which the state is this.
    pub(super) fn apply(&mut self, change: &Change, state: &State) {
        for (name, service) in &change.services {
            self.set(name, service.as_ref(), &state.cluster_ips);
        }
    }

    fn set(&mut self, name: &ServicePortName, service: Option<&ServicePort>, cluster_ips: &BTreeMap<IpAddr, ServedBy>) {
        let (mut internal, mut external) = (false, false);
        for (frontend, route) in service.into_iter().flat_map(|service| &service.frontends) {
            let drops = [route.near, route.far].contains(&Target::Drop);
            match frontend.address {
                FrontendAddress::Ip(ip) if cluster_ips.contains_key(&ip) => internal |= drops,
                FrontendAddress::Ip(_) | FrontendAddress::NodePort(_) => external |= drops,
            }
        }
        for (names, is_one) in [(&mut self.internal, internal), (&mut self.external, external)] {
            if is_one {
                names.insert(name.clone());
            } else {
                names.remove(name);
            }
        }
    }

    pub(super) fn tell(&self, metrics: &Metrics) {
        for family in [Family::V4, Family::V6] {
            let count = |names: &BTreeSet<ServicePortName>| names.iter().filter(|name| name.family == family).count();
            metrics.set_without_local_endpoint(family, count(&self.internal), count(&self.external));
        }
    }
}
