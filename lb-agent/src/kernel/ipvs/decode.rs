//! What the kernel says of its services and destinations, from attributes.
//!
//! Attributes that nobody here needs, such as counters, are passed over, whatever newer kernels add.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZeroU32,
};

use netlink_packet_core::{DecodeError, parse_u16, parse_u16_be, parse_u32};

use super::{
    Destination, DestinationState, Foreign, Forward, SchedulerName, ServiceConfig, ServiceFlags, ServiceKey, Timeouts,
    Version,
    encode::{each_client_by_itself, family_number, protocol_number},
    scheduler::until_zero,
    uapi::{self, attribute, destination, flag, service},
    wire::{find, read},
};
use crate::desired::{Family, Protocol};

/// A service. None: one that is neither of TCP, UDP or SCTP nor of a mark, which cannot be ours.
pub(super) fn service(attributes: &[u8]) -> Result<Option<(ServiceKey, ServiceConfig)>, DecodeError> {
    let nested = find(attributes, attribute::SERVICE)?.ok_or("a service without attributes")?;
    let mut family = None;
    let mut protocol = 0;
    let mut address = None;
    let mut port = None;
    let mut mark = None;
    let mut scheduler = None;
    let mut flags = None;
    let mut seconds = None;
    let mut netmask = None;
    let mut persistence_engine = false;
    for attribute in read(nested) {
        let (kind, value) = attribute?;
        match kind {
            service::FAMILY => family = Some(family_of(value)?),
            service::PROTOCOL => protocol = parse_u16(value)?,
            service::ADDRESS => address = Some(value),
            service::PORT => port = Some(parse_u16_be(value)?),
            service::MARK => mark = NonZeroU32::new(parse_u32(value)?),
            service::SCHEDULER => scheduler = Some(scheduler_of(value)?),
            service::FLAGS => flags = Some(flags_of(value)?),
            service::TIMEOUT => seconds = Some(parse_u32(value)?),
            service::NETMASK => netmask = Some(parse_u32(value)?),
            service::PERSISTENCE_ENGINE => persistence_engine = !until_zero(value).is_empty(),
            _ => {}
        }
    }
    let family = family.ok_or("a service without a family")?;
    let key = match (mark, protocol_of(protocol)) {
        (Some(mark), _) => ServiceKey::Mark { family, mark },
        (None, Some(protocol)) => {
            let address = address_of(family, address.ok_or("a service without an address")?)?;
            let port = port.ok_or("a service without a port")?;
            let address = SocketAddr::new(address, port);
            ServiceKey::Address { protocol, address }
        }
        (None, None) => return Ok(None),
    };
    let config = Raw {
        scheduler: scheduler.ok_or("a service without a scheduler")?,
        flags: flags.ok_or("a service without flags")?,
        seconds: seconds.ok_or("a service without the time of its persistence")?,
        netmask: netmask.ok_or("a service without the netmask of its persistence")?,
        persistence_engine,
    };
    Ok(Some((key, config.config(family))))
}

/// The settings of a service as they came.
struct Raw {
    scheduler: SchedulerName,
    flags: u32,
    seconds: u32,
    netmask: u32,
    persistence_engine: bool,
}

impl Raw {
    fn config(&self, family: Family) -> ServiceConfig {
        let has = |flag| self.flags & flag != 0;
        let persistence = NonZeroU32::new(self.seconds).filter(|_| has(flag::PERSISTENT));
        let mut known = flag::HASHED | flag::ONE_PACKET | flag::FALLBACK | flag::PORT;
        if persistence.is_some() {
            known |= flag::PERSISTENT;
        }
        ServiceConfig {
            scheduler: self.scheduler,
            persistence,
            flags: ServiceFlags {
                port: has(flag::PORT),
                fallback: has(flag::FALLBACK),
                one_packet: has(flag::ONE_PACKET),
            },
            foreign: Foreign {
                netmask: Some(self.netmask)
                    .filter(|netmask| *netmask != each_client_by_itself(family))
                    .map(|netmask| match family {
                        Family::V4 => u32::from_be(netmask),
                        Family::V6 => netmask,
                    }),
                persistence_engine: self.persistence_engine,
                flags: self.flags & !known,
            },
        }
    }
}

