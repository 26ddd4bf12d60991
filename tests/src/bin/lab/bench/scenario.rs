//! What is measured of each target, a file a scenario.

mod bystander;
mod churn;
mod connect;
mod flood;
mod packet;
mod programming;
mod request;

use std::time::Duration;

use anyhow::Result;

use super::cluster::Cluster;
use super::load::{Ask, Done, Kind};
use super::recorder::Recorder;
use super::site::{self, Client, Site};
use super::target::Target;

/// Their names on the command line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub(crate) enum Name {
    /// New connections: how many a second, and how long each takes
    Connect,
    /// Requests over open connections, and throughput
    Request,
    /// What traffic pays that is for no Service
    Bystander,
    /// Nanoseconds that the programs on links take for a packet
    Packet,
    /// As many packets as the kernel can make, on the uplink
    Flood,
    /// New connections while endpoints change all the time
    Churn,
    /// From a write to the API server to the first packet that follows it; starts; memory
    Programming,
}

impl Name {
    /// It.
    pub(crate) fn scenario(self) -> &'static dyn Scenario {
        match self {
            Self::Connect => &connect::Connect,
            Self::Request => &request::Request,
            Self::Bystander => &bystander::Bystander,
            Self::Packet => &packet::PacketTime,
            Self::Flood => &flood::PacketFlood,
            Self::Churn => &churn::Churn,
            Self::Programming => &programming::Programming,
        }
    }
}

/// In what state a scenario finds a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begin {
    /// The proxy has written its rules and rests. The same site for each round, and for all scenarios that begin so.
    Serving,
    /// There was never a proxy. Another site for each round.
    Cold,
}

/// Something that can be measured.
pub(crate) trait Scenario: Sync {
    /// As rows have it.
    fn name(&self) -> &'static str;

    /// What it begins with.
    fn begin(&self) -> Begin {
        Begin::Serving
    }

    /// Whether it can be measured of a target.
    fn applies_to(&self, _target: Target) -> bool {
        true
    }

    /// How many parts it has with so many services. Of each part all targets are measured right after each other.
    fn parts(&self, services: usize) -> usize;

    /// Measures a part of it once, of the target of a site.
    fn measure(&self, part: usize, place: &mut Place<'_>, recorder: &mut Recorder) -> Result<()>;
}

/// Where a scenario is measured, and how thoroughly.
pub(crate) struct Place<'a> {
    pub(crate) site: &'a mut Site,
    pub(crate) cluster: &'a Cluster,
    pub(crate) services: usize,
    pub(crate) endpoints: usize,
    pub(crate) effort: Effort,
}

/// How long to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// To see that it works
    Quick,
    /// For figures
    Full,
}

impl Effort {
    const fn measured(self) -> u64 {
        match self {
            Self::Quick => 250,
            Self::Full => 1500,
        }
    }

    const fn warm_up(self) -> u64 {
        match self {
            Self::Quick => 100,
            Self::Full => 300,
        }
    }

    /// The part of the time of a load in which it is measured.
    fn measured_part(self) -> f64 {
        self.measured() as f64 / (self.measured() + self.warm_up()) as f64
    }
}

impl Place<'_> {
    /// Has a client do something over and over for as long as it is measured.
    fn ask(&self, client: Client, kind: Kind, at_once: usize, to: std::net::SocketAddr) -> Result<Done> {
        let ask = Ask {
            kind,
            to,
            at_once,
            milliseconds: self.effort.measured(),
            warm_up: self.effort.warm_up(),
            cpu: site::processor(),
        };
        self.site.ask(client, &ask)
    }

    /// The same, with the processor time of both ends.
    fn ask_and_count(
        &self,
        client: Client,
        kind: Kind,
        at_once: usize,
        to: std::net::SocketAddr,
    ) -> Result<(Done, Duration)> {
        let before = self.site.servers_processor()?;
        let done = self.ask(client, kind, at_once, to)?;
        let servers = self.site.servers_processor()? - before;
        let client = Duration::from_secs_f64(done.cpu_seconds);
        Ok((done, client + servers))
    }
}
