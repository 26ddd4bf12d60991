//! Where a client is, and whom it may dial.

use aya_ebpf::btf_maps::lpm_trie::Key;
use lb_common::{
    Address, BackendValue, Range, Scoped, ServiceValue,
    backend::{IN_CLUSTER_SET, IN_LOCAL_SET, LOCAL},
    config::PODS_NEAR,
    prefix::{BY_LINK, INSIDE, OUTSIDE, PODS, WHOLE},
    service::{FAR_IS_LOCAL, MASQUERADE_ALL, NEAR_IS_LOCAL, RESTRICTED},
};

use crate::{
    config,
    maps::{CIDRS, SOURCE_RANGES},
};

/// The link that a client's packets come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// Any but that of a pod of this node.
    Outside = 0,
    /// That of a pod of this node.
    Pod = 1,
}

/// A client, as far as the rules of services know it. Numbers in place of truth values, and arithmetic
/// in place of branches: the verifier follows each through all that comes after.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    /// 1: it counts as one of this node, or of the cluster where the networks of pods are known. Else 0.
    is_near: u32,
    /// 1: what is sent to it from elsewhere comes by here. Else 0.
    is_behind_us: u32,
}

impl Client {
    /// A process of the node itself.
    pub(crate) const NODE: Self = Self {
        is_near: 1,
        is_behind_us: 1,
    };

    /// The client with that address behind that link.
    #[inline(always)]
    pub(crate) fn new(link: Link, address: &Address) -> Self {
        let known = cidr(PODS, address).unwrap_or(BY_LINK);
        let is_behind_us = link as u32 & !(known / OUTSIDE) & 1;
        Self {
            is_near: (known & INSIDE) | is_behind_us,
            is_behind_us,
        }
    }

    /// A process in another network namespace of this node, and so a pod, whose address is not chosen yet: if
    /// the service treats it alike whatever that will be. `None` where it may matter.
    #[inline(always)]
    pub(crate) fn pod_without_address(service: &ServiceValue, any: &Address) -> Option<Self> {
        // Ranges, affinity and masquerading go by the address of a packet.
        if service.flags & (RESTRICTED | MASQUERADE_ALL) != 0 || service.affinity != 0 {
            return None;
        }
        let is_near_for_sure =
            config::pod_sockets() == PODS_NEAR && cidr(PODS, any).unwrap_or(BY_LINK) & (INSIDE | OUTSIDE) == 0;
        let is_all_the_same = service.near.base == service.far.base && service.near.count == service.far.count;
        (is_near_for_sure || is_all_the_same).then_some(Self::NODE)
    }

    /// The slots that such a client draws from.
    #[inline(always)]
    pub(crate) fn range(self, service: &ServiceValue) -> Range {
        let near = 0_u32.wrapping_sub(self.is_near);
        let pick = |of_near: u32, of_far: u32| (of_near & near) | (of_far & !near);
        Range {
            base: pick(service.near.base, service.far.base),
            count: pick(service.near.count, service.far.count),
        }
    }

    /// The flag of the backends that are in those slots.
    #[inline(always)]
    pub(crate) fn set(self, service: &ServiceValue) -> u8 {
        const { assert!(NEAR_IS_LOCAL << 1 == FAR_IS_LOCAL && IN_CLUSTER_SET << 1 == IN_LOCAL_SET) };
        let is_local = (service.flags >> (FAR_IS_LOCAL.trailing_zeros() - self.is_near)) & 1;
        IN_CLUSTER_SET << is_local
    }

    /// Whether the answer of such a backend would go straight to the client, which knows nothing of it.
    #[inline(always)]
    pub(crate) fn is_passed_by(self, backend: &BackendValue) -> bool {
        self.is_behind_us | u32::from(backend.flags & LOCAL) == 0
    }
}

/// Whether a client with that address may dial a frontend of the service.
#[inline(always)]
pub(crate) fn may_dial(service: &ServiceValue, address: &Address) -> bool {
    service.flags & RESTRICTED == 0 || SOURCE_RANGES.get(&key(service.service, address)).is_some()
}

/// What the address is in that scope of the map `CIDRS`, where anything is known.
#[inline(always)]
pub(crate) fn cidr(scope: u32, address: &Address) -> Option<u32> {
    CIDRS.get(&key(scope, address)).copied()
}

#[inline(always)]
fn key(scope: u32, address: &Address) -> Key<Scoped> {
    let address = *address;
    Key::new(WHOLE, Scoped { scope, address })
}
