//! `connect`: new connections to a Service, one at a time for how long each takes, and many at once for how many a second.

use anyhow::{Context as _, Result};
use lb_tests::stage::Family;

use super::super::load::Kind;
use super::super::objects;
use super::super::recorder::Recorder;
use super::super::sample::Unit;
use super::super::site::Client;
use super::{Place, Scenario};

/// How many connect at once where it is counted how many can.
const MANY: usize = 16;

/// It.
pub(super) struct Connect;

impl Scenario for Connect {
    fn name(&self) -> &'static str {
        "connect"
    }

    fn parts(&self, services: usize) -> usize {
        parts(services).len()
    }

    fn measure(&self, part: usize, place: &mut Place<'_>, recorder: &mut Recorder) -> Result<()> {
        let (client, position) = parts(place.services)[part];
        let services = candidates(place, client)?;
        let service = position.pick(&services).context("no service is on this node")?;
        let case = format!("{}-{}", client.name(), position.name());
        let to = place.site.address(client, service, Family::V4)?;

        let done = place.ask(client, Kind::TcpCrr, 1, to)?;
        recorder.failures(&case, &done);
        recorder.times(&case, "connect", Unit::Microseconds, done.connects);
        recorder.times(&case, "transaction", Unit::Microseconds, done.times);

        let done = place.ask(client, Kind::TcpCrr, MANY, to)?;
        recorder.failures(&case, &done);
        let each_second = done.operations as f64 / done.seconds;
        recorder.value(&case, "connections", Unit::PerSecond, each_second);
        Ok(())
    }
}

/// Who dials which Service: the last of all clients, and of pods the others too, if there are others.
fn parts(services: usize) -> Vec<(Client, Position)> {
    let mut parts = vec![
        (Client::Pod, Position::Last),
        (Client::Host, Position::Last),
        (Client::Outside, Position::Last),
    ];
    // Half of the services are on this node.
    if services >= 6 {
        parts.extend([(Client::Pod, Position::First), (Client::Pod, Position::Middle)]);
    }
    parts
}

/// The Services with endpoints on this node that a client can dial, in the order in which the target looks at them if it
/// does so one by one, and else by number.
fn candidates(place: &Place<'_>, client: Client) -> Result<Vec<usize>> {
    let most = match client {
        Client::Pod | Client::Host => place.services,
        Client::Outside => place.services.min(objects::NODE_PORTS),
    };
    let mut services = place
        .site
        .iptables_order(client)?
        .unwrap_or_else(|| (0..most).collect());
    services.retain(|service| objects::node_of(*service) == 1);
    Ok(services)
}

/// Where in the order a Service is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    First,
    Middle,
    Last,
}

impl Position {
    const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Middle => "middle",
            Self::Last => "last",
        }
    }

    fn pick(self, services: &[usize]) -> Option<usize> {
        match self {
            Self::First => services.first(),
            Self::Middle => services.get(services.len() / 2),
            Self::Last => services.last(),
        }
        .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_one_of_the_services() {
        let services = [4, 0, 2];
        let picked = [Position::First, Position::Middle, Position::Last].map(|position| position.pick(&services));
        assert_eq!(picked, [Some(4), Some(0), Some(2)]);
        assert_eq!(Position::Last.pick(&[]), None);
    }

    #[test]
    fn every_client_dials_the_last_service_and_pods_the_others_if_there_are_any() {
        assert!(parts(1).iter().all(|(_, position)| *position == Position::Last));
        assert_eq!(parts(1).len(), 3);
        assert!(parts(100).contains(&(Client::Pod, Position::Middle)));
    }
}
