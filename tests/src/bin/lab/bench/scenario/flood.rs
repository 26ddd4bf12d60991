//! `flood`: as many packets as one processor takes at the node's uplink, made there by the kernel itself.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Result, bail};
use lb_tests::flood::{Clients, Flood, Kind};
use lb_tests::stage::Family;

use super::super::objects;
use super::super::recorder::Recorder;
use super::super::sample::Unit;
use super::super::site::{self, Client};
use super::{Effort, Place, Scenario};

/// Whose addresses packets are from: networks for measurements (RFC 2544), which nobody here has.
const FROM: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

/// A kind of flood.
#[derive(Clone, Copy)]
struct Part {
    case: &'static str,
    kind: Kind,
    clients: Clients,
    to: To,
}

#[derive(Clone, Copy)]
enum To {
    /// The NodePort of the first Service of a node.
    NodePort(u8),
    /// A pod that is no endpoint.
    Pod,
}

const ALL: [Part; 5] = [
    Part {
        case: "datagrams to a local backend",
        kind: Kind::Datagram,
        clients: Clients::One,
        to: To::NodePort(1),
    },
    Part {
        case: "datagrams to a remote backend",
        kind: Kind::Datagram,
        clients: Clients::One,
        to: To::NodePort(2),
    },
    Part {
        case: "new TCP connections to a local backend",
        kind: Kind::Syn,
        clients: Clients::Many,
        to: To::NodePort(1),
    },
    Part {
        case: "datagrams that are not for a service",
        kind: Kind::Datagram,
        clients: Clients::One,
        to: To::Pod,
    },
    Part {
        case: "new TCP connections that are not for a service",
        kind: Kind::Syn,
        clients: Clients::Many,
        to: To::Pod,
    },
];

/// It.
pub(super) struct PacketFlood;

impl Scenario for PacketFlood {
    fn name(&self) -> &'static str {
        "flood"
    }

    fn parts(&self, services: usize) -> usize {
        parts(services).len()
    }

    fn measure(&self, part: usize, place: &mut Place<'_>, recorder: &mut Recorder) -> Result<()> {
        let Part {
            case,
            kind,
            clients,
            to,
        } = parts(place.services)[part];
        let (node, to) = match to {
            // The first Service on the first node has the number 0.
            To::NodePort(node) => (
                node,
                place.site.address(Client::Outside, usize::from(node) - 1, Family::V4)?,
            ),
            To::Pod => (1, (place.site.server_pod()[0], objects::TARGET).into()),
        };
        let SocketAddr::V4(to) = to else {
            bail!("{to} is no IPv4 address");
        };
        let count = match place.effort {
            Effort::Quick => 100_000,
            Effort::Full => 2_000_000,
        };
        let uplink = place.site.node().uplink();
        let flood = Flood::onto(place.site.node().netns(), uplink)?;
        // The first of each flow finds other tables than the rest.
        flood.run(kind, clients, FROM, to, count / 4, site::processor())?;
        let before = place.site.delivered(node)?;
        let took = flood
            .run(kind, clients, FROM, to, count, site::processor())?
            .as_secs_f64();
        let delivered = place.site.delivered(node)? - before;
        recorder.value(case, "packets taken", Unit::PerSecond, f64::from(count) / took);
        recorder.value(case, "packets delivered", Unit::PerSecond, delivered as f64 / took);
        Ok(())
    }
}

/// Those for which there are services.
fn parts(services: usize) -> Vec<Part> {
    let has_service = |part: &&Part| !matches!(part.to, To::NodePort(node) if usize::from(node) > services);
    ALL.iter().filter(has_service).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_backend_takes_two_services() {
        assert_eq!((parts(1).len(), parts(2).len()), (4, 5));
    }
}
