//! What is asked of the kernel, as attributes.

use std::net::{IpAddr, SocketAddr};

use super::{
    Command, Destination, ServiceConfig, ServiceKey, Timeouts,
    uapi::{attribute, command, destination, forward, service},
    wire::Attributes,
};
use crate::desired::{Family, Protocol};

impl Command {
    /// `IPVS_CMD_*`.
    pub(super) const fn number(&self) -> u8 {
        match self {
            Self::AddService(..) => command::NEW_SERVICE,
            Self::SetService(..) => command::SET_SERVICE,
            Self::DeleteService(..) => command::DELETE_SERVICE,
            Self::AddDestination(..) => command::NEW_DESTINATION,
            Self::SetDestination(..) => command::SET_DESTINATION,
            Self::DeleteDestination(..) => command::DELETE_DESTINATION,
        }
    }

    /// Its attributes.
    pub(super) fn write(&self, attributes: &mut Attributes<'_>) {
        match self {
            Self::AddService(key, config) | Self::SetService(key, config) => {
                attributes.nest(attribute::SERVICE, |service| {
                    write_key(service, key);
                    write_config(service, key.family(), config);
                });
            }
            Self::DeleteService(key) => write_service(attributes, key),
            Self::AddDestination(key, destination) | Self::SetDestination(key, destination) => {
                write_service(attributes, key);
                attributes.nest(attribute::DESTINATION, |attributes| {
                    write_address(attributes, destination.address);
                    write_settings(attributes, destination);
                });
            }
            Self::DeleteDestination(key, address) => {
                write_service(attributes, key);
                attributes.nest(attribute::DESTINATION, |attributes| write_address(attributes, *address));
            }
        }
    }
}

/// Which service is meant.
pub(super) fn write_service(attributes: &mut Attributes<'_>, key: &ServiceKey) {
    attributes.nest(attribute::SERVICE, |service| write_key(service, key));
}

fn write_key(attributes: &mut Attributes<'_>, key: &ServiceKey) {
    attributes.put(service::FAMILY, &family_number(key.family()).to_ne_bytes());
    match key {
        ServiceKey::Address { protocol, address } => {
            attributes.put(service::PROTOCOL, &protocol_number(*protocol).to_ne_bytes());
            attributes.put(service::ADDRESS, &address_bytes(address.ip()));
            attributes.put(service::PORT, &address.port().to_be_bytes());
        }
        ServiceKey::Mark { mark, .. } => attributes.put(service::MARK, &mark.get().to_ne_bytes()),
    }
}

fn write_config(attributes: &mut Attributes<'_>, family: Family, config: &ServiceConfig) {
    let mut name = config.scheduler.as_bytes().to_vec();
    name.push(0);
    attributes.put(service::SCHEDULER, &name);
    let [flags, all] = [config.bits(), u32::MAX].map(u32::to_ne_bytes);
    attributes.put(service::FLAGS, &[flags, all].concat());
    let seconds = config.persistence.map_or(0, |seconds| seconds.get());
    attributes.put(service::TIMEOUT, &seconds.to_ne_bytes());
    attributes.put(service::NETMASK, &each_client_by_itself(family).to_ne_bytes());
}

/// The netmask that is none.
pub(super) const fn each_client_by_itself(family: Family) -> u32 {
    match family {
        Family::V4 => u32::MAX,
        Family::V6 => 128,
    }
}

fn write_address(attributes: &mut Attributes<'_>, address: SocketAddr) {
    attributes.put(destination::ADDRESS, &address_bytes(address.ip()));
    attributes.put(destination::PORT, &address.port().to_be_bytes());
    let family = family_number(Family::of(address.ip()));
    attributes.put(destination::FAMILY, &family.to_ne_bytes());
}

fn write_settings(attributes: &mut Attributes<'_>, settings: &Destination) {
    let no_threshold = 0;
    for (kind, value) in [
        (destination::FORWARD, forward::MASQUERADE),
        (destination::WEIGHT, settings.weight),
        (destination::UPPER_THRESHOLD, no_threshold),
        (destination::LOWER_THRESHOLD, no_threshold),
    ] {
        attributes.put(kind, &value.to_ne_bytes());
    }
}

/// The kernel leaves as it is what is not there.
pub(super) fn write_timeouts(attributes: &mut Attributes<'_>, timeouts: &Timeouts) {
    for (kind, seconds) in [
        (attribute::TIMEOUT_TCP, timeouts.tcp),
        (attribute::TIMEOUT_TCP_FIN, timeouts.tcp_fin),
        (attribute::TIMEOUT_UDP, timeouts.udp),
    ] {
        if let Some(seconds) = seconds {
            attributes.put(kind, &seconds.get().to_ne_bytes());
        }
    }
}

/// `union nf_inet_addr`: an IPv4 address is its first four bytes.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// `AF_*`.
pub(super) const fn family_number(family: Family) -> u16 {
    (match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    }) as u16
}

/// `IPPROTO_*`.
pub(super) const fn protocol_number(protocol: Protocol) -> u16 {
    (match protocol {
        Protocol::Tcp => libc::IPPROTO_TCP,
        Protocol::Udp => libc::IPPROTO_UDP,
        Protocol::Sctp => libc::IPPROTO_SCTP,
    }) as u16
}
