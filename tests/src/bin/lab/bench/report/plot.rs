//! Plots: of a metric over the number of services a line a target, and of times the part of them that took no longer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::super::row::Row;
use super::super::sample::{Overall, Subject, Times};
use super::super::target::Target;

const SIZE: (u32, u32) = (720, 420);

/// What one plot shows: all of a subject but the number of services.
type Series = BTreeMap<Target, Vec<(f64, f64)>>;

/// The files of all plots, with their content.
pub(super) fn all(rows: &[Row], distributions: &[Overall]) -> Result<Vec<(String, String)>> {
    let mut plots = Vec::new();
    for (name, (subject, series)) in over_services(rows) {
        plots.push((name, lines(&subject, &series)?));
    }
    for (name, (subject, times)) in by_metric(distributions) {
        plots.push((name, cumulative(&subject, &times)?));
    }
    Ok(plots)
}

/// The names of their files.
pub(super) fn names(rows: &[Row], distributions: &[Overall]) -> Vec<String> {
    let lines = over_services(rows).into_keys();
    lines.chain(by_metric(distributions).into_keys()).collect()
}

/// What was measured with several numbers of services.
fn over_services(rows: &[Row]) -> BTreeMap<String, (Subject, Series)> {
    let mut plots: BTreeMap<String, (Subject, Series)> = BTreeMap::new();
    for row in rows {
        let subject = row.subject();
        let (_, series) = plots
            .entry(name(&subject, ""))
            .or_insert_with(|| (subject, Series::new()));
        let points = series.entry(row.target).or_default();
        points.push((row.services as f64, row.value.median));
    }
    plots.retain(|_, (_, series)| series.values().any(|points| points.len() > 1));
    plots
}

/// The times of all targets, by what they are of.
fn by_metric(distributions: &[Overall]) -> BTreeMap<String, (Subject, BTreeMap<Target, Times>)> {
    let mut plots: BTreeMap<String, (Subject, BTreeMap<Target, Times>)> = BTreeMap::new();
    for distribution in distributions {
        let name = name(&distribution.subject, "-cdf");
        let new = || (distribution.subject.clone(), BTreeMap::new());
        let (_, times) = plots.entry(name).or_insert_with(new);
        times.insert(distribution.target, distribution.times.clone());
    }
    plots
}

fn name(subject: &Subject, suffix: &str) -> String {
    let Subject {
        scenario, case, metric, ..
    } = subject;
    format!("{scenario}-{case}-{metric}{suffix}.svg").replace(' ', "-")
}

/// A colour of its own for each target, whoever else is in the plot; ours are the warm ones.
fn colour(target: Target) -> RGBColor {
    match target {
        Target::LbAgent => RGBColor(208, 60, 32),
        Target::LbAgentSocketAll => RGBColor(232, 150, 40),
        Target::LbAgentIpvs => RGBColor(150, 120, 20),
        Target::Nftables => RGBColor(40, 100, 180),
        Target::Iptables => RGBColor(110, 70, 160),
        Target::IptablesNft => RGBColor(170, 130, 200),
        Target::Ipvs => RGBColor(30, 130, 110),
        Target::None => RGBColor(110, 110, 110),
    }
}

fn lines(subject: &Subject, series: &Series) -> Result<String> {
    let points = || series.values().flatten();
    let services = range(points().map(|point| point.0));
    let values = range(points().map(|point| point.1));
    let title = format!(
        "{} {}: {}, {}",
        subject.scenario,
        subject.case,
        subject.metric,
        subject.unit.name()
    );
    // Far apart they can be told apart on a logarithmic axis only; near each other zero is to be in sight.
    let is_wide = values.start > 0.0 && values.end / values.start > 20.0;
    let services = widened(services).log_scale();
    match is_wide {
        true => draw(&title, "services", services, widened(values).log_scale(), series),
        false => draw(&title, "services", services, 0.0..values.end * 1.1, series),
    }
}

