//! Refusals of the kernel, in words and with what to do about them.

use std::{fmt, io, net::SocketAddr};

use netlink_packet_core::DecodeError;

use super::{Command, SchedulerName, ServiceKey, wire::Refusal};
use crate::desired::{Family, Protocol};

/// Why something was not done, or is not known.
#[derive(Debug, thiserror::Error)]
pub enum IpvsError {
    /// The kernel has no family `IPVS`.
    #[error("the kernel has no IPVS: `modprobe ip_vs` loads it where the kernel is built with it (CONFIG_IP_VS)")]
    Missing,
    /// The kernel has no such scheduler.
    #[error(
        "{doing}: the kernel has no scheduler {scheduler}: `modprobe ip_vs_{scheduler}` loads it where the kernel is \
         built with it"
    )]
    NoScheduler {
        /// What was to be done.
        doing: Doing,
        /// That of the service.
        scheduler: SchedulerName,
    },
    /// What is to be added is there.
    #[error("{0}: it exists already")]
    Exists(Doing),
    /// A service that is to be changed or deleted is not there.
    #[error("{0}: there is no such service")]
    NoService(Doing),
    /// A destination that is to be changed or deleted is not there.
    #[error("{0}: there is no such destination")]
    NoDestination(Doing),
    /// `EPERM`.
    #[error("{0}: not permitted: IPVS takes CAP_NET_ADMIN in the initial user namespace")]
    NotPermitted(Doing),
    /// `EAFNOSUPPORT`.
    #[error("{doing}: IPVS of this kernel is built without {family} (CONFIG_IP_VS_IPV6)")]
    NoFamily {
        /// What was to be done.
        doing: Doing,
        /// That of the service.
        family: Family,
    },
    /// `EPROTONOSUPPORT`.
    #[error("{doing}: IPVS of this kernel is built without {protocol} (CONFIG_IP_VS_PROTO_{protocol})")]
    NoProtocol {
        /// What was to be done.
        doing: Doing,
        /// That of the service.
        protocol: Protocol,
    },
    /// Anything else that the kernel says.
    #[error("{doing}: {error}{}", clause(.because))]
    Refused {
        /// What was to be done.
        doing: Doing,
        /// What it says.
        error: io::Error,
        /// Its own words about that, or what it usually means; or empty.
        because: String,
    },
    /// No answer came, in time or at all. It may have been done.
    #[error("{0}: the kernel's answer is lost; whether it was done only a look can tell")]
    Unanswered(Doing),
    /// Something changed during each of many attempts.
    #[error("{0}: something changes all the time")]
    Inconsistent(Doing),
    /// An answer makes no sense.
    #[error("IPVS gives an answer that makes no sense: {0}")]
    Malformed(#[from] DecodeError),
    /// The socket fails.
    #[error("the socket to the kernel's IPVS: {0}")]
    Socket(#[from] io::Error),
}

impl IpvsError {
    /// What was to be added is there already.
    #[must_use]
    pub const fn is_exists(&self) -> bool {
        matches!(self, Self::Exists(_))
    }

    /// The service or the destination that was to be changed or deleted is not there, or the service that a
    /// destination was to be added to.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::NoService(_) | Self::NoDestination(_))
    }

    /// For what a command is refused.
    pub(super) fn of_command(command: &Command, refusal: Refusal) -> Self {
        let doing = Doing::from(*command);
        match (refusal.errno, command) {
            (libc::EEXIST, _) => Self::Exists(doing),
            (libc::ESRCH, _) => Self::NoService(doing),
            (libc::ENOENT, Command::SetDestination(..) | Command::DeleteDestination(..)) => Self::NoDestination(doing),
            (libc::ENOENT, Command::AddService(_, config) | Command::SetService(_, config)) => Self::NoScheduler {
                doing,
                scheduler: config.scheduler,
            },
            (libc::EAFNOSUPPORT, _) => Self::NoFamily {
                doing,
                family: command.service().family(),
            },
            (libc::EPROTONOSUPPORT, _) if let ServiceKey::Address { protocol, .. } = *command.service() => {
                Self::NoProtocol { doing, protocol }
            }
            _ => Self::of(doing, refusal),
        }
    }

    /// For what anything is refused.
    pub(super) fn of(doing: Doing, Refusal { errno, text }: Refusal) -> Self {
        if errno == libc::EPERM {
            return Self::NotPermitted(doing);
        }
        let because = text.unwrap_or_else(|| doing.usual_cause(errno).to_owned());
        Self::Refused {
            doing,
            error: io::Error::from_raw_os_error(errno),
            because,
        }
    }
}

fn clause(because: &str) -> String {
    if because.is_empty() {
        return String::new();
    }
    format!(": {because}")
}

/// What is asked of the kernel, as messages name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// A command about a service.
    Service(Verb, ServiceKey),
    /// A command about a destination.
    Destination(Verb, ServiceKey, SocketAddr),
    /// Looking for the family.
    Lookup,
    /// Reading the services.
    Services,
    /// Reading the destinations of a service.
    Destinations(ServiceKey),
    /// Reading the time-outs.
    Timeouts,
    /// Setting the time-outs.
    SetTimeouts,
    /// Reading the version.
    Version,
}

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Add.
    Add,
    /// Change.
    Set,
    /// Delete.
    Delete,
}

impl Doing {
    /// What a refusal usually means that the kernel gives no words for.
    const fn usual_cause(self, errno: i32) -> &'static str {
        match (self, errno) {
            (Self::Destination(..), libc::EINVAL) => {
                "a destination is a unicast address of the family of its service, and not a link-local one"
            }
            (Self::Destination(..), libc::ERANGE) => "a weight is at most 2147483647",
            (Self::SetTimeouts, libc::EINVAL) => "a time-out is too long",
            _ => "",
        }
    }
}

impl From<Command> for Doing {
    fn from(command: Command) -> Self {
        match command {
            Command::AddService(key, _) => Self::Service(Verb::Add, key),
            Command::SetService(key, _) => Self::Service(Verb::Set, key),
            Command::DeleteService(key) => Self::Service(Verb::Delete, key),
            Command::AddDestination(key, destination) => Self::Destination(Verb::Add, key, destination.address),
            Command::SetDestination(key, destination) => Self::Destination(Verb::Set, key, destination.address),
            Command::DeleteDestination(key, address) => Self::Destination(Verb::Delete, key, address),
        }
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(verb, key) => write!(f, "{verb} the IPVS service {key}"),
            Self::Destination(verb, key, address) => {
                write!(f, "{verb} the destination {address} of the IPVS service {key}")
            }
            Self::Lookup => f.write_str("looking for IPVS"),
            Self::Services => f.write_str("reading the IPVS services"),
            Self::Destinations(key) => write!(f, "reading the destinations of the IPVS service {key}"),
            Self::Timeouts => f.write_str("reading the time-outs of IPVS"),
            Self::SetTimeouts => f.write_str("setting the time-outs of IPVS"),
            Self::Version => f.write_str("reading the version of IPVS"),
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "adding",
            Self::Set => "changing",
            Self::Delete => "deleting",
        })
    }
}