/// A destination of a service of this family.
pub(super) fn destination(family: Family, attributes: &[u8]) -> Result<DestinationState, DecodeError> {
    let nested = find(attributes, attribute::DESTINATION)?.ok_or("a destination without attributes")?;
    let mut own_family = None;
    let mut address = None;
    let mut port = None;
    let mut forward = None;
    let mut weight = None;
    let [mut active, mut inactive, mut persistent] = [0; 3];
    for attribute in read(nested) {
        let (kind, value) = attribute?;
        match kind {
            destination::FAMILY => own_family = Some(family_of(value)?),
            destination::ADDRESS => address = Some(value),
            destination::PORT => port = Some(parse_u16_be(value)?),
            destination::FORWARD => forward = Some(Forward::new(parse_u32(value)?)),
            destination::WEIGHT => weight = Some(parse_u32(value)?),
            destination::ACTIVE => active = parse_u32(value)?,
            destination::INACTIVE => inactive = parse_u32(value)?,
            destination::PERSISTENT => persistent = parse_u32(value)?,
            _ => {}
        }
    }
    let address = address.ok_or("a destination without an address")?;
    let address = address_of(own_family.unwrap_or(family), address)?;
    let port = port.ok_or("a destination without a port")?;
    Ok(DestinationState {
        destination: Destination {
            address: SocketAddr::new(address, port),
            weight: weight.ok_or("a destination without a weight")?,
        },
        forward: forward.ok_or("a destination without a way to forward")?,
        active,
        inactive,
        persistent,
    })
}

/// The time-outs.
pub(super) fn timeouts(attributes: &[u8]) -> Result<Timeouts, DecodeError> {
    let seconds = |kind| {
        let value = find(attributes, kind)?.map(parse_u32).transpose()?;
        Ok::<_, DecodeError>(value.and_then(NonZeroU32::new))
    };
    Ok(Timeouts {
        tcp: seconds(attribute::TIMEOUT_TCP)?,
        tcp_fin: seconds(attribute::TIMEOUT_TCP_FIN)?,
        udp: seconds(attribute::TIMEOUT_UDP)?,
    })
}

/// The version.
pub(super) fn version(attributes: &[u8]) -> Result<Version, DecodeError> {
    let value = find(attributes, uapi::INFO_VERSION)?.ok_or("no version")?;
    let [_, major, minor, patch] = parse_u32(value)?.to_be_bytes();
    Ok(Version { major, minor, patch })
}

fn family_of(value: &[u8]) -> Result<Family, DecodeError> {
    let number = parse_u16(value)?;
    [Family::V4, Family::V6]
        .into_iter()
        .find(|family| family_number(*family) == number)
        .ok_or_else(|| format!("address family {number}, which IPVS has not").into())
}

fn protocol_of(number: u16) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| protocol_number(*protocol) == number)
}

fn address_of(family: Family, value: &[u8]) -> Result<IpAddr, DecodeError> {
    let bytes: [u8; 16] = value
        .try_into()
        .map_err(|_| format!("an address of {} bytes, not 16", value.len()))?;
    let [a, b, c, d, ..] = bytes;
    Ok(match family {
        Family::V4 => Ipv4Addr::new(a, b, c, d).into(),
        Family::V6 => Ipv6Addr::from(bytes).into(),
    })
}

fn scheduler_of(value: &[u8]) -> Result<SchedulerName, DecodeError> {
    SchedulerName::new(until_zero(value)).ok_or_else(|| "the name of a scheduler is too long".into())
}

/// `struct ip_vs_flags`; which of them are meant is for requests only.
fn flags_of(value: &[u8]) -> Result<u32, DecodeError> {
    match value {
        [a, b, c, d, _, _, _, _] => Ok(u32::from_ne_bytes([*a, *b, *c, *d])),
        _ => Err(format!("flags of {} bytes, not 8", value.len()).into()),
    }
}
