//! What a server of metrics says, in Prometheus' text format or OpenMetrics.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};

/// The values of all series, and the kind of each metric.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Exposition {
    /// By metric: `counter`, `gauge` and so on. A counter has no `_total` here, whichever the format.
    pub kinds: BTreeMap<String, String>,
    /// By name and labels, which are in order.
    series: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

impl Exposition {
    /// Reads one.
    ///
    /// # Errors
    /// A line is none of the format.
    pub fn parse(text: &str) -> Result<Self> {
        let mut exposition = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').context("a kind of nothing")?;
                let name = match kind {
                    "counter" => name.strip_suffix("_total").unwrap_or(name),
                    _ => name,
                };
                exposition.kinds.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') && !line.is_empty() {
                let read = series(line).with_context(|| format!("no series: {line}"))?;
                exposition.series.insert((read.0, read.1), read.2);
            }
        }
        Ok(exposition)
    }

    /// The value of the series with these labels and no others.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels
            .iter()
            .map(|&(label, value)| (label.to_owned(), value.to_owned()))
            .collect();
        self.series.get(&(name.to_owned(), labels)).copied()
    }

    /// The names of the labels of all series of a name, but for the bounds of histograms. `None` without any series.
    #[must_use]
    pub fn labels(&self, name: &str) -> Option<BTreeSet<String>> {
        let mut of_name = self.series.keys().filter(|(known, _)| known == name).peekable();
        of_name.peek()?;
        let labels = of_name.flat_map(|(_, labels)| labels.keys().cloned());
        Some(labels.filter(|label| label != "le").collect())
    }

    /// The bounds of a histogram, as numbers.
    #[must_use]
    pub fn bounds(&self, histogram: &str) -> Vec<f64> {
        let name = format!("{histogram}_bucket");
        let of_name = self.series.keys().filter(|(known, _)| *known == name);
        let mut bounds: Vec<f64> = of_name
            .filter_map(|(_, labels)| labels.get("le")?.parse().ok())
            .collect();
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        bounds
    }
}

fn series(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
    let (head, value) = line.rsplit_once(' ')?;
    let (name, labels) = match head.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (head, ""),
    };
    let mut read = BTreeMap::new();
    // No value here holds a comma or a quote.
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (label, value) = label.split_once('=')?;
        let value = value.strip_prefix('"')?.strip_suffix('"')?;
        read.insert(label.to_owned(), value.to_owned());
    }
    Some((name.to_owned(), read, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_come_to_the_same() {
        let text = "# TYPE a_total counter\na_total{x=\"1\",y=\"2\"} 3\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 1\n\
                    h_bucket{le=\"+Inf\"} 2\n";
        let open = "# TYPE a counter\na_total{y=\"2\",x=\"1\"} 3.0\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 1\n\
                    h_bucket{le=\"+Inf\"} 2\n# EOF\n";
        let read = Exposition::parse(text).unwrap();
        assert_eq!(read, Exposition::parse(open).unwrap());
        assert_eq!(read.value("a_total", &[("x", "1"), ("y", "2")]), Some(3.0));
        assert_eq!(read.value("a_total", &[("x", "1")]), None);
        assert_eq!(read.labels("a_total"), Some(["x", "y"].map(str::to_owned).into()));
        assert_eq!(read.labels("b_total"), None);
        assert_eq!(read.bounds("h"), [0.5, f64::INFINITY]);
        assert_eq!(read.kinds["a"], "counter");
    }

    #[test]
    fn what_is_no_series_is_an_error() {
        assert!(Exposition::parse("a{x=\"1\" 3\n").is_err());
    }
}
