//! From what a client dials to a backend.

use lb_common::{Address, BackendValue, Port, Range, ServiceKey, ServiceValue, address::NODE_PORTS, backend::SERVING};

use crate::maps::{ADDRESSES, BACKENDS, SERVICES, SLOTS};

/// Where a client is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// On this node.
    Near,
    /// Anywhere else.
    Far,
}

impl Client {
    /// The slots that such a client draws from.
    #[inline(always)]
    pub(crate) fn range(self, service: &ServiceValue) -> Range {
        match self {
            Self::Near => service.near,
            Self::Far => service.far,
        }
    }
}

/// The service behind an address and port: of exactly that address, else a NodePort where the
/// address is one of this node that serves them.
#[inline(always)]
pub(crate) fn find(address: &Address, port: Port, protocol: u8) -> Option<ServiceValue> {
    let mut key = ServiceKey::new(*address, port, protocol);
    // SAFETY: the row is copied at once; a concurrent update replaces it by another one.
    if let Some(service) = unsafe { SERVICES.get(&key) } {
        return Some(*service);
    }
    // SAFETY: as above.
    let local = unsafe { ADDRESSES.get(address) }?;
    if local.flags & NODE_PORTS == 0 {
        return None;
    }
    key.address = if address.is_v4() {
        Address::ANY_V4
    } else {
        Address::ANY_V6
    };
    // SAFETY: as above.
    unsafe { SERVICES.get(&key) }.copied()
}

/// A backend and the number by which flows remember it.
pub(crate) struct Chosen {
    pub(crate) number: u32,
    pub(crate) backend: BackendValue,
}

/// The backend of slot `base + (draw * count >> 32)`. `None` where it has gone since the service was
/// read: find the service again.
#[inline(always)]
pub(crate) fn choose(range: Range, draw: u32) -> Option<Chosen> {
    if range.count == 0 {
        return None;
    }
    let slot = range.base + ((u64::from(draw) * u64::from(range.count)) >> 32) as u32;
    let number = *SLOTS.get(slot)?;
    let backend = *BACKENDS.get(number)?;
    (backend.state == SERVING).then_some(Chosen { number, backend })
}

/// State of a remembered backend, or `None` where its number belongs to another by now.
#[inline(always)]
pub(crate) fn backend_state(number: u32, generation: u32) -> Option<u8> {
    let backend = BACKENDS.get(number)?;
    (backend.generation == generation).then_some(backend.state)
}
