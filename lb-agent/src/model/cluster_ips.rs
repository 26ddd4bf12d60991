//! Which addresses belong to Services with all their ports.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::IpAddr,
};

use super::{ClusterIps, ObjectName};

/// The ClusterIPs of all Services that are served. Two Services may name one address for a moment,
/// or for good in objects that no API server has checked.
#[derive(Debug, Default)]
pub(super) struct ClaimedClusterIps {
    by_service: HashMap<ObjectName, ClusterIps>,
    claims: HashMap<IpAddr, usize>,
    touched: BTreeSet<IpAddr>,
}

impl ClaimedClusterIps {
    /// A Service has these by now, or none.
    pub(super) fn set(&mut self, service: &ObjectName, cluster_ips: Option<ClusterIps>) {
        let before = match cluster_ips {
            Some(cluster_ips) => self.by_service.insert(service.clone(), cluster_ips),
            None => self.by_service.remove(service),
        };
        if before == cluster_ips {
            return;
        }
        for ip in cluster_ips.iter().flat_map(ClusterIps::iter) {
            *self.claims.entry(ip).or_default() += 1;
            self.touched.insert(ip);
        }
        for ip in before.iter().flat_map(ClusterIps::iter) {
            if let Some(claims) = self.claims.get_mut(&ip) {
                *claims -= 1;
                if *claims == 0 {
                    self.claims.remove(&ip);
                }
            }
            self.touched.insert(ip);
        }
    }

    /// What has become of the addresses in `before` since this was last asked: those that are new
    /// (`true`) or gone.
    pub(super) fn take_change(&mut self, before: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, bool> {
        let touched = mem::take(&mut self.touched).into_iter();
        let touched = touched.map(|ip| (ip, self.claims.contains_key(&ip)));
        touched
            .filter(|(ip, is_there)| before.contains(ip) != *is_there)
            .collect()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_service.is_empty() && self.claims.is_empty() && self.touched.is_empty()
    }
}
