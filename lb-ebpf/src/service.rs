//! From what a client dials to a backend.

use lb_common::{
    Address, BackendValue, Port, Range, ServiceKey, ServiceValue,
    address::{CLUSTER_IP, FOREIGN, HOST_NODE_PORTS, NODE_PORTS},
    backend::{FREE, SERVING},
    prefix::{INSIDE, SERVICES as SERVICE_CIDRS},
};

use crate::{
    client::cidr,
    maps::{ADDRESSES, BACKENDS, SERVICES, SLOTS},
};

/// In place of the [`flags`] of an address that is not in the map. No `Option`: the verifier takes no half of one that was
/// not written as the argument of a function.
pub(crate) const NOBODYS: u32 = 1 << 31;

/// The flags of an address, which every frontend's has, or [`NOBODYS`]. Asked first, since most packets are for nobody's:
/// the key is short, and this is all they cost.
#[inline(always)]
pub(crate) fn flags(address: &Address) -> u32 {
    // SAFETY: one field is read, right here.
    unsafe { ADDRESSES.get(address) }.map_or(NOBODYS, |address| address.flags)
}

/// The service behind an address and port.
#[inline(always)]
pub(crate) fn find(address: &Address, port: Port, protocol: u8, node_ports: u32) -> Result<ServiceValue, u32> {
    at(flags(address), address, port, protocol, node_ports)
}

/// The service behind an address with these [`flags`] and a port: of exactly that address, else a NodePort where the address
/// has one of the flags `node_ports`. Where there is none, the flags of the address.
#[inline(always)]
pub(crate) fn at(
    flags: u32,
    address: &Address,
    port: Port,
    protocol: u8,
    node_ports: u32,
) -> Result<ServiceValue, u32> {
    if flags == NOBODYS {
        return Err(0);
    }
    let mut key = ServiceKey::new(*address, port, protocol);
    // SAFETY: the row is copied at once; a concurrent update replaces it by another one.
    if let Some(service) = unsafe { SERVICES.get(&key) } {
        return Ok(*service);
    }
    if flags & node_ports == 0 {
        return Err(flags);
    }
    key.address = any(address);
    // SAFETY: as above.
    unsafe { SERVICES.get(&key) }.copied().ok_or(flags)
}

/// Whether that port of an address with [`NODE_PORTS`] is one, whatever else is at the address.
#[inline(always)]
pub(crate) fn is_node_port(address: &Address, port: Port, protocol: u8) -> bool {
    // SAFETY: whether there is a row, is all that counts.
    unsafe { SERVICES.get(&ServiceKey::new(any(address), port, protocol)) }.is_some()
}

/// The address that stands for every one of that family with NodePorts.
#[inline(always)]
fn any(address: &Address) -> Address {
    if address.is_v4() {
        Address::ANY_V4
    } else {
        Address::ANY_V6
    }
}

/// Flags of an address that is somebody's, whatever becomes of its ports: the node's, or another proxy's.
const TAKEN: u32 = NODE_PORTS | HOST_NODE_PORTS | FOREIGN;

/// Whether no client from a link has that address: it is this node's own, or a ClusterIP. The kernel would not
/// believe the one either, and an answer to the other would go round in circles.
#[inline(always)]
pub(crate) fn is_nobodys_client(address: &Address) -> bool {
    // SAFETY: one field is read, right here.
    unsafe { ADDRESSES.get(address) }.is_some_and(|value| value.flags & (TAKEN | CLUSTER_IP) != 0)
}

/// What becomes of a client that dials no service.
pub(crate) enum NoService {
    /// The address is a service's, the port is not: port unreachable.
    Refuse,
    /// The address could be a service's and is nobody's: silence.
    Drop,
    /// It is not ours.
    Pass,
}

impl NoService {
    /// At an address with these flags. Nothing of it is remembered: the service may come at any time.
    #[inline(always)]
    pub(crate) fn at(address: &Address, flags: u32) -> Self {
        if flags & CLUSTER_IP != 0 {
            Self::Refuse
        } else if flags & TAKEN == 0 && cidr(SERVICE_CIDRS, address) == Some(INSIDE) {
            Self::Drop
        } else {
            Self::Pass
        }
    }
}

/// A backend and the number by which flows remember it.
pub(crate) struct Chosen {
    pub(crate) number: u32,
    pub(crate) backend: BackendValue,
}

/// The backend `remembered`, or where that is 0, the one of slot `base + (draw * count >> 32)`. `None`
/// where it has gone since the service was read: find the service again.
#[inline(always)]
pub(crate) fn choose(range: Range, remembered: u32, draw: u32) -> Option<Chosen> {
    if range.count == 0 {
        return None;
    }
    let slot = range.base + ((u64::from(draw) * u64::from(range.count)) >> 32) as u32;
    let number = if remembered == 0 { *SLOTS.get(slot)? } else { remembered };
    let backend = *BACKENDS.get(number)?;
    (backend.state == SERVING).then_some(Chosen { number, backend })
}

/// State of a remembered backend, [`FREE`] where its number belongs to another by now. No `Option`: the compiler
/// reads the value of one that is `None` before it looks, and kernels before 6.3 know that nothing was written there.
#[inline(always)]
pub(crate) fn backend_state(number: u32, generation: u32) -> u8 {
    match BACKENDS.get(number) {
        Some(backend) if backend.generation == generation => backend.state,
        _ => FREE,
    }
}
