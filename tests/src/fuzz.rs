//! Packets that nobody would send, through the real programs: generated, broken, and judged one by one.
//!
//! In reading order:
//!
//! * [`anatomy`]: what stands where in a packet.
//! * [`world`]: the services that packets meet, and what happens to them under way.
//! * [`programs`]: the programs, loaded and fed by hand.
//! * [`shadow`], [`oracle`], [`compare`], [`refusal`], [`rows`]: what must become of a packet, and of the flow table.
//! * [`build`], [`generate`], [`mutate`]: packets.
//! * [`script`], [`minimise`]: what happened, as a file, and less of it.

pub mod anatomy;
pub mod build;
pub mod compare;
pub mod generate;
pub mod minimise;
pub mod mutate;
pub mod oracle;
pub mod programs;
pub mod refusal;
pub mod rows;
pub mod script;
pub mod shadow;
pub mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use self::oracle::{Fate, Fault, Oracle, Sent};
use self::programs::Programs;
use self::script::{Script, Step};
use self::shadow::Shadow;
use self::world::{Change, World};

/// Steps of one run from an empty flow table: enough for flows to meet, few enough to be made fewer.
const EPISODE: usize = 300;

/// What becomes of a packet that no program sees.
const TOO_SHORT: &str = "too short";

/// Something that was not right.
#[derive(Clone, Debug)]
pub struct Found {
    /// What.
    pub fault: Fault,
    /// What happened, from an empty flow table on; the last step is the wrong one.
    pub steps: Vec<Step>,
}

/// How many packets had which fate.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    fates: BTreeMap<&'static str, u64>,
}

impl Tally {
    fn add(&mut self, fate: &'static str) {
        *self.fates.entry(fate).or_default() += 1;
    }

    /// How many had that one.
    #[must_use]
    pub fn of(&self, fate: &str) -> u64 {
        self.fates.get(fate).copied().unwrap_or(0)
    }

    /// All fates that are there, and how many packets had each.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.fates.iter().map(|(fate, count)| (*fate, *count))
    }

    /// How many packets there were. Those that the kernel runs no program on do not count.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.fates.values().sum::<u64>() - self.of(TOO_SHORT)
    }
}

/// Plays scripts, known and made up.
#[derive(Debug)]
pub struct Fuzzer {
    programs: Programs,
    world: World,
    shadow: Shadow,
    seeds: Vec<Sent>,
    tally: Tally,
}

impl Fuzzer {
    /// Loads the programs.
    pub fn new() -> Result<Self> {
        Ok(Self {
            programs: Programs::load()?,
            world: World::new(),
            shadow: Shadow::default(),
            seeds: Vec::new(),
            tally: Tally::default(),
        })
    }

    /// Where the corpus is: what was found once, and packets that are worth to be broken.
    #[must_use]
    pub fn corpus() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
    }

    /// Lets the packets of a script be broken too.
    pub fn learn(&mut self, script: &Script) {
        self.seeds.extend(script.steps.iter().filter_map(|step| match step {
            Step::Packet(sent) => Some(sent.clone()),
            Step::Change(_) => None,
        }));
    }

    /// What became of all packets so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Plays steps from an empty flow table on, to the first that is not right.
    pub fn play(&mut self, steps: &[Step]) -> Result<Option<Found>> {
        self.begin()?;
        for (index, step) in steps.iter().enumerate() {
            if let Err(fault) = self.step(step)? {
                let steps = steps[..=index].to_vec();
                return Ok(Some(Found { fault, steps }));
            }
        }
        let fault = rows::all(&mut self.programs, &self.shadow)?.err();
        Ok(fault.map(|fault| Found {
            fault,
            steps: steps.to_vec(),
        }))
    }

    /// Makes up a few hundred steps, always the same for one seed but for what the programs leave to chance, and plays
    /// them.
    pub fn episode(&mut self, seed: u64) -> Result<Option<Found>> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        self.begin()?;
        let mut steps = Vec::with_capacity(EPISODE);
        for _ in 0..EPISODE {
            let step = if rng.random_ratio(1, 25) {
                Step::Change(generate::change(&mut rng, &self.world))
            } else {
                Step::Packet(generate::packet(&mut rng, &self.world, &self.shadow, &self.seeds))
            };
            let right = self.step(&step)?;
            steps.push(step);
            if let Err(fault) = right {
                return Ok(Some(Found { fault, steps }));
            }
        }
        let fault = rows::all(&mut self.programs, &self.shadow)?.err();
        Ok(fault.map(|fault| Found { fault, steps }))
    }

    fn begin(&mut self) -> Result<()> {
        self.programs.forget()?;
        self.world = World::new();
        self.world.write(&mut self.programs)?;
        self.shadow = Shadow::default();
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<Result<(), Fault>> {
        match step {
            Step::Packet(sent) => self.packet(sent),
            Step::Change(change) => {
                self.shadow.doubt();
                match change {
                    Change::Expire => rows::expire(&mut self.programs)?,
                    Change::Evict(row) => {
                        self.shadow.tear();
                        rows::evict(&mut self.programs, *row)?;
                    }
                    Change::Backend(..) | Change::Service(..) => self.world.change(&mut self.programs, change)?,
                }
                Ok(Ok(()))
            }
        }
    }

    fn packet(&mut self, sent: &Sent) -> Result<Result<(), Fault>> {
        let out = self.programs.run(sent.program, &sent.bytes, sent.mark, sent.gso_size)?;
        let Some(out) = out else {
            self.tally.add(TOO_SHORT);
            return Ok(Ok(()));
        };
        let mut oracle = Oracle {
            world: &self.world,
            shadow: &mut self.shadow,
        };
        let fate = match oracle.judge(sent, &out) {
            Ok(fate) => fate,
            Err(fault) => return Ok(Err(fault)),
        };
        self.tally.add(match fate {
            Fate::Untouched => "untouched",
            Fate::Dropped => "dropped",
            Fate::Refused => "refused",
            Fate::Request(_) => "request",
            Fate::Answer => "answer",
            Fate::Error => "error",
            Fate::Piece => "piece",
        });
        match &fate {
            Fate::Request(ends) => match self.shadow.by_request(ends) {
                Some(flow) if flow.has_both_rows() => rows::pair(&mut self.programs, flow),
                _ => Ok(Ok(())),
            },
            _ => Ok(Ok(())),
        }
    }
}
