//! What is measured: values, and distributions of times.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::target::Target;

/// What was measured where: all that two values of it have in common but the target and the round.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) scenario: String,
    /// Who asks what, such as `pod-last`.
    pub(crate) case: String,
    pub(crate) services: usize,
    /// Of each service.
    pub(crate) endpoints: usize,
    pub(crate) metric: String,
    pub(crate) unit: Unit,
}

/// What a value counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Unit {
    #[serde(rename = "ns")]
    Nanoseconds,
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "MB")]
    Megabytes,
    /// Operations of some kind a second.
    #[serde(rename = "1/s")]
    PerSecond,
    #[serde(rename = "Gbit/s")]
    GigabitsPerSecond,
    /// Times that something happened.
    #[serde(rename = "times")]
    Times,
}

impl Unit {
    /// As it is written.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
            Self::Megabytes => "MB",
            Self::PerSecond => "1/s",
            Self::GigabitsPerSecond => "Gbit/s",
            Self::Times => "times",
        }
    }

    /// Whether more of it is better.
    pub(crate) const fn is_more_better(self) -> bool {
        matches!(self, Self::PerSecond | Self::GigabitsPerSecond)
    }
}

/// One value of one target in one round.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    #[serde(flatten)]
    pub(crate) subject: Subject,
    pub(crate) target: Target,
    pub(crate) round: u32,
    pub(crate) value: f64,
}

/// How long each of many operations took, of one target in one round.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Distribution {
    #[serde(flatten)]
    pub(crate) subject: Subject,
    pub(crate) target: Target,
    pub(crate) round: u32,
    pub(crate) times: Times,
}

/// The same of all rounds together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Overall {
    #[serde(flatten)]
    pub(crate) subject: Subject,
    pub(crate) target: Target,
    pub(crate) times: Times,
}

/// Of each metric and target the times with the most services, of all rounds together, as exactly as a plot can show them:
/// all of them are too much to keep for good.
pub(crate) fn overall(distributions: &[Distribution]) -> Vec<Overall> {
    let mut all: Vec<Overall> = Vec::new();
    for distribution in distributions {
        let Distribution {
            subject, target, times, ..
        } = distribution;
        let same = |other: &&mut Overall| {
            let of_these = Subject {
                services: subject.services,
                ..other.subject.clone()
            };
            other.target == *target && of_these == *subject
        };
        match all.iter_mut().find(same) {
            Some(found) if found.subject.services == subject.services => found.times.merge(times),
            Some(found) if found.subject.services > subject.services => {}
            Some(found) => (found.subject, found.times) = (subject.clone(), times.clone()),
            None => all.push(Overall {
                subject: subject.clone(),
                target: *target,
                times: times.clone(),
            }),
        }
    }
    all.iter_mut().for_each(|overall| overall.times.thin_out());
    all
}

/// How many operations took how long: pairs of nanoseconds, which rise, and a number.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Times(pub(crate) Vec<(u64, u64)>);

impl Times {
    /// The filled buckets of a histogram of nanoseconds.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let filled = histogram.iter_recorded();
        Self(
            filled
                .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
                .collect(),
        )
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// The time in nanoseconds that this part of them, between 0 and 1, did not exceed.
    pub(crate) fn quantile(&self, part: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * part).ceil().max(1.0);
        let mut seen = 0;
        self.0.iter().find_map(|(time, count)| {
            seen += count;
            (seen as f64 >= wanted).then_some(*time)
        })
    }

    /// Puts those together that differ by less than a hundredth, at the longest of them.
    fn thin_out(&mut self) {
        let mut thin: Vec<(u64, u64)> = Vec::new();
        let mut first = 0;
        for (time, count) in self.0.drain(..) {
            match thin.last_mut() {
                Some(last) if time - first < first / 100 => *last = (time, last.1 + count),
                _ => {
                    first = time;
                    thin.push((time, count));
                }
            }
        }
        self.0 = thin;
    }

    /// All of both.
    pub(crate) fn merge(&mut self, other: &Self) {
        let mut merged = std::collections::BTreeMap::new();
        for (time, count) in self.0.iter().chain(&other.0) {
            *merged.entry(*time).or_insert(0) += count;
        }
        self.0 = merged.into_iter().collect();
    }
}

/// The significant digits of a time in a [`histogram`].
const DIGITS: u8 = 3;
/// The longest time that one tells from longer ones: an hour, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// A histogram for times in nanoseconds, of which no bucket is wider than a thousandth of its times.
pub(crate) fn histogram() -> Histogram<u64> {
    // It refuses more than five digits, and bounds that are none.
    Histogram::new_with_max(LONGEST, DIGITS).expect("three digits are few enough")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_flat_object() {
        let subject = Subject {
            scenario: "connect".into(),
            case: "pod-last".into(),
            services: 100,
            endpoints: 2,
            metric: "connections".into(),
            unit: Unit::PerSecond,
        };
        let sample = Sample {
            subject,
            target: Target::LbAgentSocketAll,
            round: 3,
            value: 9000.5,
        };
        let text = r#"{"scenario":"connect","case":"pod-last","services":100,"endpoints":2,"metric":"connections","unit":"1/s","target":"lb-agent-socket-all","round":3,"value":9000.5}"#;
        assert_eq!(serde_json::to_string(&sample).unwrap(), text);
        assert_eq!(serde_json::from_str::<Sample>(text).unwrap(), sample);
    }

    #[test]
    fn a_quantile_is_no_less_than_its_part() {
        let times = Times((1..=200).map(|time| (time, 1)).collect());
        let at = [0.5, 0.99, 0.999, 1.0].map(|part| times.quantile(part));
        assert_eq!(at, [Some(100), Some(198), Some(200), Some(200)]);
        assert_eq!(Times(vec![(5, 1)]).quantile(0.001), Some(5));
        assert_eq!(Times::default().quantile(0.5), None);
    }

    #[test]
    fn merged_times_are_all_of_both() {
        let mut times = Times(vec![(1, 2), (5, 1)]);
        times.merge(&Times(vec![(3, 1), (5, 4)]));
        assert_eq!(times, Times(vec![(1, 2), (3, 1), (5, 5)]));
        assert_eq!(times.count(), 8);
    }

    #[test]
    fn what_is_kept_is_all_rounds_with_the_most_services_to_a_hundredth() {
        let distribution = |services, round, times: &[(u64, u64)]| Distribution {
            subject: Subject {
                scenario: "connect".into(),
                case: "pod-last".into(),
                services,
                endpoints: 2,
                metric: "connect".into(),
                unit: Unit::Microseconds,
            },
            target: Target::None,
            round,
            times: Times(times.to_vec()),
        };
        let overall = overall(&[
            distribution(1, 0, &[(50, 1)]),
            distribution(100, 0, &[(10_000, 1), (10_050, 2)]),
            distribution(100, 1, &[(10_080, 3), (10_150, 4)]),
            distribution(10, 0, &[(60, 1)]),
        ]);
        let [kept] = &overall[..] else { panic!("{overall:?}") };
        assert_eq!(kept.subject.services, 100);
        assert_eq!(kept.times, Times(vec![(10_080, 6), (10_150, 4)]));
    }

    #[test]
    fn a_histogram_keeps_three_digits() {
        let mut histogram = histogram();
        for time in [123_456, 700_000_000_000] {
            histogram.saturating_record(time);
        }
        let times = Times::of(&histogram).0;
        assert_eq!(times.len(), 2);
        assert!(times[0].0.abs_diff(123_456) <= 124, "{times:?}");
        assert!(times[1].0.abs_diff(700_000_000_000) <= 700_000_000, "{times:?}");
    }
}
