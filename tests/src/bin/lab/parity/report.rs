//! What the comparison came to.

use std::collections::BTreeMap;
use std::time::Duration;

use lb_tests::controlplane::Mode;
use serde::Serialize;

use super::differences::Difference;
use super::outcome::{Observed, Outcome};
use super::play::{Played, Side};
use super::settings::Settings;

/// When a probe was played.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// The objects were there before the proxies.
    Fresh,
    /// They have changed since.
    Changed,
}

/// What is to be said of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Both did the same.
    Agrees,
    /// They did not, and are not meant to.
    Declared(Difference),
    /// They did not.
    Undeclared,
}

/// A probe as it is reported.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub(crate) mode: Mode,
    pub(crate) part: Part,
    pub(crate) played: Played,
    /// What kube-proxy's source says.
    pub(crate) expected: Outcome,
    pub(crate) theirs: Outcome,
    pub(crate) ours: Outcome,
    pub(crate) verdict: Verdict,
}

impl Judged {
    /// Judges it.
    pub(crate) fn new(mode: Mode, settings: &Settings, part: Part, played: Played) -> Self {
        let [theirs, ours] = [&played.theirs, &played.ours].map(|side| side.outcome.canonical(&played.probe));
        let verdict = if theirs == ours {
            Verdict::Agrees
        } else {
            let difference = Difference::explaining(&played.probe, mode, settings, &theirs, &ours);
            difference.map_or(Verdict::Undeclared, Verdict::Declared)
        };
        Self {
            mode,
            part,
            expected: expected_with_affinity(&played),
            played,
            theirs,
            ours,
            verdict,
        }
    }

    /// The mode, and whether it was after the change.
    fn when(&self) -> String {
        match self.part {
            Part::Fresh => self.mode.word().to_owned(),
            Part::Changed => format!("{}, after the change", self.mode.word()),
        }
    }

    /// Whether it says something against one side or the other.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.verdict == Verdict::Undeclared || !self.is_as_expected()
    }

    /// The probe, and what came of it on either side.
    pub(crate) fn outcomes(&self) -> String {
        let Self {
            theirs, ours, expected, ..
        } = self;
        format!(
            "{}: {}: kube-proxy {theirs}, its source {expected}, lb-agent {ours}",
            self.when(),
            self.played.probe
        )
    }

    /// Whether kube-proxy did what its source says. If not, the probe does not show what it is meant to.
    pub(crate) fn is_as_expected(&self) -> bool {
        self.theirs == self.expected
    }
}

/// With affinity, any one of the expected backends will do.
fn expected_with_affinity(played: &Played) -> Outcome {
    let expected = &played.expected;
    let chosen = played.theirs.outcome.0.iter().find_map(|observed| observed.backend());
    if !played.probe.service.affinity {
        return expected.clone();
    }
    let only_chosen: Outcome = expected
        .0
        .iter()
        .filter(|observed| observed.backend().is_none() || observed.backend() == chosen)
        .cloned()
        .collect();
    only_chosen.canonical(&played.probe)
}

/// The sum of a run.
#[derive(Clone, Default, Debug)]
pub(crate) struct Sum {
    pub(crate) probes: usize,
    pub(crate) agree: usize,
    pub(crate) declared: BTreeMap<Difference, usize>,
    pub(crate) undeclared: usize,
    pub(crate) unexpected: usize,
}

impl Sum {
    /// Of these.
    pub(crate) fn of<'a>(all: impl IntoIterator<Item = &'a Judged>) -> Self {
        let mut sum = Self::default();
        for judged in all {
            sum.probes += 1;
            sum.unexpected += usize::from(!judged.is_as_expected());
            match judged.verdict {
                Verdict::Agrees => sum.agree += 1,
                Verdict::Declared(difference) => *sum.declared.entry(difference).or_default() += 1,
                Verdict::Undeclared => sum.undeclared += 1,
            }
        }
        sum
    }

    /// How many probes have a declared difference.
    pub(crate) fn differ(&self) -> usize {
        self.declared.values().sum()
    }
}

