//! An event as a line, for people or for programs.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use jiff::Timestamp;
use lb_common::{Counter, Event, Port, event::NO_LINK, flow::REVERSE};
use nix::net::if_::if_indextoname;
use serde_json::json;

use crate::cli::protocol;

/// What is shown of an event.
#[derive(Debug)]
pub(super) struct Line {
    time: Timestamp,
    /// `None` if the number is none of ours.
    pub(super) reason: Option<Counter>,
    event: Event,
    /// Name of the link, if it is still there.
    link: Option<String>,
}

impl Line {
    /// Of an event of that time. Asks the kernel for the name of the link.
    pub(super) fn new(event: &Event, time: Timestamp) -> Self {
        Self {
            time,
            reason: Counter::ALL.into_iter().find(|counter| *counter as u32 == event.reason),
            event: *event,
            link: link_name(event.link),
        }
    }

    /// The same in fields.
    pub(super) fn json(&self) -> serde_json::Value {
        let packet = &self.event.packet;
        json!({
            "time": format!("{:.6}", self.time),
            "reason": self.reason_name(),
            "protocol": protocol::name(packet.protocol),
            "source": IpAddr::from(packet.source),
            "source_port": port(packet.source_port),
            "destination": IpAddr::from(packet.destination),
            "destination_port": port(packet.destination_port),
            "hook": self.hook(),
            "link": self.link,
            "link_index": (self.event.link != NO_LINK).then_some(self.event.link),
        })
    }

    fn reason_name(&self) -> String {
        self.reason.map_or_else(
            || format!("reason_{}", self.event.reason),
            |reason| reason.name().to_owned(),
        )
    }

    fn hook(&self) -> &'static str {
        match (self.event.link, self.event.packet.direction) {
            (NO_LINK, _) => "socket",
            (_, REVERSE) => "egress",
            _ => "ingress",
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packet = &self.event.packet;
        write!(
            f,
            "{:.6} {} {} {} -> {} ",
            self.time,
            self.reason_name(),
            protocol::name(packet.protocol),
            End(packet.source.into(), packet.source_port),
            End(packet.destination.into(), packet.destination_port),
        )?;
        match (self.event.link, &self.link) {
            (NO_LINK, _) => f.write_str("process"),
            (_, Some(name)) => write!(f, "{}={name}", self.hook()),
            (index, None) => write!(f, "{}={index}", self.hook()),
        }
    }
}

fn link_name(index: u32) -> Option<String> {
    let name = if_indextoname(index).ok()?.to_string_lossy().into_owned();
    // nix 0.31 takes the null pointer that says "no such link" for success, and the name is empty then.
    (!name.is_empty()).then_some(name)
}

/// An address, with its port if there is one.
struct End(IpAddr, Port);

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match port(self.1) {
            Some(port) => SocketAddr::new(self.0, port).fmt(f),
            None => self.0.fmt(f),
        }
    }
}

fn port(port: Port) -> Option<u16> {
    (port != Port::NONE).then(|| port.get())
}

#[cfg(test)]
mod tests {
    use lb_common::{
        FlowKey,
        flow::FORWARD,
        net::{SCTP, TCP, UDP},
    };

    use super::*;

    /// Index of `lo`, in every network namespace.
    const LOOPBACK: u32 = 1;
    const GONE: u32 = 2_000_000_000;

    fn line(packet: FlowKey, reason: u32, link: u32) -> Line {
        let event = Event {
            time: 0,
            packet,
            reason,
            link,
        };
        Line::new(&event, "2026-11-30T10:20:30.123456789Z".parse().unwrap())
    }

    fn packet(direction: u8, protocol: u8, source: (&str, u16), destination: (&str, u16)) -> FlowKey {
        let end = |(address, port): (&str, u16)| {
            let address: IpAddr = address.parse().unwrap();
            (address.into(), Port::new(port))
        };
        FlowKey::new(direction, protocol, end(source), end(destination))
    }

    #[test]
    fn a_line_says_when_why_what_and_where() {
        let v4 = packet(FORWARD, TCP, ("10.244.1.2", 41000), ("10.96.0.9", 80));
        assert_eq!(
            line(v4, Counter::Rejected as u32, LOOPBACK).to_string(),
            "2026-11-30T10:20:30.123456Z rejected tcp 10.244.1.2:41000 -> 10.96.0.9:80 ingress=lo"
        );
        let v6 = packet(REVERSE, UDP, ("fd00::2", 53), ("fd00:96::9", 40000));
        assert_eq!(
            line(v6, Counter::DroppedRewrite as u32, LOOPBACK).to_string(),
            "2026-11-30T10:20:30.123456Z dropped_rewrite udp [fd00::2]:53 -> [fd00:96::9]:40000 egress=lo"
        );
    }

    #[test]
    fn a_fragment_has_no_ports_and_a_link_that_is_gone_its_index() {
        let fragment = packet(FORWARD, UDP, ("fd00::2", 0), ("fd00:96::9", 0));
        let line = line(fragment, Counter::DroppedFragment as u32, GONE);
        assert_eq!(
            line.to_string(),
            "2026-11-30T10:20:30.123456Z dropped_fragment udp fd00::2 -> fd00:96::9 ingress=2000000000"
        );
        let json = line.json();
        assert_eq!(json["source_port"], json!(null));
        assert_eq!(json["link"], json!(null));
        assert_eq!(json["link_index"], json!(GONE));
    }

    #[test]
    fn a_call_of_a_process_has_no_link_and_no_source() {
        let call = packet(FORWARD, SCTP, ("0.0.0.0", 0), ("10.96.0.9", 80));
        let line = line(call, Counter::DroppedUnallocated as u32, NO_LINK);
        assert_eq!(
            line.to_string(),
            "2026-11-30T10:20:30.123456Z dropped_unallocated sctp 0.0.0.0 -> 10.96.0.9:80 process"
        );
        assert_eq!(line.json()["hook"], "socket");
        assert_eq!(line.json()["link_index"], json!(null));
    }

    #[test]
    fn what_has_no_name_here_is_shown_by_its_number() {
        let packet = packet(FORWARD, 200, ("10.0.0.1", 0), ("10.0.0.2", 0));
        assert_eq!(
            line(packet, 77, LOOPBACK).to_string(),
            "2026-11-30T10:20:30.123456Z reason_77 200 10.0.0.1 -> 10.0.0.2 ingress=lo"
        );
    }

    #[test]
    fn json_has_the_same_in_fields() {
        let v4 = packet(FORWARD, TCP, ("10.244.1.2", 41000), ("10.96.0.9", 80));
        let expected = json!({
            "time": "2026-11-30T10:20:30.123456Z",
            "reason": "dropped_no_local_endpoint",
            "protocol": "tcp",
            "source": "10.244.1.2",
            "source_port": 41000,
            "destination": "10.96.0.9",
            "destination_port": 80,
            "hook": "ingress",
            "link": "lo",
            "link_index": 1,
        });
        let line = line(v4, Counter::DroppedNoLocalEndpoint as u32, LOOPBACK);
        assert_eq!(line.json(), expected);
    }
}
