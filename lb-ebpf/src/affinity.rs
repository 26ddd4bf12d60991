//! A client that gets the same backend again.

use aya_ebpf::bindings::BPF_ANY;
use lb_common::{Address, AffinityKey, AffinityValue, ServiceValue, backend::SERVING};

use crate::maps::{AFFINITY, BACKENDS};

const SECOND: u64 = 1_000_000_000;

/// The number of the backend that the client had, if it is to have it again: not for too long, and if
/// it is still one that the client could draw, which has the flag `set`. Else 0.
#[inline(always)]
pub(crate) fn remembered(service: &ServiceValue, client: Address, set: u8, now: u64) -> u32 {
    if service.affinity == 0 {
        return 0;
    }
    let key = AffinityKey {
        service: service.service,
        client,
    };
    // SAFETY: the row is copied at once; a concurrent update replaces it by another one.
    let Some(row) = (unsafe { AFFINITY.get(&key) }) else {
        return 0;
    };
    let AffinityValue {
        last_used,
        backend: number,
        ..
    } = *row;
    let Some(backend) = BACKENDS.get(number) else {
        return 0;
    };
    let is_fresh = now.saturating_sub(last_used) <= u64::from(service.affinity) * SECOND;
    let is_eligible = (backend.service == service.service) & (backend.state == SERVING) & (backend.flags & set != 0);
    if is_fresh & is_eligible { number } else { 0 }
}

/// A flow of the client begins, to the backend of that number.
#[inline(always)]
pub(crate) fn remember(service: &ServiceValue, client: Address, backend: u32, now: u64) {
    if service.affinity == 0 {
        return;
    }
    let key = AffinityKey {
        service: service.service,
        client,
    };
    let row = AffinityValue {
        last_used: now,
        backend,
        pad: 0,
    };
    // Without the row the client draws afresh next time.
    let _ = AFFINITY.insert(&key, &row, BPF_ANY.into());
}
