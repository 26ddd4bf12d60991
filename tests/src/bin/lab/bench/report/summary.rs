//! The summary of a run: what it ran on, and a table a metric, with what lb-agent is to each other target.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::super::row::Row;
use super::super::sample::Unit;
use super::super::statistics::Spread;
use super::super::target::Target;
use super::Raw;

/// As Markdown. Plots are named relative to its folder.
pub(super) fn markdown(raw: &Raw, rows: &[Row], plots: &[String]) -> String {
    let mut text = String::from("# A run of the benchmark\n\n| | |\n|---|---|\n");
    for (name, value) in raw.environment.lines() {
        line(&mut text, [name.to_owned(), value]);
    }
    text += "\nMedians of the rounds, and their range. `docs/benchmarks.md` says what each figure means. A column `x A` has how many \
             times as good lb-agent was as A in the same round: above 1 it is better, below 1 worse.\n";
    if !raw.notes.is_empty() {
        text += "\nNot measured, or not as it should be:\n\n";
        for note in &raw.notes {
            let _ = writeln!(text, "* {}", note.replace('\n', " "));
        }
    }
    let mut metrics: Vec<(&str, &str, Unit)> = Vec::new();
    for row in rows {
        let metric = (&*row.scenario, &*row.metric, row.unit);
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    let mut scenario = "";
    for metric in metrics {
        if metric.0 != scenario {
            scenario = metric.0;
            let _ = write!(text, "\n## {scenario}\n");
        }
        table(&mut text, metric, rows);
        for name in plots.iter().filter(|name| is_of(name, metric)) {
            let _ = write!(text, "\n![{}]({name})\n", name.trim_end_matches(".svg"));
        }
    }
    text
}

/// Whether a plot is of this metric. A distribution is shown with the first quantile that is taken of it.
fn is_of(plot: &str, (scenario, metric, _): (&str, &str, Unit)) -> bool {
    let starts = plot.starts_with(&format!("{scenario}-"));
    let own = plot.ends_with(&format!("-{}.svg", metric.replace(' ', "-")));
    let quantile = metric.strip_suffix(" p50");
    let distribution = quantile.is_some_and(|of| plot.ends_with(&format!("-{}-cdf.svg", of.replace(' ', "-"))));
    starts && (own || distribution)
}

fn table(text: &mut String, (scenario, metric, unit): (&str, &str, Unit), rows: &[Row]) {
    let of_metric = |row: &&Row| row.scenario == scenario && row.metric == metric && row.unit == unit;
    let rows: Vec<&Row> = rows.iter().filter(of_metric).collect();
    let targets: BTreeSet<Target> = rows.iter().map(|row| row.target).collect();
    let others: Vec<Target> = targets.iter().copied().filter(|target| !target.is_ours()).collect();
    let better = if unit.is_more_better() { "more" } else { "less" };
    let _ = write!(text, "\n### {metric}, in {}: {better} is better\n\n", unit.name());

    let titles = ["case", "services"].map(str::to_owned).into_iter();
    let columns = targets.iter().map(|target| target.name().to_owned());
    let header: Vec<String> = titles
        .chain(columns)
        .chain(others.iter().map(|other| format!("x {other}")))
        .collect();
    let rules = vec!["---".to_owned(); header.len()];
    line(text, header);
    line(text, rules);
    let places: BTreeSet<(&str, usize)> = rows.iter().map(|row| (&*row.case, row.services)).collect();
    for (case, services) in places {
        let at = |target: Target| {
            let found = rows
                .iter()
                .find(|row| row.case == case && row.services == services && row.target == target);
            found.copied()
        };
        let values = targets
            .iter()
            .map(|target| at(*target).map_or_else(String::new, |row| spread(row.value)));
        let ours = at(Target::LbAgent);
        let times_as_good = others.iter().map(|other| {
            let ratio = ours.and_then(|row| row.ratios.get(other));
            ratio.map_or_else(String::new, |ratio| spread(advantage(*ratio, unit)))
        });
        let cells = [case.to_owned(), services.to_string()].into_iter();
        line(text, cells.chain(values).chain(times_as_good));
    }
}

fn line(text: &mut String, cells: impl IntoIterator<Item = String>) {
    text.push('|');
    for cell in cells {
        let _ = write!(text, " {} |", cell.replace('|', "\\|"));
    }
    text.push('\n');
}

/// How many times as good as the other one, of how many times as much.
fn advantage(ratio: Spread, unit: Unit) -> Spread {
    match unit.is_more_better() {
        true => ratio,
        false => Spread {
            median: 1.0 / ratio.median,
            min: 1.0 / ratio.max,
            max: 1.0 / ratio.min,
        },
    }
}

fn spread(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    match min == max {
        true => number(median),
        false => format!("**{}** {}–{}", number(median), number(min), number(max)),
    }
}

/// With three digits that say something.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 99.5 => 0,
        value if value >= 9.95 => 1,
        value if value >= 0.995 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::raw;
    use super::*;

    #[test]
    fn a_number_has_three_digits_that_say_something() {
        let written = [12_345.6, 123.45, 12.345, 1.2345, 0.12345, 0.0].map(number);
        assert_eq!(written, ["12346", "123", "12.3", "1.23", "0.123", "0.000"]);
    }

    #[test]
    fn better_is_above_one_in_either_direction() {
        let ratio = Spread {
            median: 0.5,
            min: 0.25,
            max: 2.0,
        };
        let less = advantage(ratio, Unit::Milliseconds);
        assert_eq!((less.median, less.min, less.max), (2.0, 0.5, 4.0));
        assert_eq!(advantage(ratio, Unit::PerSecond), ratio);
    }

    #[test]
    fn the_summary_has_a_table_a_metric_with_all_targets_and_the_ratio() {
        let text = raw().summary_with_plots();
        for expected in [
            "| kernel | 6.18.44 |",
            "* flood of nftables: no such device",
            "## connect",
            "### connections, in 1/s: more is better",
            "| case | services | lb-agent | nftables | x nftables |",
            "| pod-last | 100 | **9000** 9000–9001 | **4500** 4500–4500 | 2.00 |",
            "### connect p50, in us: less is better",
            "| pod-last | 1 | **40.5** 40.0–41.0 | **81.0** 80.0–82.0 | 2.00 |",
            "![connect-pod-last-connect-p50](connect-pod-last-connect-p50.svg)",
            "![connect-pod-last-connect-cdf](connect-pod-last-connect-cdf.svg)",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
    }
}
