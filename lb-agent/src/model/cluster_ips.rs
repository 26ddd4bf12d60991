//! Which addresses belong to Services with all their ports.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::IpAddr,
};

use super::{ClusterIps, ObjectName};
use crate::desired::ServedBy;

/// The ClusterIPs of all Services that a proxy serves. Two Services may name one address for a moment,
/// or for good in objects that no API server has checked. One that we and another proxy are to serve is
/// ours.
#[derive(Debug, Default)]
pub(super) struct ClaimedClusterIps {
    by_service: HashMap<ObjectName, (ServedBy, ClusterIps)>,
    claims: HashMap<(IpAddr, ServedBy), usize>,
    touched: BTreeSet<IpAddr>,
}

impl ClaimedClusterIps {
    /// A Service has these by now, or none.
    pub(super) fn set(&mut self, service: &ObjectName, claim: Option<(ServedBy, ClusterIps)>) {
        let before = match claim {
            Some(claim) => self.by_service.insert(service.clone(), claim),
            None => self.by_service.remove(service),
        };
        if before == claim {
            return;
        }
        for (ip, served_by) in addresses(claim) {
            *self.claims.entry((ip, served_by)).or_default() += 1;
            self.touched.insert(ip);
        }
        for (ip, served_by) in addresses(before) {
            if let Some(claims) = self.claims.get_mut(&(ip, served_by)) {
                *claims -= 1;
                if *claims == 0 {
                    self.claims.remove(&(ip, served_by));
                }
            }
            self.touched.insert(ip);
        }
    }

    /// What has become of the addresses in `before` since this was last asked: those that are new,
    /// change hands, or are gone.
    pub(super) fn take_change(&mut self, before: &BTreeMap<IpAddr, ServedBy>) -> BTreeMap<IpAddr, Option<ServedBy>> {
        let touched = mem::take(&mut self.touched).into_iter();
        let touched = touched.map(|ip| (ip, self.served_by(ip)));
        touched
            .filter(|(ip, served_by)| before.get(ip) != served_by.as_ref())
            .collect()
    }

    fn served_by(&self, ip: IpAddr) -> Option<ServedBy> {
        let mut by_rank = [ServedBy::Us, ServedBy::AnotherProxy].into_iter();
        by_rank.find(|served_by| self.claims.contains_key(&(ip, *served_by)))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_service.is_empty() && self.claims.is_empty() && self.touched.is_empty()
    }
}

fn addresses(claim: Option<(ServedBy, ClusterIps)>) -> Vec<(IpAddr, ServedBy)> {
    let claim = claim.iter();
    claim
        .flat_map(|(served_by, cluster_ips)| cluster_ips.iter().map(|ip| (ip, *served_by)))
        .collect()
}
