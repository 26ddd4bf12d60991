//! What happens to the agent, and in which order: chance goes by a seed, so that a run can be made again.

use std::fmt;

use nix::sys::signal::Signal;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::build::Build;

/// A kind of event, as it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Kind {
    /// It is killed, and started again
    Kill,
    /// It is told to end, and started again
    Stop,
    /// Agents take its place that load other programs, and it takes theirs again
    Upgrade,
    /// It is cut off from its API server, killed, and started before that is over
    Cut,
    /// A start of it is interrupted
    Interrupt,
}

/// An event.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Event {
    Kill,
    Stop,
    Upgrade(Build),
    Downgrade(Build),
    Cut,
    Interrupt(Interruption),
}

/// A start that does not come to its end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Interruption {
    /// Which of how many it is.
    pub(crate) number: usize,
    /// What is started.
    pub(crate) build: Build,
    /// After which part of what a start takes.
    pub(crate) after: f64,
    /// By what.
    pub(crate) signal: Signal,
    /// Whether a whole start of the usual one follows.
    pub(crate) is_repaired: bool,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) events: Vec<Event>,
}

impl Plan {
    /// A plan of these kinds, with upgrades to these.
    pub(crate) fn new(kinds: &[Kind], builds: &[Build], rounds: usize, interruptions: usize, seed: u64) -> Self {
        let mut chance = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut events = Vec::new();
        for _ in 0..rounds {
            for kind in kinds {
                match kind {
                    Kind::Kill => events.push(Event::Kill),
                    Kind::Stop => events.push(Event::Stop),
                    Kind::Upgrade => {
                        for build in builds {
                            events.extend([Event::Upgrade(*build), Event::Downgrade(*build)]);
                        }
                    }
                    Kind::Cut => events.push(Event::Cut),
                    Kind::Interrupt => {}
                }
            }
        }
        let interruptions = if kinds.contains(&Kind::Interrupt) {
            interruptions
        } else {
            0
        };
        for number in 1..=interruptions {
            let other = builds.choose(&mut chance).filter(|_| chance.random_bool(0.3));
            events.push(Event::Interrupt(Interruption {
                number,
                build: other.copied().unwrap_or(Build::Usual),
                after: chance.random_range(0.0..1.0),
                signal: if chance.random_bool(0.7) {
                    Signal::SIGKILL
                } else {
                    Signal::SIGTERM
                },
                is_repaired: number == interruptions || chance.random_bool(0.5),
            }));
        }
        Self { events }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill => f.write_str("killed, and started"),
            Self::Stop => f.write_str("stopped, and started"),
            Self::Upgrade(build) => write!(f, "upgraded to {build}"),
            Self::Downgrade(build) => write!(f, "downgraded from {build}"),
            Self::Cut => f.write_str("API server cut, and a start meanwhile"),
            Self::Interrupt(Interruption {
                number,
                build,
                after,
                signal,
                is_repaired,
            }) => {
                write!(f, "start {number}")?;
                if *build != Build::Usual {
                    write!(f, ", of {build},")?;
                }
                write!(f, " ended by {signal} at {:.0} %", after * 100.0)?;
                if *is_repaired {
                    f.write_str(", and a whole one")
                } else {
                    Ok(())
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: [Build; 2] = [Build::OtherSizes, Build::AllSockets];
    const ALL: [Kind; 5] = [Kind::Kill, Kind::Stop, Kind::Upgrade, Kind::Cut, Kind::Interrupt];

    #[test]
    fn the_same_seed_makes_the_same_events_and_another_one_others() {
        let of = |seed| Plan::new(&ALL, &OTHERS, 1, 20, seed).events;
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn each_upgrade_is_taken_back_and_the_last_start_is_a_whole_one() {
        let events = Plan::new(&ALL, &OTHERS, 2, 20, 1).events;
        let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
        let upgrades = count(|event| matches!(event, Event::Upgrade(_)));
        assert!(upgrades > 0);
        assert_eq!(upgrades, count(|event| matches!(event, Event::Downgrade(_))));
        assert_eq!(count(|event| matches!(event, Event::Interrupt(_))), 20);
        assert_eq!(count(|event| *event == Event::Cut), 2);
        assert!(matches!(events.last(), Some(Event::Interrupt(last)) if last.is_repaired));
    }
}
