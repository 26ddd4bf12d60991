//! What several rounds of one measurement come to.

use serde::{Deserialize, Serialize};

/// The middle and the ends of some values.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of no values there is none. What is no number counts as no value.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len().is_multiple_of(2) {
            true => f64::midpoint(sorted[middle - 1], sorted[middle]),
            false => sorted[middle],
        };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(median: f64, min: f64, max: f64) -> Option<Spread> {
        Some(Spread { median, min, max })
    }

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        assert_eq!(Spread::of([9.0, 1.0, 4.0]), spread(4.0, 1.0, 9.0));
        assert_eq!(Spread::of([9.0, 1.0, 4.0, 5.0]), spread(4.5, 1.0, 9.0));
        assert_eq!(Spread::of([7.0]), spread(7.0, 7.0, 7.0));
    }

    #[test]
    fn what_is_no_number_is_no_value() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(Spread::of([f64::NAN, 2.0]), spread(2.0, 2.0, 2.0));
    }
}
