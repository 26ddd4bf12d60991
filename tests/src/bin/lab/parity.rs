//! `lab parity`: the real kube-proxy and lb-agent on two copies of one network, with the same objects and the same
//! questions.

mod actors;
mod catalogue;
mod differences;
mod expect;
mod health;
mod keep;
mod objects;
mod outcome;
mod play;
mod probe;
mod report;
mod service;
mod settings;
mod sides;
mod twin;
mod usable;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use lb_tests::agent;
use lb_tests::controlplane::Mode;

use crate::progress::{Step, say};
use catalogue::Generation;
use health::Checked;
use play::Sides;
use probe::{Entry, Probe};
use report::{Judged, Part, Sum};
use settings::{DetectLocal, NodePorts, Settings};
use sides::{Ours, Theirs};

/// A run of fewer probes proves nothing.
const FEWEST: usize = 1500;
/// How many probes are asked again at most: more that differ are no chance.
const MOST_AGAIN: usize = 50;

/// Which kube-proxy to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Modes {
    /// The nftables mode
    Nftables,
    /// The iptables mode
    Iptables,
    /// One after the other
    Both,
}

impl Modes {
    fn all(self) -> &'static [Mode] {
        match self {
            Self::Nftables => &[Mode::Nftables],
            Self::Iptables => &[Mode::Iptables],
            Self::Both => &[Mode::Nftables, Mode::Iptables],
        }
    }
}

/// Arguments of `parity`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which mode of kube-proxy to compare with
    #[arg(long, value_enum, default_value = "both")]
    mode: Modes,
    /// How both tell pods from what is not in the cluster [default: lb-agent by the kind of link, kube-proxy by NodeCIDR]
    #[arg(long, value_enum)]
    detect_local_mode: Option<DetectLocal>,
    /// Which addresses of the node have NodePorts on both sides
    #[arg(long, value_enum, default_value = "primary")]
    node_port_addresses: NodePorts,
    /// Only probes whose description has this text, such as "hints", "NodePort" or "UDP IPv6"; any number will do then
    #[arg(long)]
    filter: Option<String>,
    /// Only one in so many of them, from all over the matrix: for machines on which all take too long. A number that shares
    /// a divisor with those of clients, protocols and families would leave some of these out, so it is to be prime to 2 and 5
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = parse_one_in)]
    one_in: usize,
    /// Write every probe to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// More arguments of lb-agent
    #[arg(long = "agent-arg", value_name = "ARG", allow_hyphen_values = true)]
    agent_args: Vec<String>,
    /// Leave out the second part, for which every Service becomes another one while both proxies run
    #[arg(long)]
    no_change: bool,
    /// Leave everything up afterwards, say how to look around in it, and remove it on Ctrl-C
    #[arg(long)]
    keep: bool,
}

fn parse_one_in(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|error| format!("{error}"))?;
    // Five sources, two protocols, two families.
    match number.is_multiple_of(2) || number.is_multiple_of(5) {
        false => Ok(number),
        true => Err(format!(
            "{number} shares a divisor with the ten kinds of clients and connections: 3, 7, 9 and 11 do not"
        )),
    }
}

/// Compares. Says whether the two agree in all but what is declared.
pub(crate) fn run(args: &Args) -> Result<bool> {
    // Known at once, and not after the networks have been built.
    agent::binary()?;
    let settings = Settings {
        detect_local: args.detect_local_mode,
        node_ports: args.node_port_addresses,
    };
    let mut generation = Generation::First;
    let mut entries = catalogue::all(generation);
    if args.no_change {
        // What nobody asks for need not be written; a change would make another Service of it, which somebody may.
        entries.retain(|entry| Probe::of(entry).iter().any(|probe| is_wanted(probe, args)));
    }
    if matching(&entries, args).is_empty() {
        bail!("no probe has this text in its description");
    }

    let agent_args = [settings.of_lb_agent(), args.agent_args.clone()].concat();
    let ours = Ours::start(&entries, &agent_args)?;
    let mut judged = Vec::new();
    let mut checked = Vec::new();
    let mut last = None;
    for mode in args.mode.all() {
        // One at a time; `--keep` shows the last.
        drop(last.take());
        let theirs = Theirs::start(*mode, &settings, &ours)?;
        let sides = Sides {
            mode: *mode,
            settings: &settings,
            theirs: &theirs.twin,
            ours: &ours.twin,
        };
        judged.extend(compare(&matching(&entries, args), sides, Part::Fresh)?);
        if args.filter.is_none() {
            let step = Step::start("health checks of both");
            checked.extend(health::compare(ours.cluster()?, sides)?);
            step.done();
        }
        if !args.no_change {
            generation = generation.next();
            let new = catalogue::all(generation);
            objects::change(&entries, &new, generation.canary(), &theirs, &ours)?;
            entries = new;
            let mut probes = matching(&entries, args);
            probes.retain(Probe::is_asked_again);
            judged.extend(compare(&probes, sides, Part::Changed)?);
        }
        last = Some(theirs);
    }
    let good = report(args, &judged, &checked)?;
    if args.keep
        && let Some(theirs) = &last
    {
        keep::wait(theirs, &ours)?;
    }
    drop((last, ours));
    Ok(good)
}

