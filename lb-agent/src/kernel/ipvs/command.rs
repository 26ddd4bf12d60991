//! What can be changed.

use std::net::SocketAddr;

use super::{Destination, ServiceConfig, ServiceKey};

/// A change of the kernel's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Adds a service.
    AddService(ServiceKey, ServiceConfig),
    /// Gives a service other settings. Its destinations and connections stay.
    SetService(ServiceKey, ServiceConfig),
    /// Deletes a service and its destinations.
    DeleteService(ServiceKey),
    /// Adds a destination to a service.
    AddDestination(ServiceKey, Destination),
    /// Gives a destination another weight. Its connections stay.
    SetDestination(ServiceKey, Destination),
    /// Deletes a destination from a service.
    DeleteDestination(ServiceKey, SocketAddr),
}

impl Command {
    /// The service that it is about.
    #[must_use]
    pub const fn service(&self) -> &ServiceKey {
        match self {
            Self::AddService(key, _)
            | Self::SetService(key, _)
            | Self::DeleteService(key)
            | Self::AddDestination(key, _)
            | Self::SetDestination(key, _)
            | Self::DeleteDestination(key, _) => key,
        }
    }
}
