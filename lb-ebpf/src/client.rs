//! Where a client is, and whom it may dial.

use aya_ebpf::btf_maps::lpm_trie::Key;
use lb_common::{
    Address, Range, Scoped, ServiceValue,
    prefix::{INSIDE, OUTSIDE, PODS, WHOLE},
    service::{FAR_IS_LOCAL, NEAR_IS_LOCAL, RESTRICTED},
};

use crate::maps::{CIDRS, SOURCE_RANGES};

/// The link that a client's packets come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// That of a pod of this node.
    Pod,
    /// Any other.
    Outside,
}

/// A client, as far as the rules of services know it.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    /// It counts as one of this node, or of the cluster where the networks of pods are known.
    is_near: bool,
    /// What is sent to it from elsewhere comes by here.
    pub(crate) is_behind_us: bool,
}

impl Client {
    /// A process of the node itself.
    pub(crate) const NODE: Self = Self {
        is_near: true,
        is_behind_us: true,
    };

    /// The client with that address behind that link.
    #[inline(always)]
    pub(crate) fn new(link: Link, address: &Address) -> Self {
        let known = cidr(PODS, address);
        let is_pod_link = link == Link::Pod;
        // Without branches, each of which the verifier would follow through all that comes after.
        Self {
            is_near: (known == INSIDE) | (is_pod_link & (known != OUTSIDE)),
            is_behind_us: is_pod_link & (known != OUTSIDE),
        }
    }

    /// The slots that such a client draws from.
    #[inline(always)]
    pub(crate) fn range(self, service: &ServiceValue) -> Range {
        if self.is_near { service.near } else { service.far }
    }

    /// Whether those are the local set.
    #[inline(always)]
    pub(crate) fn draws_locally(self, service: &ServiceValue) -> bool {
        let flag = if self.is_near { NEAR_IS_LOCAL } else { FAR_IS_LOCAL };
        service.flags & flag != 0
    }
}

/// Whether a client with that address may dial a frontend of the service.
#[inline(always)]
pub(crate) fn may_dial(service: &ServiceValue, address: &Address) -> bool {
    service.flags & RESTRICTED == 0 || SOURCE_RANGES.get(&key(service.service, address)).is_some()
}

/// What the address is in that scope of the map `CIDRS`; 0 where nothing is known.
#[inline(always)]
pub(crate) fn cidr(scope: u32, address: &Address) -> u32 {
    CIDRS.get(&key(scope, address)).copied().unwrap_or(0)
}

#[inline(always)]
fn key(scope: u32, address: &Address) -> Key<Scoped> {
    let address = *address;
    Key::new(WHOLE, Scoped { scope, address })
}
