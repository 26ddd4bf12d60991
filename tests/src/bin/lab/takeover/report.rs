//! What it came to: a table, what became of connections that were open before, each fault, and the sum in the last line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use lb_tests::controlplane::Mode;
use serde::Serialize;

use super::play::{THROUGH_AGENT, THROUGH_KUBE_PROXY};
use super::way::{Action, Way};
use crate::traffic::{Event, Fault, Kind, Record, Timeline, faults_of, table};

/// It, as it is written as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    from: Mode,
    rate: u32,
    long: usize,
    events: Vec<Event>,
    /// What came to nothing on the way to lb-agent, and on the way back.
    there: Sum,
    back: Sum,
    /// Connections that were open before the one and the other.
    open_before: [OpenBefore; 2],
    /// How many new ones took more than a second, by way.
    slow_ways: BTreeMap<String, u64>,
    faults: Vec<Fault>,
    #[serde(skip)]
    timeline: Timeline,
}

/// New connections on one way.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sum {
    new_connections: u64,
    failed_connections: usize,
}

/// What became of long connections that were opened through one of the two.
#[derive(Debug, Serialize)]
struct OpenBefore {
    group: &'static str,
    tcp: usize,
    tcp_broken: usize,
    udp: usize,
    /// Of how many flows a datagram had no answer, or one of another endpoint.
    udp_disturbed: usize,
    datagrams: usize,
    /// The steps in which something broke, with how many things.
    steps: Vec<(String, usize)>,
}

impl Report {
    pub(crate) fn new(mode: Mode, rate: u32, long: (usize, usize), timeline: Timeline, record: &Record) -> Self {
        let (events, faults) = (timeline.events().to_vec(), record.faults());
        let sum = |way| {
            // What is left after the last step is of the way back.
            let of_way = |at: usize| Action::ALL.get(at).map_or(Way::Back, |action| action.way()) == way;
            let events = events.iter().enumerate().filter(|(at, _)| of_way(*at));
            let within: Vec<&Event> = events.map(|(_, event)| event).collect();
            let failed = faults.iter().filter(|fault| fault.kind == Kind::FailedConnection);
            Sum {
                new_connections: within.iter().map(|event| event.counts.tcp + event.counts.udp).sum(),
                failed_connections: failed
                    .filter(|fault| within.iter().any(|event| event.holds(fault.at)))
                    .count(),
            }
        };
        Self {
            from: mode,
            rate,
            long: long.0 + long.1,
            there: sum(Way::There),
            back: sum(Way::Back),
            open_before: [THROUGH_KUBE_PROXY, THROUGH_AGENT].map(|group| OpenBefore::of(group, long, &events, &faults)),
            events,
            slow_ways: record.slow_ways(),
            faults,
            timeline,
        }
    }

    /// Whether no new connection failed.
    pub(crate) fn is_right(&self) -> bool {
        faults_of(Kind::FailedConnection, &self.faults) == 0
    }

    /// As JSON.
    pub(crate) fn json(&self) -> Result<serde_json::Value> {
        serde_json::to_value(self).context("writing the result as JSON")
    }

    /// For people.
    pub(crate) fn render(&self) -> String {
        let mut text = format!("{}\n\n", table(&self.events, &self.faults));
        // Writing to a string does not fail.
        for fault in self.faults.iter().filter(|fault| fault.kind == Kind::FailedConnection) {
            let _ = writeln!(text, "{}", self.timeline.line(fault));
        }
        for group in &self.open_before {
            let _ = writeln!(text, "{}", group.render());
        }
        let _ = writeln!(
            text,
            "failed new connections: {} of {} from kube-proxy ({}) to lb-agent, {} of {} on the way back",
            self.there.failed_connections,
            self.there.new_connections,
            self.from.word(),
            self.back.failed_connections,
            self.back.new_connections
        );
        text
    }
}

impl OpenBefore {
    /// `tcp` and `udp` are how many of each there are.
    fn of(group: &'static str, (tcp, udp): (usize, usize), events: &[Event], faults: &[Fault]) -> Self {
        let of_group: Vec<&Fault> = faults.iter().filter(|fault| fault.group == Some(group)).collect();
        let numbers = |kind| -> BTreeSet<usize> {
            let of_kind = of_group.iter().filter(|fault| fault.kind == kind);
            of_kind.map(|fault| fault.number).collect()
        };
        let steps = events.iter().filter_map(|event| {
            let count = of_group.iter().filter(|fault| event.holds(fault.at)).count();
            (count > 0).then(|| (event.name.clone(), count))
        });
        Self {
            group,
            tcp,
            tcp_broken: numbers(Kind::Reset).len(),
            udp,
            udp_disturbed: numbers(Kind::LostDatagram).len(),
            datagrams: of_group.iter().filter(|fault| fault.kind == Kind::LostDatagram).count(),
            steps: steps.collect(),
        }
    }

    fn render(&self) -> String {
        let Self {
            group,
            tcp,
            tcp_broken,
            udp,
            udp_disturbed,
            datagrams,
            steps,
        } = self;
        let mut text = format!(
            "{group}: {tcp_broken} of {tcp} TCP connections broke, {udp_disturbed} of {udp} UDP flows lost a datagram or were \
             answered by another endpoint ({datagrams} times)"
        );
        for (step, count) in steps {
            // Writing to a string does not fail.
            let _ = write!(text, "\n    {count} in \"{step}\"");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::traffic::Counts;

    #[test]
    fn what_was_open_before_is_counted_by_connection_and_by_step() {
        let second = Duration::from_secs;
        let event = |name: &str, at| Event {
            name: name.to_owned(),
            at: second(at),
            took: second(10),
            counts: Counts::default(),
        };
        let fault = |kind, at, group, number| Fault {
            kind,
            at: second(at),
            lasted: second(1),
            group,
            number,
            way: String::new(),
            why: String::new(),
        };
        let faults = [
            fault(Kind::Reset, 1, Some(THROUGH_KUBE_PROXY), 0),
            fault(Kind::LostDatagram, 11, Some(THROUGH_KUBE_PROXY), 4),
            fault(Kind::LostDatagram, 12, Some(THROUGH_KUBE_PROXY), 4),
            fault(Kind::Reset, 12, Some(THROUGH_AGENT), 0),
            fault(Kind::FailedConnection, 12, None, 0),
        ];
        let events = [event("one", 0), event("two", 10), event("three", 20)];
        let before = OpenBefore::of(THROUGH_KUBE_PROXY, (5, 4), &events, &faults);
        let numbers = (
            before.tcp,
            before.tcp_broken,
            before.udp,
            before.udp_disturbed,
            before.datagrams,
        );
        assert_eq!(numbers, (5, 1, 4, 1, 2));
        assert_eq!(before.steps, [("one".to_owned(), 1), ("two".to_owned(), 2)]);
    }
}
