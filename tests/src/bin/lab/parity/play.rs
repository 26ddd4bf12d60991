//! Plays probes on both copies of the network, many at once, until what can come of each is known.
//!
//! Endpoints are chosen by chance, so one connection says little. Both sides are asked a few times; while the two have
//! not seen the same, whoever has seen less is asked again. With four endpoints, sixty connections miss one of them
//! less than once in ten million probes.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use lb_tests::client::{Failure, Protocol};
use lb_tests::controlplane::Mode;
use lb_tests::interrupt;
use lb_tests::patience::at_once;

use super::differences::Difference;
use super::expect::expected;
use super::outcome::{Observed, Outcome};
use super::probe::Probe;
use super::settings::Settings;
use super::twin::Twin;
use crate::progress::Step;

/// How many probes are played at once. Most wait, for a packet or for one that does not come.
const AT_ONCE: usize = 96;
/// How long a connection may take before it is tried again.
const PATIENCE: Duration = Duration::from_millis(400);
/// How long the second attempt may take: TCP sends its first segment again after a second.
const MORE_PATIENCE: Duration = Duration::from_millis(1200);
/// Connections on each side at first, if there is a choice of endpoints.
const DRAWS: u32 = 8;
/// The same if there is none.
const DRAWS_WITHOUT_CHOICE: u32 = 2;
/// Connections on each side at most.
const MOST_DRAWS: u32 = 60;
/// Waiting for nothing that often is enough, unless chance may bring an answer the next time.
const MOST_SILENCE: u32 = 2;
/// Then this often is.
const MOST_SILENCE_BY_CHANCE: u32 = 12;

/// One side's answers to a probe.
#[derive(Clone, Default, Debug)]
pub(crate) struct Side {
    /// What was seen.
    pub(crate) outcome: Outcome,
    /// How many connections it took.
    pub(crate) draws: u32,
    /// How long the first one took until it had come to something.
    pub(crate) first: Duration,
    silent: u32,
}

/// A probe, and what came of it on kube-proxy's side and on ours.
#[derive(Clone, Debug)]
pub(crate) struct Played {
    pub(crate) probe: Probe,
    /// What kube-proxy's source says.
    pub(crate) expected: Outcome,
    pub(crate) theirs: Side,
    pub(crate) ours: Side,
}

/// Who is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sides<'a> {
    pub(crate) mode: Mode,
    pub(crate) settings: &'a Settings,
    /// The network with kube-proxy.
    pub(crate) theirs: &'a Twin,
    /// The network with lb-agent.
    pub(crate) ours: &'a Twin,
}

