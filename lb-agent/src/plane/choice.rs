//! Which plane serves on this node, and why.

mod leftovers;

use std::{fmt, mem};

use anyhow::Context as _;
pub use leftovers::{clean_up, hand_over, remove_leftovers};
use serde::{Deserialize, Serialize};

use super::{
    LinkPlane, Plane, PlaneName,
    ebpf::{self, EbpfOptions, EbpfPlane},
    ipvs::{self, IpvsOptions, IpvsPlane},
    probe::PlaneReport,
};

/// What the settings ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// BPF where the node can do all of it, else IPVS.
    #[default]
    Auto,
    /// BPF programs, or nothing.
    Ebpf,
    /// The kernel's IPVS, or nothing.
    Ipvs,
}

impl Wanted {
    /// The planes to try, in order.
    const fn candidates(self) -> &'static [PlaneName] {
        match self {
            Self::Auto => &PlaneName::ALL,
            Self::Ebpf => &[PlaneName::Ebpf],
            Self::Ipvs => &[PlaneName::Ipvs],
        }
    }
}

/// A plane, and why it is this one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// The plane.
    pub plane: PlaneName,
    /// Why.
    #[serde(flatten)]
    pub reason: Reason,
}

/// Why a plane was chosen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "lowercase")]
pub enum Reason {
    /// The settings name it.
    Configured,
    /// The node can do all that the best one needs.
    Preferred,
    /// It cannot do this for the better one.
    Fallback {
        /// What is missing, a line each.
        missing: Vec<String>,
    },
}

impl Reason {
    /// The word for it in metrics.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Preferred => "preferred",
            Self::Fallback { .. } => "fallback",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured => f.write_str("--plane asks for it"),
            Self::Preferred => f.write_str("this node can do all that it needs"),
            Self::Fallback { missing } => write!(f, "this node cannot run ebpf: {}", missing.join("; ")),
        }
    }
}

/// No plane that may serve can be run on this node.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct NoPlane {
    /// What each lacks that was tried.
    pub reports: Vec<PlaneReport>,
}

impl fmt::Display for NoPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this node cannot serve")?;
        self.reports.iter().try_for_each(|report| write!(f, "\n{report}"))
    }
}

/// What a node can do for each plane.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NodeReport {
    /// Of each plane, whether it may serve or not.
    pub planes: Vec<PlaneReport>,
    /// The one that would serve.
    pub chosen: Option<Choice>,
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.planes.iter().try_for_each(|report| writeln!(f, "{report}"))?;
        match &self.chosen {
            Some(choice) => write!(f, "{} would serve: {}", choice.plane, choice.reason),
            None => f.write_str("this node cannot serve"),
        }
    }
}

/// How each plane is to run.
#[derive(Clone, Debug)]
pub struct PlaneOptions {
    /// BPF.
    pub ebpf: EbpfOptions,
    /// IPVS.
    pub ipvs: IpvsOptions,
}

/// A plane that serves.
pub struct Started {
    /// Services.
    pub plane: Box<dyn Plane>,
    /// Links.
    pub links: Box<dyn LinkPlane + Send>,
    /// Which it is.
    pub choice: Choice,
}

/// Starts the plane that is wanted, or the better one of those that the node can run.
///
/// # Errors
/// [`NoPlane`] if the node can run none of them, whatever else fails otherwise: that an agent runs already is
/// no reason for another plane.
pub fn start(wanted: Wanted, options: &PlaneOptions) -> anyhow::Result<Started> {
    let ((plane, links), choice) = choose(wanted, |plane| match plane {
        PlaneName::Ebpf => start_ebpf(options),
        PlaneName::Ipvs => start_ipvs(options),
    })?;
    Ok(Started { plane, links, choice })
}

/// Finds out what the node can do, and which plane [`start`] would take. Leaves nothing behind.
#[must_use]
pub fn probe(wanted: Wanted, options: &PlaneOptions) -> NodeReport {
    let planes = PlaneName::ALL.map(|plane| report(plane, options));
    would_choose(wanted, planes.into())
}

fn would_choose(wanted: Wanted, planes: Vec<PlaneReport>) -> NodeReport {
    let usable = |plane| {
        let report = planes.iter().find(|report| report.plane == plane);
        Ok(match report {
            Some(report) if !report.is_usable() => Err(report.clone()),
            _ => Ok(()),
        })
    };
    let chosen = choose(wanted, usable).ok().map(|((), choice)| choice);
    NodeReport { planes, chosen }
}

type Halves = (Box<dyn Plane>, Box<dyn LinkPlane + Send>);

/// What became of a plane that was tried: it serves, or this is what it lacks.
type Tried<T> = Result<T, PlaneReport>;

/// The first that can be had of the planes that are wanted.
fn choose<T>(
    wanted: Wanted,
    mut attempt: impl FnMut(PlaneName) -> anyhow::Result<Tried<T>>,
) -> anyhow::Result<(T, Choice)> {
    let mut reports: Vec<PlaneReport> = Vec::new();
    for plane in wanted.candidates().iter().copied() {
        match attempt(plane)? {
            Ok(started) => {
                let reason = match (wanted, mem::take(&mut reports)) {
                    (Wanted::Ebpf | Wanted::Ipvs, _) => Reason::Configured,
                    (Wanted::Auto, lacking) if lacking.is_empty() => Reason::Preferred,
                    (Wanted::Auto, lacking) => Reason::Fallback {
                        missing: lacking.iter().flat_map(PlaneReport::missing).collect(),
                    },
                };
                return Ok((started, Choice { plane, reason }));
            }
            Err(report) => reports.push(report),
        }
    }
    Err(NoPlane { reports }.into())
}

/// Starting it is the trial, so that a node where all is well loads the programs once. What it lacks is looked for
/// only where that fails.
fn start_ebpf(options: &PlaneOptions) -> anyhow::Result<Tried<Halves>> {
    match EbpfPlane::start(options.ebpf.clone()) {
        Ok((plane, links)) => Ok(Ok((Box::new(plane), Box::new(links)))),
        Err(error) => {
            let report = report(PlaneName::Ebpf, options);
            // Then it is not the node that lacks something.
            if report.is_usable() {
                return Err(error).context("the BPF data path");
            }
            Ok(Err(report))
        }
    }
}

fn start_ipvs(options: &PlaneOptions) -> anyhow::Result<Tried<Halves>> {
    let report = report(PlaneName::Ipvs, options);
    if !report.is_usable() {
        return Ok(Err(report));
    }
    let (plane, links) = IpvsPlane::start(options.ipvs.clone()).context("the IPVS data path")?;
    Ok(Ok((Box::new(plane), Box::new(links))))
}

fn report(plane: PlaneName, options: &PlaneOptions) -> PlaneReport {
    let checks = match plane {
        PlaneName::Ebpf => ebpf::probe(&options.ebpf),
        PlaneName::Ipvs => ipvs::probe(&options.ipvs),
    };
    PlaneReport { plane, checks }
}

#[cfg(test)]
mod tests;
