//! What happened while connections came and went, and when.

use std::time::Duration;

use serde::Serialize;

use super::record::{Counts, Record, seconds};

/// Events, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    events: Vec<Event>,
    marks: Vec<(Duration, String)>,
}

/// One of them.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Event {
    pub(crate) name: String,
    /// When it began, from the begin of the traffic.
    #[serde(rename = "at_s", serialize_with = "seconds")]
    pub(crate) at: Duration,
    /// How long it took.
    #[serde(rename = "took_s", serialize_with = "seconds")]
    pub(crate) took: Duration,
    /// The traffic meanwhile.
    pub(crate) counts: Counts,
}

impl Event {
    /// Whether this moment is in it.
    pub(crate) fn holds(&self, moment: Duration) -> bool {
        (self.at..self.at + self.took).contains(&moment)
    }
}

impl Timeline {
    /// What follows the last event ends now, and had this name.
    pub(crate) fn end_event(&mut self, name: impl Into<String>, record: &Record) {
        let (at, before) = self.events.last().map_or_else(Default::default, |last| {
            (last.at + last.took, self.events.iter().map(|event| event.counts).sum())
        });
        self.events.push(Event {
            name: name.into(),
            at,
            took: record.now() - at,
            counts: record.counts().since(before),
        });
    }

    /// What came of the traffic in the last event, as far as that is known.
    pub(crate) fn how_it_went(&self, record: &Record) -> String {
        let Some(event) = self.events.last() else {
            return String::new();
        };
        let faults = record.faults();
        let faults = faults.iter().filter(|fault| event.holds(fault.at)).count();
        format!(
            "      {} new TCP connections, {} UDP questions, {} questions over long ones; {faults} failed so far",
            event.counts.tcp, event.counts.udp, event.counts.asked
        )
    }

    /// Something happens now.
    pub(crate) fn mark(&mut self, what: impl Into<String>, record: &Record) {
        self.marks.push((record.now(), what.into()));
    }

    /// The events.
    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    /// When a moment was, by what had happened last.
    pub(crate) fn place(&self, moment: Duration) -> String {
        let at = format!("{:.3} s", moment.as_secs_f64());
        let last = self.marks.iter().rev().find(|(mark, _)| *mark <= moment);
        let since = last.map(|(mark, what)| format!(", {:.3} s after {what}", (moment - *mark).as_secs_f64()));
        let event = self.events.iter().find(|event| event.holds(moment));
        let event = event.map(|event| format!(" [{}]", event.name));
        at + &since.unwrap_or_default() + &event.unwrap_or_default()
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, counts| Self {
            tcp: sum.tcp + counts.tcp,
            udp: sum.udp + counts.udp,
            asked: sum.asked + counts.asked,
            slow: sum.slow + counts.slow,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_placed_by_the_last_mark_and_its_event() {
        let ms = Duration::from_millis;
        let event = |name: &str, at, took| Event {
            name: name.to_owned(),
            at: ms(at),
            took: ms(took),
            counts: Counts::default(),
        };
        let timeline = Timeline {
            events: vec![event("before", 0, 1000), event("kill", 1000, 2000)],
            marks: vec![(ms(1100), "SIGKILL".to_owned()), (ms(2000), "the start".to_owned())],
        };
        assert_eq!(timeline.place(ms(500)), "0.500 s [before]");
        assert_eq!(timeline.place(ms(1250)), "1.250 s, 0.150 s after SIGKILL [kill]");
        assert_eq!(timeline.place(ms(4000)), "4.000 s, 2.000 s after the start");
    }
}