/// Everything for people but the last line.
pub(crate) fn render(all: &[Judged]) -> String {
    let mut lines = Vec::new();
    for judged in all.iter().filter(|judged| !judged.is_as_expected()) {
        lines.push(format!(
            "{}: {}\n  kube-proxy: {}\n  its source: {}",
            judged.when(),
            judged.played.probe,
            judged.theirs,
            judged.expected
        ));
    }
    if !lines.is_empty() {
        lines.insert(0, "kube-proxy did not do what its source says:".to_owned());
        lines.push(String::new());
    }
    let undeclared = all.iter().filter(|judged| judged.verdict == Verdict::Undeclared);
    lines.extend(undeclared.map(|judged| {
        format!(
            "{}: {}\n  kube-proxy: {}\n  lb-agent:   {}",
            judged.when(),
            judged.played.probe,
            judged.theirs,
            judged.ours
        )
    }));
    let sum = Sum::of(all);
    if sum.undeclared > 0 {
        lines.push(String::new());
    }
    for (difference, count) in &sum.declared {
        lines.push(format!("declared: {count:>5} × {}", difference.id()));
    }
    if let Some(times) = times_to_refusal(all) {
        lines.push(times);
    }
    for mode in [Mode::Nftables, Mode::Iptables] {
        let sum = Sum::of(all.iter().filter(|judged| judged.mode == mode));
        if sum.probes > 0 {
            lines.push(format!(
                "{}: {} of {} probes agree, {} declared differences, {} undeclared; kube-proxy did as its source says in {}",
                mode.word(),
                sum.agree,
                sum.probes,
                sum.differ(),
                sum.undeclared,
                sum.probes - sum.unexpected
            ));
        }
    }
    lines.join("\n")
}

/// How long clients waited for their refusals, where both sides refused.
fn times_to_refusal(all: &[Judged]) -> Option<String> {
    let refused = all
        .iter()
        .filter(|judged| judged.theirs.is_only(&Observed::Refused) && judged.ours.is_only(&Observed::Refused));
    let (mut theirs, mut ours): (Vec<_>, Vec<_>) = refused
        .map(|judged| (judged.played.theirs.first, judged.played.ours.first))
        .unzip();
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times.get(times.len() / 2).map(|time| time.as_secs_f64() * 1000.0)
    };
    let (theirs, ours) = (median(&mut theirs)?, median(&mut ours)?);
    Some(format!(
        "time to a refusal, median: kube-proxy {theirs:.1} ms, lb-agent {ours:.1} ms"
    ))
}

/// A probe as `--json` has it.
#[derive(Clone, Debug, Serialize)]
struct Row {
    mode: Mode,
    part: Part,
    service: String,
    source: String,
    frontend: String,
    to: Vec<std::net::SocketAddr>,
    protocol: String,
    family: String,
    kube_proxy: RowSide,
    lb_agent: RowSide,
    expected: Vec<String>,
    verdict: &'static str,
}

#[derive(Clone, Debug, Serialize)]
struct RowSide {
    seen: Vec<String>,
    connections: u32,
    /// From the start of the first connection to its answer, its refusal, or the end of patience.
    first_ms: f64,
}

impl RowSide {
    fn new(outcome: &Outcome, side: &Side) -> Self {
        Self {
            seen: outcome.0.iter().map(ToString::to_string).collect(),
            connections: side.draws,
            first_ms: (side.first.as_secs_f64() * 1e5).round() / 100.0,
        }
    }
}

/// All probes as one JSON object.
pub(crate) fn json(all: &[Judged]) -> serde_json::Value {
    let rows: Vec<_> = all
        .iter()
        .map(|judged| {
            let probe = &judged.played.probe;
            Row {
                mode: judged.mode,
                part: judged.part,
                service: probe.service.name.clone(),
                source: probe.source.to_string(),
                frontend: probe.frontend.to_string(),
                to: probe.to.clone(),
                protocol: probe.protocol.to_string(),
                family: probe.family.to_string(),
                kube_proxy: RowSide::new(&judged.theirs, &judged.played.theirs),
                lb_agent: RowSide::new(&judged.ours, &judged.played.ours),
                expected: judged.expected.0.iter().map(ToString::to_string).collect(),
                verdict: match judged.verdict {
                    Verdict::Agrees => "agrees",
                    Verdict::Declared(difference) => difference.id(),
                    Verdict::Undeclared => "undeclared",
                },
            }
        })
        .collect();
    let sum = Sum::of(all);
    let declared: BTreeMap<_, _> = sum.declared.iter().map(|(id, count)| (id.id(), count)).collect();
    serde_json::json!({
        "probes": sum.probes,
        "agree": sum.agree,
        "declared": declared,
        "undeclared": sum.undeclared,
        "kube_proxy_unexpected": sum.unexpected,
        "rows": rows,
    })
}