/// All probes of these that were asked for.
fn matching(entries: &[Entry], args: &Args) -> Vec<Probe> {
    let all = entries.iter().flat_map(Probe::of);
    all.filter(|probe| is_wanted(probe, args))
        .step_by(args.one_in)
        .collect()
}

fn is_wanted(probe: &Probe, args: &Args) -> bool {
    args.filter.as_ref().is_none_or(|text| probe.to_string().contains(text))
}

fn compare(probes: &[Probe], sides: Sides<'_>, part: Part) -> Result<Vec<Judged>> {
    let step = Step::of(format!("{} probes of both", probes.len()), probes.len());
    let played = play::play(probes, sides, &step)?;
    step.done();
    let judge = |played| Judged::new(sides.mode, sides.settings, part, played);
    let mut judged: Vec<_> = played.into_iter().map(judge).collect();
    let doubtful: Vec<usize> = (0..judged.len()).filter(|at| judged[*at].is_doubtful()).collect();
    if doubtful.is_empty() || doubtful.len() > MOST_AGAIN {
        return Ok(judged);
    }
    // A machine that is busy for a second makes a drop out of an answer. What does differ does so again, alone.
    let step = Step::of(
        format!("{} of them again, one at a time", doubtful.len()),
        doubtful.len(),
    );
    for at in doubtful {
        let probe = judged[at].played.probe.clone();
        say(format_args!("again: {}", judged[at].outcomes()));
        for played in play::play(&[probe], sides, &step)? {
            judged[at] = judge(played);
        }
    }
    step.done();
    Ok(judged)
}

/// Prints what it came to, and says whether that is good.
fn report(args: &Args, judged: &[Judged], checked: &[Checked]) -> Result<bool> {
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", report::json(judged)))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let mut sum = Sum::of(judged);
    println!("\n{}", report::render(judged));
    let (same, different): (Vec<_>, Vec<_>) = checked.iter().partition(|checked| checked.agrees());
    sum.probes += checked.len();
    sum.agree += same.len();
    sum.undeclared += different.len();
    for checked in &different {
        println!("{checked}");
    }
    if !checked.is_empty() {
        println!("health checks: {} of {} agree", same.len(), checked.len());
    }
    if args.filter.is_none() && sum.probes < FEWEST {
        println!("fewer than {FEWEST} probes");
    }
    println!(
        "parity: {} of {} probes agree, {} declared differences, {} undeclared",
        sum.agree,
        sum.probes,
        sum.differ(),
        sum.undeclared
    );
    let enough = args.filter.is_some() || sum.probes >= FEWEST;
    Ok(enough && sum.undeclared == 0 && sum.unexpected == 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::probe::Frontend;
    use super::*;

    #[test]
    fn a_part_of_the_probes_has_every_client_protocol_and_family_at_every_usual_frontend() {
        let all: Vec<_> = catalogue::all(Generation::First).iter().flat_map(Probe::of).collect();
        for one_in in [3, 7, 11] {
            let usual = all.iter().step_by(one_in);
            let usual = usual.filter(|probe| Frontend::USUAL.contains(&probe.frontend));
            let ways: BTreeSet<_> = usual
                .map(|probe| format!("{:?}", (probe.frontend, probe.source, probe.protocol, probe.family)))
                .collect();
            assert_eq!(ways.len(), Frontend::USUAL.len() * 5 * 2 * 2, "one in {one_in}");
        }
        assert!(["0", "5", "8", "x"].iter().all(|text| parse_one_in(text).is_err()));
    }
}