/// Plays all probes, and returns them in their order.
pub(crate) fn play(probes: &[Probe], sides: Sides<'_>, step: &Step) -> Result<Vec<Played>> {
    let groups = groups(probes);
    let next = AtomicUsize::new(0);
    let played = Mutex::new(Vec::with_capacity(probes.len()));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once(AT_ONCE).min(groups.len()))
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                        for at in group {
                            let one = play_one(&probes[*at], sides)?;
                            played.lock().map_err(|_| anyhow!("a probe panicked"))?.push((*at, one));
                            step.advance();
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        // Each of them stops at Ctrl-C by itself.
        let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        results.into_iter().try_for_each(|result| match result {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let mut played = played.into_inner().map_err(|_| anyhow!("a probe panicked"))?;
    played.sort_by_key(|(at, _)| *at);
    Ok(played.into_iter().map(|(_, played)| played).collect())
}

/// What is played one after the other. Two first connections of one client at once may come to two backends, whatever
/// its affinity: the probes of one client to one port with affinity are one group. All others are alone.
fn groups(probes: &[Probe]) -> Vec<Vec<usize>> {
    let mut alone = Vec::new();
    let mut sticky: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, probe) in probes.iter().enumerate() {
        if probe.service.affinity {
            let client = (probe.source, probe.family);
            let port = (probe.service.number, probe.port, probe.protocol);
            sticky.entry((client, port)).or_default().push(at);
        } else {
            alone.push(vec![at]);
        }
    }
    // They take longest, so they begin first.
    let mut groups: Vec<_> = sticky.into_values().collect();
    groups.append(&mut alone);
    groups
}

fn play_one(probe: &Probe, with: Sides<'_>) -> Result<Played> {
    let mut sides = [Side::default(), Side::default()];
    let twins = [with.theirs, with.ours];
    let expected = expected(probe, with.mode, with.settings, with.theirs);
    let most_silence = if expected.0.contains(&Observed::Silent) && expected.0.iter().any(Observed::is_answer) {
        MOST_SILENCE_BY_CHANCE
    } else {
        MOST_SILENCE
    };
    let draws = if probe.service.endpoints.len() > 1 || probe.to.len() > 1 {
        DRAWS
    } else {
        DRAWS_WITHOUT_CHOICE
    };
    for (side, twin) in sides.iter_mut().zip(twins) {
        while side.draws < side.first_draws(draws) {
            side.draw(probe, twin)?;
        }
    }
    loop {
        let [theirs, ours] = sides.each_ref().map(|side| side.outcome.canonical(probe));
        let is_clear =
            theirs == ours || Difference::explaining(probe, with.mode, with.settings, &theirs, &ours).is_some();
        // kube-proxy's side is to show all that can come of it, lest both have missed the same.
        let is_complete = probe.service.affinity || theirs == expected;
        if is_clear && is_complete {
            break;
        }
        let wanted = if probe.service.affinity {
            ours.clone()
        } else {
            ours.and(&expected)
        };
        let lacking = [wanted.without(&theirs), theirs.without(&ours)];
        let mut asked = false;
        for (which, lacking) in lacking.iter().enumerate() {
            // Chance hides a backend, and nothing else.
            let most = match lacking.0.iter().any(Observed::is_answer) {
                _ if lacking.0.is_empty() => 0,
                true => MOST_DRAWS,
                false => DRAWS,
            };
            if sides[which].may_go_on(most, most_silence) {
                sides[which].draw(probe, twins[which])?;
                asked = true;
            }
        }
        if !asked {
            break;
        }
    }
    let [theirs, ours] = sides;
    Ok(Played {
        probe: probe.clone(),
        expected,
        theirs,
        ours,
    })
}

impl Side {
    /// How many connections are worth it at first, of these at most. No choice is made among those that say no.
    fn first_draws(&self, most: u32) -> u32 {
        let answered = self.outcome.0.iter().any(Observed::is_answer);
        match self.draws {
            0 => most,
            draws if self.silent > 0 => draws,
            _ if answered => most,
            _ => DRAWS_WITHOUT_CHOICE.min(most),
        }
    }

    fn may_go_on(&self, most: u32, most_silence: u32) -> bool {
        self.draws < most && self.silent < most_silence
    }

    /// One connection more.
    fn draw(&mut self, probe: &Probe, twin: &Twin) -> Result<()> {
        interrupt::check()?;
        let turn = self.draws as usize;
        let to = *probe.to.get(turn % probe.to.len()).context("a probe dials something")?;
        let client = twin.client(probe.source)?;
        // A socket that is not connected goes another way through the kernel, and hears of no refusal.
        let answered = self.outcome.0.iter().any(|observed| observed.is_answer());
        let unconnected = probe.protocol == Protocol::Udp && answered && turn % 2 == 1;
        let ask = |patience| {
            let client = client.with_timeout(patience);
            if unconnected {
                client.ask_unconnected(to)
            } else {
                client.ask(probe.protocol, to)
            }
        };
        let begun = Instant::now();
        let mut outcome = ask(PATIENCE);
        if matches!(outcome, Err(Failure::Timeout)) {
            interrupt::check()?;
            outcome = ask(MORE_PATIENCE);
        }
        if self.draws == 0 {
            self.first = begun.elapsed();
        }
        self.draws += 1;
        let observed = Observed::of(outcome, probe.source, twin);
        self.silent += u32::from(observed == Observed::Silent);
        self.outcome.0.insert(observed);
        Ok(())
    }
}
