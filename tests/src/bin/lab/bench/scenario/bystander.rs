//! `bystander`: what traffic pays for a service proxy that it has nothing to do with. Without a proxy it pays nothing.

use std::net::SocketAddr;

use anyhow::Result;

use super::super::load::Kind;
use super::super::objects;
use super::super::recorder::Recorder;
use super::super::sample::Unit;
use super::super::site::Client;
use super::{Place, Scenario, request};

/// It.
pub(super) struct Bystander;

impl Scenario for Bystander {
    fn name(&self) -> &'static str {
        "bystander"
    }

    fn parts(&self, _: usize) -> usize {
        2
    }

    fn measure(&self, part: usize, place: &mut Place<'_>, recorder: &mut Recorder) -> Result<()> {
        let (client, case, to) = match part {
            0 => (
                Client::Pod,
                "pod to pod",
                (place.site.server_pod()[0], objects::TARGET).into(),
            ),
            _ => (Client::Outside, "outside to host", place.site.server_node()),
        };
        connections(place, recorder, case, client, to)?;
        request::requests(place, recorder, case, client, to)?;
        request::streams(place, recorder, case, client, to)
    }
}

fn connections(place: &Place<'_>, recorder: &mut Recorder, case: &str, client: Client, to: SocketAddr) -> Result<()> {
    let done = place.ask(client, Kind::TcpCrr, 1, to)?;
    recorder.failures(case, &done);
    recorder.value(
        case,
        "connections",
        Unit::PerSecond,
        done.operations as f64 / done.seconds,
    );
    recorder.times(case, "transaction", Unit::Microseconds, done.times);
    Ok(())
}
