//! `request`: requests over a connection that stays, and how fast one and eight connections send.

use anyhow::Result;
use lb_tests::stage::Family;

use super::super::load::Kind;
use super::super::recorder::Recorder;
use super::super::sample::Unit;
use super::super::site::Client;
use super::{Place, Scenario};

/// How many connections send at once where it is not one.
const MANY: usize = 8;

/// The Service whose endpoints are on the client's node, and the one whose are on the other.
const SERVICES: [(usize, &str); 2] = [(0, "local"), (1, "remote")];

/// It.
pub(super) struct Request;

impl Scenario for Request {
    fn name(&self) -> &'static str {
        "request"
    }

    fn parts(&self, services: usize) -> usize {
        parts(services).len()
    }

    fn measure(&self, part: usize, place: &mut Place<'_>, recorder: &mut Recorder) -> Result<()> {
        let (client, service, where_to) = parts(place.services)[part];
        let case = format!("{}-{where_to}", client.name());
        let to = place.site.address(client, service, Family::V4)?;
        requests(place, recorder, &case, client, to)?;
        streams(place, recorder, &case, client, to)
    }
}

/// Who dials which Service, and where its endpoints are.
fn parts(services: usize) -> Vec<(Client, usize, &'static str)> {
    let clients = [Client::Pod, Client::Host, Client::Outside];
    let services = SERVICES.into_iter().filter(|(service, _)| *service < services);
    let all = services.flat_map(|(service, where_to)| clients.map(|client| (client, service, where_to)));
    all.collect()
}

/// Requests one after the other, by both protocols.
pub(super) fn requests(
    place: &Place<'_>,
    recorder: &mut Recorder,
    case: &str,
    client: Client,
    to: std::net::SocketAddr,
) -> Result<()> {
    for (kind, name) in [(Kind::TcpRr, "TCP requests"), (Kind::UdpRr, "UDP requests")] {
        let (done, cpu) = place.ask_and_count(client, kind, 1, to)?;
        recorder.failures(case, &done);
        recorder.value(case, name, Unit::PerSecond, done.operations as f64 / done.seconds);
        // With the warm-up, whose requests are not counted: they are in the time of both ends.
        let part = place.effort.measured_part();
        let each = cpu.as_secs_f64() * 1e6 * part / done.operations as f64;
        recorder.value(
            case,
            &format!("processor a {name}").replace("requests", "request"),
            Unit::Microseconds,
            each,
        );
        recorder.times(
            case,
            name.replace("requests", "request").as_str(),
            Unit::Microseconds,
            done.times,
        );
    }
    Ok(())
}

/// Streams, of one connection and of several.
pub(super) fn streams(
    place: &Place<'_>,
    recorder: &mut Recorder,
    case: &str,
    client: Client,
    to: std::net::SocketAddr,
) -> Result<()> {
    for (at_once, name) in [(1, "one stream"), (MANY, "eight streams")] {
        let done = place.ask(client, Kind::TcpStream, at_once, to)?;
        recorder.failures(case, &done);
        let bits = done.bytes as f64 * 8.0 / done.seconds / 1e9;
        recorder.value(case, name, Unit::GigabitsPerSecond, bits);
    }
    Ok(())
}
