//! A line of the result: what one target came to in all rounds, and what that is to the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::sample::{Sample, Subject, Unit};
use super::statistics::Spread;
use super::target::Target;

/// A line. `--json` writes an array of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) scenario: String,
    pub(crate) case: String,
    pub(crate) target: Target,
    pub(crate) services: usize,
    pub(crate) endpoints: usize,
    pub(crate) metric: String,
    pub(crate) unit: Unit,
    #[serde(flatten)]
    pub(crate) value: Spread,
    pub(crate) rounds: usize,
    /// This target's value over that of each other one in the same round.
    pub(crate) ratios: BTreeMap<Target, Spread>,
}

impl Row {
    /// What was measured.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            scenario: self.scenario.clone(),
            case: self.case.clone(),
            services: self.services,
            endpoints: self.endpoints,
            metric: self.metric.clone(),
            unit: self.unit,
        }
    }
}

/// By target and round.
type Values = BTreeMap<Target, BTreeMap<u32, f64>>;

/// The rows of all samples, in the order of what was measured, and of targets. Where a round has several samples of one
/// thing, the last counts.
pub(crate) fn rows<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Vec<Row> {
    let mut subjects: BTreeMap<&Subject, Values> = BTreeMap::new();
    for sample in samples {
        let values = subjects.entry(&sample.subject).or_default();
        values
            .entry(sample.target)
            .or_default()
            .insert(sample.round, sample.value);
    }
    let of_subject = |(subject, values): (&Subject, Values)| {
        let targets: Vec<Target> = values.keys().copied().collect();
        let rows = targets.into_iter().filter_map(|target| row(subject, target, &values));
        rows.collect::<Vec<_>>()
    };
    subjects.into_iter().flat_map(of_subject).collect()
}

fn row(subject: &Subject, target: Target, values: &Values) -> Option<Row> {
    let own = values.get(&target)?;
    let others = values.iter().filter(|(other, _)| **other != target);
    let ratios = others.filter_map(|(other, theirs)| {
        let in_same_round = own.iter().filter_map(|(round, value)| Some(value / theirs.get(round)?));
        Some((*other, Spread::of(in_same_round)?))
    });
    Some(Row {
        scenario: subject.scenario.clone(),
        case: subject.case.clone(),
        target,
        services: subject.services,
        endpoints: subject.endpoints,
        metric: subject.metric.clone(),
        unit: subject.unit,
        value: Spread::of(own.values().copied())?,
        rounds: own.len(),
        ratios: ratios.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(target: Target, round: u32, value: f64) -> Sample {
        let subject = Subject {
            scenario: "connect".into(),
            case: "pod-last".into(),
            services: 100,
            endpoints: 2,
            metric: "connections".into(),
            unit: Unit::PerSecond,
        };
        Sample {
            subject,
            target,
            round,
            value,
        }
    }

    #[test]
    fn a_row_has_the_spread_of_its_rounds() {
        let samples = [10.0, 30.0, 20.0].map(|value| sample(Target::LbAgent, value as u32, value));
        let rows = rows(&samples);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.value.median, row.value.min, row.value.max), (20.0, 10.0, 30.0));
        assert_eq!(row.rounds, 3);
        assert!(row.ratios.is_empty());
    }

    #[test]
    fn a_ratio_is_taken_in_the_same_round_only() {
        // The machine was twice as fast in the second round, for both.
        let rows = rows(&[
            sample(Target::LbAgent, 0, 10.0),
            sample(Target::None, 0, 20.0),
            sample(Target::LbAgent, 1, 22.0),
            sample(Target::None, 1, 40.0),
            sample(Target::LbAgent, 2, 1000.0),
        ]);
        let ratio = rows[0].ratios[&Target::None];
        assert_eq!((ratio.min, ratio.max), (0.5, 0.55));
        assert_eq!(rows[1].ratios[&Target::LbAgent].max, 2.0);
    }

    #[test]
    fn what_was_measured_again_counts_once() {
        let rows = rows(&[sample(Target::None, 0, 1.0), sample(Target::None, 0, 3.0)]);
        assert_eq!((rows[0].rounds, rows[0].value.median), (1, 3.0));
    }

    #[test]
    fn a_row_has_the_fields_that_readers_go_by() {
        let rows = rows(&[sample(Target::LbAgent, 0, 1.0), sample(Target::None, 0, 4.0)]);
        let json = serde_json::to_value(&rows[0]).unwrap();
        let expected = serde_json::json!({
            "scenario": "connect", "case": "pod-last", "target": "lb-agent", "services": 100, "endpoints": 2,
            "metric": "connections", "unit": "1/s", "median": 1.0, "min": 1.0, "max": 1.0, "rounds": 1,
            "ratios": { "none": { "median": 0.25, "min": 0.25, "max": 0.25 } },
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<Row>(json).unwrap(), rows[0]);
    }
}
