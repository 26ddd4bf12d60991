//! `packet`: nanoseconds that the programs on links take for a packet, by what the packet is, run by the kernel on packets
//! that nobody sends (`BPF_PROG_TEST_RUN`). What the kernel itself does with a packet is not in it.
//!
//! These are the programs that the agent has put on the links of a node, with the maps that it has filled.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use aya::programs::TcAttachType;
use lb_tests::network::{Attachment, plan};
use lb_tests::packet::{self, Macs, Packet};
use lb_tests::rerun::{OnLink, Rerun};
use lb_tests::stage::Family;

use super::super::objects;
use super::super::recorder::Recorder;
use super::super::sample::Unit;
use super::super::site::Client;
use super::super::target::Target;
use super::{Effort, Place, Scenario};

/// With how many flows at once: one that is in every cache, and so many that none is.
const FLOWS: [u16; 2] = [1, 1 << 15];
/// How many flows begin at once where it is measured how one begins.
const NEW: u16 = 1 << 13;
/// The first port of a client. Those from here on are enough for all flows of one address.
const FIRST_PORT: u16 = 1024;
const MACS: Macs = Macs {
    from: [2, 0, 0, 0, 0, 1],
    to: [2, 0, 0, 0, 0, 2],
};

type Frames = Vec<Vec<u8>>;

/// It.
pub(super) struct PacketTime;

impl Scenario for PacketTime {
    fn name(&self) -> &'static str {
        "packet"
    }

    fn applies_to(&self, target: Target) -> bool {
        // With pods translated in their sockets it is the same programs.
        target == Target::LbAgent
    }

    fn parts(&self, _: usize) -> usize {
        1
    }

    fn measure(&self, _: usize, place: &mut Place<'_>, recorder: &mut Recorder) -> Result<()> {
        let links = Links::find(place)?;
        let round = recorder.round();
        let times = match place.effort {
            Effort::Quick => 20_000,
            Effort::Full => 500_000,
        };
        for (family, word) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
            let mut record = |case: &str, nanoseconds: f64| {
                recorder.value(&format!("{case} {word}"), "time", Unit::Nanoseconds, nanoseconds);
            };
            let sides = Sides::of(place, family)?;
            for flows in FLOWS {
                let (requests, answers) = sides.established(&links, flows)?;
                let time = Rerun::of(&requests)?.time(&links.from_pod, times)?;
                record(&format!("established, {flows} flows,"), time);
                let time = Rerun::of(&answers)?.time(&links.to_link, times)?;
                record(&format!("reverse, {flows} flows,"), time);
            }
            record("new flow", sides.new_flows(&links, round)?);
            let bystander = [sides.packet(FIRST_PORT, sides.bystander, |tcp| tcp.ack = true)?];
            record(
                "not ours from a pod",
                Rerun::of(&bystander)?.time(&links.from_pod, times)?,
            );
            record(
                "not ours from outside",
                Rerun::of(&bystander)?.time(&links.from_outside, times)?,
            );
            record(
                "not ours to a link",
                Rerun::of(&bystander)?.time(&links.to_link, times)?,
            );
            let nobody = [sides.packet(FIRST_PORT, sides.unserved, |tcp| tcp.syn = true)?];
            record("reject", Rerun::of(&nobody)?.time(&links.from_pod, times)?);
        }
        Ok(())
    }
}

/// The programs that are measured.
struct Links {
    from_pod: OnLink,
    to_link: OnLink,
    from_outside: OnLink,
}

impl Links {
    fn find(place: &Place<'_>) -> Result<Self> {
        let (node, pod) = (place.site.node(), place.site.client_pod());
        debug_assert_eq!(pod.attachment(), Attachment::Veth);
        let pod = &pod.host_link().name;
        Ok(Self {
            from_pod: OnLink::find(node, pod, TcAttachType::Ingress, "from_pod")?,
            to_link: OnLink::find(node, pod, TcAttachType::Egress, "to_link")?,
            from_outside: OnLink::find(node, plan::UPLINK, TcAttachType::Ingress, "from_outside")?,
        })
    }
}

/// Who packets are from and to.
struct Sides {
    client: IpAddr,
    /// A Service's address and port.
    service: SocketAddr,
    /// The same address at a port that it has not.
    unserved: SocketAddr,
    /// A pod that is no endpoint.
    bystander: SocketAddr,
}

impl Sides {
    fn of(place: &Place<'_>, family: Family) -> Result<Self> {
        // The middle one on this node.
        let number = place.services / 4 * 2;
        let service = place.site.address(Client::Pod, number, family)?;
        let bystander = family.of(place.site.server_pod());
        Ok(Self {
            client: family.of(place.site.client_pod().addresses()),
            service,
            unserved: (service.ip(), service.port() + 1).into(),
            bystander: (bystander, objects::TARGET).into(),
        })
    }

    fn packet(&self, port: u16, to: SocketAddr, flags: impl FnOnce(&mut etherparse::TcpHeader)) -> Result<Vec<u8>> {
        packet::tcp(MACS, (self.client, port).into(), to, flags, b"")
    }

    /// Begins so many flows, and returns what client and backend of each send then.
    fn established(&self, links: &Links, flows: u16) -> Result<(Frames, Frames)> {
        let (mut requests, mut answers) = (Frames::new(), Frames::new());
        for port in FIRST_PORT..FIRST_PORT + flows {
            let begins = self.packet(port, self.service, |tcp| tcp.syn = true)?;
            let backend = destination(&links.from_pod.run(&begins)?)?;
            ensure!(backend != self.service, "{backend} was not translated");
            let client = (self.client, port).into();
            let answer = packet::tcp(MACS, backend, client, |tcp| (tcp.syn, tcp.ack) = (true, true), b"")?;
            let answered = Packet::parse(&links.to_link.run(&answer)?)?.context("an answer is no packet")?;
            let from = answered.ends().map(|(from, _)| from);
            ensure!(from == Some(self.service), "the answer to {client} comes from {from:?}");
            requests.push(self.packet(port, self.service, |tcp| tcp.ack = true)?);
            answers.push(packet::tcp(MACS, backend, client, |tcp| tcp.ack = true, b"")?);
        }
        Ok((requests, answers))
    }

    /// How long the first packet of a flow takes, of many that begin: from a client that has begun none in other rounds.
    fn new_flows(&self, links: &Links, round: u32) -> Result<f64> {
        let client = neighbour(self.client, round)?;
        let ports = FIRST_PORT..FIRST_PORT + NEW;
        let begins = |port| packet::tcp(MACS, (client, port).into(), self.service, |tcp| tcp.syn = true, b"");
        let all: Frames = ports.map(begins).collect::<Result<_>>()?;
        Rerun::of(&all)?.time(&links.from_pod, NEW.into())
    }
}

/// Another address of the same network for each round.
fn neighbour(address: IpAddr, round: u32) -> Result<IpAddr> {
    let last = 160
        + u8::try_from(round)
            .ok()
            .filter(|round| *round < 90)
            .context("there are too many rounds")?;
    Ok(match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            IpAddr::from([a, b, c, last])
        }
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[15] = last;
            octets.into()
        }
    })
}

fn destination(frame: &[u8]) -> Result<SocketAddr> {
    let packet = Packet::parse(frame)?.context("what the program made is no packet")?;
    let (_, to) = packet.ends().context("what the program made has no ports")?;
    Ok(to)
}
