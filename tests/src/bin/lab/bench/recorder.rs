//! Takes what a scenario measures of one target in one round.

use std::time::Duration;

use super::journal::Measured;
use super::load::Done;
use super::sample::{Distribution, Sample, Subject, Times, Unit};
use super::target::Target;

/// It.
#[derive(Debug)]
pub(crate) struct Recorder {
    scenario: String,
    services: usize,
    endpoints: usize,
    target: Target,
    round: u32,
    measured: Measured,
}

impl Recorder {
    /// For a round of a scenario.
    pub(crate) fn new(scenario: &str, (services, endpoints): (usize, usize), target: Target, round: u32) -> Self {
        Self {
            scenario: scenario.to_owned(),
            services,
            endpoints,
            target,
            round,
            measured: Measured::default(),
        }
    }

    /// The round, from 0.
    pub(crate) fn round(&self) -> u32 {
        self.round
    }

    /// A value.
    pub(crate) fn value(&mut self, case: &str, metric: &str, unit: Unit, value: f64) {
        let sample = Sample {
            subject: self.subject(case, metric, unit),
            target: self.target,
            round: self.round,
            value,
        };
        self.measured.samples.push(sample);
    }

    /// A time.
    pub(crate) fn time(&mut self, case: &str, metric: &str, unit: Unit, time: Duration) {
        self.value(case, metric, unit, in_unit(unit, time));
    }

    /// The times of many operations, and what half of them, 99 of 100 and 999 of 1,000 did not exceed, as far as there are
    /// enough of them to say.
    pub(crate) fn times(&mut self, case: &str, metric: &str, unit: Unit, times: Times) {
        for (part, name, enough) in [(0.5, "p50", 1), (0.99, "p99", 100), (0.999, "p99.9", 1000)] {
            if let Some(time) = times.quantile(part).filter(|_| times.count() >= enough) {
                self.time(case, &format!("{metric} {name}"), unit, Duration::from_nanos(time));
            }
        }
        let distribution = Distribution {
            subject: self.subject(case, metric, unit),
            target: self.target,
            round: self.round,
            times,
        };
        self.measured.distributions.push(distribution);
    }

    /// Notes what went wrong in a load. Figures are of what was answered alone.
    pub(crate) fn failures(&mut self, case: &str, done: &Done) {
        if done.failed > 0 {
            let why = done.failure.as_deref().unwrap_or("nobody says why");
            let note = format!(
                "{case}: {} of {} failed: {why}",
                done.failed,
                done.operations + done.failed
            );
            self.note(&note);
        }
    }

    /// Notes that something could not be measured, or not as it should be.
    pub(crate) fn note(&mut self, note: &str) {
        let Self {
            scenario,
            services,
            target,
            ..
        } = self;
        let note = format!("{scenario} of {target} with {services} services: {note}");
        self.measured.notes.push(note);
    }

    /// All of it.
    pub(crate) fn measured(self) -> Measured {
        self.measured
    }

    fn subject(&self, case: &str, metric: &str, unit: Unit) -> Subject {
        Subject {
            scenario: self.scenario.clone(),
            case: case.to_owned(),
            services: self.services,
            endpoints: self.endpoints,
            metric: metric.to_owned(),
            unit,
        }
    }
}

/// How much of a unit of time a duration is; of a unit of anything else it is seconds.
fn in_unit(unit: Unit, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    match unit {
        Unit::Nanoseconds => seconds * 1e9,
        Unit::Microseconds => seconds * 1e6,
        Unit::Milliseconds => seconds * 1e3,
        Unit::Seconds | Unit::Megabytes | Unit::PerSecond | Unit::GigabitsPerSecond | Unit::Times => seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder() -> Recorder {
        Recorder::new("connect", (100, 2), Target::Nftables, 3)
    }

    #[test]
    fn times_give_the_quantiles_that_they_are_enough_for() {
        for (count, expected) in [
            (99, vec![("connect p50", 2.0)]),
            (999, vec![("connect p50", 2.0), ("connect p99", 2.0)]),
            (
                1000,
                vec![("connect p50", 2.0), ("connect p99", 2.0), ("connect p99.9", 2.0)],
            ),
        ] {
            let mut recorder = recorder();
            recorder.times("pod-last", "connect", Unit::Microseconds, Times(vec![(2000, count)]));
            let measured = recorder.measured();
            let values = measured
                .samples
                .iter()
                .map(|sample| (&*sample.subject.metric, sample.value));
            assert_eq!(values.collect::<Vec<_>>(), expected);
            assert_eq!(measured.distributions[0].times.count(), count);
        }
    }

    #[test]
    fn a_value_is_of_the_target_and_the_round() {
        let mut recorder = recorder();
        recorder.time("pod-last", "follow", Unit::Milliseconds, Duration::from_micros(1500));
        let sample = &recorder.measured().samples[0];
        assert_eq!((sample.target, sample.round, sample.value), (Target::Nftables, 3, 1.5));
        assert_eq!((sample.subject.services, sample.subject.endpoints), (100, 2));
    }

    #[test]
    fn what_failed_is_noted_with_its_reason() {
        let mut recorder = recorder();
        let done = Done {
            operations: 98,
            failed: 2,
            failure: Some("connection refused".into()),
            ..Done::default()
        };
        recorder.failures("pod-last", &done);
        recorder.failures("pod-first", &Done::default());
        let expected = "connect of nftables with 100 services: pod-last: 2 of 100 failed: connection refused";
        assert_eq!(recorder.measured().notes, [expected]);
    }
}
