//! What is left of a run: rows as JSON, all that was measured as JSON, a summary in Markdown, and plots as SVG.

mod plot;
mod summary;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::journal::Measured;
use super::row::{self, Row};
use super::sample::{Overall, Sample, overall};

/// All of a run, as `raw.json` has it: rows follow from it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    pub(crate) environment: Environment,
    pub(crate) samples: Vec<Sample>,
    pub(crate) distributions: Vec<Overall>,
    /// What could not be measured, and why.
    pub(crate) notes: Vec<String>,
}

impl Raw {
    pub(crate) fn new(environment: Environment, measured: Measured) -> Self {
        Self {
            environment,
            samples: measured.samples,
            distributions: overall(&measured.distributions),
            notes: measured.notes,
        }
    }

    /// Its rows.
    pub(crate) fn rows(&self) -> Vec<Row> {
        row::rows(&self.samples)
    }

    /// The summary, for people, who have no plots before them.
    pub(crate) fn summary(&self) -> String {
        summary::markdown(self, &self.rows(), &[])
    }

    fn summary_with_plots(&self) -> String {
        let rows = self.rows();
        summary::markdown(self, &rows, &plot::names(&rows, &self.distributions))
    }

    /// Writes all of it to a folder, in place of what is there from another run.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        remove_plots(folder)?;
        json(&folder.join("raw.json"), self)?;
        json(&folder.join("rows.json"), &self.rows())?;
        text(&folder.join("README.md"), &self.summary_with_plots())?;
        for (name, svg) in plot::all(&self.rows(), &self.distributions)? {
            text(&folder.join(name), &svg)?;
        }
        Ok(())
    }
}

/// The plots of a run with other scenarios would stay, and look like this one's.
fn remove_plots(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry.context("reading a folder of results")?.path();
        if path.extension().is_some_and(|extension| extension == "svg") {
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    Ok(())
}

/// Writes a file of JSON.
pub(crate) fn json(path: &Path, value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string(value).context("writing results as JSON")?;
    text(path, &(json + "\n"))
}

fn text(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lb_tests::owner::Folder;

    use super::super::sample::{Distribution, Sample, Subject, Times, Unit};
    use super::super::target::Target;
    use super::*;

    pub(super) fn environment() -> Environment {
        Environment {
            date: "2026-12-01T04:05:06Z".into(),
            kernel: "6.18.44".into(),
            cpu: "Some CPU".into(),
            cpus: 2,
            memory_mb: 25_000,
            load_before: 0.25,
            lb_agent: "lb-agent 0.1.0".into(),
            profile: "release".into(),
            commit: Some("0123456789ab".into()),
            kubernetes: "1.36.3".into(),
            nft: None,
            iptables: None,
            offloads: vec!["tx-checksumming".into()],
            bpf_jit: true,
            clocksource: Some("tsc".into()),
            arguments: "connect --services 1,100".into(),
        }
    }

    /// Connections a second of two targets with two numbers of services in two rounds, and how long connecting took.
    pub(super) fn raw() -> Raw {
        let subject = |services, metric: &str, unit| Subject {
            scenario: "connect".into(),
            case: "pod-last".into(),
            services,
            endpoints: 2,
            metric: metric.into(),
            unit,
        };
        let mut measured = Measured::default();
        measured.notes.push("flood of nftables: no such device".into());
        for (target, factor) in [(Target::LbAgent, 1.0), (Target::Nftables, 0.5)] {
            for (services, round) in [(1, 0), (1, 1), (100, 0), (100, 1)] {
                measured.samples.push(Sample {
                    subject: subject(services, "connections", Unit::PerSecond),
                    target,
                    round,
                    value: factor * (9000.0 + f64::from(round)),
                });
                measured.samples.push(Sample {
                    subject: subject(services, "connect p50", Unit::Microseconds),
                    target,
                    round,
                    value: (40.0 + f64::from(round)) / factor,
                });
                measured.distributions.push(Distribution {
                    subject: subject(services, "connect", Unit::Microseconds),
                    target,
                    round,
                    times: Times(vec![(30_000, 5), (45_000, 90), (200_000, 5)]),
                });
            }
        }
        Raw::new(environment(), measured)
    }

    #[test]
    fn a_folder_holds_all_of_a_run_and_nothing_of_the_one_before() {
        let folder = Folder::new().unwrap();
        fs::write(folder.path().join("flood-of-yore.svg"), "<svg/>").unwrap();
        raw().write(folder.path()).unwrap();
        let names: BTreeSet<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let expected = [
            "README.md",
            "connect-pod-last-connect-cdf.svg",
            "connect-pod-last-connect-p50.svg",
            "connect-pod-last-connections.svg",
            "raw.json",
            "rows.json",
        ];
        assert_eq!(names, expected.map(str::to_owned).into());
        let read = fs::read_to_string(folder.path().join("raw.json")).unwrap();
        assert_eq!(serde_json::from_str::<Raw>(&read).unwrap(), raw());
        let rows = fs::read_to_string(folder.path().join("rows.json")).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Row>>(&rows).unwrap(), raw().rows());
    }
}