fn cumulative(subject: &Subject, times: &BTreeMap<Target, Times>) -> Result<String> {
    let series: Series = times.iter().map(|(target, times)| (*target, steps(times))).collect();
    // The last of a thousand would press all others into a corner.
    let until = times.values().filter_map(|times| times.quantile(0.999)).max();
    let shortest = times.values().filter_map(|times| times.quantile(0.0)).min();
    let in_sight = range([shortest, until].into_iter().flatten().map(|time| time as f64 / 1e3));
    let series: Series = series
        .into_iter()
        .map(|(target, points)| {
            (
                target,
                points.into_iter().filter(|point| point.0 <= in_sight.end).collect(),
            )
        })
        .collect();
    let title = format!(
        "{} {}: {}, {} services",
        subject.scenario, subject.case, subject.metric, subject.services
    );
    draw(&title, "microseconds", widened(in_sight).log_scale(), 0.0..1.0, &series)
}

/// Times in microseconds, and the part of all that took no longer.
fn steps(times: &Times) -> Vec<(f64, f64)> {
    let all = times.count() as f64;
    let mut seen = 0;
    let step = |(time, count): &(u64, u64)| {
        seen += count;
        (*time as f64 / 1e3, seen as f64 / all)
    };
    times.0.iter().map(step).collect()
}

fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (min, max) = values.fold((f64::MAX, 0.0), |(min, max), value| (value.min(min), value.max(max)));
    min.min(max)..max
}

/// With room at both ends of a logarithmic axis, where nothing is zero and no range empty.
fn widened(range: Range<f64>) -> Range<f64> {
    let start = range.start.max(1e-6);
    start / 1.1..range.end.max(start) * 1.1
}

fn draw<X, Y>(title: &str, x_title: &str, x: X, y: Y, series: &Series) -> Result<String>
where
    X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    let mut svg = String::new();
    let drawn = try_draw(&mut svg, title, x_title, (x, y), series);
    drawn.map_err(|error| anyhow!("plotting {title}: {error}"))?;
    Ok(svg)
}

fn try_draw<X, Y>(
    svg: &mut String,
    title: &str,
    x_title: &str,
    (x, y): (X, Y),
    series: &Series,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)?;
    chart.configure_mesh().x_desc(x_title).light_line_style(WHITE).draw()?;
    let targets: BTreeSet<Target> = series.keys().copied().collect();
    for target in targets {
        let colour = colour(target);
        let points = &series[&target];
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(target.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .position(SeriesLabelPosition::LowerRight)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::raw;
    use super::*;

    #[test]
    fn a_line_needs_two_numbers_of_services() {
        let mut raw = raw();
        assert!(names(&raw.rows(), &[]).contains(&"connect-pod-last-connections.svg".to_owned()));
        raw.samples.retain(|sample| sample.subject.services == 100);
        assert_eq!(names(&raw.rows(), &[]), [""; 0]);
    }

    #[test]
    fn a_step_has_the_part_that_took_no_longer() {
        let plots = by_metric(&raw().distributions);
        let (subject, times) = &plots["connect-pod-last-connect-cdf.svg"];
        assert_eq!(subject.services, 100);
        assert_eq!(times[&Target::LbAgent].count(), 200);
        let steps = steps(&times[&Target::LbAgent]);
        assert_eq!(steps, [(30.0, 0.05), (45.0, 0.95), (200.0, 1.0)]);
    }

    #[test]
    fn every_target_has_its_line_and_its_name_in_a_plot() {
        let raw = raw();
        for (name, svg) in all(&raw.rows(), &raw.distributions).unwrap() {
            for target in [Target::LbAgent, Target::Nftables] {
                assert!(svg.contains(target.name()), "{name} has no {target}");
                let RGBColor(red, green, blue) = colour(target);
                let colour = format!("#{red:02X}{green:02X}{blue:02X}");
                let has_line = svg
                    .lines()
                    .any(|line| line.starts_with("<polyline") && line.contains(&colour));
                assert!(has_line, "{name} has no line of {target} ({colour})");
            }
        }
    }
}
